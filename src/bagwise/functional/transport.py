"""The exact transport loss: the paper's linear-programming relaxation (its l^relax-LP), solved exactly."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import torch
from torch import Tensor

from bagwise.bags.layout import BagLayout
from bagwise.bags.setting_checks import check_choice
from bagwise.functional.assignment import is_optimal, solve_assignment
from bagwise.functional.assignment_problem import AssignmentProblem
from bagwise.functional.count_costs import ExactCounts
from bagwise.functional.exact_plan import (
    Assignment,
    BlockPlan,
    BlockSolver,
    KnownBags,
    exact_assignment,
    exact_loss,
)
from bagwise.functional.fractional_transport import solve_fractional
from bagwise.functional.inputs import REDUCTIONS, Inputs, prepare
from bagwise.functional.transport_solvers import (
    PricedPlan,
    assign_slots,
    has_network_simplex,
    is_priced_right,
    label_by_network_simplex,
    linear_program,
    network_simplex,
    sort_two_classes,
)

MARGINALS = ("fractional", "rounded")

# Measured (see benchmarks/losses.py): the n x n assignment wins in small bags and where classes are many, POT's network
# simplex in between, our own solver in very large bags with few classes (and where POT is missing). On a GPU, bags are
# solved all at once.
_SMALL_BAG = 128
_INSTANCES_PER_CLASS = 8
_LARGEST_MATRIX = 2048
_LARGE_BAG = 4096
_FEW_CLASSES = 16
_FLOAT32_EPS = torch.finfo(torch.float32).eps


def transport_lp(
    logits: Tensor,
    bag_index: Tensor | BagLayout,
    proportions: Tensor,
    *,
    marginals: str = "fractional",
    reduction: str = "mean",
) -> Tensor:
    r"""Cost of the labels that meet a bag's proportions exactly and fit the predictions best.

    .. math:: \min_U \frac1n \langle C, U \rangle \quad\text{with}\quad U 1 = n z,\; U^\top 1 = 1,\; U \ge 0,
              \qquad C = -\log F

    When n z holds whole numbers, U is a hard labeling. The gradient at the logits is (F - U)/n by the envelope
    theorem, as if U were fixed labels. Solved exactly for every bag; the solver looks at its progress, so on a GPU
    this loss makes the device wait.

    An instance that gives probability 0 to every class left for it makes the loss +inf; its gradient stays finite.

    Args:
        logits: `[instances, classes]`, unnormalised scores.
        bag_index: `[instances]` integers in any order, or a `BagLayout`.
        proportions: `[bags, classes]`, z; a row of NaN is a bag with unknown proportions and gives no loss.
        marginals: what to do when n z is not whole: "fractional" shares instances between classes, "rounded" rounds
            n z by largest remainder (the counts still sum to n) and keeps the labels hard.
        reduction: "mean" over the bags with known proportions, "sum", or "none" for `[bags]`.

    Example:
        >>> logits = torch.tensor([[2.0, 0.0], [1.0, 0.0], [0.0, 0.5]])
        >>> transport_lp(logits, torch.tensor([0, 0, 0]), torch.tensor([[1 / 3, 2 / 3]]))
        tensor(0.6381)
    """
    check_choice("marginals", marginals, MARGINALS)
    check_choice("reduction", reduction, REDUCTIONS)
    inputs = prepare(logits, bag_index, proportions)
    return exact_loss(inputs, _solver(inputs, marginals), alpha=1.0, reduction=reduction)


@torch.no_grad()
def solve_transport(inputs: Inputs, marginals: str) -> Assignment:
    """Return the labels that `transport_lp` finds, with the proof of their optimality."""
    check_choice("marginals", marginals, MARGINALS)
    return exact_assignment(inputs, _solver(inputs, marginals), alpha=1.0)


def largest_remainder(target: Tensor) -> Tensor:
    """Round each row of `target [b, K]`, which sums to a whole number, to whole numbers of the same sum.

    Every entry is rounded down; those that lost most are rounded up, the first ones first where they tie.

    Example:
        >>> largest_remainder(torch.tensor([[1.6, 0.7, 0.7]]))
        tensor([[1., 1., 1.]])
    """
    floor = target.floor()
    missing = (target.sum(dim=1, keepdim=True) - floor.sum(dim=1, keepdim=True)).round()
    rank = (target - floor).argsort(dim=1, descending=True, stable=True).argsort(dim=1)
    return floor + (rank < missing)


def _solver(inputs: Inputs, marginals: str) -> BlockSolver:
    """Return the function that solves a block of bags."""
    z = inputs.proportions.detach().double()
    total = z.sum(dim=1, keepdim=True).clamp(min=0.5)  # 1 to rounding, or 0 where the proportions are unknown
    target = inputs.layout.sizes[:, None] * z / total  # [bags, K]
    counts = target.round()
    # of a proportion that stands for a whole count; `Bags` keeps them in float32, whatever the type of the logits
    kept_in_float32 = (z == z.float()).all(dim=1)
    rounding = torch.where(kept_in_float32, _FLOAT32_EPS, torch.finfo(inputs.proportions.dtype).eps) * 8
    # the errors of a bag add up to less than one instance, so that the rounded counts sum to its size
    whole = (target - counts).abs().sum(dim=1) <= (rounding * inputs.layout.sizes).clamp(max=0.4)
    all_whole = bool(whole.all())
    if marginals == "rounded" and not all_whole:
        counts = largest_remainder(target)
    if marginals == "rounded" or all_whole:
        return lambda bags: [_solve_whole(bags, counts[bags.bags])]

    def solve(bags: KnownBags) -> Iterator[BlockPlan]:
        chosen = whole[bags.bags]
        if bool(chosen.any()):
            some = bags.select(chosen)
            yield _solve_whole(some, counts[some.bags])
        if not bool(chosen.all()):
            some = bags.select(~chosen)
            yield _solve_fractional(some, target[some.bags])

    return solve


def _solve_whole(bags: KnownBags, counts: Tensor) -> BlockPlan:
    """Hard labels, by whichever way is fastest."""
    n, num_classes = bags.rows.shape[1], counts.shape[1]
    on_host = counts.device.type == "cpu"
    largest_matrix = max(_SMALL_BAG, min(_INSTANCES_PER_CLASS * num_classes, _LARGEST_MATRIX))
    rounds = torch.zeros_like(bags.bags)
    if num_classes == 2:
        solution = sort_two_classes(bags, counts)
        labels, prove = solution.shares.argmax(dim=2), partial(is_priced_right, bags, counts, solution)
    elif on_host and n <= largest_matrix:
        labels = assign_slots(bags, counts)
        prove = lambda: is_optimal(_problem(bags, counts), labels)  # noqa: E731
    elif on_host and (n < _LARGE_BAG or num_classes > _FEW_CLASSES) and has_network_simplex():
        priced = label_by_network_simplex(bags, counts)
        labels = priced.labels
        prove = lambda: is_priced_right(bags, counts, PricedPlan.hard(bags, labels, priced.prices))  # noqa: E731
    else:
        labeling = solve_assignment(_problem(bags, counts))
        labels, rounds, prove = labeling.labels, labeling.rounds, lambda: labeling.optimal
    return BlockPlan.hard(bags, labels, rounds, prove)


def _solve_fractional(bags: KnownBags, target: Tensor) -> BlockPlan:
    """Shares of the classes, by whichever way is fastest."""
    iterations = torch.zeros_like(bags.bags)
    if target.shape[1] == 2:
        solution = sort_two_classes(bags, target)
    elif target.device.type == "cpu" and (has_network_simplex() or target.shape[1] > _FEW_CLASSES):
        solution = _one_by_one(bags, target)
    else:
        solution, iterations = _move_fractions(bags, target)
    shares = torch.where(solution.shares < 1e-12, 0, solution.shares)  # rounding: of an impossible class it costs +inf
    classes = torch.arange(target.shape[1], device=target.device).expand_as(shares)
    prove = partial(is_priced_right, bags, target, solution)
    return BlockPlan(bags, classes, shares, iterations, prove)


def _move_fractions(bags: KnownBags, target: Tensor) -> tuple[PricedPlan, Tensor]:
    """All bags at once; also returns how many sweeps each took, `[b]`."""
    plan = solve_fractional(_problem(bags, largest_remainder(target)), target)
    shares, prices = plan.shares.mT.contiguous(), plan.prices
    left = (~plan.settled).nonzero()[:, 0]
    if len(left):  # not seen so far
        rest = _one_by_one(bags.select(left), target[left])
        shares, prices = shares.index_copy(0, left, rest.shares), prices.index_copy(0, left, rest.prices)
    return PricedPlan(shares, prices), plan.sweeps


def _one_by_one(bags: KnownBags, target: Tensor) -> PricedPlan:
    return (network_simplex if has_network_simplex() else linear_program)(bags, target)


def _problem(bags: KnownBags, counts: Tensor) -> AssignmentProblem:
    return AssignmentProblem.build(bags.cost(), bags.inside, ExactCounts(counts, bags.size))
