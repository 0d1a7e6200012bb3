"""The exact transport loss against all labelings, linear programming, POT and finite differences."""

import math
from dataclasses import replace

import numpy as np
import ot
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linear_sum_assignment

from bagwise.bags.layout import BagLayout
from bagwise.functional import apportion, transport, transport_solvers
from bagwise.functional.inputs import prepare
from bagwise.functional.transport import largest_remainder, solve_transport, transport_lp
from reference import brute_force, literal
from reference.strategies import bag_problems


def bags_of_size(n, num_classes, bags=3, seed=0, whole=True, ragged=False, ties=False):
    rng = np.random.default_rng(seed)
    sizes = rng.integers(max(1, n // 2), n + 1, size=bags) if ragged else np.full(bags, n)
    logits = rng.normal(scale=2, size=(sizes.sum(), num_classes))
    if ties:
        logits = rng.integers(0, 3, size=logits.shape).astype(float)
    z = rng.dirichlet(np.ones(num_classes), size=bags)
    if whole:
        z = np.stack([rng.multinomial(size, p) / size for size, p in zip(sizes, z, strict=True)])
    index = np.repeat(np.arange(bags), sizes)
    order = rng.permutation(len(index))
    return tuple(torch.from_numpy(a) for a in (logits[order], index[order], z))


def solve(logits, bag_index, proportions, marginals="fractional"):
    return solve_transport(prepare(logits, bag_index, proportions), marginals)


def check_feasible(plan, bag_index, proportions):
    torch.testing.assert_close(plan.labels.sum(dim=1), torch.ones(len(bag_index), dtype=torch.float64))
    assert (plan.labels >= 0).all()
    for bag, members in enumerate(literal.bags_of(bag_index, len(proportions))):
        torch.testing.assert_close(plan.labels[members].mean(dim=0), proportions[bag], atol=1e-6, rtol=0)


@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize("num_classes", [2, 3, 4])
def test_whole_counts_equal_the_best_of_all_labelings(num_classes, ties):
    logits, bag_index, z = bags_of_size(6, num_classes, bags=40, ragged=True, ties=ties)
    values = transport_lp(logits, bag_index, z, reduction="none")
    plan = solve(logits, bag_index, z)
    assert plan.optimal.all()
    assert ((plan.labels == 0) | (plan.labels == 1)).all()
    check_feasible(plan, bag_index, z)
    for bag, members in enumerate(literal.bags_of(bag_index, len(z))):
        counts = np.rint(z[bag].numpy() * len(members))
        expected = brute_force.transport(logits.numpy()[members], counts)
        assert values[bag].item() == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("pot", [True, False], ids=["network simplex", "all at once"])
@pytest.mark.parametrize("num_classes", [2, 3, 5])
def test_fractional_marginals_equal_the_linear_program(num_classes, pot, monkeypatch):
    monkeypatch.setattr(transport, "has_network_simplex", lambda: pot)
    logits, bag_index, z = bags_of_size(9, num_classes, bags=12, whole=False, ragged=True)
    z[0, 0] = 0
    z[0] /= z[0].sum()
    values = transport_lp(logits, bag_index, z, reduction="none")
    plan = solve(logits, bag_index, z)
    assert plan.optimal.all()
    check_feasible(plan, bag_index, z)
    torch.testing.assert_close(plan.values, values)
    for bag, members in enumerate(literal.bags_of(bag_index, len(z))):
        expected = brute_force.transport_by_highs(logits.numpy()[members], z[bag].numpy())
        assert values[bag].item() == pytest.approx(expected, abs=1e-9)


# one shape for each way that the solver can take: instances as rows, places as rows, our own solver, network simplex
@pytest.mark.parametrize("pot", [True, False], ids=["with POT", "without POT"])
@pytest.mark.parametrize(("n", "num_classes"), [(50, 6), (60, 30), (200, 6), (300, 2), (250, 25)])
def test_every_way_gives_the_same_value(n, num_classes, pot, monkeypatch):
    monkeypatch.setattr(transport, "has_network_simplex", lambda: pot)
    logits, bag_index, z = bags_of_size(n, num_classes, ragged=True)
    values = transport_lp(logits, bag_index, z, reduction="none")
    plan = solve(logits, bag_index, z)
    assert plan.optimal.all()
    assert ((plan.labels == 0) | (plan.labels == 1)).all()
    check_feasible(plan, bag_index, z)
    for bag, members in enumerate(literal.bags_of(bag_index, len(z))):
        cost = -logits[members].log_softmax(dim=1).numpy()
        counts = np.rint(z[bag].numpy() * len(members)).astype(int)
        expanded = cost[:, np.repeat(np.arange(num_classes), counts)]
        rows, columns = linear_sum_assignment(expanded)
        assert values[bag].item() == pytest.approx(expanded[rows, columns].mean(), abs=1e-12)
        emd = ot.emd2(np.ones(len(members)), counts.astype(float), cost) / len(members)
        assert values[bag].item() == pytest.approx(emd, abs=1e-11)


@pytest.mark.parametrize(("n", "num_classes"), [(40, 2), (300, 4)])
def test_a_planted_worse_plan_loses_its_proof(n, num_classes, monkeypatch):
    logits, bag_index, z = bags_of_size(n, num_classes, bags=1, whole=False)
    assert solve(logits, bag_index, z).optimal.all()

    def worse(name):
        solver = getattr(transport, name)

        def solve_badly(bags, target):
            solution = solver(bags, target)
            return replace(solution, shares=solution.shares.flip(1))  # the same marginals for other instances

        monkeypatch.setattr(transport, name, solve_badly)

    worse("sort_two_classes")
    worse("network_simplex")
    plan = solve(logits, bag_index, z)
    check_feasible(plan, bag_index, z)
    assert not plan.optimal.any()


def test_our_own_solver_agrees_where_others_are_chosen(monkeypatch):
    logits, bag_index, z = bags_of_size(40, 8, bags=20, ragged=True)
    usual = transport_lp(logits, bag_index, z, reduction="none")
    monkeypatch.setattr(transport, "has_network_simplex", lambda: False)
    monkeypatch.setattr(transport, "_SMALL_BAG", 0)
    monkeypatch.setattr(transport, "_INSTANCES_PER_CLASS", 0)
    own = transport_lp(logits, bag_index, z, reduction="none")
    torch.testing.assert_close(own, usual, rtol=0, atol=1e-12)


@pytest.mark.parametrize("whole", [True, False])
def test_a_network_simplex_that_gives_up_is_replaced(whole, monkeypatch):
    logits, bag_index, z = bags_of_size(150, 4, bags=2, whole=whole)
    usual = transport_lp(logits, bag_index, z, reduction="none")
    monkeypatch.setattr(transport_solvers, "_PIVOTS_PER_NODE", 1)
    calls = []
    highs = transport_solvers._highs
    monkeypatch.setattr(transport_solvers, "_highs", lambda *bag: calls.append(bag) or highs(*bag))
    plan = solve(logits, bag_index, z)
    assert len(calls) == 2
    assert plan.optimal.all()
    torch.testing.assert_close(plan.values, usual, rtol=0, atol=1e-9)


def test_the_linear_program_takes_proportions_of_any_size(monkeypatch):
    rng = np.random.default_rng(0)
    z = torch.from_numpy(rng.dirichlet(np.full(30, 0.1), size=40))  # from 1e-30 to 1
    logits, bag_index = torch.from_numpy(rng.normal(size=(280, 30))), torch.arange(280) // 7
    usual = transport_lp(logits, bag_index, z, reduction="none")
    monkeypatch.setattr(transport, "has_network_simplex", lambda: False)
    plan = solve(logits, bag_index, z)
    assert plan.optimal.all()
    torch.testing.assert_close(plan.values, usual, rtol=0, atol=1e-6)


def test_bags_with_whole_and_with_fractional_counts_in_one_block():
    logits, bag_index, z = bags_of_size(10, 4, bags=6)
    z[::2] = bags_of_size(10, 4, bags=6, seed=1, whole=False)[2][::2]
    values = transport_lp(logits, bag_index, z, reduction="none")
    for bag in range(6):
        mine = bag_index == bag
        alone = transport_lp(logits[mine], torch.zeros(10, dtype=torch.long), z[[bag]])
        torch.testing.assert_close(values[bag], alone, rtol=0, atol=1e-12)
    hard = ((solve(logits, bag_index, z).labels % 1) == 0).all(dim=1)
    assert hard[bag_index % 2 == 1].all()
    assert not hard[bag_index % 2 == 0].all()


def test_rounded_marginals_give_hard_labels_with_the_rounded_counts():
    logits, bag_index, z = bags_of_size(11, 4, bags=20, whole=False, ragged=True)
    plan = solve(logits, bag_index, z, "rounded")
    values = transport_lp(logits, bag_index, z, marginals="rounded", reduction="none")
    assert plan.optimal.all()
    assert ((plan.labels == 0) | (plan.labels == 1)).all()
    for bag, members in enumerate(literal.bags_of(bag_index, len(z))):
        counts = brute_force.largest_remainder(len(members) * z[bag].numpy())
        assert plan.labels[members].sum(dim=0).tolist() == counts
        again = transport_lp(
            logits[members], torch.zeros(len(members), dtype=torch.long), torch.tensor([counts]).double() / len(members)
        )
        torch.testing.assert_close(values[bag], again, rtol=0, atol=1e-12)


@given(st.lists(st.integers(0, 1000), min_size=2, max_size=8).filter(any), st.integers(1, 300))
def test_largest_remainder(weights, n):
    target = n * np.array(weights) / sum(weights)
    mine = largest_remainder(torch.from_numpy(target)[None])[0]
    assert mine.sum() == n
    assert (np.abs(mine.numpy() - target) < 1 + 1e-9).all()
    remainders = np.sort(target % 1)
    if np.diff(remainders).min() > 1e-9:  # no ties that rounding could break either way
        assert mine.tolist() == brute_force.largest_remainder(target)


def test_float32_proportions_of_whole_counts_stay_hard():
    rng = np.random.default_rng(0)
    sizes = rng.integers(1, 1500, size=12)
    counts = np.stack([rng.multinomial(size, rng.dirichlet(np.ones(3))) for size in sizes])
    z = torch.from_numpy((counts / sizes[:, None]).astype(np.float32))
    logits = torch.from_numpy(rng.normal(size=(sizes.sum(), 3)).astype(np.float32))
    layout = BagLayout.from_sizes(sizes)
    plan = solve(logits, layout, z)
    assert ((plan.labels == 0) | (plan.labels == 1)).all()
    members = [plan.labels[layout.bag_index == bag].sum(dim=0) for bag in range(12)]
    np.testing.assert_array_equal(torch.stack(members), counts)


@pytest.mark.parametrize("whole", [True, False])
@pytest.mark.parametrize("num_classes", [2, 4])
def test_gradient_is_that_of_finite_differences(num_classes, whole):
    logits, bag_index, z = bags_of_size(6, num_classes, bags=4, whole=whole, ragged=True)
    logits.requires_grad_()
    assert torch.autograd.gradcheck(lambda s: transport_lp(s, bag_index, z, reduction="none"), logits)


def test_gradient_is_predictions_minus_labels():
    logits, bag_index, z = bags_of_size(30, 4, bags=1)
    logits.requires_grad_()
    transport_lp(logits, bag_index, z).backward()
    labels = solve(logits, bag_index, z).labels
    torch.testing.assert_close(logits.grad, (logits.detach().softmax(dim=1) - labels) / 30)


@settings(max_examples=40, deadline=None)
@given(problem=bag_problems(), seed=st.integers(0, 999))
def test_order_of_instances_and_bags_does_not_matter(problem, seed):
    logits, bag_index, proportions = problem
    values = transport_lp(logits, bag_index, proportions, reduction="none")
    rng = np.random.default_rng(seed)
    order = torch.from_numpy(rng.permutation(len(logits)))
    new_name = torch.from_numpy(rng.permutation(len(proportions)))
    renamed = torch.empty_like(proportions)
    renamed[new_name] = proportions
    shuffled = transport_lp(logits[order], new_name[bag_index][order], renamed, reduction="none")
    torch.testing.assert_close(shuffled[new_name], values, rtol=0, atol=1e-11)


@settings(max_examples=40, deadline=None)
@given(problem=bag_problems(), seed=st.integers(0, 999))
def test_a_bag_alone_and_shifted_gives_what_it_gives_in_a_batch(problem, seed):
    logits, bag_index, proportions = problem
    values = transport_lp(logits, bag_index, proportions, reduction="none")
    shift = torch.from_numpy(np.random.default_rng(seed).normal(scale=5, size=(len(logits), 1)))
    for bag in range(len(proportions)):
        mine = bag_index == bag
        alone = transport_lp((logits + shift)[mine], torch.zeros_like(bag_index[mine]), proportions[[bag]])
        torch.testing.assert_close(alone, values[bag], rtol=0, atol=1e-11)


@pytest.mark.parametrize("num_classes", [2, 5])
def test_single_labelled_instances_give_cross_entropy(num_classes):
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(8, num_classes, generator=generator, dtype=torch.float64)
    labels = torch.randint(num_classes, (8,), generator=generator)
    one_hot = torch.nn.functional.one_hot(labels, num_classes).double()
    value = transport_lp(logits, torch.arange(8), one_hot)
    torch.testing.assert_close(value, torch.nn.functional.cross_entropy(logits, labels))


def test_reductions_skip_unknown_and_empty_bags():
    logits, bag_index, z = bags_of_size(5, 3, bags=3)
    bag_index = bag_index + (bag_index >= 2)  # bag 2 is empty
    proportions = torch.cat([z[:2], z[:1], z[2:]])
    proportions[1] = torch.nan
    logits.requires_grad_()
    values = transport_lp(logits, bag_index, proportions, reduction="none")
    assert values[1] == 0
    assert values[2] == 0
    mean = transport_lp(logits, bag_index, proportions)
    torch.testing.assert_close(mean, values.sum() / 2)
    torch.testing.assert_close(transport_lp(logits, bag_index, proportions, reduction="sum"), values.sum())
    mean.backward()
    assert (logits.grad[bag_index == 1] == 0).all()
    plan = solve(logits, bag_index, proportions)
    assert (plan.labels[bag_index == 1] == 0).all()
    assert plan.labels.isfinite().all()
    assert plan.optimal.all()


# small and large bags, whole and fractional counts: every solver meets infinite costs
@pytest.mark.parametrize("whole", [True, False])
@pytest.mark.parametrize(("n", "num_classes"), [(6, 2), (6, 3), (200, 3)])
def test_impossible_classes_are_avoided_where_they_can_be(n, num_classes, whole):
    logits, bag_index, z = bags_of_size(n, num_classes, bags=1)
    z[0] = 1 / num_classes
    if not whole:
        z[0, :2] += torch.tensor([0.06, -0.06])
    few = n // 3
    logits[:few, 0] = -torch.inf
    logits.requires_grad_()
    value = transport_lp(logits, bag_index, z)
    value.backward()
    assert value.isfinite()
    assert logits.grad.isfinite().all()
    plan = solve(logits, bag_index, z)
    assert (plan.labels[:few, 0] == 0).all()
    assert plan.optimal.all()


@pytest.mark.parametrize(("n", "num_classes"), [(6, 2), (6, 3), (200, 3)])
def test_impossible_bag_is_infinite_and_poisons_no_other(n, num_classes):
    logits, bag_index, z = bags_of_size(n, num_classes, bags=3)
    z[0] = torch.eye(num_classes)[0]
    logits[torch.nonzero(bag_index == 0)[0], 0] = -torch.inf  # bag 0 must be all class 0
    logits[torch.nonzero(bag_index == 1)[0]] = -torch.inf  # rules out every class
    logits.requires_grad_()
    values = transport_lp(logits, bag_index, z, reduction="none")
    values.sum().backward()
    assert values[:2].tolist() == [math.inf, math.inf]
    assert values[2].isfinite()
    assert logits.grad.isfinite().all()


@pytest.mark.parametrize("pot", [True, False], ids=["with POT", "without POT"])
@pytest.mark.parametrize("whole", [True, False])
@pytest.mark.parametrize(("n", "num_classes"), [(40, 2), (40, 4), (200, 4)])
@pytest.mark.parametrize("scale", [1e4, 1e30])
def test_huge_logits(n, num_classes, scale, whole, pot, monkeypatch):
    monkeypatch.setattr(transport, "has_network_simplex", lambda: pot)
    logits, bag_index, z = bags_of_size(n, num_classes, whole=whole)
    logits = (scale * logits).requires_grad_()
    value = transport_lp(logits, bag_index, z)
    value.backward()
    assert value.isfinite()
    assert logits.grad.isfinite().all()
    assert solve(logits, bag_index, z).optimal.all()


@pytest.mark.parametrize(("n", "num_classes"), [(6, 2), (6, 3), (200, 3)])
def test_nan_logits_are_not_hidden(n, num_classes):
    logits, bag_index, z = bags_of_size(n, num_classes)
    logits[bag_index == 1] = torch.nan
    values = transport_lp(logits, bag_index, z, reduction="none")
    assert values[1].isnan()
    assert values[[0, 2]].isfinite().all()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_low_precision(dtype):
    logits, bag_index, z = bags_of_size(60, 5)
    low = logits.to(dtype).requires_grad_()
    value = transport_lp(low, bag_index, z.float())
    value.backward()
    assert low.grad.dtype == dtype
    exact = transport_lp(low.detach().double(), bag_index, z)
    assert value.item() == pytest.approx(exact.item(), rel=1e-6)


def test_errors_name_the_nearest_choice():
    logits, bag_index, z = bags_of_size(4, 3)
    with pytest.raises(ValueError, match=r"marginals must be one of.*Did you mean 'rounded'"):
        transport_lp(logits, bag_index, z, marginals="round")
    with pytest.raises(ValueError, match="reduction must be one of"):
        transport_lp(logits, bag_index, z, reduction="avg")


def test_whole_counts_are_known_in_float32_beside_logits_in_float64():
    labels = torch.tensor([0, 1, 1, *[2] * 7])
    proportions = torch.tensor([[0.1, 0.2, 0.7]])
    logits = torch.full((10, 3), -torch.inf, dtype=torch.float64).scatter(1, labels[:, None], 0)
    assert transport_lp(logits, torch.zeros_like(labels), proportions) == 0
    rough = torch.randn(10, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    plan = apportion(rough, torch.zeros_like(labels), proportions, how="lp").labels
    assert set(plan.unique().tolist()) == {0, 1}
    # thirds of ten are no whole counts, whatever the type
    plan = apportion(rough, torch.zeros_like(labels), torch.full((1, 3), 1 / 3), how="lp").labels
    assert (plan.sum(dim=0) - 10 / 3).abs().max() < 1e-6


def test_proportions_with_a_gradient():
    proportions = torch.full((2, 2), 0.5, requires_grad=True)
    logits = torch.randn(4, 2, generator=torch.Generator().manual_seed(0)).requires_grad_()
    transport_lp(logits, torch.tensor([0, 0, 1, 1]), proportions).backward()
    assert logits.grad.isfinite().all()
