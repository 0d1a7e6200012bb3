import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.optimize import minimize
from scipy.special import log_softmax, wrightomega

from bagwise import functional as BF
from bagwise.bags import BagLayout
from bagwise.functional.noise import (
    ProportionNoise,
    _most_likely_proportions,
    _wright_omega,
    nearest_proportions,
    noisy_bag_kl,
)
from bagwise.methods import NoisyKL
from reference.strategies import bag_problems

NOISES = [ProportionNoise("laplace", 1.5), ProportionNoise("gaussian", 0.3), ProportionNoise("rounding", 5.0)]


def literal_value(logits, z, variance):
    """The minimum over the simplex, found by a general-purpose solver in softmax coordinates."""
    p = np.exp(log_softmax(logits, axis=1)).mean(axis=0)
    precision = len(logits) / variance

    def objective(free):
        log_u = log_softmax(free)
        u = np.exp(log_u)
        return (u * (log_u - np.log(p))).sum() + precision / 2 * ((u - z) ** 2).sum()

    starts = [np.log(p), np.log(np.maximum(z, 1e-3))]
    best = min(minimize(objective, start, options={"gtol": 1e-9}).fun for start in starts)
    return best - sum(share * np.log(share) for share in z if share > 0)


@pytest.mark.parametrize("noise", NOISES, ids=lambda noise: noise.kind)
def test_the_value_is_the_minimum_that_a_general_solver_finds(noise):
    rng = np.random.default_rng(0)
    sizes = [1, 3, 8, 20]
    logits = 2 * rng.normal(size=(sum(sizes), 3))
    z = np.array([[1.0, 0.0, 0.0], [0.2, 0.3, 0.5], [0.0, 0.1, 0.9], [0.3, 0.3, 0.4]])
    values = noisy_bag_kl(
        torch.from_numpy(logits), BagLayout.from_sizes(sizes), torch.from_numpy(z), noise, reduction="none"
    )
    bags = np.split(logits, np.cumsum(sizes)[:-1])
    expected = [literal_value(bag, row, noise.count_variance) for bag, row in zip(bags, z, strict=True)]
    np.testing.assert_allclose(values, expected, atol=1e-6)


@settings(max_examples=30)
@given(bag_problems(), st.sampled_from(["mean", "sum", "none"]))
def test_without_noise_it_is_bag_kl_to_the_bit(problem, reduction):
    for kind in ("laplace", "gaussian", "rounding"):
        exact = BF.bag_kl(*problem, reduction=reduction)
        assert torch.equal(noisy_bag_kl(*problem, ProportionNoise(kind, 0.0), reduction=reduction), exact)


@settings(max_examples=40)
@given(bag_problems())
def test_it_tends_to_bag_kl_as_noise_vanishes_and_to_no_pull_as_it_grows(problem):
    proportions = problem[2]
    entropy = -torch.xlogy(proportions, proportions).sum(dim=1)
    exact = BF.bag_kl(*problem, reduction="none")
    little = noisy_bag_kl(*problem, ProportionNoise("gaussian", 0.003), reduction="none")
    torch.testing.assert_close(little, exact, rtol=1e-3, atol=2e-3)
    middle = noisy_bag_kl(*problem, ProportionNoise("gaussian", 1.0), reduction="none")
    much = noisy_bag_kl(*problem, ProportionNoise("gaussian", 1e4), reduction="none")
    torch.testing.assert_close(much, entropy, rtol=0, atol=1e-6)
    assert (much <= middle + 1e-9).all()
    assert (middle <= exact + 1e-9).all()


@pytest.mark.parametrize("noise", NOISES, ids=lambda noise: noise.kind)
def test_the_envelope_gradient_is_the_gradient(noise):
    rng = np.random.default_rng(1)
    layout = BagLayout.from_index(torch.tensor([0, 1, 0, 2, 1, 0, 1, 1]))
    proportions = torch.tensor([[0.5, 0.5, 0.0], [0.2, 0.3, 0.5], [0.0, 0.0, 1.0]], dtype=torch.float64)
    logits = torch.from_numpy(rng.normal(size=(8, 3))).requires_grad_()
    assert torch.autograd.gradcheck(lambda s: noisy_bag_kl(s, layout, proportions, noise), logits)


