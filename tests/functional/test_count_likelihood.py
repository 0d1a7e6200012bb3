"""The count likelihood against all outcomes and against dynamic programming."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from bagwise import functional as BF
from bagwise.bags import BagLayout
from reference import literal, published
from reference.strategies import bag_problems


@settings(max_examples=50)
@given(problem=bag_problems(integral=True), reference=st.sampled_from(["by_outcomes", "by_programming"]))
def test_equals_the_references(problem, reference):
    logits, bag_index, proportions = problem
    by_outcomes = reference == "by_outcomes"
    expected = []
    for members, z in zip(literal.bags_of(bag_index, len(proportions)), proportions.numpy(), strict=True):
        counts = np.round(len(members) * z).astype(int)
        count_likelihood = published.count_likelihood_by_outcomes if by_outcomes else published.count_likelihood
        expected.append(count_likelihood(logits.numpy()[members], counts))
    values = BF.count_likelihood(logits, bag_index, proportions, reduction="none")
    # 1 - f of the outcomes cancels where f is nearly 1
    np.testing.assert_allclose(values, expected, rtol=1e-4 if by_outcomes else 1e-10, atol=1e-12)


@pytest.mark.parametrize("scale", [0.1, 1.0, 5.0, 50.0])
@pytest.mark.parametrize("n", [2, 37, 300, 1024])
def test_large_bags_keep_full_precision(n, scale):
    rng = np.random.default_rng(n)
    logits = rng.normal(scale=scale, size=(n, 3))
    counts = rng.multinomial(n, rng.dirichlet(np.ones(3)))
    layout, z = BagLayout.from_sizes([n]), torch.from_numpy(counts / n)[None]
    value = BF.count_likelihood(torch.from_numpy(logits), layout, z)
    np.testing.assert_allclose(value, published.count_likelihood(logits, counts), rtol=1e-10)


@pytest.mark.parametrize("count", [0, 1, 511, 1023, 1024])
def test_counts_that_the_predictions_did_not_expect(count):
    """The likelihood itself is as small as exp(-3000) here: far below what a float holds."""
    rng = np.random.default_rng(count)
    logits = np.stack([rng.normal(3, 1, 1024), np.zeros(1024)], axis=1)
    counts = np.array([count, 1024 - count])
    z = torch.from_numpy(counts / 1024)[None]
    value = BF.count_likelihood(torch.from_numpy(logits), BagLayout.from_sizes([1024]), z)
    np.testing.assert_allclose(value, published.count_likelihood(logits, counts), rtol=1e-11)


def test_gradient_of_a_large_bag_is_the_posterior():
    """d(-log P(c)) / d log-odds_j = f_j - P(Y_j = 1 | count c); for two classes both counts give the same."""
    generator = torch.Generator().manual_seed(0)
    log_odds = torch.randn(200, dtype=torch.float64, generator=generator)
    logits = torch.stack([log_odds, torch.zeros(200, dtype=torch.float64)], dim=1).requires_grad_()
    layout, z = BagLayout.from_sizes([200]), torch.tensor([[0.3, 0.7]], dtype=torch.float64)
    BF.count_likelihood(logits, layout, z).backward()
    whole = published.count_likelihood(logits.detach().numpy(), [60, 140]) / 2
    for j in (0, 57, 199):
        others = np.delete(logits.detach().numpy(), j, axis=0)
        f = float(log_odds[j].sigmoid())
        posterior = f * math.exp(whole - published.count_likelihood(others, [59, 140]) / 2)
        np.testing.assert_allclose(logits.grad[j, 0], 2 * (f - posterior), rtol=1e-8)


def test_it_prefers_sure_predictions_where_the_mean_says_nothing():
    sure, unsure = torch.tensor([[6.0, 0.0], [0.0, 6.0]]), torch.zeros(2, 2)
    bag_index, half = torch.tensor([0, 0]), torch.tensor([[0.5, 0.5]])
    torch.testing.assert_close(BF.bag_kl(sure, bag_index, half), BF.bag_kl(unsure, bag_index, half))
    assert BF.count_likelihood(sure, bag_index, half) < BF.count_likelihood(unsure, bag_index, half) - 1


def test_counts_are_rounded():
    logits, bag_index = torch.randn(3, 2, generator=torch.Generator().manual_seed(0)), torch.tensor([0, 0, 0])
    noisy, exact = torch.tensor([[0.35, 0.65]]), torch.tensor([[1 / 3, 2 / 3]])
    assert BF.count_likelihood(logits, bag_index, noisy) == BF.count_likelihood(logits, bag_index, exact)


def test_a_count_that_the_predictions_exclude():
    logits = torch.tensor([[0.0, -math.inf, 0.0], [0.0, -math.inf, 1.0]], requires_grad=True)
    loss = BF.count_likelihood(logits, torch.tensor([0, 0]), torch.tensor([[0.5, 0.5, 0.0]]))
    loss.backward()
    assert loss > 1e5
    assert not logits.grad.isnan().any()
