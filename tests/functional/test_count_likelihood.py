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

NO = -math.inf


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


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("second", [[0.0, NO, 1.0], [NO, NO, 0.0], [0.0, NO, NO]])
@pytest.mark.parametrize("proportions", [[0.5, 0.5, 0.0], [0.0, 1.0, 0.0]])
def test_a_count_that_the_predictions_exclude(second, proportions, dtype):
    logits = torch.tensor([[0.0, NO, 0.0], second], dtype=dtype, requires_grad=True)
    loss = BF.count_likelihood(logits, torch.tensor([0, 0]), torch.tensor([proportions], dtype=dtype))
    loss.backward()
    assert 1e5 < loss < 1e8
    assert logits.grad.isfinite().all()


@pytest.mark.parametrize("no", [NO, -3e38, -1e4])
def test_a_count_that_some_instances_exclude(no):
    logits = torch.tensor([[no, no, 0.0], [0.0, 1.0, 2.0], [no, 0.5, 0.0]], dtype=torch.float64, requires_grad=True)
    loss = BF.count_likelihood(logits, torch.tensor([0, 0, 0]), torch.ones(1, 3, dtype=torch.float64) / 3)
    loss.backward()
    np.testing.assert_allclose(loss.item(), published.count_likelihood(logits.detach().numpy(), [1, 1, 1]), rtol=1e-10)
    assert logits.grad.isfinite().all()


def test_a_large_bag_among_small_ones_in_any_order():
    """Each size class has frequencies of its own; values and gradients are those of every bag alone."""
    rng = np.random.default_rng(0)
    sizes = [4, 1, 400, 3, 0, 2, 17, 4, 1, 70, 8]
    bag_index = rng.permutation(np.repeat(np.arange(len(sizes)), sizes))
    counts = np.array([rng.multinomial(size, [0.5, 0.3, 0.2]) for size in sizes])
    proportions = torch.from_numpy(counts / np.maximum(np.array(sizes), 1)[:, None])
    proportions[4, 0] = 1.0  # of the empty bag
    logits = torch.from_numpy(rng.normal(size=(len(bag_index), 3))).requires_grad_()
    values = BF.count_likelihood(logits, torch.from_numpy(bag_index), proportions, reduction="none")
    weights = torch.arange(1.0, len(sizes) + 1, dtype=torch.float64)
    (gradient,) = torch.autograd.grad((values * weights).sum(), logits)
    for bag, size in enumerate(sizes):
        members = np.flatnonzero(bag_index == bag)
        alone = logits.detach()[members].requires_grad_()
        expected = published.count_likelihood(alone.detach().numpy(), counts[bag]) if size else 0.0
        np.testing.assert_allclose(values[bag].item(), expected, rtol=1e-10, atol=1e-12)
        if size:
            layout = BagLayout.from_sizes([size])
            (BF.count_likelihood(alone, layout, proportions[bag : bag + 1]) * weights[bag]).backward()
            torch.testing.assert_close(gradient[members], alone.grad, rtol=1e-9, atol=1e-12)


def test_a_large_bag_does_not_make_small_ones_large(monkeypatch):
    """The numbers that are summed over instances: those of each bag follow its own size."""
    summed = []
    plain = torch.log1p
    monkeypatch.setattr(torch, "log1p", lambda values: summed.append(values.numel()) or plain(values))
    layout = BagLayout.from_sizes([4] * 500 + [1000])
    BF.count_likelihood(torch.zeros(3000, 2), layout, torch.full((501, 2), 0.5))
    assert sum(summed) <= 2 * (500 * 4 * 2 + 1000 * math.ceil(math.sqrt(20 * 1000) / 2) + 3000)