@settings(max_examples=30)
@given(bag_problems(), st.integers(0, 99))
def test_order_constants_and_unknown_bags_change_nothing(problem, seed):
    logits, bag_index, proportions = problem
    noise = NOISES[0]
    expected = noisy_bag_kl(*problem, noise)
    generator = torch.Generator().manual_seed(seed)
    order = torch.randperm(len(logits), generator=generator)
    shift = torch.randn(len(logits), 1, generator=generator, dtype=torch.float64)
    torch.testing.assert_close(noisy_bag_kl((logits + shift)[order], bag_index[order], proportions, noise), expected)
    num_bags, num_classes = proportions.shape
    unknown = torch.cat([proportions, proportions.new_full((1, num_classes), torch.nan)])
    more = torch.cat([logits, logits[:1]]).requires_grad_()
    index = torch.cat([bag_index, torch.tensor([num_bags])])
    value = noisy_bag_kl(more, index, unknown, noise)
    torch.testing.assert_close(value.detach(), expected)
    value.backward()
    assert more.grad.isfinite().all()
    assert (more.grad[-1] == 0).all()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("scale", [1e-4, 1.0, 1e4])
def test_extreme_logits_and_scales_stay_finite(dtype, scale):
    logits = torch.tensor([[1e4, -1e4, 0.0], [-1e4, 0.0, 1e4], [0.0, -torch.inf, 0.0]], dtype=dtype, requires_grad=True)
    proportions = torch.tensor([[0.0, 1.0, 0.0], [0.5, 0.0, 0.5]])
    value = noisy_bag_kl(logits, torch.tensor([0, 0, 1]), proportions, ProportionNoise("laplace", scale))
    value.backward()
    assert value.isfinite()
    assert logits.grad.dtype == dtype
    assert logits.grad.isfinite().all()


