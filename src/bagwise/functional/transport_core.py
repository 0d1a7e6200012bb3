"""Large transport problems by way of small ones: at good prices, most instances leave no doubt about their class.

With prices y near the optimal ones, an instance takes the class of least C_jk + y_k, and one whose second choice costs
much more will take it at the optimal prices too. So only the instances with the narrowest choices, the core, go to the
solver, with the places that the others leave. If the others keep their class at the prices that the solver returns,
these prices prove the whole plan optimal; those that do not join the core. When that goes on for too long, the whole
problem is solved.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

# from the costs [n, K] and marginals [K] of one bag to its plan [n, K] and prices [K]
Solver = Callable[[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]

_SMALL_PROBLEM = 768  # instances: below, nothing is gained
_INSTANCES_PER_CLASS = 64
_CORE = 8  # one instance in 8
_LARGEST_CORE = 2  # beyond one in 2, the whole problem takes little longer
_ROUNDS = 4  # almost all bags need one or two
_SOFTNESS = (1 / 8, 1 / 24)  # of one Newton step after the other, in typical ranges of an instance's costs
_LONGEST_STEP = 4.0  # in units of the softness


def solve_by_core(cost: np.ndarray, mu: np.ndarray, solve: Solver) -> tuple[np.ndarray, np.ndarray]:
    """Return an optimal plan and its prices for `cost [n, K]`, all finite, and marginals `mu [K]`, all positive."""
    n, num_classes = cost.shape
    if n < max(_SMALL_PROBLEM, _INSTANCES_PER_CLASS * num_classes):
        return solve(cost, mu)
    by_class = np.ascontiguousarray(cost.T)  # [K, n]: NumPy is faster along the long axis
    instances = np.arange(n)
    priced = by_class + _nearly_optimal_prices(by_class, mu)[:, None]
    labels = priced.argmin(axis=0)
    cheapest = priced[labels, instances]
    priced[labels, instances] = np.inf
    margin = priced.min(axis=0) - cheapest
    core = np.zeros(n, dtype=bool)
    core[np.argpartition(margin, n // _CORE)[: n // _CORE]] = True
    for _ in range(_ROUNDS):
        if np.count_nonzero(core) > n // _LARGEST_CORE:
            break
        left = mu - np.bincount(labels[~core], minlength=num_classes)
        full = left <= 0  # too many want this class, or no place is left to tell its price
        if full.any():
            core |= full[labels]
            continue
        core_plan, prices = solve(cost[core], left)
        priced = by_class + prices[:, None]
        wrong = ~core & (priced[labels, instances] > priced.min(axis=0))
        if not wrong.any():
            plan = np.zeros_like(cost)
            plan[instances, labels] = 1
            plan[core] = core_plan
            return plan, prices
        core |= wrong
    return solve(cost, mu)


def _nearly_optimal_prices(cost: np.ndarray, mu: np.ndarray) -> np.ndarray:
    """Return prices `[K]` at which each class is asked for nearly `mu` times, for `cost [K, n]`.

    Newton's method on the problem with a softened minimum, as in `prices`, but for one bag and without the last digits.
    """
    cost = cost - cost.min(axis=0)
    middle = cost.shape[1] // 2
    spread = np.partition(cost.max(axis=0), middle)[middle] or 1.0  # the median, in a third of its time
    cost = np.minimum(cost / spread, 1e3).astype(np.float32)  # a class beyond that is out of the question
    prices = np.zeros(len(mu))
    for softness in _SOFTNESS:
        # the least cost of an instance is 0 and prices stay below 1, so this neither overflows nor vanishes
        plan = np.exp((cost + prices.astype(np.float32)[:, None]) * np.float32(-1 / softness))
        plan /= plan.sum(axis=0)
        asked = plan.sum(axis=1).astype(np.float64)
        # a class that is asked for far too rarely has too little curvature: it would overshoot
        curvature = np.sqrt(asked * np.maximum(asked, mu)) + 1e-5 * cost.shape[1]
        step = softness * np.linalg.solve(np.diag(curvature) - plan @ plan.T, asked - mu)
        longest = _LONGEST_STEP * softness
        prices += step * (longest / max(longest, np.abs(step).max()))
    return spread * prices
