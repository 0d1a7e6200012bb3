"""The fused losses on a GPU against the PyTorch path in float64, with fresh random inputs."""

import math

import pytest
import torch

from bagwise import functional as BF
from bagwise.bags import BagLayout
from bagwise.functional.inputs import prepare
from bagwise.functional.rot import solve_rot

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


@pytest.mark.parametrize("sizes", [[16] * 64, [300, 1000, 7], [3000]])
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


@pytest.mark.parametrize("epsilon", [0.01, 1.0])
def test_rot_at_any_epsilon(epsilon):
    """Where the kernel would not be exact the reference takes over."""
    (_, plan), exact = solutions(*problem([16] * 8, 10), 0.5, epsilon)
    torch.testing.assert_close(plan, exact[1], rtol=0, atol=1e-5)


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
    logits, layout, proportions = problem([3, 0, 5, 2, 40], 4)
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


@pytest.mark.filterwarnings("ignore:Synchronization debug mode")  # a prototype feature, it says
@pytest.mark.parametrize("name", LOSSES)
def test_a_step_never_waits_for_the_gpu(name):
    for sizes in ([16] * 8, [9, 3000, 2]):
        logits, layout, proportions = problem(sizes, 10)
        logits.requires_grad_()
        LOSSES[name](logits, layout, proportions).backward()  # compile
        try:
            torch.cuda.set_sync_debug_mode("error")
            LOSSES[name](logits, layout, proportions).backward()
        finally:
            torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize("name", LOSSES)
def test_a_step_can_be_captured(name):
    logits, layout, proportions = problem([16] * 8 + [300], 10)
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


@pytest.mark.parametrize("sizes", [[16] * 300, [1, 40, 7, 200] * 20])
def test_exact_assignments_in_batch(sizes):
    """Thousands of bags at once on the GPU are proved optimal there, and cost what they cost on the CPU."""
    logits, layout, proportions = problem(sizes, 10)
    for how, loss in {"lp": BF.transport_lp, "combinatorial": BF.combinatorial}.items():
        options = {"marginals": "rounded"} if how == "lp" else {}
        plan = BF.apportion(logits, layout, proportions, how=how, **options)
        assert plan.converged.all()
        values = loss(logits, layout, proportions, reduction="none", **options)
        expected = loss(logits.cpu(), layout.to("cpu"), proportions.cpu(), reduction="none", **options)
        torch.testing.assert_close(values.cpu(), expected, rtol=1e-5, atol=1e-5)
