"""Moment matching (LLP-MM) against the list of all draws."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from bagwise import functional as BF
from bagwise.bags import BagLayout
from reference import literal, published
from reference.strategies import bag_problems


@settings(max_examples=20)
@given(problem=bag_problems(max_bags=3, max_size=5, max_classes=3, integral=True), order=st.integers(1, 4))
def test_equals_the_list_of_all_draws(problem, order):
    logits, bag_index, proportions = problem
    expected = []
    for members, z in zip(literal.bags_of(bag_index, len(proportions)), proportions.numpy(), strict=True):
        labels = np.repeat(np.arange(len(z)), np.round(len(members) * z).astype(int))
        expected.append(published.moment_matching(logits.numpy()[members], labels, order))
    values = BF.moment_matching(logits, bag_index, proportions, order=order, reduction="none")
    np.testing.assert_allclose(values, expected, rtol=1e-8, atol=1e-10)


@given(problem=bag_problems())
def test_order_one_is_bag_kl(problem):
    torch.testing.assert_close(BF.moment_matching(*problem, order=1), BF.bag_kl(*problem), rtol=0, atol=0)


def test_the_truth_is_the_best_of_a_large_bag():
    """With sure and right predictions both laws are the same, and each cross-entropy is an entropy."""
    labels = torch.arange(4).repeat_interleave(torch.tensor([100, 60, 30, 10]))
    right = 40 * torch.eye(4, dtype=torch.float64)[labels]
    layout, z = BagLayout.from_sizes([200]), torch.tensor([[0.5, 0.3, 0.15, 0.05]], dtype=torch.float64)
    best = BF.moment_matching(right, layout, z)
    generator = torch.Generator().manual_seed(0)
    for scale in (0.0, 1.0, 8.0):
        noise = scale * torch.randn(right.shape, dtype=torch.float64, generator=generator)
        same_mean = z.log().expand(200, -1)  # the same prediction for all, right on average
        assert BF.moment_matching(same_mean + noise, layout, z) > best


def test_the_order_must_be_a_count():
    with pytest.raises(ValueError, match="order must be at least 1, but got 0"):
        BF.moment_matching(torch.zeros(2, 2), torch.tensor([0, 0]), torch.tensor([[0.5, 0.5]]), order=0)


def test_a_look_in_inference_mode_does_not_spoil_training():
    logits, index, proportions = torch.randn(6, 7), torch.tensor([0, 0, 0, 1, 1, 1]), torch.full((2, 7), 1 / 7)
    with torch.inference_mode():
        BF.moment_matching(logits, index, proportions)
    BF.moment_matching(logits.requires_grad_(), index, proportions).backward()
    assert logits.grad.isfinite().all()
