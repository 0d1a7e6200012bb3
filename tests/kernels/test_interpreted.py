"""The kernels, run by Triton's interpreter on a CPU, against the PyTorch path in float64."""

import math

import pytest
import torch

pytest.importorskip("triton")

from bagwise import functional as BF
from bagwise.bags import BagLayout
from bagwise.functional.fused import fused_proportion_loss, fused_rot
from bagwise.functional.inputs import prepare
from bagwise.functional.rot import solve_rot
from bagwise.kernels import proportion, rot_large, tiles

pytestmark = [
    pytest.mark.skipif(torch.cuda.is_available(), reason="test_cuda.py runs the kernels themselves"),
    pytest.mark.filterwarnings("ignore::RuntimeWarning"),  # NumPy on log2(0), which the kernels mean
]


@pytest.fixture
def tile_settings(monkeypatch):
    """Change the constants by which tiles are chosen."""

    def change(module, **constants):
        for name, value in constants.items():
            monkeypatch.setattr(module, name, value)

    tiles.plan_launches.cache_clear()
    yield change
    tiles.plan_launches.cache_clear()


@pytest.fixture(params=["one bag", "several bags", "a part of a bag"])
def rot_tile(request, tile_settings):
    """What a program of the rot kernels holds at a time."""
    if request.param == "several bags":
        tile_settings(tiles, _FULL_GRID=1, _SHARED_ENTRIES=(1, 1024))
    elif request.param == "a part of a bag":
        tile_settings(tiles, _RESIDENT_ENTRIES=0)
        tile_settings(rot_large, _CHUNK_ENTRIES=128)


@pytest.fixture(params=["on chip", "in pieces"])
def bag_size(request, tile_settings):
    """Both ways through the other losses: a bag in one tile, and one that is cut into pieces."""
    if request.param == "in pieces":
        tile_settings(tiles, _RESIDENT_ENTRIES=8)
        tile_settings(proportion, _CHUNK_ENTRIES=64, _CHUNKS_PER_PIECE=1)


def problem(sizes, num_classes, scale=2.0, shuffled=True, seed=0):
    generator = torch.Generator().manual_seed(seed)
    logits = scale * torch.randn(sum(sizes), num_classes, generator=generator)
    layout = BagLayout.from_sizes(sizes)
    if shuffled:
        place = torch.randperm(sum(sizes), generator=generator)
        layout = BagLayout.from_index(layout.bag_index[place], len(sizes))
    proportions = torch.rand(len(sizes), num_classes, generator=generator)
    proportions[:, 1:] *= torch.rand(len(sizes), num_classes - 1, generator=generator) > 0.3  # exact zeros
    return logits, layout, proportions / proportions.sum(dim=1, keepdim=True)


def reference_loss(logits, layout, proportions, divergence, reduction):
    logits, proportions = logits.double(), proportions.double()
    if divergence == "avg_kl":
        return BF.avg_kl(logits, layout, proportions, reduction=reduction)
    return BF.proportion_loss(logits, layout, proportions, divergence=divergence, reduction=reduction)


def plan_of(logits, layout, gradient, alpha):
    """U from the gradient of the sum over bags, alpha/n (F - U)."""
    weight = (alpha / layout.sizes.double())[layout.bag_index][:, None]
    return logits.double().softmax(dim=1) - gradient.double() / weight


@pytest.mark.parametrize(
    ("sizes", "num_classes", "shuffled"),
    [([1, 17, 5, 0, 1], 10, True), ([8, 8, 8], 3, False)],
)
@pytest.mark.parametrize(("alpha", "epsilon"), [(0.5, 1.0), (0.3, 0.3)])
def test_rot_finds_the_plan(rot_tile, sizes, num_classes, shuffled, alpha, epsilon):
    logits, layout, proportions = problem(sizes, num_classes, shuffled=shuffled)
    logits.requires_grad_()
    values = fused_rot(logits, layout, proportions, alpha, epsilon, "none")
    (gradient,) = torch.autograd.grad(values.sum(), logits)
    inputs = prepare(logits.detach().double(), layout, proportions.double())
    exact = solve_rot(inputs, alpha, epsilon)
    torch.testing.assert_close(plan_of(logits.detach(), layout, gradient, alpha), exact.labels, rtol=0, atol=5e-6)
    torch.testing.assert_close(values.double(), torch.where(inputs.counted, exact.values, 0), rtol=1e-5, atol=2e-6)


