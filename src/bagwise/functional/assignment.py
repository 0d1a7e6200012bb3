r"""Exact labelings of a block of bags by cancelling negative cycles in a graph with one node per class.

The problem, for every bag at once (see `count_costs` for G):

.. math:: \min_t \sum_j C_{t_j j} + \sum_k G_k(c_k), \qquad c_k = \#\{j : t_j = k\}

Its residual graph needs no node per instance. From class i to class k leads one arc, whose weight is the least
C_kj - C_ij over the instances j now in class i: what it costs to move the best one over. One more node stands for the
counts: the arc from it to class i weighs what one instance less in class i costs, the arc from class k to it what one
more costs. A cycle of negative weight is an improvement; when there is none, the labeling is optimal, because G is
convex. This is how a problem that the paper calls intractable for more than two classes is solved exactly.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from bagwise.functional.assignment_problem import AssignmentProblem
from bagwise.functional.prices import priced_labels


@dataclass(frozen=True, eq=False)
class Labeling:
    """Labels of a block of bags.

    Attributes:
        labels: `[b, n]` a class for every instance; arbitrary on padding.
        rounds: `[b]` how often negative cycles were cancelled.
        optimal: `[b]` true where no negative cycle is left.
    """

    labels: Tensor
    rounds: Tensor
    optimal: Tensor


def solve_assignment(problem: AssignmentProblem) -> Labeling:
    """Find an optimal labeling of every bag: start from labels by class prices, then cancel cycles."""
    start = priced_labels(problem)
    return cancel_cycles(problem, start.labels, start.prices)


def is_optimal(problem: AssignmentProblem, labels: Tensor) -> Tensor:
    """`[b]` true where `labels [b, n]` are proved optimal: their residual graph has no negative cycle."""
    graph, _ = _residual_graph(problem, labels)
    return ~_find_cycles(graph, torch.zeros_like(graph[:, 0, :-1]), problem.tolerance).found


def cancel_cycles(problem: AssignmentProblem, labels: Tensor, prices: Tensor) -> Labeling:
    """Improve `labels [b, n]` until no bag has a negative cycle. `prices [b, K]` near the optimal ones save time."""
    b, num_classes, n = problem.cost.shape
    # every cycle lowers the cost by more than rounding, so this ends; the bound is a guard against a bug
    rounds_allowed = 100 + 10 * n * num_classes
    result = Labeling(
        labels.clone(),
        torch.zeros(b, dtype=torch.long, device=labels.device),
        torch.zeros(b, dtype=torch.bool, device=labels.device),
    )
    bags = torch.arange(b, device=labels.device)  # still at work on these
    for _ in range(rounds_allowed):
        graph, moves = _residual_graph(problem, labels)
        cycles = _find_cycles(graph, -prices, problem.tolerance)
        result.optimal[bags] = ~cycles.found
        left = cycles.found.nonzero()[:, 0]
        if len(left) == 0:
            break
        labels = _move_along(cycles, labels, moves)
        result.labels[bags] = labels
        result.rounds[bags] += cycles.found
        if len(left) < len(bags):
            bags, labels, prices, problem = bags[left], labels[left], prices[left], problem.select(left)
    return result


@dataclass(frozen=True, eq=False)
class _Cycles:
    """Negative cycles, at most one through each node.

    Attributes:
        source: `[b, K+1]` for each node the one before it on its cycle, or the node itself when it is on none.
        found: `[b]` whether there is a cycle.
    """

    source: Tensor
    found: Tensor


def _residual_graph(problem: AssignmentProblem, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Return the weights `[b, K+1 (to), K+1 (from)]` and what each move costs, `[b, K, n]`."""
    cost, inside = problem.cost, problem.inside
    b, num_classes, n = cost.shape
    moves = cost - cost.gather(1, labels[:, None, :])
    if inside is not None:
        moves = moves.masked_fill(~inside[:, None, :], torch.inf)
    graph = cost.new_full((b, num_classes + 1, num_classes + 1), torch.inf)
    graph[:, :-1, :-1].scatter_reduce_(2, labels[:, None, :].expand(b, num_classes, n), moves, "amin")
    graph[:, :-1, -1], graph[:, -1, :-1] = problem.leave_and_join(problem.counts(labels))
    return graph, moves


def _find_cycles(graph: Tensor, start: Tensor, tolerance: Tensor) -> _Cycles:
    """Bellman-Ford for all bags, from the potentials `start [b, K]` of the classes.

    A cycle among the "reached from" pointers has negative weight, and such cycles are disjoint. A bag's search ends
    when nothing can be relaxed any more (then there is no negative cycle, and the potentials prove it) or when its
    pointers close a cycle, after K + 1 steps at the latest. Potentials near the optimal ones (minus the prices) make
    it short.
    """
    b, num_nodes, _ = graph.shape
    nodes = torch.arange(num_nodes, device=graph.device).expand(b, num_nodes)
    potentials = torch.cat([start, (graph[:, -1, :-1] + start).amin(dim=1, keepdim=True)], dim=1)
    source, found = nodes, torch.zeros(b, dtype=torch.bool, device=graph.device)
    on_cycle = torch.zeros_like(nodes, dtype=torch.bool)
    while True:
        reached, via = (graph + potentials[:, None, :]).min(dim=2)
        shorter = (reached < potentials - tolerance) & ~found[:, None]
        if not bool(shorter.any()):
            return _Cycles(torch.where(on_cycle, source, nodes), found)
        source = torch.where(shorter, via, source)
        potentials = torch.where(shorter, reached, potentials)
        ancestor = source
        for _ in range(num_nodes.bit_length()):  # after more steps than there are nodes: on a cycle, or at a root
            ancestor = ancestor.gather(1, ancestor)
        on_cycle = torch.zeros_like(on_cycle).scatter(1, ancestor, True) & (source != nodes)
        found = on_cycle.any(dim=1)


def _move_along(cycles: _Cycles, labels: Tensor, moves: Tensor) -> Tensor:
    """Move the best instance along every arc between two classes of the cycles."""
    num_classes = moves.shape[1]
    source = cycles.source[:, :num_classes]
    here = torch.arange(num_classes, device=labels.device)
    bag, target = ((source != here) & (source < num_classes)).nonzero(as_tuple=True)
    eligible = labels[bag] == source[bag, target][:, None]
    best = torch.where(eligible, moves[bag, target], torch.inf).argmin(dim=1)
    labels = labels.clone()
    labels[bag, best] = target  # the source classes of a bag differ, hence so do the instances
    return labels
