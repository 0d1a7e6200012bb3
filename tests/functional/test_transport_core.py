"""Large bags by way of their undecided instances: against POT, the n x n assignment, and from bad prices."""

import numpy as np
import ot
import pytest
import torch
from scipy.optimize import linear_sum_assignment

from bagwise.functional import transport_core
from bagwise.functional.inputs import prepare
from bagwise.functional.transport import solve_transport, transport_lp
from bagwise.functional.transport_core import solve_by_core


class CountingSolver:
    """POT, keeping the sizes of the problems that it was given."""

    def __init__(self):
        self.sizes = []

    def __call__(self, cost, mu):
        self.sizes.append(len(cost))
        plan, log = ot.emd(np.ones(len(cost)), mu, cost, log=True, center_dual=False)
        return plan, -log["v"]


def make_costs(kind, n, num_classes, seed=0):
    rng = np.random.default_rng(seed)
    logits = rng.normal(scale=2, size=(n, num_classes))
    if kind == "flat":
        logits *= 0.1
    elif kind == "biased":
        logits += rng.normal(scale=3, size=num_classes)
    elif kind == "confident":
        logits[np.arange(n), rng.integers(num_classes, size=n)] += 15
    elif kind == "equal instances":
        logits = logits[rng.integers(12, size=n)]
    elif kind == "few distinct costs":
        logits = rng.integers(0, 3, size=logits.shape).astype(float)
    cost = np.logaddexp.reduce(logits, axis=1, keepdims=True) - logits
    if kind == "forbidden classes":
        cost[rng.random(cost.shape) < 0.4] = 1e4
    return cost, rng


def check_optimal(cost, mu, plan, prices):
    """Feasible, and as cheap as the lower bound that the prices give."""
    assert (plan >= 0).all()
    np.testing.assert_allclose(plan.sum(axis=1), 1, atol=1e-9)
    np.testing.assert_allclose(plan.sum(axis=0), mu, atol=1e-9)
    bound = (cost + prices).min(axis=1).sum() - prices @ mu
    assert (plan * cost).sum() == pytest.approx(bound, rel=1e-10, abs=1e-10)


KINDS = ("plain", "flat", "biased", "confident", "equal instances", "few distinct costs", "forbidden classes")


@pytest.mark.parametrize("marginals", ["even", "rare classes", "fractional"])
@pytest.mark.parametrize("num_classes", [3, 10])
@pytest.mark.parametrize("kind", KINDS)
def test_plan_is_optimal_and_its_prices_prove_it(kind, num_classes, marginals):
    n = 900
    cost, rng = make_costs(kind, n, num_classes)
    mu = n * rng.dirichlet(np.ones(num_classes))
    if marginals == "even":
        mu = rng.multinomial(n, np.full(num_classes, 1 / num_classes)).astype(float)
    elif marginals == "rare classes":
        mu = np.ones(num_classes)
        mu[0] = n - num_classes + 1
    plan, prices = solve_by_core(cost, mu, CountingSolver())
    check_optimal(cost, mu, plan, prices)
    assert (plan * cost).sum() == pytest.approx(ot.emd2(np.ones(n), mu, cost), rel=1e-10)


@pytest.mark.parametrize("kind", ["plain", "flat", "biased", "confident"])
def test_only_undecided_instances_are_solved_for(kind):
    cost, rng = make_costs(kind, 2000, 6)
    solver = CountingSolver()
    solve_by_core(cost, rng.multinomial(2000, np.full(6, 1 / 6)).astype(float), solver)
    assert max(solver.sizes) < 500


@pytest.mark.parametrize("scale", [0.2, 1.0, 30.0])
def test_bad_prices_cost_time_but_no_exactness(scale, monkeypatch):
    cost, rng = make_costs("plain", 800, 5)
    mu = rng.multinomial(800, np.full(5, 0.2)).astype(float)
    monkeypatch.setattr(transport_core, "_nearly_optimal_prices", lambda _, mu: rng.normal(scale=scale, size=len(mu)))
    sizes = []
    for _ in range(10):
        solver = CountingSolver()
        check_optimal(cost, mu, *solve_by_core(cost, mu, solver))
        sizes.append(solver.sizes)
    assert any(len(tried) > 1 or tried == [800] for tried in sizes)  # else nothing went wrong, and nothing was tested


def test_equal_costs_everywhere():
    mu = np.array([500.0, 200.0, 100.0])
    cost = np.full((800, 3), np.log(3))
    check_optimal(cost, mu, *solve_by_core(cost, mu, CountingSolver()))


@pytest.mark.parametrize("marginals", ["fractional", "rounded"])
def test_loss_of_large_bags_with_impossible_and_absent_classes(marginals):
    rng = np.random.default_rng(1)
    sizes, num_classes = np.array([800, 1000]), 4
    logits = rng.normal(scale=2, size=(sizes.sum(), num_classes))
    logits[rng.random(logits.shape) < 0.1] = -np.inf
    logits[:, 1] = rng.normal(size=len(logits))  # at least one class is possible everywhere
    counts = np.array([[150, 400, 0, 250], [100, 700, 150, 50]])
    z = torch.from_numpy(counts / sizes[:, None])
    bag_index = torch.from_numpy(np.repeat([0, 1], sizes))
    values = transport_lp(torch.from_numpy(logits), bag_index, z, reduction="none", marginals=marginals)
    plan = solve_transport(prepare(torch.from_numpy(logits), bag_index, z), marginals)
    assert plan.optimal.all()
    for bag, rows in enumerate((slice(0, 800), slice(800, 1800))):
        np.testing.assert_array_equal(plan.labels[rows].sum(dim=0), counts[bag])
        cost = -torch.from_numpy(logits[rows]).log_softmax(dim=1).numpy()
        places = cost[:, np.repeat(np.arange(num_classes), counts[bag])]
        expected = places[linear_sum_assignment(places)].mean()
        assert values[bag].item() == pytest.approx(expected, rel=1e-10)
