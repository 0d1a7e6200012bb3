"""The fused losses on a GPU against the PyTorch path in float64, with fresh random inputs."""

import math
import warnings

import pytest
import torch

from bagwise import functional as BF
from bagwise.bags import BagLayout
from bagwise.functional.inputs import prepare
from bagwise.functional.rot import solve_rot
from cuda_waits import waits_are

pytestmark = pytest.mark.cuda

SHAPES = {
    "many tiny bags": ([16] * 512, 10),
    "very many tiny bags": ([3] * 20_000, 4),
    "single instances": ([1] * 300, 2),
    "ragged": ([1, 2, 3, 17, 64, 5, 33, 1, 0] * 8, 10),
    "heavy-tailed": ([5000, 700, 300, *[20] * 30, *[3] * 300], 10),
    "one large bag": ([5000], 10),
    "many large bags": ([1100] * 20, 10),
    "many classes": ([64] * 16, 100),
    "large, many classes": ([1024, 600], 100),
    "very many classes": ([40, 8], 1000),
}
LARGE_SHAPES = {
    "thousands": ([2000, 1500, 1025], 10),
    "tens of thousands": ([65_536, 65_537], 10),
    "a million": ([1_000_000], 10),
    "tiny and huge": ([300_000, *[3] * 500, 1, 0, 5000, 1200, 2, *[1030] * 200, 17], 10),
    "more bags than processors": ([1100] * 300, 16),
    "100 classes": ([4096, 130, 20], 100),
    "300 classes": ([90, 3000, 2], 300),
    "1000 classes": ([300, 17, 3, 1], 1000),
    "1024 classes": ([33, 2000], 1024),
    "2 classes": ([20_000, 7], 2),
}
LOSSES = {
    "rot": BF.rot,
    "kl": BF.bag_kl,
    "l1": lambda *arguments, **options: BF.proportion_loss(*arguments, divergence="l1", **options),
    "l2": lambda *arguments, **options: BF.proportion_loss(*arguments, divergence="l2", **options),
    "avg_kl": BF.avg_kl,
}


def problem(sizes, num_classes, scale=2.0, shuffled=False):
    logits = scale * torch.randn(sum(sizes), num_classes, device="cuda")
    layout = BagLayout.from_sizes(sizes)
    if shuffled:
        layout = BagLayout.from_index(layout.bag_index[torch.randperm(sum(sizes))], len(sizes))
    proportions = torch.rand(len(sizes), num_classes, device="cuda")
    proportions[:, 1:] *= torch.rand_like(proportions[:, 1:]) > 0.3  # exact zeros
    return logits, layout.to("cuda"), proportions / proportions.sum(dim=1, keepdim=True)


def solutions(logits, layout, proportions, alpha, epsilon):
    """(values, plan) of the kernel, and of the reference."""
    logits = logits.clone().requires_grad_()
    values = BF.rot(logits, layout, proportions, alpha=alpha, epsilon=epsilon, reduction="none")
    (gradient,) = torch.autograd.grad(values.sum(), logits)
    inputs = prepare(logits.detach().double().cpu(), layout.to("cpu"), proportions.double().cpu())
    exact = solve_rot(inputs, alpha, epsilon)
    weight = (alpha / inputs.layout.sizes.double())[inputs.layout.bag_index][:, None]
    plan = inputs.logits.softmax(dim=1) - gradient.cpu().double() / weight
    return (values.cpu().double(), plan), (torch.where(inputs.counted, exact.values, 0), exact.labels)


