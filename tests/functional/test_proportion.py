"""Losses on the bag's mean prediction against literal loops."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given

from bagwise import functional as BF
from reference import literal
from reference.strategies import bag_problems

LOSSES = {
    "bag_kl": (BF.bag_kl, literal.bag_kl),
    "avg_kl": (BF.avg_kl, literal.avg_kl),
    "l1": (lambda *a, **k: BF.proportion_loss(*a, divergence="l1", **k), literal.l1),
    "l2": (lambda *a, **k: BF.proportion_loss(*a, divergence="l2", **k), literal.l2),
    "kl": (lambda *a, **k: BF.proportion_loss(*a, divergence="kl", **k), literal.bag_kl),
}


@pytest.mark.parametrize("name", LOSSES)
@given(problem=bag_problems())
def test_equals_the_literal_loop(name, problem):
    logits, bag_index, proportions = problem
    loss, reference = LOSSES[name]
    members = literal.bags_of(bag_index, len(proportions))
    expected = [reference(logits.numpy()[j], z) for j, z in zip(members, proportions.numpy(), strict=True)]
    values = loss(logits, bag_index, proportions, reduction="none")
    np.testing.assert_allclose(values, expected, rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(loss(logits, bag_index, proportions), np.mean(expected), rtol=1e-10)
    np.testing.assert_allclose(loss(logits, bag_index, proportions, reduction="sum"), np.sum(expected), rtol=1e-10)


def test_bag_kl_is_not_avg_kl():
    """On a perfectly matched mixed bag KL(z|p) = 0 while avg_kl - H(z) > 0: the mistake of the package on PyPI."""
    logits = torch.tensor([[20.0, -20.0], [-20.0, 20.0]], dtype=torch.float64)
    bag_index, z = torch.tensor([0, 0]), torch.tensor([[0.5, 0.5]], dtype=torch.float64)
    entropy = math.log(2)
    assert abs(BF.bag_kl(logits, bag_index, z) - entropy) < 1e-12
    assert BF.avg_kl(logits, bag_index, z) - entropy > 10


def test_a_callable_divergence_gets_proportions_and_mean_predictions():
    logits, bag_index = torch.zeros(3, 2), torch.tensor([0, 0, 1])
    proportions = torch.tensor([[0.25, 0.75], [1.0, 0.0]])

    def chi_square(z, p):
        return ((z - p) ** 2 / p).sum(dim=1)

    values = BF.proportion_loss(logits, bag_index, proportions, divergence=chi_square, reduction="none")
    torch.testing.assert_close(values, torch.tensor([0.25, 1.0]))


def test_a_callable_that_reduces_too_much_is_told_so():
    with pytest.raises(ValueError, match=r"one value per bag, \[1\], but returned \[\]"):
        BF.proportion_loss(
            torch.zeros(2, 2),
            torch.tensor([0, 0]),
            torch.tensor([[0.5, 0.5]]),
            divergence=lambda z, p: z.sum(),
        )


def test_a_callable_divergence_never_sees_an_unknown_row():
    logits = torch.randn(4, 3, requires_grad=True)
    proportions = torch.tensor([[0.2, 0.3, 0.5], [math.nan] * 3])
    loss = BF.proportion_loss(
        logits,
        torch.tensor([0, 0, 1, 1]),
        proportions,
        divergence=lambda z, p: (z * (z / p).log()).sum(dim=1),
    )
    loss.backward()
    assert loss.isfinite()
    assert logits.grad.isfinite().all()
    assert (logits.grad[2:] == 0).all()


@pytest.mark.parametrize("loss", [BF.bag_kl, BF.avg_kl])
@pytest.mark.parametrize("ragged", [False, True])
def test_a_class_with_zero_proportion_contributes_nothing_even_when_impossible(loss, ragged):
    sizes = [2, 3] if ragged else [2, 2]
    bag_index = torch.arange(2).repeat_interleave(torch.tensor(sizes))
    logits = torch.zeros(len(bag_index), 3)
    logits[:, 2] = -torch.inf
    logits.requires_grad_()
    proportions = torch.tensor([[0.5, 0.5, 0.0], [1.0, 0.0, 0.0]])
    values = loss(logits, bag_index, proportions, reduction="none")
    torch.testing.assert_close(values, torch.full((2,), math.log(2)))
    values.sum().backward()
    assert logits.grad.isfinite().all()


@pytest.mark.parametrize("loss", [BF.bag_kl, BF.avg_kl])
def test_a_needed_class_that_is_impossible_costs_infinity_without_nan(loss):
    logits = torch.tensor([[0.0, -torch.inf], [0.0, -torch.inf], [0.0, 0.0]], requires_grad=True)
    proportions = torch.tensor([[0.5, 0.5], [0.5, 0.5]])
    values = loss(logits, torch.tensor([0, 0, 1]), proportions, reduction="none")
    assert values.tolist() == [math.inf, pytest.approx(math.log(2))]
    values.sum().backward()
    assert not logits.grad.isnan().any()
