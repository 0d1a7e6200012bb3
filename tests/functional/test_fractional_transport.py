"""Transport with fractional marginals for all bags at once: against linear programming, POT and its own proof."""

from dataclasses import replace

import numpy as np
import ot
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from bagwise.bags.layout import BagLayout
from bagwise.functional import fractional_transport, transport
from bagwise.functional.inputs import prepare
from bagwise.functional.transport import solve_transport
from reference import brute_force


@pytest.fixture(autouse=True)
def _all_at_once(monkeypatch):
    """As on a GPU, no bag goes to a solver for one at a time."""
    monkeypatch.setattr(transport, "has_network_simplex", lambda: False)
    monkeypatch.setattr(transport, "_FEW_CLASSES", 100)


def problem(sizes, num_classes, seed=0, ties=False, absent=0.3, scale=2.0):
    rng = np.random.default_rng(seed)
    logits = rng.normal(scale=scale, size=(sum(sizes), num_classes))
    if ties:
        logits = rng.integers(0, 2, size=logits.shape).astype(float)
    z = rng.dirichlet(np.ones(num_classes), size=len(sizes))
    z[:, 1:] *= rng.random((len(sizes), num_classes - 1)) >= absent
    z /= z.sum(axis=1, keepdims=True)
    index = np.repeat(np.arange(len(sizes)), sizes)
    order = rng.permutation(len(index))
    return torch.from_numpy(logits[order]), torch.from_numpy(index[order]), torch.from_numpy(z)


def solve(logits, bag_index, proportions):
    return solve_transport(prepare(logits, bag_index, proportions), "fractional")


def check(plan, logits, bag_index, z):
    """The marginals are met, the plan is proved, and it costs what POT's costs."""
    assert plan.optimal.all()
    assert (plan.labels >= 0).all()
    cost = -logits.log_softmax(dim=1).numpy()
    for bag in range(len(z)):
        members = (bag_index == bag).numpy()
        if z[bag, 0].isnan():
            assert (plan.labels[members] == 0).all()
            continue
        mine, target = plan.labels[members].numpy(), members.sum() * z[bag].numpy()
        np.testing.assert_allclose(mine.sum(axis=1), 1, atol=1e-11)
        np.testing.assert_allclose(mine.sum(axis=0), target, atol=1e-9)
        expected = ot.emd2(np.ones(members.sum()), target, np.ascontiguousarray(cost[members]), numItermax=10**6)
        assert (mine * cost[members]).sum() == pytest.approx(expected, rel=1e-9, abs=1e-9)


@settings(max_examples=60, deadline=None)
@given(
    sizes=st.lists(st.integers(1, 40), min_size=1, max_size=6),
    num_classes=st.integers(2, 12),
    seed=st.integers(0, 2**32 - 1),
    ties=st.booleans(),
    unknown=st.booleans(),
)
def test_random_bags(sizes, num_classes, seed, ties, unknown):
    logits, bag_index, z = problem(sizes, num_classes, seed, ties)
    if unknown:
        z[0] = torch.nan
    check(solve(logits, bag_index, z), logits, bag_index, z)


@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize(("sizes", "num_classes"), [([200, 150, 7, 1] * 3, 12), ([30] * 100, 5), ([90, 4], 40)])
def test_larger_blocks(sizes, num_classes, ties):
    logits, bag_index, z = problem(sizes, num_classes, ties=ties)
    check(solve(logits, bag_index, z), logits, bag_index, z)


@pytest.mark.parametrize("num_classes", [3, 6])
def test_the_value_is_that_of_the_linear_program(num_classes):
    logits, bag_index, z = problem([8, 5, 2, 1, 11], num_classes)
    values = solve(logits, bag_index, z).values
    for bag in range(5):
        expected = brute_force.transport_by_highs(logits[bag_index == bag].numpy(), z[bag].numpy())
        assert values[bag].item() == pytest.approx(expected, abs=1e-9)


def test_equal_instances_share_alike():
    """All costs tie: every plan with these marginals is optimal, and none must take long to be proved."""
    z = torch.tensor([[0.31, 0.29, 0.27, 0.13]], dtype=torch.float64)
    plan = solve(torch.zeros(25, 4, dtype=torch.float64), torch.zeros(25, dtype=torch.long), z)
    assert plan.optimal.all()
    assert plan.iterations.max() < 10
    torch.testing.assert_close(plan.labels.mean(dim=0), z[0], rtol=0, atol=1e-12)


def test_few_instances_are_split():
    """A vertex of the polytope splits less than one instance per class."""
    logits, bag_index, z = problem([60] * 20, 6, absent=0)
    split = (solve(logits, bag_index, z).labels.max(dim=1).values < 1 - 1e-9).double()
    assert torch.zeros(20, dtype=torch.float64).index_add(0, bag_index, split).max() <= 5


def test_small_buffers_change_nothing(monkeypatch):
    arguments = problem([20, 13, 6], 7)
    whole = solve(*arguments)
    monkeypatch.setattr(fractional_transport, "_BUFFER_ENTRIES", 1)
    assert torch.equal(solve(*arguments).labels, whole.labels)


def test_a_bag_that_is_given_up_goes_to_the_linear_program(monkeypatch):
    arguments = problem([9, 6, 4], 4)
    usual = solve(*arguments).values
    monkeypatch.setattr(fractional_transport, "_SWEEPS_PER_CLASS", 0)
    calls = []
    linear_program = transport.linear_program
    monkeypatch.setattr(transport, "linear_program", lambda *bags: calls.append(bags) or linear_program(*bags))
    plan = solve(*arguments)
    assert calls
    assert plan.optimal.all()
    torch.testing.assert_close(plan.values, usual, rtol=0, atol=1e-9)


def test_a_planted_worse_plan_loses_its_proof(monkeypatch):
    logits, bag_index, z = problem([30], 5, absent=0)
    assert solve(logits, bag_index, z).optimal.all()

    def solve_badly(assignment, target):
        plan = fractional_transport.solve_fractional(assignment, target)
        return replace(plan, shares=plan.shares.flip(2))  # the same marginals for other instances

    monkeypatch.setattr(transport, "solve_fractional", solve_badly)
    assert not solve(logits, bag_index, z).optimal.any()


def test_sweeps_do_not_grow_with_the_number_of_bags():
    """What makes it fast on a GPU: some sweeps over all bags, however many there are."""
    few, many = (solve(*problem([12] * bags, 6, absent=0)).iterations.max() for bags in (10, 400))
    assert many <= few + 12


def test_layouts_give_the_same_as_indices():
    logits, bag_index, z = problem([7, 3], 4)
    order = bag_index.argsort(stable=True)
    plan = solve(logits[order], BagLayout.from_sizes([7, 3]), z)
    torch.testing.assert_close(plan.labels, solve(logits, bag_index, z).labels[order])
