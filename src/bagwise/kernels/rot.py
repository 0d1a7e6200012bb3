r"""ROT of bags that fit on chip: log-softmax, the whole dual solve and the gradient in one launch.

Notation as in `functional/rot_problem.py`: every row of the plan is U_j = softmax(x + S_j) with one shift x per bag,
m = U1 and q ~ z exp(-x/beta). The residual r = log(n q) - log(m) is constant at the solution, and the paper's Sinkhorn
step is x <- x + tau r with tau = beta/(1+beta). Two things make it fast here:

1. Exponentials are taken at an anchor, W = exp(x_0 + S - top). From there a move of x only rescales the columns,
   W exp(x - x_0), so a step over the tile is two multiplications and two sums. Where x has moved far or a class has
   lost all its mass, a Sinkhorn step in the log domain moves the anchor; ordinary logits stay at the first, x_0 = 0.
2. Near the solution a Sinkhorn step multiplies the error by tau P, where P is a reversible stochastic matrix with
   eigenvalues in [0, 1]. The Chebyshev iteration for that interval (over-relaxation by 2/(2-tau) and momentum) needs
   no inner products and reaches 1e-5 in 7 to 9 steps at alpha = .5, epsilon = 1, where Sinkhorn takes 8 to 17.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import triton
import triton.language as tl
from torch import Tensor

from bagwise.kernels.arithmetic import exp2, log2, reciprocal
from bagwise.kernels.tiles import (
    INF,
    LN_2,
    Launch,
    best_log_f,
    find_bags,
    load_logits,
    load_proportions,
    log_softmax,
    scores_in,
    store_rows,
)

_MAX_STEPS = 500
_STEPS_PER_CHECK = 3

_FAR = tl.constexpr(40.0)  # distance from the anchor, in powers of two, at which it is moved
_LIMIT = tl.constexpr(60.0)  # and beyond which no step goes
_NO_MASS = tl.constexpr(2.0**-60)  # a class with less mass than this, though it should have some, is out of reach
_SOME_MASS = tl.constexpr(2.0**-50)
# of the plan at the last check, before one more step; the second is what rounding leaves, see `allowed_error`
_PLAN_ERROR = tl.constexpr(1e-5)
_ROUNDING = tl.constexpr(1e-13)


@dataclass(frozen=True)
class DualSteps:
    """Constants of the dual iteration that follow from alpha and epsilon."""

    inverse_epsilon: float
    beta: float
    gain: float  # of one step: tau, over-relaxed
    quarter: float  # rho^2 / 4, where the relaxed step contracts by rho

    @staticmethod
    @cache
    def of(alpha: float, epsilon: float) -> DualSteps:
        """Compute them."""
        beta = (1 - alpha) / (alpha * epsilon)
        tau = beta / (1 + beta)
        relaxation = 2 / (2 - tau)
        return DualSteps(1 / epsilon, beta, tau * relaxation, (tau * relaxation / 2) ** 2 / 4)


def launch_rot(
    launch: Launch,
    logits: Tensor,
    proportions: Tensor,
    order: Tensor | None,
    offsets: Tensor,
    bags: Tensor,
    alpha: float,
    epsilon: float,
    values: Tensor,
    gradient: Tensor,
) -> None:
    """Write the loss `[bags]` and its derivative at the logits `[instances, classes]` for the bags of one launch."""
    steps = DualSteps.of(alpha, epsilon)
    _rot_kernel[launch.grid](
        logits,
        offsets if order is None else order,
        offsets,
        bags,
        proportions,
        values,
        gradient,
        launch.first,
        launch.count,
        alpha,
        epsilon,
        steps.inverse_epsilon,
        steps.beta,
        steps.gain,
        steps.quarter,
        MAX_STEPS=_MAX_STEPS,
        STEPS_PER_CHECK=_STEPS_PER_CHECK,
        HAS_ORDER=order is not None,
        NUM_CLASSES=proportions.shape[1],
        BAGS=launch.bags_per_program,
        WIDTH=launch.width,
        BLOCK_K=launch.block_k,
        num_warps=_num_warps(launch),
        enable_fp_fusion=False,  # threads hold copies of a sum, which must agree to the last bit: see `_rot_kernel`
    )


def _num_warps(launch: Launch) -> int:
    """One warp for a small tile, so that no reduction has to leave it; few for a large one (measured)."""
    if launch.entries < 1024 or launch.bags_per_program > 1:
        return 1
    return max(2, launch.entries // 2048)


@triton.jit(do_not_specialize=["first", "count"])  # compiled once for all batches
def _rot_kernel(
    logits,
    order,
    offsets,
    bags,
    proportions,
    values,
    gradient,
    first,
    count,
    alpha,
    epsilon,
    inverse_epsilon,
    beta,
    gain,
    quarter,
    MAX_STEPS: tl.constexpr,
    STEPS_PER_CHECK: tl.constexpr,
    HAS_ORDER: tl.constexpr,
    NUM_CLASSES: tl.constexpr,
    BAGS: tl.constexpr,
    WIDTH: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    bag, exists, size, row, inside = find_bags(bags, offsets, order, first, count, HAS_ORDER, BAGS, WIDTH)
    z, counted = load_proportions(proportions, bag, exists & (size > 0), NUM_CLASSES, BLOCK_K)
    n = tl.maximum(size, 1).to(tl.float32)  # [BAGS]
    s = load_logits(logits, row, inside, NUM_CLASSES, BLOCK_K)
    log_f, is_number = log_softmax(s)

    # classes that can get mass: z_k > 0, and possible for some instance; if there are none the loss is +inf anyway
    highest = tl.max(tl.where(inside[:, :, None], s, -INF), axis=1)  # [BAGS, BLOCK_K]
    support = (z > 0) & (highest > -INF)
    possible = tl.max(support.to(tl.int32), axis=1) > 0
    support = tl.where(possible[:, None], support, z > 0)
    scores, hopeless = scores_in(s, support)
    scores *= inverse_epsilon
    # an instance that rules out every class of its bag makes the loss +inf
    infeasible = tl.max((hopeless & inside & is_number).to(tl.int32), axis=1) > 0  # [BAGS]
    offset = best_log_f(log_f, support, is_number) * inverse_epsilon

    log_nz = log2(n)[:, None] + log2(tl.where(support, z, 1.0))
    moving = support & counted[:, None]
    # Each starts as a tensor of its own: Triton overlooks a loop variable that takes over another's first value.
    x = tl.zeros([BAGS, BLOCK_K], dtype=tl.float32)
    earlier = tl.zeros([BAGS, BLOCK_K], dtype=tl.float32)  # x one step ago
    anchor = tl.zeros([BAGS, BLOCK_K], dtype=tl.float32)
    residual = tl.zeros([BAGS, BLOCK_K], dtype=tl.float32)
    top = tl.zeros([BAGS, WIDTH], dtype=tl.float32)
    weights = exp2(scores)
    momentum = 1.0
    steps = 0
    state = 1  # 0: every bag is done; 1: go on; 2: first take a step in the log domain and move the anchor
    # Every thread decides for itself when to leave this loop, from its own copy of the sums, and those that stay would
    # wait for those that left, for ever. The copies agree because a + b = b + a; fused, a b + c, they would not.
    while (state > 0) & (steps < MAX_STEPS):
        if state == 2:
            x = _log_domain_step(scores, inside, moving, x, log_nz, beta, gain)
            shifted = scores + x[:, None, :]
            top = tl.max(shifted, axis=2)
            weights = exp2(shifted - top[:, :, None])
            anchor = x
            earlier = x
            momentum = 1.0
        m = x
        for _ in tl.static_range(STEPS_PER_CHECK):
            scaled = weights * exp2(x - anchor)[:, None, :]
            share = tl.where(inside, reciprocal(tl.sum(scaled, axis=2)), 0.0)
            m = tl.sum(scaled * share[:, :, None], axis=1)
            residual = tl.where(moving, log_nz - x / beta - log2(tl.maximum(m, _NO_MASS)), 0.0)
            ahead = earlier + momentum * (x + gain * residual - earlier)
            ahead = tl.minimum(tl.maximum(ahead, anchor - _LIMIT), anchor + _LIMIT)
            earlier = x
            x = ahead
            momentum = 1.0 / (1.0 - quarter * tl.where(momentum == 1.0, 2.0, momentum))
        steps += STEPS_PER_CHECK
        q = tl.where(moving, exp2(tl.minimum(log_nz - earlier / beta, 100.0)), 0.0)
        error = tl.where(counted, plan_error(m, q, residual, n, beta), 0.0)
        lost = moving & ((tl.abs(x - anchor) > _FAR) | ((m < _NO_MASS) & (q > _SOME_MASS)))
        verdict = tl.where(error > allowed_error(n, beta, _ROUNDING), 1 + tl.max(lost.to(tl.int32), axis=1), 0)
        state = tl.max(verdict, axis=0)

    x = last_step(earlier, residual, beta)
    scaled = weights * exp2(x - anchor)[:, None, :]
    total = tl.sum(scaled, axis=2)
    log_partition = offset + top + log2(total)
    # the negative dual is the loss: a lower bound at any x, and the bound is met at the solution
    mean_log_partition = tl.sum(tl.where(inside, log_partition, 0.0), axis=1) / n
    value = (alpha * epsilon * mean_log_partition + (1 - alpha) * log_normaliser(z, support, x, beta)) * -LN_2
    value = tl.where(infeasible, INF, value)
    tl.store(values + bag, tl.where(counted, value, 0.0), mask=exists)
    slope = (alpha / n)[:, None, None] * (exp2(log_f) - scaled / total[:, :, None])
    slope = tl.where(counted[:, None, None], slope, 0.0)
    store_rows(gradient, row, inside, slope, NUM_CLASSES, BLOCK_K)


@triton.jit
def _log_domain_step(scores, inside, moving, x, log_nz, beta, gain):
    """One relaxed Sinkhorn step that no underflow can hurt."""
    shifted = scores + x[:, None, :]
    top = tl.max(shifted, axis=2)
    log_partition = top + log2(tl.sum(exp2(shifted - top[:, :, None]), axis=2))
    log_plan = tl.where(inside[:, :, None] & moving[:, None, :], shifted - log_partition[:, :, None], -INF)
    peak = tl.where(moving, tl.max(log_plan, axis=1), 0.0)
    log_m = peak + log2(tl.sum(exp2(log_plan - peak[:, None, :]), axis=1))
    x = tl.where(moving, x + gain * (log_nz - x / beta - log_m), 0.0)
    # Only differences of x matter, and a step may move all of it by thousands: bring q back to about 1, where its
    # exponentials are numbers. Without that the check sees NaN, takes it for done, and the last step leaves the anchor.
    highest = tl.max(tl.where(moving, log_nz - x / beta, -INF), axis=1)
    return tl.where(moving, x + beta * highest[:, None], 0.0)


@triton.jit
def last_step(x, residual, beta):
    """A Sinkhorn step from the point that was checked: it only brings it closer, which a step with momentum may not."""
    return x + residual * (beta / (1 + beta))


@triton.jit
def plan_error(m, q, residual, n, beta):
    """Square of a bound on the error of a plan's entries `[BAGS]`, n beta KL(m/n | q) / 2 with q on the simplex.

    Near the solution KL is half the square of the log ratio d, weighted by m or by q; their mean is used, so that a
    class which has mass on one side only is seen from either.
    """
    total = tl.sum(q, axis=1)[:, None]
    d = (residual - log2(total / n[:, None])) * LN_2
    return tl.sum((m + q * (n[:, None] / total)) * d * d, axis=1) * (beta / 8)


@triton.jit
def allowed_error(n, beta, ROUNDING: tl.constexpr):
    """What `plan_error` may come to `[BAGS]`; ROUNDING is what it comes to by rounding alone, per instance and beta."""
    return n * beta * ROUNDING + _PLAN_ERROR * _PLAN_ERROR


@triton.jit
def log_normaliser(z, support, x, beta):
    """log2 sum_k z_k exp(-x_k / beta) over the support, `[BAGS]`."""
    log_q = tl.where(support, log2(tl.where(support, z, 1.0)) - x / beta, -INF)
    top = tl.max(log_q, axis=1)
    return top + log2(tl.sum(exp2(log_q - top[:, None]), axis=1))
