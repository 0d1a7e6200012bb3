"""What a bag pays for its class counts: one convex function per class, in the units of C = -log F.

An exact assignment minimises  sum_j C[t_j, j] + sum_k G_k(c_k)  over labelings t, where c_k instances get class k.
With mu = n z and a weight rho the functions G_k are

    exact:  0 at c = mu, out of reach elsewhere          kl:  rho (c log(c/mu) - c + mu)
    l1:     rho |c - mu|                                 l2:  rho (c - mu)^2 / n

A solver needs two things of them: what one more instance costs (the increment G_k(c+1) - G_k(c), which grows with c
because G_k is convex), and, to start well, how many places a class offers at a given price.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace

import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class CountCost(ABC):
    """Costs of the class counts of b bags.

    Attributes:
        target: `[b, K]` mu, the counts that the proportions ask for, in float64.
        size: `[b, 1]` n, in float64.
        weight: rho; not used by exact counts.
    """

    target: Tensor
    size: Tensor
    weight: float = torch.inf

    @abstractmethod
    def increment(self, counts: Tensor) -> Tensor:
        """G_k(c+1) - G_k(c) for `counts [b, K]`; +-inf where a count is out of reach."""

    @abstractmethod
    def supply(self, prices: Tensor, asked: Tensor) -> tuple[Tensor, Tensor]:
        """Counts `[b, K]` where the slope of G_k is the price (up to a constant for all k), and their Jacobian.

        At a price that fits a whole range of counts (a kink of G), the count in it nearest to `asked [b, K]`.
        """

    def clamp_prices(self, prices: Tensor) -> Tensor:
        """Return the prices within the range of slopes of G."""
        return prices

    def allowed(self) -> Tensor:
        """`[b, K]` classes that may get an instance at a finite cost."""
        return self.increment(torch.zeros_like(self.target)) < torch.inf

    def select(self, bags: Tensor) -> CountCost:
        """Return the costs of some of the bags."""
        return replace(self, target=self.target[bags], size=self.size[bags])

    def of_class(self, k: int) -> CountCost:
        """Return the cost of one class, whose `increment` takes counts of any shape `[b, m]`."""
        return replace(self, target=self.target[:, k : k + 1])


class ExactCounts(CountCost):
    """The counts must equal the target, which holds whole numbers that sum to n."""

    def increment(self, counts: Tensor) -> Tensor:  # noqa: D102
        return torch.where(counts < self.target, -torch.inf, torch.inf)

    def supply(self, prices: Tensor, asked: Tensor) -> tuple[Tensor, Tensor]:  # noqa: ARG002, D102
        return self.target, torch.diag_embed(torch.zeros_like(prices))


class KLCounts(CountCost):
    """Generalised KL divergence of the counts from the target: KL(c/n | z), times n rho."""

    def increment(self, counts: Tensor) -> Tensor:  # noqa: D102
        # (c+1) log(c+1) - c log(c), by hand: the terms of order n log n have cancelled
        growth = counts * torch.log1p(1 / counts.clamp(min=0.5)) - 1
        return self.weight * (torch.log((counts + 1) / self.target) + growth)

    def supply(self, prices: Tensor, asked: Tensor) -> tuple[Tensor, Tensor]:  # noqa: ARG002, D102
        share = torch.softmax(self.target.log() + prices / self.weight, dim=1)
        slope = torch.diag_embed(share) - share[:, :, None] * share[:, None, :]
        return self.size * share, (self.size / self.weight)[:, :, None] * slope


class L1Counts(CountCost):
    """Sum of absolute differences |c/n - z|, times n rho."""

    def increment(self, counts: Tensor) -> Tensor:  # noqa: D102
        return self.weight * torch.clamp(2 * (counts - self.target) + 1, -1, 1)

    def supply(self, prices: Tensor, asked: Tensor) -> tuple[Tensor, Tensor]:  # noqa: D102
        # at the price +rho a class takes any number above its target, at -rho any number below
        above = (prices > 0.999 * self.weight) & (asked > self.target)
        below = (prices < -0.999 * self.weight) & (asked < self.target)
        steep = 1e6 * self.size / self.weight  # as good as vertical
        slope = torch.where(above | below, steep, 0)
        return torch.where(above | below, asked, self.target), torch.diag_embed(slope)

    def clamp_prices(self, prices: Tensor) -> Tensor:  # noqa: D102
        return prices.clamp(-self.weight, self.weight)


class L2Counts(CountCost):
    """Sum of squared differences (c/n - z)^2, times n rho."""

    def increment(self, counts: Tensor) -> Tensor:  # noqa: D102
        return self.weight * (2 * (counts - self.target) + 1) / self.size

    def supply(self, prices: Tensor, asked: Tensor) -> tuple[Tensor, Tensor]:  # noqa: ARG002, D102
        slope = self.size / (2 * self.weight)
        counts = self.target + slope * prices
        return counts.clamp(min=0), torch.diag_embed(torch.where(counts > 0, slope, 0))
