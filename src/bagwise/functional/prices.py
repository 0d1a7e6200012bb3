"""Class prices: a labeling that is nearly optimal, from a smooth problem in as many unknowns as there are classes.

At the optimum of  sum_j C[t_j, j] + sum_k G_k(c_k)  there are (nearly) prices y_k such that every instance takes the
class of least C_kj + y_k, and every class offers as many places as it is asked for. With the minimum softened by
epsilon, supply and demand meet where

    sum_j U_kj = supply_k(y),    U_j = softmax(-(C_j + y) / epsilon),

which Newton's method solves. Lowering epsilon step by step leaves only a handful of instances undecided.
Nothing here has to be exact: the labels are a start for the exact solver, so the costs are read in float32.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from bagwise.functional.assignment_problem import AssignmentProblem
from bagwise.functional.count_costs import CountCost

_ROUNDS = 20  # ordinary bags take 3 to 8
_COOLING = 0.25  # from one epsilon to the next
_LONGEST_STEP = 4.0  # in units of epsilon
_TIE_BREAK = 1e-5  # of the typical range of an instance's costs


@dataclass(frozen=True, eq=False)
class PricedLabels:
    """A start for the exact solver.

    Attributes:
        labels: `[b, n]` a class for every instance.
        prices: `[b, K]` y.
    """

    labels: Tensor
    prices: Tensor


def priced_labels(problem: AssignmentProblem) -> PricedLabels:
    """Label the instances of every bag by prices at which supply and demand meet."""
    # a class that may get no instance takes no part: no price would be high enough
    allowed = problem.count_cost.allowed()[:, :, None]
    cost = torch.where(allowed, problem.cost.float(), problem.limit.float()[:, :, None])
    highest = torch.where(allowed, cost, -torch.inf).amax(dim=1)
    spread = (highest - cost.amin(dim=1)).median(dim=1, keepdim=True).values
    spread = torch.where(spread > 0, spread, 1.0)  # [b, 1] the typical range of an instance's costs
    # equal instances would want the same class all together, at any price
    cost = torch.addcmul(cost, spread[:, :, None], _noise(cost), value=_TIE_BREAK)
    market = _Market.open(-cost, problem.inside, problem.count_cost, spread.double() / 8)
    prices = _settle(market)
    return PricedLabels((cost + prices[:, :, None].float()).min(dim=1).indices, prices)


@dataclass(frozen=True, eq=False)
class _Market:
    """The search for the prices of b bags.

    Attributes:
        minus_cost: `[b, K, n]`.
        inside: `[b, n]` or None.
        count_cost: what the counts cost.
        epsilon: `[b, 1]`.
        prices: `[b, K]`.
        warmer: `[b, K]` the prices at the epsilon before.
        done: `[b]` few instances are undecided or out of balance.
    """

    minus_cost: Tensor
    inside: Tensor | None
    count_cost: CountCost
    epsilon: Tensor
    prices: Tensor
    warmer: Tensor
    done: Tensor

    @staticmethod
    def open(minus_cost: Tensor, inside: Tensor | None, count_cost: CountCost, epsilon: Tensor) -> _Market:
        prices = torch.zeros_like(count_cost.target)
        return _Market(minus_cost, inside, count_cost, epsilon, prices, prices, epsilon[:, 0] < 0)

    def step(self) -> _Market:
        """Take two Newton steps at the present epsilon; lower epsilon where supply and demand nearly meet."""
        epsilon, count_cost = self.epsilon, self.count_cost
        scores = self.minus_cost * (1 / epsilon).float()[:, :, None]
        prices, _, _ = self._newton(scores, self.prices)
        prices, excess, overlap = self._newton(scores, prices)
        imbalance = excess.abs().sum(dim=1, keepdim=True)
        undecided = count_cost.size - overlap.diagonal(dim1=1, dim2=2).sum(dim=1, keepdim=True)  # sum of U (1 - U)
        done = undecided + imbalance <= prices.shape[1]
        cool = imbalance <= 0.3 * undecided + 0.5
        # prices are nearly linear in epsilon: go on along the line through the last two
        ahead = count_cost.clamp_prices(prices + _COOLING * (prices - self.warmer))
        return replace(
            self,
            epsilon=torch.where(cool, _COOLING * epsilon, epsilon),
            prices=torch.where(cool & ~done, ahead, prices),
            warmer=torch.where(cool, prices, self.warmer),
            done=done[:, 0],
        )

    def _newton(self, scores: Tensor, prices: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return better prices; and of the old ones by how much each class is asked for too often, and U U^T."""
        plan = torch.softmax(scores - (prices / self.epsilon).float()[:, :, None], dim=1)
        if self.inside is not None:
            plan = plan * self.inside[:, None, :]
        asked = plan.sum(dim=2).double()
        overlap = (plan @ plan.mT).double()  # [b, K, K]
        supply, slope = self.count_cost.supply(prices, asked)
        excess = asked - supply
        # a class that is asked for far too rarely has too little curvature: it would overshoot
        curvature = (asked * torch.maximum(asked, supply)).sqrt() + 1e-2
        jacobian = torch.diag_embed(curvature) - overlap + self.epsilon[:, :, None] * slope
        step = self.epsilon * torch.linalg.solve_ex(jacobian, excess)[0]
        longest = _LONGEST_STEP * self.epsilon.clamp(max=self.count_cost.weight)
        step = step * (longest / step.abs().amax(dim=1, keepdim=True)).clamp(max=1)
        return self.count_cost.clamp_prices(prices + step), excess, overlap

    def select(self, bags: Tensor) -> _Market:
        return _Market(
            self.minus_cost[bags],
            None if self.inside is None else self.inside[bags],
            self.count_cost.select(bags),
            *(part[bags] for part in (self.epsilon, self.prices, self.warmer, self.done)),
        )


def _settle(market: _Market) -> Tensor:
    """Step until nearly all bags are done; returns the prices `[b, K]`."""
    prices = market.prices.clone()
    bags = torch.arange(len(prices), device=prices.device)  # at work on these
    for _ in range(_ROUNDS):
        market = market.step()
        prices[bags] = market.prices
        left = (~market.done).nonzero()[:, 0]
        if len(left) <= len(prices) // 16:  # the exact solver copes with these few
            break
        if len(left) <= 0.75 * len(bags):
            bags, market = bags[left], market.select(left)
    return prices.nan_to_num(0)  # a Newton step that went astray must not reach the proof


def _noise(cost: Tensor) -> Tensor:
    """The same random numbers `[1, K, n]` at every call."""
    generator = torch.Generator(cost.device).manual_seed(0)
    return torch.rand(1, *cost.shape[1:], generator=generator, device=cost.device)
