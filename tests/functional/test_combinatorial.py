"""The combinatorial loss against all labelings, an assignment on slots, finite differences and its edge cases."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from bagwise.bags.layout import BagLayout
from bagwise.functional.combinatorial import combinatorial, solve_combinatorial
from bagwise.functional.inputs import prepare
from reference import brute_force, literal
from reference.strategies import bag_problems

DIVERGENCES = ["kl", "l1", "l2"]
ALPHAS = [0.05, 0.5, 0.95]


def small_bags(num_classes, seed, bags=30, max_size=7):
    """Many little bags of every awkward kind: (logits, bag_index, proportions) in float64, in no order."""
    rng = np.random.default_rng(seed)
    sizes = rng.integers(1, (max_size if num_classes < 4 else 6) + 1, size=bags)
    logits = rng.normal(scale=2, size=(sizes.sum(), num_classes))
    tied = rng.random(len(logits)) < 0.4
    logits[tied] = rng.integers(0, 2, size=(tied.sum(), num_classes))
    proportions = rng.dirichlet(np.ones(num_classes), size=bags)
    for bag in range(bags):
        kind = bag % 4
        if kind == 1:  # whole counts
            proportions[bag] = rng.multinomial(sizes[bag], proportions[bag]) / sizes[bag]
        elif kind == 2:  # some class is missing
            proportions[bag, rng.integers(num_classes)] = 0
            proportions[bag] /= proportions[bag].sum()
        elif kind == 3 and bag % 8 == 3:
            proportions[bag] = np.eye(num_classes)[rng.integers(num_classes)]
    bag_index = np.repeat(np.arange(bags), sizes)
    order = rng.permutation(len(bag_index))
    return tuple(torch.from_numpy(a) for a in (logits[order], bag_index[order], proportions))


def one_bag(n, num_classes, seed=0, scale=2.0):
    rng = np.random.default_rng(seed)
    logits = torch.from_numpy(rng.normal(scale=scale, size=(n, num_classes)))
    z = torch.from_numpy(rng.dirichlet(np.ones(num_classes)))[None]
    return logits, torch.zeros(n, dtype=torch.long), z


def solve(logits, bag_index, proportions, alpha=0.5, divergence="kl"):
    return solve_combinatorial(prepare(logits, bag_index, proportions), alpha, divergence)


@pytest.mark.parametrize("divergence", DIVERGENCES)
@pytest.mark.parametrize("alpha", ALPHAS)
@pytest.mark.parametrize("num_classes", [2, 3, 4])
def test_equals_the_best_of_all_labelings(num_classes, alpha, divergence):
    logits, bag_index, proportions = small_bags(num_classes, seed=num_classes)
    values = combinatorial(logits, bag_index, proportions, alpha=alpha, divergence=divergence, reduction="none")
    plan = solve(logits, bag_index, proportions, alpha, divergence)
    assert plan.optimal.all()
    np.testing.assert_array_equal(plan.values, values)
    for bag, members in enumerate(literal.bags_of(bag_index, len(proportions))):
        s, z = logits.numpy()[members], proportions[bag].numpy()
        assert values[bag].item() == pytest.approx(brute_force.combinatorial(s, z, alpha, divergence), abs=1e-12)
        labels = plan.labels[members]
        assert ((labels == 0) | (labels == 1)).all()
        assert (labels.sum(dim=1) == 1).all()
        cost = -torch.from_numpy(s).log_softmax(dim=1).numpy()
        reached = brute_force.combinatorial_value(cost, labels.argmax(dim=1).tolist(), z, alpha, divergence)
        assert reached == pytest.approx(values[bag].item(), abs=1e-12)


@pytest.mark.parametrize("divergence", DIVERGENCES)
@pytest.mark.parametrize(("n", "num_classes"), [(40, 5), (40, 2), (150, 6)])
def test_equals_the_assignment_on_slots(n, num_classes, divergence):
    for seed, alpha in enumerate(ALPHAS):
        logits, bag_index, z = one_bag(n, num_classes, seed)
        value = combinatorial(logits, bag_index, z, alpha=alpha, divergence=divergence)
        expected = brute_force.combinatorial_by_slots(logits.numpy(), z[0].numpy(), alpha, divergence)
        assert value.item() == pytest.approx(expected, abs=1e-12)


def test_many_ragged_bags_of_many_classes_equal_the_assignment_on_slots():
    rng = np.random.default_rng(0)
    sizes = rng.integers(1, 60, size=12)
    logits = torch.from_numpy(rng.normal(size=(sizes.sum(), 9)))
    proportions = torch.from_numpy(rng.dirichlet(np.ones(9), size=12))
    values = combinatorial(logits, BagLayout.from_sizes(sizes), proportions, reduction="none")
    starts = np.cumsum(sizes) - sizes
    for bag, (start, size) in enumerate(zip(starts, sizes, strict=True)):
        s, z = logits[start : start + size].numpy(), proportions[bag].numpy()
        assert values[bag].item() == pytest.approx(brute_force.combinatorial_by_slots(s, z, 0.5, "kl"), abs=1e-12)


@pytest.mark.parametrize("divergence", DIVERGENCES)
@pytest.mark.parametrize("num_classes", [2, 4])
def test_gradient_is_that_of_finite_differences(num_classes, divergence):
    logits, bag_index, proportions = small_bags(num_classes, seed=5, bags=6)
    generic = logits + 0.1 * torch.from_numpy(np.random.default_rng(1).normal(size=logits.shape))
    generic.requires_grad_()

    def loss(s):
        return combinatorial(s, bag_index, proportions, alpha=0.3, divergence=divergence, reduction="none")

    assert torch.autograd.gradcheck(loss, generic)


def test_gradient_is_alpha_over_n_times_predictions_minus_labels():
    logits, bag_index, z = one_bag(30, 4)
    logits.requires_grad_()
    combinatorial(logits, bag_index, z, alpha=0.3).backward()
    labels = solve(logits, bag_index, z, alpha=0.3).labels
    torch.testing.assert_close(logits.grad, 0.3 / 30 * (logits.detach().softmax(dim=1) - labels))


@settings(max_examples=40, deadline=None)
@given(problem=bag_problems(), divergence=st.sampled_from(DIVERGENCES), seed=st.integers(0, 999))
def test_order_of_instances_and_bags_does_not_matter(problem, divergence, seed):
    logits, bag_index, proportions = problem
    values = combinatorial(logits, bag_index, proportions, divergence=divergence, reduction="none")
    rng = np.random.default_rng(seed)
    order = torch.from_numpy(rng.permutation(len(logits)))
    new_name = torch.from_numpy(rng.permutation(len(proportions)))
    renamed = torch.empty_like(proportions)
    renamed[new_name] = proportions
    shuffled = combinatorial(
        logits[order], new_name[bag_index][order], renamed, divergence=divergence, reduction="none"
    )
    torch.testing.assert_close(shuffled[new_name], values, rtol=0, atol=1e-12)


@settings(max_examples=40, deadline=None)
@given(problem=bag_problems(), divergence=st.sampled_from(DIVERGENCES))
def test_a_bag_alone_gives_what_it_gives_in_a_batch(problem, divergence):
    logits, bag_index, proportions = problem
    values = combinatorial(logits, bag_index, proportions, divergence=divergence, reduction="none")
    for bag in range(len(proportions)):
        mine = bag_index == bag
        alone = combinatorial(
            logits[mine], torch.zeros_like(bag_index[mine]), proportions[[bag]], divergence=divergence
        )
        torch.testing.assert_close(alone, values[bag], rtol=0, atol=1e-12)


@settings(max_examples=40, deadline=None)
@given(problem=bag_problems(), divergence=st.sampled_from(DIVERGENCES), seed=st.integers(0, 999))
def test_a_constant_added_to_the_logits_of_an_instance_changes_nothing(problem, divergence, seed):
    logits, bag_index, proportions = problem
    shift = torch.from_numpy(np.random.default_rng(seed).normal(scale=5, size=(len(logits), 1)))
    value = combinatorial(logits, bag_index, proportions, divergence=divergence)
    shifted = combinatorial(logits + shift, bag_index, proportions, divergence=divergence)
    torch.testing.assert_close(shifted, value, rtol=0, atol=1e-12)


@pytest.mark.parametrize("divergence", ["kl"])
@pytest.mark.parametrize("num_classes", [2, 5])
def test_single_labelled_instances_give_alpha_times_cross_entropy(num_classes, divergence):
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(8, num_classes, generator=generator, dtype=torch.float64)
    labels = torch.randint(num_classes, (8,), generator=generator)
    one_hot = torch.nn.functional.one_hot(labels, num_classes).double()
    value = combinatorial(logits, torch.arange(8), one_hot, alpha=0.3, divergence=divergence)
    torch.testing.assert_close(value, 0.3 * torch.nn.functional.cross_entropy(logits, labels))


def test_kl_is_the_generalised_one():
    logits, bag_index, z = one_bag(5, 3)
    z = z * (1 + 9e-5)  # within the tolerance for rounded proportions
    expected = brute_force.combinatorial(logits.numpy(), z[0].numpy(), 0.5, "kl")
    assert combinatorial(logits, bag_index, z).item() == pytest.approx(expected, abs=1e-12)


def test_reductions_skip_unknown_and_empty_bags():
    logits, bag_index, proportions = small_bags(3, seed=9, bags=4)
    bag_index = bag_index + (bag_index >= 2)  # bag 2 is empty
    proportions = torch.cat([proportions[:2], proportions[:1], proportions[2:]])
    proportions[1] = torch.nan
    logits.requires_grad_()
    values = combinatorial(logits, bag_index, proportions, reduction="none")
    assert values[1] == 0
    assert values[2] == 0
    total = combinatorial(logits, bag_index, proportions, reduction="sum")
    mean = combinatorial(logits, bag_index, proportions)
    torch.testing.assert_close(total, values.sum())
    torch.testing.assert_close(mean, values.sum() / 3)
    mean.backward()
    assert (logits.grad[bag_index == 1] == 0).all()
    assert (logits.grad[bag_index != 1] != 0).any(dim=1).all()
    plan = solve(logits, bag_index, proportions)
    assert (plan.labels[bag_index == 1] == 0).all()
    assert plan.labels.isfinite().all()
    assert plan.optimal.all()


def test_nothing_known_is_zero():
    logits = torch.randn(4, 3, generator=torch.Generator().manual_seed(0), requires_grad=True)
    value = combinatorial(logits, torch.tensor([0, 0, 1, 1]), torch.full((2, 3), torch.nan))
    value.backward()
    assert value == 0
    assert (logits.grad == 0).all()


@pytest.mark.parametrize("num_classes", [2, 3])
def test_a_class_of_proportion_zero_gets_no_instance_under_kl(num_classes):
    logits = torch.zeros(6, num_classes, dtype=torch.float64)
    logits[:, -1] = 20  # every instance wants the class that is not there
    z = torch.tensor([[1.0] + [0.0] * (num_classes - 1)], dtype=torch.float64)
    bag_index = torch.zeros(6, dtype=torch.long)
    assert (solve(logits, bag_index, z).labels[:, 0] == 1).all()
    assert combinatorial(logits, bag_index, z).isfinite()
    for divergence in ("l1", "l2"):  # there it costs a finite amount, and is worth it
        assert (solve(logits, bag_index, z, 0.5, divergence).labels[:, -1] == 1).all()


@pytest.mark.parametrize("divergence", DIVERGENCES)
@pytest.mark.parametrize("num_classes", [2, 3])
def test_impossible_classes_are_avoided_where_they_can_be(num_classes, divergence):
    logits = torch.zeros(4, num_classes, dtype=torch.float64)
    logits[0, 0] = logits[1, 0] = -torch.inf
    z = torch.full((1, num_classes), 1 / num_classes, dtype=torch.float64)
    bag_index = torch.zeros(4, dtype=torch.long)
    logits.requires_grad_()
    value = combinatorial(logits, bag_index, z, divergence=divergence)
    value.backward()
    assert value.isfinite()
    assert logits.grad.isfinite().all()
    assert (solve(logits, bag_index, z, 0.5, divergence).labels[:2, 0] == 0).all()


@pytest.mark.parametrize("num_classes", [2, 3])
def test_impossible_bag_is_infinite_and_poisons_no_other(num_classes):
    logits = torch.zeros(5, num_classes, dtype=torch.float64)
    logits[0, 0] = -torch.inf  # bag 0 is all class 0
    logits[3] = -torch.inf  # bag 1 holds an instance that rules out everything
    z = torch.zeros(3, num_classes, dtype=torch.float64)
    z[:, 0] = 1
    logits.requires_grad_()
    values = combinatorial(logits, torch.tensor([0, 0, 1, 1, 2]), z, reduction="none")
    values.sum().backward()
    assert values[:2].tolist() == [math.inf, math.inf]
    assert values[2].item() == pytest.approx(0.5 * math.log(num_classes))
    assert logits.grad.isfinite().all()


@pytest.mark.parametrize("scale", [1e4, 1e30])
def test_huge_logits(scale):
    logits, bag_index, z = one_bag(50, 4)
    logits = (scale * logits).requires_grad_()
    value = combinatorial(logits, bag_index, z)
    value.backward()
    assert value.isfinite()
    assert logits.grad.isfinite().all()
    assert solve(logits, bag_index, z).optimal.all()


def test_nan_logits_are_not_hidden():
    logits, bag_index, proportions = small_bags(3, seed=2, bags=3)
    logits[bag_index == 1] = torch.nan
    values = combinatorial(logits, bag_index, proportions, reduction="none")
    assert values[1].isnan()
    assert values[[0, 2]].isfinite().all()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_low_precision(dtype):
    logits, bag_index, z = one_bag(60, 5)
    low = logits.to(dtype).requires_grad_()
    value = combinatorial(low, bag_index, z.float())
    value.backward()
    assert low.grad.dtype == dtype
    exact = combinatorial(low.detach().double(), bag_index, z.float().double())
    assert value.item() == pytest.approx(exact.item(), rel=1e-6)


def test_errors_name_the_nearest_choice():
    logits, bag_index, z = one_bag(4, 3)
    with pytest.raises(ValueError, match=r"divergence must be one of.*Did you mean 'l1'"):
        combinatorial(logits, bag_index, z, divergence="l1-norm"[:3])
    with pytest.raises(ValueError, match="alpha must lie strictly between 0 and 1"):
        combinatorial(logits, bag_index, z, alpha=1.0)
    with pytest.raises(ValueError, match="reduction must be one of"):
        combinatorial(logits, bag_index, z, reduction="avg")
