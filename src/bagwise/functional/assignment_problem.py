r"""The exact assignment of the instances of a block of bags to classes.

.. math:: \min_t \sum_j C_{t_j j} + \sum_k G_k(c_k), \qquad c_k = \#\{j : t_j = k\}

for every bag, with C = -log F and the convex count costs G of `count_costs`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from bagwise.functional.count_costs import CountCost

_PRECISION = 1e-14  # relative to the limit


@dataclass(frozen=True, eq=False)
class AssignmentProblem:
    """A block of b bags, padded to n instances, with K classes.

    Attributes:
        cost: `[b, K, n]` C in float64, all finite: the limit stands for an infinite cost.
        inside: `[b, n]` false on padding, or None when nothing is padded.
        count_cost: G, what the counts cost.
        limit: `[b, 1]` a cost that no finite saving outweighs.
    """

    cost: Tensor
    inside: Tensor | None
    count_cost: CountCost
    limit: Tensor

    @staticmethod
    def build(cost: Tensor, inside: Tensor | None, count_cost: CountCost) -> AssignmentProblem:
        """Replace infinite (and NaN) costs by a finite limit.

        A cycle of the residual graph visits each of its K + 1 nodes at most once, so a little more than (K + 1) times
        the largest finite cost decides every comparison as an infinite cost would.
        """
        largest = cost.amax(dim=(1, 2))[:, None]  # C >= 0
        finite = None if bool(largest.isfinite().all()) else cost.isfinite()  # most often, nothing is to be done
        if finite is not None:
            largest = torch.where(finite, cost, 0).amax(dim=(1, 2))[:, None]
        counts = torch.stack([torch.zeros_like(count_cost.size), count_cost.size - 1])  # increments grow in between
        increments = count_cost.increment(counts).abs()
        steepest = torch.where(increments < torch.inf, increments, 0).amax(dim=(0, 2))[:, None]
        limit = 4 * (cost.shape[1] + 1) * (1 + largest + steepest)
        if finite is not None:
            cost = torch.where(finite, cost, limit[:, :, None])
        return AssignmentProblem(cost, inside, count_cost, limit)

    @property
    def tolerance(self) -> Tensor:
        """`[b, 1]` a difference of costs that is no more than rounding."""
        return _PRECISION * self.limit

    def select(self, bags: Tensor) -> AssignmentProblem:
        """Return the problem of some of the bags."""
        inside = None if self.inside is None else self.inside[bags]
        return AssignmentProblem(self.cost[bags], inside, self.count_cost.select(bags), self.limit[bags])

    def counts(self, labels: Tensor) -> Tensor:
        """How many instances of each bag have each class, `[b, K]`, for `labels [b, n]`."""
        ones = torch.ones_like(self.cost[:, 0]) if self.inside is None else self.inside.to(self.cost.dtype)
        return torch.zeros_like(self.count_cost.target).scatter_add(1, labels, ones)

    def of_class(self, k: int) -> AssignmentProblem:
        """Return the problem with the count cost of one class: `join` then takes counts of any shape `[b, m]`."""
        return replace(self, count_cost=self.count_cost.of_class(k))

    def join(self, counts: Tensor) -> Tensor:
        """Cost of one more instance in each class, clamped to the limit, for `counts [..., b, K]`."""
        return torch.clamp(self.count_cost.increment(counts), -self.limit, self.limit)

    def leave_and_join(self, counts: Tensor) -> tuple[Tensor, Tensor]:
        """Cost of one instance less and of one more in each class, `[b, K]` each; an empty class cannot be left."""
        before, after = self.join(torch.stack([counts - 1, counts])).unbind()
        return torch.where(counts > 0, -before, torch.inf), after
