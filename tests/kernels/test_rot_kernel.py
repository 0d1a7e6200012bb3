"""The fused ROT kernel against the PyTorch path in float64."""

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
    "ragged": ([1, 2, 3, 17, 64, 5, 33, 1] * 8, 10),
    "streamed": ([1024, 3000, 1], 10),
    "many classes": ([64] * 16, 100),
    "very many classes": ([40, 8], 1000),
}


def problem(sizes, num_classes, scale=2.0, shuffled=False):
    logits = scale * torch.randn(sum(sizes), num_classes, device="cuda")
    layout = BagLayout.from_sizes(sizes)
    if shuffled:
        layout = BagLayout.from_index(layout.bag_index[torch.randperm(sum(sizes))], len(sizes))
    proportions = torch.rand(len(sizes), num_classes, device="cuda")
    proportions[:, 1:] *= torch.rand_like(proportions[:, 1:]) > 0.3  # exact zeros
    return logits, layout.to("cuda"), proportions / proportions.sum(dim=1, keepdim=True)


def both(logits, layout, proportions, alpha, epsilon):
    """(values, gradient) of the kernel and of the reference."""
    logits = logits.clone().requires_grad_()
    values = BF.rot(logits, layout, proportions, alpha=alpha, epsilon=epsilon, reduction="none")
    (gradient,) = torch.autograd.grad(values.sum(), logits)
    inputs = prepare(logits.detach().double().cpu(), layout.to("cpu"), proportions.double().cpu())
    plan = solve_rot(inputs, alpha, epsilon)
    scale = (alpha / inputs.layout.sizes.double())[inputs.layout.bag_index][:, None]
    labels = inputs.logits.softmax(dim=1) - gradient.cpu().double() / scale
    return values.cpu().double(), labels, torch.where(inputs.counted, plan.values, 0), plan.labels


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("shuffled", [False, True])
@pytest.mark.parametrize(("alpha", "epsilon"), [(0.1, 1.0), (0.5, 1.0), (0.9, 1.0), (0.5, 0.1)])
def test_values_and_plans(shape, shuffled, alpha, epsilon):
    values, labels, expected_values, expected_labels = both(*problem(*SHAPES[shape], shuffled=shuffled), alpha, epsilon)
    torch.testing.assert_close(labels, expected_labels, rtol=0, atol=1e-5)
    torch.testing.assert_close(values, expected_values, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("scale", [12.0, 1e4])
def test_confident_predictions(scale):
    values, labels, expected_values, expected_labels = both(*problem([16] * 32 + [3000], 10, scale=scale), 0.5, 1.0)
    torch.testing.assert_close(labels, expected_labels, rtol=0, atol=2e-5)
    torch.testing.assert_close(values, expected_values, rtol=1e-5, atol=1e-4)


def test_unknown_empty_and_impossible_bags():
    logits, layout, proportions = problem([3, 0, 2, 2], 3)
    proportions[0] = math.nan
    proportions[2] = torch.tensor([1.0, 0.0, 0.0])
    logits[3, 0] = -math.inf
    logits.requires_grad_()
    values = BF.rot(logits, layout, proportions, reduction="none")
    (gradient,) = torch.autograd.grad(values[3], logits)
    assert values[:3].tolist() == [0.0, 0.0, math.inf]
    assert gradient.isfinite().all()
    assert (gradient[:5] == 0).all()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision(dtype):
    logits, layout, proportions = problem([16] * 8, 10)
    logits = logits.to(dtype).requires_grad_()
    BF.rot(logits, layout, proportions).backward()
    assert logits.grad.dtype == dtype
    assert logits.grad.isfinite().all()


def test_a_step_never_waits_for_the_gpu():
    logits, layout, proportions = problem([16] * 8, 10)
    logits.requires_grad_()
    BF.rot(logits, layout, proportions).backward()  # compile, and build what the layout caches
    torch.cuda.set_sync_debug_mode("error")
    try:
        BF.rot(logits, layout, proportions).backward()
        BF.bag_kl(logits, layout, proportions).backward()
    finally:
        torch.cuda.set_sync_debug_mode("default")
