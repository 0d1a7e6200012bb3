"""Ways to solve transport problems with the marginals of a bag: one unit per instance, mu_k units per class.

Which one is fastest depends on the size; `transport` chooses. All but `assign_slots` take marginals that are not whole.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec

import numpy as np
import torch
from torch import Tensor

from bagwise.functional.exact_plan import KnownBags
from bagwise.functional.prices import PricedLabels
from bagwise.functional.transport_core import Solver, solve_by_core

_FEW_CLASSES = 24
_PIVOTS_PER_NODE = 100  # 1 to 8 are usual


@dataclass(frozen=True, eq=False)
class PricedPlan:
    """Transport plans with the dual solution that proves them.

    Attributes:
        shares: `[b, n, K]` of every class in every instance, zero on padding.
        prices: `[b, K]` y: every instance takes only classes of least C_jk + y_k.
    """

    shares: Tensor
    prices: Tensor

    @staticmethod
    def hard(bags: KnownBags, labels: Tensor, prices: Tensor) -> PricedPlan:
        """Plan of hard `labels [b, n]`."""
        shares = torch.nn.functional.one_hot(labels, prices.shape[1]).double()
        return PricedPlan(shares if bags.inside is None else shares * bags.inside[:, :, None], prices)


def is_priced_right(bags: KnownBags, target: Tensor, solution: PricedPlan) -> Tensor:
    """`[b]` true where the plan costs no more than its lower bound, sum_j min_k (C_jk + y_k) - <y, mu>."""
    cost = bounded_cost(bags)
    prices = torch.where(target > 0, solution.prices, 0)
    cheapest = torch.where((target > 0)[:, None, :], cost + prices[:, None, :], torch.inf).amin(dim=2)
    if bags.inside is not None:
        cheapest = cheapest * bags.inside
    bound = cheapest.sum(dim=1) - (prices * target).sum(dim=1)
    gap = (cost * solution.shares).sum(dim=(1, 2)) - bound
    return gap <= 1e-12 * bags.size[:, 0] * (1 + cost.amax(dim=(1, 2)))


def sort_two_classes(bags: KnownBags, target: Tensor) -> PricedPlan:
    """Two classes: the instances that lose least by it get class 1. O(n log n)."""
    cost = bounded_cost(bags)
    loss = cost[:, :, 1] - cost[:, :, 0]  # [b, n]
    if bags.inside is not None:
        loss = torch.where(bags.inside, loss, torch.inf)
    ordered, order = loss.sort(dim=1)
    mass = target[:, 1:]
    position = torch.arange(loss.shape[1], device=loss.device)
    second = torch.zeros_like(loss).scatter(1, order, (mass - position).clamp(0, 1))
    shares = torch.stack([1 - second, second], dim=2)
    if bags.inside is not None:
        shares = shares * bags.inside[:, :, None]
    last = (mass.ceil() - 1).clamp(min=0).long()  # the last instance that gets some of class 1 sets the price
    prices = torch.cat([torch.zeros_like(mass), -ordered.gather(1, last)], dim=1)
    return PricedPlan(shares, prices)


def network_simplex(bags: KnownBags, target: Tensor) -> PricedPlan:
    """POT's network simplex, one bag at a time."""
    return _collect(bags, target, _pot)


def linear_program(bags: KnownBags, target: Tensor) -> PricedPlan:
    """HiGHS' dual simplex, one bag at a time: slow, but it comes with scipy."""
    return _collect(bags, target, _highs)


def label_by_network_simplex(bags: KnownBags, counts: Tensor) -> PricedLabels:
    """POT's network simplex for whole counts: labels `[b, n]`, arbitrary on padding, and prices."""
    labels, prices = np.zeros(bags.rows.shape, dtype=np.int64), np.zeros(counts.shape)
    first_prices = _first_prices(bags, counts)
    for i, used, plan, prices[i, used] in _one_by_one(bags, counts, first_prices, _pot):
        labels[i, : len(plan)] = used[plan.argmax(axis=1)]
    return PricedLabels(torch.from_numpy(labels), first_prices + torch.from_numpy(prices))


