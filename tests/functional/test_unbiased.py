"""EasyLLP and debiased squares: literal loops, and what "unbiased" promises."""

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings

from bagwise import functional as BF
from reference import literal, published
from reference.strategies import bag_problems


def uneven_prior(num_classes):
    prior = torch.arange(1, num_classes + 1, dtype=torch.float64)
    return prior / prior.sum()


@given(problem=bag_problems())
def test_easy_llp_equals_the_literal_loop(problem):
    logits, bag_index, proportions = problem
    prior = uneven_prior(logits.shape[1])
    members = literal.bags_of(bag_index, len(proportions))
    expected = [
        published.easy_llp(logits.numpy()[j], z, prior.numpy())
        for j, z in zip(members, proportions.numpy(), strict=True)
    ]
    arguments = {"prior": prior, "reduction": "none"}
    plain = BF.easy_llp(logits, bag_index, proportions, correction="none", **arguments)
    np.testing.assert_allclose(plain, expected, rtol=1e-10, atol=1e-10)
    absolute = BF.easy_llp(logits, bag_index, proportions, **arguments)
    np.testing.assert_allclose(absolute, np.abs(expected), rtol=1e-10, atol=1e-10)


@given(problem=bag_problems())
def test_debiased_squares_equal_the_literal_loop(problem):
    logits, bag_index, proportions = problem
    members = literal.bags_of(bag_index, len(proportions))
    expected = published.debiased_squares([logits.numpy()[j] for j in members], proportions.numpy())
    values = BF.debiased_squares(logits, bag_index, proportions, reduction="none")
    np.testing.assert_allclose(values, expected, rtol=1e-10, atol=1e-12)


def population():
    """Three instances with logits and labels, and the probability of each: all bags of two can be listed."""
    logits = torch.tensor([[0.5, -1.0, 0.0], [2.0, 0.3, -0.4], [-0.7, 0.1, 1.2]], dtype=torch.float64)
    labels, chances = torch.tensor([1, 0, 2]), torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64)
    return logits, torch.eye(3, dtype=torch.float64)[labels], chances


def test_easy_llp_is_unbiased():
    logits, one_hot, chances = population()
    logits.requires_grad_()
    prior = chances @ one_hot
    supervised = -(chances[:, None] * one_hot * logits.log_softmax(1)).sum()
    expected = torch.zeros((), dtype=torch.float64)
    for bag in itertools.product(range(3), repeat=3):
        drawn = list(bag)
        z = one_hot[drawn].mean(0, keepdim=True)
        value = BF.easy_llp(logits[drawn], torch.zeros(3, dtype=torch.long), z, prior=prior, correction="none")
        expected = expected + chances[drawn].prod() * value
    assert_same_value_and_slope(expected, supervised, logits)


def test_debiased_squares_are_unbiased():
    logits, one_hot, chances = population()
    logits.requires_grad_()
    brier = (chances * (logits.softmax(1) - one_hot).square().sum(1)).sum()
    expected = plain = torch.zeros((), dtype=torch.float64)
    for two_bags in itertools.product(range(3), repeat=4):
        drawn = list(two_bags)
        bag_index = torch.tensor([0, 0, 1, 1])
        z = one_hot[drawn].view(2, 2, 3).mean(1)
        weight = chances[drawn].prod()
        expected = expected + weight * BF.debiased_squares(logits[drawn], bag_index, z)
        plain = plain + weight * 2 * BF.proportion_loss(logits[drawn], bag_index, z, divergence="l2")
    assert plain > brier + 0.01  # what the correction is for
    assert_same_value_and_slope(expected, brier, logits)


def assert_same_value_and_slope(estimate, truth, logits):
    torch.testing.assert_close(estimate, truth)
    (slope,) = torch.autograd.grad(estimate, logits, retain_graph=True)
    (true_slope,) = torch.autograd.grad(truth, logits)
    torch.testing.assert_close(slope, true_slope)


@settings(max_examples=25)
@given(problem=bag_problems(max_bags=1))
def test_a_bag_alone_has_nothing_to_subtract(problem):
    logits, bag_index, proportions = problem
    alone = BF.debiased_squares(logits, bag_index, proportions)
    torch.testing.assert_close(alone, len(logits) * BF.proportion_loss(logits, bag_index, proportions, divergence="l2"))


def test_easy_llp_may_be_negative_and_the_correction_turns_it():
    logits, bag_index = torch.tensor([[0.0, 9.0], [0.0, 9.0]]), torch.tensor([0, 0])
    bag = {"proportions": torch.tensor([[0.0, 1.0]]), "prior": torch.tensor([0.5, 0.5])}
    plain = BF.easy_llp(logits, bag_index, correction="none", **bag)
    assert plain < -4
    torch.testing.assert_close(BF.easy_llp(logits, bag_index, **bag), -plain)


def test_a_class_without_weight_may_be_excluded():
    logits = torch.tensor([[0.0, 1.0, -math.inf]], requires_grad=True)
    prior = torch.tensor([0.5, 0.5, 0.0])
    loss = BF.easy_llp(logits, torch.tensor([0]), torch.tensor([[1.0, 0.0, 0.0]]), prior=prior)
    loss.backward()
    assert loss.isfinite()
    assert logits.grad.isfinite().all()


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"prior": [0.5, 0.5]}, TypeError, "prior must be a torch.Tensor"),
        ({"prior": torch.ones(3) / 3}, ValueError, r"shape \[2\], but got \[3\]"),
        ({"prior": torch.tensor([3.0, 1.0])}, ValueError, "sums to 4; divide it by its sum"),
        ({"prior": torch.tensor([1.5, -0.5])}, ValueError, "shares of at least 0"),
        ({"prior": torch.tensor([math.nan, 1.0])}, ValueError, "sums to nan"),
        ({"prior": torch.ones(2) / 2, "correction": "abs"}, ValueError, "correction must be one of"),
    ],
)
def test_what_is_wrong_is_named(options, error, message):
    with pytest.raises(error, match=message):
        BF.easy_llp(torch.zeros(2, 2), torch.tensor([0, 0]), torch.tensor([[0.5, 0.5]]), **options)