def is_fused(tensor):
    return "FusedLoss" in type(tensor.grad_fn).__name__


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(("shuffled", "alpha", "epsilon"), [(False, 0.5, 1.0), (True, 0.1, 1.0), (True, 0.5, 0.1)])
def test_rot_finds_the_plan(shape, shuffled, alpha, epsilon):
    (values, plan), exact = solutions(*problem(*SHAPES[shape], shuffled=shuffled), alpha, epsilon)
    torch.testing.assert_close(plan, exact[1], rtol=0, atol=1e-5 if epsilon == 1 else 3e-5)
    torch.testing.assert_close(values, exact[0], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("alpha", [0.1, 0.5])
@pytest.mark.parametrize("size", [1, 2, 4, 8, 300, 2000])
def test_rot_always_ends(size, alpha):
    """Threads that disagree in the last bit on whether a bag is done would wait for each other for ever."""
    for _ in range(20):
        labels = torch.randint(10, (128, size), device="cuda")
        proportions = torch.nn.functional.one_hot(labels, 10).float().mean(dim=1)
        logits = torch.randn(128 * size, 10, device="cuda")
        layout = BagLayout.from_sizes([size] * 128, "cuda")
        assert BF.rot(logits, layout, proportions, alpha=alpha).isfinite()


@pytest.mark.parametrize("shape", LARGE_SHAPES)
@pytest.mark.parametrize(("shuffled", "alpha", "epsilon"), [(False, 0.5, 1.0), (True, 0.2, 0.3)])
def test_rot_of_large_bags(shape, shuffled, alpha, epsilon):
    logits, layout, proportions = problem(*LARGE_SHAPES[shape], shuffled=shuffled)
    if layout.num_bags > 1:
        proportions[-1] = math.nan
    if logits.shape[1] > 2:
        logits[:, 2] = -math.inf  # nobody can take it, not even where the proportions ask for it
    assert is_fused(BF.rot(logits.clone().requires_grad_(), layout, proportions, alpha=alpha, epsilon=epsilon))
    (values, plan), exact = solutions(logits, layout, proportions, alpha, epsilon)
    known = (~proportions[:, 0].isnan())[layout.bag_index].cpu()
    torch.testing.assert_close(plan[known], exact[1][known], rtol=0, atol=1e-5 if epsilon == 1 else 2e-5)
    torch.testing.assert_close(values, exact[0], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("sizes", "num_classes"), [([50_000, 3000, *[1100] * 150], 10), ([4096] * 64, 100), ([900, 70, 5], 1000)]
)
def test_large_bags_come_out_the_same_every_time(sizes, num_classes):
    """Teams of programs share a bag: what one reads of another must not depend on who is early."""
    logits, layout, proportions = problem(sizes, num_classes)
    logits.requires_grad_()
    outcomes = []
    for _ in range(30):
        values = BF.rot(logits, layout, proportions, reduction="none")
        outcomes.append((values, *torch.autograd.grad(values.sum(), logits)))
        assert torch.equal(outcomes[-1][0], outcomes[0][0])
        assert torch.equal(outcomes[-1][1], outcomes[0][1])


def test_a_nan_stays_in_its_large_bag():
    logits, layout, proportions = problem([3000, 3000, 20], 10)
    logits[17, 3] = math.nan
    assert BF.rot(logits, layout, proportions, reduction="none").isnan().tolist() == [True, False, False]


@pytest.mark.parametrize("sizes", [[16] * 64, [300, 1000, 7], [3000], [70_000, 2000]])
@pytest.mark.parametrize("scale", [12.0, 1e4])
def test_rot_with_confident_predictions(sizes, scale):
    (values, plan), exact = solutions(*problem(sizes, 10, scale=scale), 0.5, 1.0)
    torch.testing.assert_close(plan, exact[1], rtol=0, atol=2e-5)
    torch.testing.assert_close(values, exact[0], rtol=1e-5, atol=1e-4)


def test_rot_where_a_class_starts_without_mass():
    """All instances rule class 1 out, e^-100 and less; the proportions bring some of it back, x moves by 90."""
    logits = torch.tensor([[0.0, -100.0], [0.0, -101.0], [0.0, -103.0]], device="cuda")
    proportions = torch.tensor([[0.5, 0.5]], device="cuda")
    (values, plan), exact = solutions(logits, BagLayout.from_sizes([3], "cuda"), proportions, 0.1, 1.0)
    torch.testing.assert_close(plan, exact[1], rtol=0, atol=1e-6)
    torch.testing.assert_close(values, exact[0], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("alpha", "epsilon"), [(0.5, 0.01), (0.5, 0.04), (0.01, 1.0), (0.5, 1.0)])
@pytest.mark.parametrize(("sizes", "num_classes"), [([16] * 8, 10), ([3000, 40], 10), ([20, 5], 200), ([20, 5], 1500)])
def test_rot_at_any_setting(sizes, num_classes, alpha, epsilon):
    """Where the kernels would not be exact, or have no room, the reference takes over."""
    logits, layout, proportions = problem(sizes, num_classes)
    has_kernel = epsilon == 1.0 and alpha == 0.5 and num_classes <= 1024
    loss = BF.rot(logits.clone().requires_grad_(), layout, proportions, alpha=alpha, epsilon=epsilon)
    assert is_fused(loss) == has_kernel
    (values, plan), exact = solutions(logits, layout, proportions, alpha, epsilon)
    torch.testing.assert_close(plan, exact[1], rtol=0, atol=1e-5)
    torch.testing.assert_close(values, exact[0], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", ["kl", "l1", "l2", "avg_kl"])
def test_losses_of_the_mean_prediction(name, shape):
    logits, layout, proportions = problem(*SHAPES[shape], shuffled=True)
    proportions[0] = math.nan
    ours, theirs = logits.clone().requires_grad_(), logits.double().requires_grad_()
    loss = LOSSES[name](ours, layout, proportions, reduction="none")
    assert is_fused(loss)
    expected = LOSSES[name](theirs, layout, proportions.double(), reduction="none")
    torch.testing.assert_close(loss.double(), expected, rtol=1e-5, atol=1e-5)
    cotangent = torch.randn(layout.num_bags, device="cuda")
    loss.backward(cotangent)
    expected.backward(cotangent.double())
    per_bag = layout.sizes.clamp(min=1)[layout.bag_index][:, None]  # gradients fall with the size of the bag
    torch.testing.assert_close(ours.grad.double() * per_bag, theirs.grad * per_bag, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_reductions(name, reduction):
    logits, layout, proportions = problem([3, 0, 5, 2, 40, 9000], 4)
    proportions[2] = math.nan
    ours, theirs = logits.clone().requires_grad_(), logits.double().requires_grad_()
    (3 * LOSSES[name](ours, layout, proportions, reduction=reduction)).backward()
    (3 * LOSSES[name](theirs, layout, proportions.double(), reduction=reduction)).backward()
    torch.testing.assert_close(ours.grad.double(), theirs.grad, rtol=0, atol=2e-5)


@pytest.mark.parametrize("name", ["rot", "kl", "avg_kl"])
def test_unknown_empty_and_impossible_bags(name):
    logits, layout, proportions = problem([3, 0, 2, 2], 3)
    proportions[0] = math.nan
    proportions[2] = torch.tensor([1.0, 0.0, 0.0])
    logits[3:5, 0] = -math.inf
    logits.requires_grad_()
    values = LOSSES[name](logits, layout, proportions, reduction="none")
    (gradient,) = torch.autograd.grad(values.sum(), logits)
    assert values[:3].tolist() == [0.0, 0.0, math.inf]
    assert gradient.isfinite().all()
    assert (gradient[:3] == 0).all()


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision(name, dtype):
    logits, layout, proportions = problem([16] * 8 + [2000], 10)
    logits = logits.to(dtype).requires_grad_()
    loss = LOSSES[name](logits, layout, proportions, reduction="sum")
    loss.backward()
    wide = logits.detach().double().requires_grad_()
    LOSSES[name](wide, layout, proportions.double(), reduction="sum").backward()
    assert loss.dtype == torch.float32
    torch.testing.assert_close(logits.grad, wide.grad.to(dtype), rtol=0.02, atol=1e-5)


@pytest.mark.parametrize("name", LOSSES)
def test_a_step_never_waits_for_the_gpu(name):
    for sizes in ([16] * 8, [9, 3000, 2]):
        logits, layout, proportions = problem(sizes, 10)
        logits.requires_grad_()
        LOSSES[name](logits, layout, proportions).backward()  # compile
        with waits_are("error"):
            LOSSES[name](logits, layout, proportions).backward()


@pytest.mark.parametrize("name", LOSSES)
def test_a_step_can_be_captured(name):
    logits, layout, proportions = problem([16] * 8 + [300, 3000], 10)
    logits.requires_grad_()
    LOSSES[name](logits, layout, proportions).backward()
    expected, logits.grad = logits.grad, None
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        LOSSES[name](logits, layout, proportions).backward()
    logits.grad.zero_()
    for _ in range(2):  # what a replay leaves behind must not disturb the next one
        graph.replay()
    torch.testing.assert_close(logits.grad, expected)


@pytest.mark.filterwarnings("ignore")  # of torch.compile itself
@pytest.mark.parametrize("name", ["rot", "kl"])
def test_one_graph_under_torch_compile_and_autocast(name):
    _, layout, proportions = problem([16] * 8, 10, shuffled=True)
    features = torch.randn(128, 6, device="cuda")
    weights = torch.randn(6, 10, device="cuda")

    def step(weights):
        with torch.autocast("cuda", torch.bfloat16):
            return LOSSES[name](features @ weights, layout, proportions)

    ours, theirs = weights.clone().requires_grad_(), weights.clone().requires_grad_()
    torch.compile(step, fullgraph=True)(ours).backward()
    step(theirs).backward()
    torch.testing.assert_close(ours.grad, theirs.grad, rtol=0.05, atol=1e-3)


@pytest.mark.parametrize("name", LOSSES)
def test_no_second_derivative(name):
    logits, layout, proportions = problem([4, 7], 5)
    logits.requires_grad_()
    with pytest.raises(RuntimeError, match="no second derivative"):
        torch.autograd.grad(LOSSES[name](logits, layout, proportions), logits, create_graph=True)


@pytest.mark.parametrize("num_classes", [3, 10, 12])
@pytest.mark.parametrize("sizes", [[16] * 300, [1, 40, 7, 200] * 20], ids=["equal", "ragged"])
@pytest.mark.parametrize("how", ["lp", "lp rounded", "combinatorial"])
def test_exact_assignments_in_batch(how, sizes, num_classes):
    """Many bags at once are proved optimal on the GPU, and cost what they cost on the CPU."""
    logits, layout, proportions = problem(sizes, num_classes)
    proportions[1] = math.nan
    loss = BF.combinatorial if how == "combinatorial" else BF.transport_lp
    options = {"marginals": "rounded"} if how == "lp rounded" else {}
    plan = BF.apportion(logits, layout, proportions, how=how.split()[0], **options)
    assert plan.labels.is_cuda
    assert plan.converged.all()
    values = loss(logits, layout, proportions, reduction="none", **options)
    expected = loss(logits.cpu(), layout.to("cpu"), proportions.cpu(), reduction="none", **options)
    torch.testing.assert_close(values.cpu(), expected, rtol=1e-5, atol=1e-5)
    if how == "lp":
        mean = torch.zeros_like(proportions).index_add(0, layout.bag_index, plan.labels) / layout.sizes[:, None]
        known = ~proportions[:, 0].isnan()
        torch.testing.assert_close(mean[known], proportions[known], rtol=0, atol=1e-5)


@pytest.mark.parametrize("how", ["lp", "combinatorial"])
def test_exact_assignments_wait_for_sweeps_and_not_for_bags(how):
    """The solver looks at its progress once per sweep over all bags, never once per bag."""
    logits, layout, proportions = problem([12] * 3000, 6)
    BF.apportion(logits, layout, proportions, how=how)  # builds what the layout keeps
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with waits_are("warn"):
            BF.apportion(logits, layout, proportions, how=how)
    assert 0 < sum("synchronizing" in str(warning.message) for warning in caught) < 1000
