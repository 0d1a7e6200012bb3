"""The frame that the exact losses share: from ragged bags to dense blocks of bags, and from their plans back."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from bagwise.functional.envelope import envelope_loss
from bagwise.functional.inputs import Inputs
from bagwise.functional.predictions import softmax_and_log


@dataclass(frozen=True, eq=False)
class Assignment:
    """Exact labels for the instances of every bag.

    Attributes:
        labels: `[instances, classes]` one-hot (or the shares of the classes, for fractional marginals); zeros in a
            bag with unknown proportions.
        values: `[bags]` the loss; +inf where every plan gives some instance a class of probability 0.
        iterations: `[bags]` how often the solver cancelled negative cycles or moved mass along shortest paths.
        optimal: `[bags]` true where the labels are proved optimal (and where there is nothing to label).
    """

    labels: Tensor
    values: Tensor
    iterations: Tensor
    optimal: Tensor


@dataclass(frozen=True, eq=False)
class KnownBags:
    """Bags with known proportions as a dense block of b bags, padded to n instances, with K classes.

    Attributes:
        bags: `[b]`.
        rows: `[b, n]` the instances; the padding repeats one.
        inside: `[b, n]` false on padding, or None when nothing is padded.
        size: `[b, 1]` number of instances in float64.
        f: `[instances, K]` F of all instances.
        log_f: `[instances, K]` -inf where a class has probability 0.
        finite: whether all of `log_f` is finite.
        in_order: whether the block holds all instances in their order, so that nothing has to be gathered.
    """

    bags: Tensor
    rows: Tensor
    inside: Tensor | None
    size: Tensor
    f: Tensor
    log_f: Tensor
    finite: bool
    in_order: bool

    def select(self, chosen: Tensor) -> KnownBags:
        """Return some of the bags: `chosen` is a mask `[b]`, or their places."""
        inside = None if self.inside is None else self.inside[chosen]
        return replace(
            self,
            bags=self.bags[chosen],
            rows=self.rows[chosen],
            inside=inside,
            size=self.size[chosen],
            in_order=False,
        )

    def block_log_f(self) -> Tensor:
        """log F of the block, `[b, n, K]`."""
        return self._block(self.log_f)

    def asked(self) -> Tensor:
        """How often the predictions ask for each class, `[b, K]` in float64."""
        f = self._block(self.f)
        return (f if self.inside is None else f * self.inside[:, :, None]).sum(dim=1).double()

    def cost(self) -> Tensor:
        """C = -log F of the block as in the equations, `[b, K, n]` in float64; +inf where f is 0."""
        return self.block_log_f().mT.double().neg().contiguous()

    def _block(self, values: Tensor) -> Tensor:
        rows = values if self.in_order else values.index_select(0, self.rows.flatten())
        return rows.view(*self.rows.shape, -1)


@dataclass(frozen=True, eq=False)
class BlockPlan:
    """Optimal plans of some bags: instance j takes the share `shares[j, i]` of class `classes[j, i]`, i = 1..m.

    Attributes:
        bags: the bags.
        classes: `[b, n, m]`, m = 1 for hard labels.
        shares: `[b, n, m]` in float64, zero on padding.
        iterations: `[b]`.
        prove: returns `[b]`, true where the plan is proved optimal; a loss does not ask for the proof.
        penalty: `[b]` what the loss adds to the cost of the plan, or None.
    """

    bags: KnownBags
    classes: Tensor
    shares: Tensor
    iterations: Tensor
    prove: Callable[[], Tensor]
    penalty: Tensor | None = None

    @staticmethod
    def hard(
        bags: KnownBags,
        labels: Tensor,
        iterations: Tensor,
        prove: Callable[[], Tensor],
        penalty: Tensor | None = None,
    ) -> BlockPlan:
        """Plan of hard `labels [b, n]`."""
        classes = labels[:, :, None]
        if bags.inside is None:
            shares = torch.ones_like(classes, dtype=torch.float64)
        else:
            shares = bags.inside[:, :, None].double()
        return BlockPlan(bags, classes, shares, iterations, prove, penalty)

    @cached_property
    def entries(self) -> Tensor:
        """`[b n m]` where the shares lie in a flattened array `[instances, K]`."""
        return (self.bags.rows[:, :, None] * self.bags.log_f.shape[1] + self.classes).flatten()

    def cost(self) -> Tensor:
        """<C, U> of every bag, `[b]`."""
        cost = self.shares * -self.bags.log_f.take(self.entries).view_as(self.shares)
        if not self.bags.finite:  # an impossible class that is not used costs 0, not inf * 0
            cost = torch.where(self.shares > 0, cost, 0)
        return cost.sum(dim=(1, 2))


BlockSolver = Callable[[KnownBags], Iterable[BlockPlan]]


def exact_loss(inputs: Inputs, solve: BlockSolver, alpha: float, reduction: str) -> Tensor:
    """Return alpha <C, U>/n + penalty of the bags, reduced, with the gradient alpha/n (F - U) at the logits."""
    residual, plans = _solve_all(inputs, solve)
    values = _values(inputs, plans, alpha)
    for plan in plans:
        residual.view(-1).index_add_(0, plan.entries, plan.shares.flatten().to(residual.dtype), alpha=-1)
    return envelope_loss(inputs, values, residual, alpha, reduction)


def exact_assignment(inputs: Inputs, solve: BlockSolver, alpha: float) -> Assignment:
    """Collect the plans of all bags, with the proof of their optimality."""
    f, plans = _solve_all(inputs, solve)
    labels = torch.zeros_like(f, dtype=torch.float64)
    iterations = torch.zeros_like(inputs.layout.sizes)
    optimal = torch.ones_like(inputs.counted)
    for plan in plans:
        labels.view(-1).index_add_(0, plan.entries, plan.shares.flatten())
        iterations.index_copy_(0, plan.bags.bags, plan.iterations)
        optimal.index_copy_(0, plan.bags.bags, plan.prove())
    return Assignment(labels, _values(inputs, plans, alpha), iterations, optimal)


def _solve_all(inputs: Inputs, solve: BlockSolver) -> tuple[Tensor, list[BlockPlan]]:
    """Return F `[instances, K]` and the plans of all bags with known proportions, block by block."""
    logits = inputs.logits.detach()
    f, log_f = softmax_and_log(logits, logits.dtype)
    finite = math.isfinite(float(log_f.sum()))
    if not finite:  # an instance whose logits are all -inf rules out every class; softmax says NaN
        hopeless = (logits == -torch.inf).all(dim=1, keepdim=True)
        f, log_f = torch.where(hopeless, 0, f), torch.where(hopeless, -torch.inf, log_f)
    layout, all_known = inputs.layout, bool(inputs.counted.all())
    in_order = layout.order is None and layout.common_size is not None
    plans = []
    for block in layout.blocks:
        size = layout.sizes[block.bags].double()[:, None]
        bags = KnownBags(block.bags, block.rows, block.mask, size, f, log_f, finite, in_order)
        if not all_known:
            bags = bags.select(inputs.counted[block.bags])
        if len(bags.bags):
            plans.extend(solve(bags))
    return f, plans


def _values(inputs: Inputs, plans: list[BlockPlan], alpha: float) -> Tensor:
    """The loss `[bags]` in float64."""
    values = torch.zeros_like(inputs.counted, dtype=torch.float64)
    for plan in plans:
        value = alpha * plan.cost() / plan.bags.size[:, 0]
        values.index_copy_(0, plan.bags.bags, value if plan.penalty is None else value + plan.penalty)
    return values