def test_float32_is_as_good_as_float32_can_be():
    rng = np.random.default_rng(2)
    layout = BagLayout.from_sizes(rng.integers(1, 200, size=50))
    logits = torch.from_numpy(4 * rng.normal(size=(layout.num_instances, 100)))
    proportions = torch.from_numpy(rng.dirichlet(np.full(100, 0.1), size=50))
    for noise in NOISES:
        double = noisy_bag_kl(logits, layout, proportions, noise, reduction="none")
        single = noisy_bag_kl(logits.float(), layout, proportions.float(), noise, reduction="none")
        torch.testing.assert_close(single.double(), double, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("num_classes", [2, 100, 1000])
@pytest.mark.parametrize("spread", [1, 50])
def test_the_fixed_number_of_steps_is_enough(num_classes, spread):
    rng = np.random.default_rng(3)
    log_p = torch.from_numpy(log_softmax(spread * rng.normal(size=(200, num_classes)), axis=1))
    known = torch.from_numpy(rng.dirichlet(np.full(num_classes, 0.1), size=200))
    precision = torch.from_numpy(10 ** rng.uniform(-4, 6, size=(200, 1)))
    z = _most_likely_proportions(log_p, known, precision)
    # at the minimum the derivative is the same in every class that is not at its bound
    slope = z.clamp(min=1e-300).log() - log_p + precision * (z - known)
    slope = slope - (z * slope).sum(dim=1, keepdim=True)
    assert (z * slope).abs().max() < 1e-9


def test_wright_omega_is_scipys():
    x = np.concatenate([np.linspace(-300, 60, 3001), [1e3, 1e6]])
    np.testing.assert_allclose(_wright_omega(torch.from_numpy(x)), wrightomega(x), rtol=1e-13)


def learned_divergence(seed, noise, loss):
    """How far, in KL, a linear model learned from noisy counts of ragged bags is from the one that made the labels."""
    rng = np.random.default_rng(seed)
    sizes = rng.choice([4, 8, 16, 64, 128], size=80)
    index = np.repeat(np.arange(len(sizes)), sizes)
    X, weights = rng.normal(size=(len(index), 4)), 1.5 * rng.normal(size=(4, 3))
    f = np.exp(log_softmax(X @ weights, axis=1))
    labels = (f.cumsum(axis=1) > rng.random((len(f), 1))).argmax(axis=1)
    counts = np.zeros((len(sizes), 3))
    np.add.at(counts, (index, labels), 1)
    if noise.kind == "rounding":
        counts = noise.scale * np.round(counts / noise.scale)
    else:
        counts += getattr(rng, {"laplace": "laplace", "gaussian": "normal"}[noise.kind])(0, noise.scale, counts.shape)
    counts = np.maximum(counts, 0) + 1e-9
    z = torch.from_numpy(counts / counts.sum(axis=1, keepdims=True))
    layout, X = BagLayout.from_sizes(sizes), torch.from_numpy(X)
    learned = torch.zeros(4, 3, dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.LBFGS([learned], max_iter=60, line_search_fn="strong_wolfe")

    def closure():
        optimizer.zero_grad()
        value = loss(X @ learned, layout, z) + 1e-4 * learned.square().sum()
        value.backward()
        return value

    optimizer.step(closure)
    return (f * (np.log(f) - log_softmax((X @ learned).detach().numpy(), axis=1))).sum(axis=1).mean()


@pytest.mark.parametrize(
    "noise", [ProportionNoise("laplace", 2.0), ProportionNoise("gaussian", 3.0), ProportionNoise("rounding", 8.0)]
)
def test_knowing_of_moderate_noise_beats_ignoring_it(noise):
    ignoring = [learned_divergence(seed, noise, BF.bag_kl) for seed in range(6)]
    knowing = [learned_divergence(seed, noise, lambda *inputs: noisy_bag_kl(*inputs, noise)) for seed in range(6)]
    assert np.mean(knowing) < 0.8 * np.mean(ignoring)


def test_wrong_noise_is_refused():
    with pytest.raises(ValueError, match="Did you mean 'laplace'"):
        ProportionNoise("laplas", 1.0)
    with pytest.raises(ValueError, match="scale"):
        ProportionNoise("gaussian", -1.0)


@settings(max_examples=60)
@given(arrays(np.float64, st.tuples(st.integers(1, 5), st.integers(2, 6)), elements=st.floats(-30, 60)))
def test_the_nearest_proportions_are_the_projection_onto_the_simplex(counts):
    sizes = np.full(len(counts), 20)
    z = nearest_proportions(counts, sizes, ProportionNoise("laplace", 50.0), range(len(counts)))
    assert (z >= 0).all()
    np.testing.assert_allclose(z.sum(axis=1), 1, atol=1e-12)
    # optimality: no corner of the simplex lies beyond the plane through z that faces the counts
    towards = counts / 20 - z
    assert (towards.max(axis=1) <= (towards * z).sum(axis=1) + 1e-9).all()


def test_proportions_without_noise_are_left_as_they_are():
    counts = np.array([[3.0, 7.0, 0.0], [np.nan, np.nan, np.nan]])
    z = nearest_proportions(counts, np.array([10, 4]), ProportionNoise("rounding", 1.0), ["a", "b"])
    np.testing.assert_allclose(z[0], [0.3, 0.7, 0.0], atol=1e-12)
    assert np.isnan(z[1]).all()


def test_the_method_is_the_function():
    generator = torch.Generator().manual_seed(0)
    problem = (
        torch.randn(6, 3, generator=generator),
        BagLayout.from_sizes([2, 4]),
        torch.tensor([[0.5, 0.5, 0], [0, 0, 1]]),
    )
    expected = noisy_bag_kl(*problem, NOISES[0], reduction="none")
    assert torch.equal(NoisyKL(NOISES[0]).loss(*problem), expected)