@pytest.mark.parametrize(("scale", "epsilon"), [(20.0, 0.3), (1e4, 1.0)])
def test_rot_with_extreme_logits(rot_tile, scale, epsilon):
    """Masses underflow and x moves far: the steps in the log domain have to do it."""
    logits, layout, proportions = problem([9, 1], 4, scale=scale)
    logits.requires_grad_()
    values = fused_rot(logits, layout, proportions, 0.5, epsilon, "none")
    (gradient,) = torch.autograd.grad(values.sum(), logits)
    exact = solve_rot(prepare(logits.detach().double(), layout, proportions.double()), 0.5, epsilon)
    torch.testing.assert_close(plan_of(logits.detach(), layout, gradient, 0.5), exact.labels, rtol=0, atol=2e-5)
    torch.testing.assert_close(values.double(), exact.values, rtol=1e-5, atol=2e-6)


def test_rot_of_single_instances_that_are_surer_than_float32_can_hold(rot_tile):
    """S moves by thousands of powers of two, and x with it, all of it and not only its differences."""
    logits = torch.tensor([[-1.5, -211.75], [70.4, -122.6], [524.4, -252.7]], requires_grad=True)
    layout, proportions = BagLayout.from_sizes([1, 1, 1]), torch.tensor([[0.47, 0.53], [0.34, 0.66], [0.62, 0.38]])
    values = fused_rot(logits, layout, proportions, 0.5, 0.1, "none")
    (gradient,) = torch.autograd.grad(values.sum(), logits)
    exact = solve_rot(prepare(logits.detach().double(), layout, proportions.double()), 0.5, 0.1)
    torch.testing.assert_close(plan_of(logits.detach(), layout, gradient, 0.5), exact.labels, rtol=0, atol=1e-6)
    torch.testing.assert_close(values.double(), exact.values, rtol=1e-5, atol=1e-6)


def test_rot_where_the_likeliest_class_is_absent(rot_tile):
    """The other two differ by less than float32 can tell of their log-probabilities, -9999.7 and -10000."""
    logits = torch.tensor([[1e4, 0.3, 0.0], [1e4, -0.0001, 0.0004]], requires_grad=True)
    layout, proportions = BagLayout.from_sizes([2]), torch.tensor([[0.0, 0.7, 0.3]])
    values = fused_rot(logits, layout, proportions, 0.5, 1.0, "none")
    (gradient,) = torch.autograd.grad(values.sum(), logits)
    exact = solve_rot(prepare(logits.detach().double(), layout, proportions.double()), 0.5, 1.0)
    torch.testing.assert_close(plan_of(logits.detach(), layout, gradient, 0.5), exact.labels, rtol=0, atol=1e-6)
    torch.testing.assert_close(values.double(), exact.values, rtol=1e-6, atol=0)


def test_rot_where_a_class_starts_without_mass(rot_tile):
    """All instances rule class 1 out, e^-100 and less; the proportions bring some of it back, x moves by 90."""
    logits = torch.tensor([[0.0, -100.0], [0.0, -101.0], [0.0, -103.0]], requires_grad=True)
    layout, proportions = BagLayout.from_sizes([3]), torch.tensor([[0.5, 0.5]])
    values = fused_rot(logits, layout, proportions, 0.1, 1.0, "none")
    (gradient,) = torch.autograd.grad(values.sum(), logits)
    exact = solve_rot(prepare(logits.detach().double(), layout, proportions.double()), 0.1, 1.0)
    assert exact.labels[0, 1] > 1e-5
    torch.testing.assert_close(plan_of(logits.detach(), layout, gradient, 0.1), exact.labels, rtol=0, atol=1e-6)
    torch.testing.assert_close(values.double(), exact.values, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("divergence", "reduction"), [("kl", "mean"), ("l1", "none"), ("l2", "sum"), ("avg_kl", "none")]
)
def test_losses_of_the_mean_prediction(bag_size, divergence, reduction):
    logits, layout, proportions = problem([1, 2, 17, 0, 1], 10)
    proportions[1] = math.nan
    ours, theirs = logits.clone().requires_grad_(), logits.clone().requires_grad_()
    loss = fused_proportion_loss(ours, layout, proportions, divergence, reduction)
    expected = reference_loss(theirs, layout, proportions, divergence, reduction)
    torch.testing.assert_close(loss.double(), expected, rtol=1e-6, atol=1e-6)
    cotangent = torch.linspace(-1, 2, 5) if reduction == "none" else torch.tensor(3.0)
    loss.backward(cotangent)
    expected.backward(cotangent.double())
    torch.testing.assert_close(ours.grad, theirs.grad, rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    ("fused_loss", "options"),
    [(fused_rot, (0.5, 1.0)), (fused_proportion_loss, ("kl",)), (fused_proportion_loss, ("avg_kl",))],
)
def test_unknown_empty_and_impossible_bags(rot_tile, fused_loss, options):
    logits, layout, proportions = problem([3, 0, 2, 2], 3, shuffled=False)
    proportions[0] = math.nan
    proportions[2] = torch.tensor([1.0, 0.0, 0.0])
    logits[3:5, 0] = -math.inf  # nobody in bag 2 can be of its only class
    logits.requires_grad_()
    values = fused_loss(logits, layout, proportions, *options, "none")
    assert values[:2].tolist() == [0.0, 0.0]
    assert values[2] == math.inf
    assert values[3].isfinite()
    (gradient,) = torch.autograd.grad(values[3], logits, retain_graph=True)
    assert gradient.isfinite().all()
    assert (gradient[:5] == 0).all()
    (gradient,) = torch.autograd.grad(values.sum(), logits)
    assert gradient.isfinite().all()
    assert (gradient[:3] == 0).all()


