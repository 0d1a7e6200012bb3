"""The frame that the exact losses share: from ragged bags to dense blocks of bags, and from their plans back."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from bagwise.functional.envelope import envelope_loss
from bagwise.functional.inputs import Inputs


@dataclass(frozen=True, eq=False)
class Assignment:
    """Exact labels for the instances of every bag.

    Attributes:
        labels: `[instances, classes]` one-hot (or the shares of the classes, for fractional marginals); zeros in a
            bag with unknown proportions.
        values: `[bags]` the loss; +inf where every plan gives some instance a class of probability 0.
        iterations: `[bags]` how often the solver cancelled negative cycles.
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
        log_f: `[instances, K]` log F of all instances, -inf where a class has probability 0.
        finite: whether all of `log_f` is finite.
    """

    bags: Tensor
    rows: Tensor
    inside: Tensor | None
    size: Tensor
    log_f: Tensor
    finite: bool

    def select(self, chosen: Tensor) -> KnownBags:
        """Return the bags where `chosen [b]` is true."""
        inside = None if self.inside is None else self.inside[chosen]
        return replace(self, bags=self.bags[chosen], rows=self.rows[chosen], inside=inside, size=self.size[chosen])

    def block_log_f(self) -> Tensor:
        """log F of the block, `[b, n, K]`."""
        return self.log_f.index_select(0, self.rows.flatten()).view(*self.rows.shape, -1)

    def cost(self) -> Tensor:
        """C = -log F of the block as in the equations, `[b, K, n]` in float64; +inf where f is 0."""
        return self.block_log_f().mT.double().contiguous().neg_()


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
        inside = torch.ones_like(labels) if bags.inside is None else bags.inside
        return BlockPlan(bags, labels[:, :, None], inside[:, :, None].double(), iterations, prove, penalty)

    @property
    def entries(self) -> Tensor:
        """`[b n m]` where the shares lie in a flattened array `[instances, K]`."""
        return (self.bags.rows[:, :, None] * self.bags.log_f.shape[1] + self.classes).flatten()


BlockSolver = Callable[[KnownBags], Iterable[BlockPlan]]


@dataclass(frozen=True, eq=False)
class _Solved:
    """The plans of all bags.

    Attributes:
        log_f: `[instances, K]`.
        plans: block by block.
        entries: `[m]` places in a flattened array `[instances, K]`...
        shares: `[m]` ...and the shares that lie there; zero elsewhere.
        owners: `[m]` the bags of the entries.
        values: `[bags]` the loss.
    """

    log_f: Tensor
    plans: list[BlockPlan]
    entries: Tensor
    shares: Tensor
    owners: Tensor
    values: Tensor


def exact_loss(inputs: Inputs, solve: BlockSolver, alpha: float) -> Tensor:
    """Return alpha <C, U>/n + penalty of every bag `[bags]`, with the gradient alpha/n (F - U) at the logits."""
    solved = _solve_all(inputs, solve, alpha)
    layout = inputs.layout
    scale = alpha / layout.sizes.clamp(min=1)  # [bags]
    gradient = solved.log_f.exp().mul_(scale.index_select(0, layout.bag_index)[:, None])
    labels = (scale.index_select(0, solved.owners) * solved.shares).to(gradient.dtype)
    gradient.view(-1).index_add_(0, solved.entries, labels, alpha=-1)
    return envelope_loss(inputs.logits, layout, solved.values, gradient)


def exact_assignment(inputs: Inputs, solve: BlockSolver, alpha: float) -> Assignment:
    """Collect the plans of all bags, with the proof of their optimality."""
    solved = _solve_all(inputs, solve, alpha)
    labels = torch.zeros_like(solved.log_f, dtype=torch.float64)
    labels.view(-1).index_add_(0, solved.entries, solved.shares)
    iterations = torch.zeros_like(inputs.layout.sizes)
    optimal = torch.ones_like(inputs.counted)
    for plan in solved.plans:
        iterations.index_copy_(0, plan.bags.bags, plan.iterations)
        optimal.index_copy_(0, plan.bags.bags, plan.prove())
    return Assignment(labels, solved.values, iterations, optimal)


def _solve_all(inputs: Inputs, solve: BlockSolver, alpha: float) -> _Solved:
    log_f, finite = _log_predictions(inputs)
    layout = inputs.layout
    plans = [plan for bags in _known_bags(inputs, log_f, finite) for plan in solve(bags)]
    nothing = log_f.new_zeros(0, dtype=torch.float64)
    entries = torch.cat([nothing.long(), *(plan.entries for plan in plans)])
    shares = torch.cat([nothing, *(plan.shares.flatten() for plan in plans)])
    owners = layout.bag_index.index_select(0, entries // log_f.shape[1])
    # where, not multiplication: an impossible class that is not used costs 0, not inf * 0
    cost = torch.where(shares > 0, shares * -log_f.take(entries), 0)
    values = alpha * nothing.new_zeros(layout.num_bags).index_add_(0, owners, cost) / layout.sizes.clamp(min=1)
    for plan in plans:
        if plan.penalty is not None:
            values.index_add_(0, plan.bags.bags, plan.penalty)
    return _Solved(log_f, plans, entries, shares, owners, values)


def _log_predictions(inputs: Inputs) -> tuple[Tensor, bool]:
    """Return log F `[instances, K]` and whether it is finite."""
    logits = inputs.logits.detach()
    log_f = logits.log_softmax(dim=1)
    finite = bool(log_f.sum().isfinite())
    if not finite:  # an instance whose logits are all -inf rules out every class; log_softmax says NaN
        log_f = torch.where((logits == -torch.inf).all(dim=1, keepdim=True), -torch.inf, log_f)
    return log_f, finite


def _known_bags(inputs: Inputs, log_f: Tensor, finite: bool) -> Iterator[KnownBags]:
    all_known = bool(inputs.counted.all())
    for block in inputs.layout.blocks:
        size = inputs.layout.sizes[block.bags].double()[:, None]
        bags = KnownBags(block.bags, block.rows, block.mask, size, log_f, finite)
        if not all_known:
            bags = bags.select(inputs.counted[block.bags])
        if len(bags.bags):
            yield bags