def _pot(cost: np.ndarray, mu: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    import ot

    n, num_classes = cost.shape
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what it warns of is looked at below
        plan, log = ot.emd(
            np.ones(n),
            mu,
            cost,
            numItermax=_PIVOTS_PER_NODE * (n + num_classes),
            log=True,
            center_dual=False,
            check_marginals=False,
        )
    # among many equal costs it can turn in circles, on and off for minutes
    return (plan, -log["v"]) if log["warning"] is None else _highs(cost, mu)


def _highs(cost: np.ndarray, mu: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    from scipy.optimize import linprog
    from scipy.sparse import eye_array, kron, vstack

    n, num_classes = cost.shape
    of_class = kron(np.ones((1, n)), eye_array(num_classes))
    of_instance = kron(eye_array(n), np.ones((1, num_classes)))
    # One equation follows from the others but for rounding, for which its presolve can call the problem infeasible.
    equations, marginals = vstack([of_class, of_instance]).tocsr()[:-1], np.concatenate([mu, np.ones(n - 1)])
    scale = max(1.0, np.abs(cost).max())  # its tolerances are absolute
    result = linprog(cost.ravel() / scale, A_eq=equations, b_eq=marginals, method="highs-ds")
    return result.x.reshape(n, num_classes), -scale * result.eqlin.marginals[:num_classes]


@cache
def has_network_simplex() -> bool:
    """Whether POT is installed."""
    return find_spec("ot") is not None


def assign_slots(bags: KnownBags, counts: Tensor) -> Tensor:
    """Linear assignment on the n x n matrix where class k has `counts[., k]` columns; returns labels `[b, n]`."""
    from scipy.optimize import linear_sum_assignment

    b, n = bags.rows.shape
    num_classes = counts.shape[1]
    places = torch.arange(n, dtype=counts.dtype).repeat(b, 1)
    slots = torch.searchsorted(counts.cumsum(dim=1) - 0.5, places).clamp(max=num_classes - 1)  # [b, n] class of a place
    if num_classes > n:  # then it pays to look only at classes that have a place
        log_f = bags.log_f.take(bags.rows[:, :, None] * num_classes + slots[:, None, :])
        prices, columns = _first_prices(bags, counts).gather(1, slots), places.long()
    else:
        log_f, prices, columns = bags.block_log_f(), _first_prices(bags, counts), slots
    costs = _bounded(prices[:, None, :] - log_f, bags.finite)
    matched = np.tile(np.arange(n), (b, 1))
    bags_one_by_one = zip(costs.numpy(), columns.numpy(), bags.size[:, 0].long().tolist(), strict=True)
    for i, (cost, column, size) in enumerate(bags_one_by_one):
        matrix = cost[:size].take(column[:size], axis=1)  # [instance, place]
        if num_classes < _FEW_CLASSES:
            matched[i, :size] = linear_sum_assignment(matrix)[1]
        else:
            # Faster by place, if places do not all want the instances that are cheap for every class.
            matrix -= matrix.min(axis=1, keepdims=True)
            matched[i, linear_sum_assignment(matrix.T)[1]] = np.arange(size)
    return slots.gather(1, torch.from_numpy(matched))


def bounded_cost(bags: KnownBags) -> Tensor:
    """C `[b, n, K]` in float64 with finite stand-ins for infinite costs."""
    return _bounded(-bags.block_log_f().double(), bags.finite)


def _collect(bags: KnownBags, target: Tensor, solve: Solver) -> PricedPlan:
    shares, prices = np.zeros((*bags.rows.shape, target.shape[1])), np.zeros(target.shape)
    first_prices = _first_prices(bags, target)
    for i, used, plan, prices[i, used] in _one_by_one(bags, target, first_prices, solve):
        shares[i, : len(plan), used] = plan.T
    prices = first_prices + torch.from_numpy(prices).to(target.device)
    return PricedPlan(torch.from_numpy(shares).to(target.device), prices)


def _one_by_one(
    bags: KnownBags, target: Tensor, prices: Tensor, solve: Solver
) -> Iterator[tuple[int, np.ndarray, np.ndarray, np.ndarray]]:
    """For every bag i: the classes that have a place, the plan of its instances for them, and what to add to prices."""
    costs = _bounded(prices[:, None, :] - bags.block_log_f(), bags.finite).cpu().numpy()
    sizes = bags.size[:, 0].long().tolist()
    for i, (cost, mu, size) in enumerate(zip(costs, target.cpu().numpy(), sizes, strict=True)):
        used = np.flatnonzero(mu)
        plan, more = solve_by_core(cost[:size] if mu.all() else cost[:size, used], mu[used], solve)
        yield i, used, plan, more


def _first_prices(bags: KnownBags, target: Tensor) -> Tensor:
    """Return prices `[b, K]` that save time: added to the costs, they change the cost of every plan by the same amount.

    These (one Sinkhorn step: the log of how often a class is asked for per place) make the cheapest classes of the
    instances come in about the right numbers, which saves scipy's solver up to two thirds of its time and POT's up to
    one third.
    """
    asked = bags.asked().clamp(min=torch.finfo(bags.f.dtype).tiny)
    return torch.log(asked / target.clamp(min=0.5))


def _bounded(cost: Tensor, finite: bool) -> Tensor:
    """Replace infinite costs `[b, ., .]` by ones that no finite saving outweighs (see `AssignmentProblem.build`)."""
    if finite:
        return cost
    known = cost.isfinite()
    largest = torch.where(known, cost, 0).abs().amax(dim=(1, 2), keepdim=True)
    return torch.where(known, cost, 4 * (cost.shape[2] + 1) * (1 + largest))