def test_a_nan_is_seen_and_stays_in_its_bag(rot_tile):
    logits, layout, proportions = problem([4, 4], 3, shuffled=False)
    logits[0, 0] = math.nan
    for values in (
        fused_rot(logits, layout, proportions, 0.5, 1.0, "none"),
        fused_proportion_loss(logits, layout, proportions, "kl", "none"),
    ):
        assert values.isnan().tolist() == [True, False]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_logits(dtype):
    logits, layout, proportions = problem([4, 7], 5)
    logits = logits.to(dtype).requires_grad_()
    loss = fused_rot(logits, layout, proportions, 0.5, 1.0, "mean")
    assert loss.dtype == torch.float32
    (gradient,) = torch.autograd.grad(loss, logits)
    wide = logits.detach().double().requires_grad_()
    (expected,) = torch.autograd.grad(BF.rot(wide, layout, proportions.double()), wide)
    torch.testing.assert_close(gradient, expected.to(dtype))


def test_no_second_derivative():
    logits, layout, proportions = problem([4, 7], 5)
    logits.requires_grad_()
    loss = fused_proportion_loss(logits, layout, proportions, "kl", "mean")
    with pytest.raises(RuntimeError, match="no second derivative"):
        torch.autograd.grad(loss, logits, create_graph=True)


@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")  # by Dynamo, of its own doing
@pytest.mark.parametrize("shuffled", [False, True])
def test_one_graph_under_torch_compile(shuffled):
    logits, layout, proportions = problem([4, 7, 2], 5, shuffled=shuffled)
    _ = layout.offsets, layout.size_classes  # a layout on a GPU has them from the start

    def step(logits):
        rot = fused_rot(2 * logits, layout, proportions, 0.5, 1.0, "mean")
        return rot + fused_proportion_loss(logits, layout, proportions, "kl", "mean")

    ours, theirs = logits.clone().requires_grad_(), logits.clone().requires_grad_()
    torch.compile(step, backend="aot_eager", fullgraph=True)(ours).backward()
    step(theirs).backward()
    torch.testing.assert_close(ours.grad, theirs.grad)


def test_launches_cover_every_bag_once():
    widths, counts = (4096, 512, 64, 16, 1), (2, 3, 100_000, 50_000, 7)
    large, launches = tiles.plan_launches(widths, counts, num_classes=10)
    assert large == 1
    position = counts[0]
    for launch in launches:
        assert launch.first == position
        position += launch.count
    assert position == sum(counts)
    assert [launch.width for launch in launches] == [512, 64, 16, 2]


@pytest.mark.parametrize("bags", [{2048: 3}, {524_288: 1, 2048: 300}, {65_536: 100}, {2**20: 1}, {4096: 64}])
def test_teams_fit_on_the_processors(bags):
    teams = rot_large.Teams.of(tuple(bags), tuple(bags.values()), chunk=512, num_processors=132)
    sizes = [width for width, count in bags.items() for _ in range(count)]
    members = [-(-size // teams.rows_per_member) for size in sizes[: teams.num_teams]]
    assert all(size >= 2 for size in members)
    assert all(size <= teams.rows_per_member for size in sizes[teams.num_teams :])
    assert sum(members) <= teams.num_programs <= 132
    assert teams.num_programs == min(132, sum(members) + len(sizes) - teams.num_teams)


def test_a_huge_bag_gets_a_team_however_many_others_there_are():
    teams = rot_large.Teams.of((524_288, 2048), (1, 300), chunk=512, num_processors=132)
    assert (teams.num_teams, teams.rows_per_member) == (1, 4096)


def test_small_bags_ride_with_larger_ones_while_the_gpu_is_not_full():
    _, launches = tiles.plan_launches((256, 64, 16, 1), (2, 10, 100, 5), num_classes=10)
    assert [(launch.first, launch.count, launch.width) for launch in launches] == [(0, 117, 256)]
