r"""Exact transport plans of a block of bags whose marginals are not whole: all bags at once, on any device.

.. math:: \min_U \langle C, U \rangle \quad\text{with}\quad U 1 = \mu,\; U^\top 1 = 1,\; U \ge 0

First the marginals are rounded, and `assignment` finds the best hard labels for the rounded counts. Now every class has
less than one instance too much or too little. What is too much moves along shortest paths of the residual graph, which
has one node per class: the arc from class i to class k weighs the least C_kj - C_ij over the instances j that have a
share of class i, and can carry that share. Whatever moves along shortest paths leaves no negative cycle, so the plan
stays optimal for the marginals that it has, and is optimal when these are mu. The distances are the prices that prove
it. Paths that start at different classes have no class in common where they are taken from one forest of shortest
paths, so that they can all be used at once.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from bagwise.functional.assignment import solve_assignment
from bagwise.functional.assignment_problem import AssignmentProblem

_DUST = 1e-13  # a smaller share is what rounding left behind
_BUFFER_ENTRIES = 2**24  # one launch for many bags of ordinary size
_SWEEPS_PER_CLASS = 30  # one to two are usual


@dataclass(frozen=True, eq=False)
class FractionalPlan:
    """Transport plans of b bags with the dual solution that proves them.

    Attributes:
        shares: `[b, K, n]` U, zero on padding.
        prices: `[b, K]` y: every instance has shares only of classes of least C_kj + y_k.
        sweeps: `[b]` how often negative cycles were cancelled or mass was moved along shortest paths.
        settled: `[b]` true where the marginals are met; elsewhere the solver gave up.
    """

    shares: Tensor
    prices: Tensor
    sweeps: Tensor
    settled: Tensor


def solve_fractional(problem: AssignmentProblem, target: Tensor) -> FractionalPlan:
    """Meet the marginals `target [b, K]`; `problem` asks for whole counts that differ from them by less than one."""
    labeling = solve_assignment(problem)
    cost, tolerance = problem.cost, problem.tolerance
    inside = torch.ones_like(cost[:, 0]) if problem.inside is None else problem.inside.to(cost.dtype)
    shares = torch.zeros_like(cost).scatter_(1, labeling.labels[:, None, :], inside[:, None, :])
    settled = torch.zeros_like(labeling.optimal)
    result = FractionalPlan(shares.clone(), torch.zeros_like(target), labeling.rounds.clone(), settled)
    excess = problem.count_cost.target - target  # [b, K] mass that has to leave the class
    graph, instance = _residual_graph(cost, shares)
    potentials = _potentials(graph, tolerance)
    bags = torch.arange(len(target), device=target.device)  # still at work on these
    for _ in range(_SWEEPS_PER_CLASS * (target.shape[1] + 1)):
        done = (excess <= _DUST).all(dim=1) | (excess >= -_DUST).all(dim=1)
        finished = bags[done]
        result.shares[finished] = shares[done]
        result.prices[finished] = -potentials[done]
        result.settled[finished] = labeling.optimal[finished]
        left = (~done).nonzero()[:, 0]
        if len(left) == 0:
            break
        result.sweeps[bags[left]] += 1
        forest = _shortest_paths(graph, potentials, excess, tolerance)
        potentials = potentials + torch.where(forest.distance < torch.inf, forest.distance, 0)
        excess = _move_along(forest, instance, shares, excess)
        if 2 * len(left) <= len(bags):
            state = bags, cost, tolerance, potentials, shares, excess
            bags, cost, tolerance, potentials, shares, excess = (part[left] for part in state)
        graph, instance = _residual_graph(cost, shares)
    return result


@dataclass(frozen=True, eq=False)
class _Forest:
    """Shortest paths from the classes with too much mass, the sources, to all others.

    Attributes:
        distance: `[b, K]` from the nearest source.
        before: `[b, K]` the class before this one on its path; a source is its own.
    """

    distance: Tensor
    before: Tensor


def _residual_graph(cost: Tensor, shares: Tensor) -> tuple[Tensor, Tensor]:
    """Weights `[b, K (to), K (from)]`, and which instance each of them belongs to."""
    saved = torch.where(shares > _DUST, cost, -torch.inf)
    at_once = max(1, _BUFFER_ENTRIES // max(1, cost.numel()))
    arcs = [(cost[:, :, None, :] - some[:, None, :, :]).min(dim=3) for some in saved.split(at_once, dim=1)]
    return torch.cat([arc.values for arc in arcs], dim=2), torch.cat([arc.indices for arc in arcs], dim=2)


def _potentials(graph: Tensor, tolerance: Tensor) -> Tensor:
    """Return v `[b, K]` with v_k <= v_i + w_ik for all arcs; they exist where no cycle is negative."""
    potentials = torch.zeros_like(graph[:, 0])
    for _ in range(graph.shape[1]):
        reached = (graph + potentials[:, None, :]).amin(dim=2)
        shorter = reached < potentials - tolerance
        if not bool(shorter.any()):
            break
        potentials = torch.where(shorter, reached, potentials)
    return potentials


def _shortest_paths(graph: Tensor, potentials: Tensor, excess: Tensor, tolerance: Tensor) -> _Forest:
    """Bellman-Ford for all bags, on the weights w_ik + v_i - v_k, none of which is negative."""
    weights = graph + potentials[:, None, :] - potentials[:, :, None]
    weights = torch.where(weights < tolerance[:, :, None], 0, weights)
    distance = torch.where(excess > _DUST, 0.0, torch.inf).to(graph.dtype)
    before = torch.arange(graph.shape[1], device=graph.device).expand_as(distance)
    for _ in range(graph.shape[1]):
        reached, via = (weights + distance[:, None, :]).min(dim=2)
        shorter = reached < distance
        if not bool(shorter.any()):
            break
        distance, before = torch.where(shorter, reached, distance), torch.where(shorter, via, before)
    return _Forest(distance, before)


def _move_along(forest: _Forest, instance: Tensor, shares: Tensor, excess: Tensor) -> Tensor:
    """Move what can be moved from every root of the forest to the nearest sink of its tree; returns what is left.

    `instance [b, K (to), K (from)]` stands for the arcs; `shares [b, K, n]` are updated in place.
    """
    b, num_classes, n = shares.shape
    classes = torch.arange(num_classes, device=shares.device)
    root = forest.before
    for _ in range(num_classes.bit_length()):
        root = root.gather(1, root)
    away = torch.where(excess < -_DUST, forest.distance, torch.inf)
    nearest, sink = torch.where(root[:, None, :] == classes[:, None], away[:, None, :], torch.inf).min(dim=2)
    amount = torch.minimum(excess, -excess.gather(1, sink)).masked_fill(nearest == torch.inf, 0)  # [b, K (root)]

    flat, instance = shares.view(b, -1), instance.view(b, -1)
    arcs = []
    here = torch.where(amount > 0, sink, classes)  # on the way from the sinks back to their roots
    for _ in range(num_classes):
        origin = torch.where(amount > 0, forest.before.gather(1, here), here)
        moving = origin != here
        if not bool(moving.any()):
            break
        moved = instance.gather(1, here * num_classes + origin)
        arcs.append((origin * n + moved, here * n + moved, moving))
        amount = torch.where(moving, torch.minimum(amount, flat.gather(1, arcs[-1][0])), amount)
        here = origin
    for leaves, joins, moving in arcs:
        step = torch.where(moving, amount, 0)
        flat.scatter_add_(1, leaves, -step).scatter_add_(1, joins, step)
    return (excess - amount).scatter_add(1, sink, amount)
