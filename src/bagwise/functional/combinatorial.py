"""The combinatorial loss (the paper's l^comb): the best hard labeling of a bag, exact for any number of classes."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import torch
from torch import Tensor

from bagwise.bags.layout import BagLayout
from bagwise.bags.setting_checks import check_alpha, check_choice
from bagwise.functional.assignment import is_optimal, solve_assignment
from bagwise.functional.assignment_problem import AssignmentProblem
from bagwise.functional.count_costs import CountCost, KLCounts, L1Counts, L2Counts
from bagwise.functional.exact_plan import (
    Assignment,
    BlockPlan,
    KnownBags,
    exact_assignment,
    exact_loss,
)
from bagwise.functional.inputs import DIVERGENCES, REDUCTIONS, Inputs, prepare

_COUNT_COSTS: dict[str, type[CountCost]] = {"kl": KLCounts, "l1": L1Counts, "l2": L2Counts}


def combinatorial(
    logits: Tensor,
    bag_index: Tensor | BagLayout,
    proportions: Tensor,
    *,
    alpha: float = 0.5,
    divergence: str = "kl",
    reduction: str = "mean",
) -> Tensor:
    r"""Cost of the hard labels that fit predictions and proportions best together.

    .. math:: \min_t\; -\frac\alpha n \sum_j \log f_{j t_j} + (1-\alpha)\, d(c/n, z),
              \qquad c_k = \#\{j : t_j = k\}

    over all K^n labelings t of a bag. The paper solves this for two classes and calls the general case intractable. It
    is not: for every divergence that is a sum over classes of convex functions of the counts it is a flow problem, and
    a labeling whose residual graph on K + 1 nodes has no negative cycle is optimal (see `assignment`).

    The gradient at the logits is alpha/n (F - T) with one-hot labels T, by the envelope theorem. With "kl" a class of
    proportion 0 gets no instance. An instance that gives probability 0 to every class it could get makes the loss
    +inf; its gradient stays finite. The solver looks at its progress, so on a GPU this loss makes the device wait.

    Args:
        logits: `[instances, classes]`, unnormalised scores.
        bag_index: `[instances]` integers in any order, or a `BagLayout`.
        proportions: `[bags, classes]`, z; a row of NaN is a bag with unknown proportions and gives no loss.
        alpha: weight of the predictions against the proportions, 0 < alpha < 1.
        divergence: d: "kl" (generalised KL(c/n | z)), "l1" (sum of absolute differences) or "l2" (sum of squares).
        reduction: "mean" over the bags with known proportions, "sum", or "none" for `[bags]`.

    Example:
        >>> logits = torch.tensor([[2.0, 0.0, 0.0], [1.0, 0.5, 0.0], [0.0, 0.5, 0.0]])
        >>> combinatorial(logits, torch.tensor([0, 0, 0]), torch.tensor([[1 / 3, 2 / 3, 0.0]]))
        tensor(0.3690)
    """
    check_alpha(alpha)
    check_choice("divergence", divergence, DIVERGENCES)
    check_choice("reduction", reduction, REDUCTIONS)
    inputs = prepare(logits, bag_index, proportions)
    solve = partial(_solve, inputs.proportions.double(), alpha, divergence)
    return exact_loss(inputs, solve, alpha, reduction)


@torch.no_grad()
def solve_combinatorial(inputs: Inputs, alpha: float, divergence: str) -> Assignment:
    """Return the labels that `combinatorial` finds, with the proof of their optimality."""
    check_alpha(alpha)
    check_choice("divergence", divergence, DIVERGENCES)
    return exact_assignment(inputs, partial(_solve, inputs.proportions.double(), alpha, divergence), alpha)


def _solve(proportions: Tensor, alpha: float, divergence: str, bags: KnownBags) -> Iterator[BlockPlan]:
    z = proportions[bags.bags]
    # in units of C the loss is alpha/n times the objective of the assignment problem
    count_cost = _COUNT_COSTS[divergence](bags.size * z, bags.size, (1 - alpha) / alpha)
    problem = AssignmentProblem.build(bags.cost(), bags.inside, count_cost)
    if z.shape[1] == 2:
        labels, rounds = label_two_classes(problem), torch.zeros_like(bags.bags)
        prove = partial(is_optimal, problem, labels)
    else:
        labeling = solve_assignment(problem)
        labels, rounds = labeling.labels, labeling.rounds
        prove = lambda: labeling.optimal  # noqa: E731
    shares = problem.counts(labels) / bags.size
    penalty = (1 - alpha) * count_divergence(shares, z, divergence)
    yield BlockPlan.hard(bags, labels, rounds, prove, penalty)


def count_divergence(shares: Tensor, proportions: Tensor, divergence: str) -> Tensor:
    """d(a, z) of `shares [b, K]` a = c/n from `proportions [b, K]` z, `[b]`."""
    if divergence == "l1":
        return (shares - proportions).abs().sum(dim=1)
    if divergence == "l2":
        return (shares - proportions).square().sum(dim=1)
    some = shares > 0
    entropy = torch.where(some, shares * torch.log(torch.where(some, shares, 1) / proportions), 0)
    return (entropy - shares + proportions).sum(dim=1)


def label_two_classes(problem: AssignmentProblem) -> Tensor:
    """Two classes: sort by what class 1 costs more than class 0, and move instances while the next one still saves.

    The p-th instance in that order adds C_1 - C_0 plus two increments of the count costs; all three grow with p, so
    the best number of instances in class 1 is the number of negative sums. O(n log n); labels `[b, n]`.
    """
    loss = problem.cost[:, 1] - problem.cost[:, 0]
    if problem.inside is not None:
        loss = torch.where(problem.inside, loss, torch.inf)
    ordered, order = loss.sort(dim=1)
    moved = torch.arange(loss.shape[1], dtype=loss.dtype, device=loss.device)  # already in class 1
    gain = problem.of_class(1).join(moved.expand_as(loss))
    left = problem.count_cost.size - moved - 1
    ordered = ordered + gain - problem.of_class(0).join(left.clamp(min=0))
    return torch.zeros_like(order).scatter(1, order, (ordered < 0).long())
