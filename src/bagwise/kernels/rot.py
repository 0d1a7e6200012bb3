"""ROT on a GPU: log-softmax, the whole dual solve and the gradient of a bag in one program.

One program holds one bag. A bag that fits on chip is read once; a larger one is streamed through in chunks, once per
step, from the L2 cache. The solver is the paper's Sinkhorn iteration on the shift x (see `functional/rot_problem.py`
for the notation), which needs one exponential per entry and step, and each bag stops on its own duality gap.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

_RESIDENT_ENTRIES = 16_384  # largest padded bag, instances x classes, that is kept in registers
_CHUNK_ENTRIES = 4_096  # padded entries of a chunk of a larger bag
_MAX_STEPS = 1_000


def rot_values_and_gradient(
    logits: Tensor,
    order: Tensor | None,
    offsets: Tensor,
    proportions: Tensor,
    alpha: float,
    epsilon: float,
    longest: int,
) -> tuple[Tensor, Tensor]:
    """Return the loss of each bag `[bags]` and its derivative at the logits `[instances, classes]`, in float32.

    Args:
        logits: `[instances, classes]`, any floating-point type, rows contiguous.
        order: `[instances]` the instances sorted by bag, or None when they are.
        offsets: `[bags + 1]` where each bag starts in that order.
        proportions: `[bags, classes]` float32; a row of zeros marks a bag to leave out (loss and gradient zero).
        alpha: weight of the predictions.
        epsilon: weight of the entropy.
        longest: size of the largest bag.
    """
    num_bags, num_classes = proportions.shape
    values = torch.empty(num_bags, device=logits.device, dtype=torch.float32)
    gradient = torch.empty(logits.shape, device=logits.device, dtype=torch.float32)
    if num_bags == 0:
        return values, gradient
    block_k = max(2, triton.next_power_of_2(num_classes))
    block_n = max(2, triton.next_power_of_2(longest))
    resident = block_n * block_k <= _RESIDENT_ENTRIES
    if not resident:
        block_n = max(2, _CHUNK_ENTRIES // block_k)
    entries = block_n * block_k
    _rot_kernel[(num_bags,)](
        logits,
        order if order is not None else offsets,
        offsets,
        proportions,
        values,
        gradient,
        logits.stride(0),
        num_classes,
        alpha,
        epsilon,
        (1 - alpha) / (alpha * epsilon),
        MAX_STEPS=_MAX_STEPS,
        HAS_ORDER=order is not None,
        RESIDENT=resident,
        BLOCK_N=block_n,
        BLOCK_K=block_k,
        num_warps=min(16, max(1, entries // 1024)),
    )
    return values, gradient


@triton.jit
def _load_log_f(logits, order, start, size, first, num_classes, stride, HAS_ORDER, BLOCK_N, BLOCK_K):
    """Rows `first ...` of a bag: log softmax `[BLOCK_N, BLOCK_K]`, the rows' places, and which entries are real."""
    j = first + tl.arange(0, BLOCK_N)
    k = tl.arange(0, BLOCK_K)
    row = start + j
    if HAS_ORDER:
        row = tl.load(order + row, mask=j < size, other=0)
    real = (j < size)[:, None] & (k < num_classes)[None, :]
    s = tl.load(logits + row[:, None] * stride + k[None, :], mask=real, other=-float("inf")).to(tl.float32)
    s = tl.where((j < size)[:, None] | (k >= num_classes)[None, :], s, 0.0)  # padding rows: anything finite
    s = s - tl.max(s, axis=1)[:, None]
    return s - tl.log(tl.sum(tl.exp(s), axis=1))[:, None], row, real


@triton.jit
def _restrict(log_f, support, epsilon):
    """Scores log_f / eps on the support; an instance that rules out its whole bag counts as undecided."""
    scores = tl.where(support[None, :], log_f / epsilon, -float("inf"))
    hopeless = tl.max(scores, axis=1) == -float("inf")
    undecided = tl.where(support[None, :], 0.0, -float("inf"))
    return tl.where(hopeless[:, None], undecided, scores), hopeless


@triton.jit
def _plan(scores, x):
    """softmax(x + scores) by row, and the log of its normaliser."""
    shifted = scores + x[None, :]
    top = tl.max(shifted, axis=1)
    weights = tl.exp(shifted - top[:, None])
    total = tl.sum(weights, axis=1)
    return weights / total[:, None], top + tl.log(total)


@triton.jit
def _rot_kernel(
    logits,
    order,
    offsets,
    proportions,
    values,
    gradient,
    stride,
    num_classes,
    alpha,
    epsilon,
    beta,
    MAX_STEPS: tl.constexpr,
    HAS_ORDER: tl.constexpr,
    RESIDENT: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    bag = tl.program_id(0)
    start = tl.load(offsets + bag)
    size = (tl.load(offsets + bag + 1) - start).to(tl.int32)
    n = tl.maximum(size, 1).to(tl.float32)
    k = tl.arange(0, BLOCK_K)
    j = tl.arange(0, BLOCK_N)
    z = tl.load(proportions + bag * num_classes + k, mask=k < num_classes, other=0.0)
    known = tl.sum(z, axis=0) > 0

    # the classes that can get mass: z_k > 0, and possible for some instance
    log_f, row, real = _load_log_f(logits, order, start, size, 0, num_classes, stride, HAS_ORDER, BLOCK_N, BLOCK_K)
    highest = tl.max(tl.where(real, log_f, -float("inf")), axis=0)
    if not RESIDENT:
        for first in range(BLOCK_N, size, BLOCK_N):
            more, _, inside = _load_log_f(
                logits, order, start, size, first, num_classes, stride, HAS_ORDER, BLOCK_N, BLOCK_K
            )
            highest = tl.maximum(highest, tl.max(tl.where(inside, more, -float("inf")), axis=0))
    support = (z > 0) & (highest > -float("inf"))
    if tl.max(support.to(tl.int32), axis=0) == 0:
        support = tl.where(known, z > 0, k < num_classes)  # nothing is possible (+inf), or nothing is known
    log_z = tl.log(tl.where(support & (z > 0), z, 1.0))

    x = tl.zeros([BLOCK_K], dtype=tl.float32)
    mean_log_partition = 0.0
    log_norm = 0.0
    infeasible = 0
    tau = beta / (1 + beta)
    # n beta KL / 2 bounds the squared error of the plan; the second term is the rounding of m
    tolerance = 1e-12 + 4e-14 * n * beta
    scores, hopeless = _restrict(log_f, support, epsilon)
    step = 0
    while step < MAX_STEPS:
        plan, log_partition = _plan(scores, x)
        inside = j < size
        m = tl.sum(tl.where(inside[:, None], plan, 0.0), axis=0)
        total = tl.sum(tl.where(inside, log_partition, 0.0), axis=0)
        log_kb = tl.log(m) - x
        if RESIDENT:
            infeasible = tl.max((hopeless & inside).to(tl.int32), axis=0)
        else:
            for first in range(BLOCK_N, size, BLOCK_N):
                more, _, _ = _load_log_f(
                    logits, order, start, size, first, num_classes, stride, HAS_ORDER, BLOCK_N, BLOCK_K
                )
                more_scores, more_hopeless = _restrict(more, support, epsilon)
                more_plan, more_partition = _plan(more_scores, x)
                more_inside = first + j < size
                m += tl.sum(tl.where(more_inside[:, None], more_plan, 0.0), axis=0)
                total += tl.sum(tl.where(more_inside, more_partition, 0.0), axis=0)
                infeasible = tl.maximum(infeasible, tl.max((more_hopeless & more_inside).to(tl.int32), axis=0))
            infeasible = tl.maximum(infeasible, tl.max((hopeless & inside).to(tl.int32), axis=0))
            log_kb = tl.log(m) - x
        mean_log_partition = total / n
        mean_plan = m / n
        if tl.min(tl.where(support, m, 1.0), axis=0) < 1e-30:
            # a class so unlikely that its mass underflows: sum it in the log domain
            log_kb = _log_class_mass(
                logits, order, start, size, num_classes, stride, epsilon, support, x,
                HAS_ORDER, BLOCK_N, BLOCK_K,
            )  # fmt: skip
        log_q = tl.where(support, log_z - x / beta, -float("inf"))
        top = tl.max(log_q, axis=0)
        log_norm = top + tl.log(tl.sum(tl.exp(log_q - top), axis=0))
        q = tl.exp(log_q - log_norm)
        r = tl.where(q > 0, (mean_plan - q) / tl.where(q > 0, q, 1.0), 0.0)
        small = r * r * (0.5 - r * (1.0 / 6.0) + r * r * (1.0 / 12.0))
        large = tl.where(r > -1, (1 + r) * tl.log(tl.where(r > -1, 1 + r, 1.0)), 0.0) - r
        kl = tl.sum(q * tl.where(tl.abs(r) < 0.03, small, large), axis=0)
        if n * beta * kl * 0.5 <= tolerance:
            step = MAX_STEPS
        else:
            x = tl.where(support, tau * (log_z + tl.log(n) - log_kb), 0.0)
            step += 1

    value = -alpha * epsilon * mean_log_partition - (1 - alpha) * log_norm
    value = tl.where(infeasible > 0, float("inf"), value)
    counted = known & (size > 0)
    tl.store(values + bag, tl.where(counted, value, 0.0))
    weight = tl.where(counted, alpha / n, 0.0)
    for first in range(0, size, BLOCK_N):
        if not RESIDENT:
            log_f, row, real = _load_log_f(
                logits, order, start, size, first, num_classes, stride, HAS_ORDER, BLOCK_N, BLOCK_K
            )
            scores, hopeless = _restrict(log_f, support, epsilon)
        plan, log_partition = _plan(scores, x)
        slope = tl.where(weight > 0, weight * (tl.exp(log_f) - plan), 0.0)
        tl.store(gradient + row[:, None] * num_classes + k[None, :], slope, mask=real)


@triton.jit
def _log_class_mass(logits, order, start, size, num_classes, stride, epsilon, support, x, HAS_ORDER, BLOCK_N, BLOCK_K):
    """LSE_j(S_kj - L_j) `[BLOCK_K]`, summed online over chunks."""
    j = tl.arange(0, BLOCK_N)
    top = tl.full([BLOCK_K], -1e38, dtype=tl.float32)
    total = tl.zeros([BLOCK_K], dtype=tl.float32)
    for first in range(0, size, BLOCK_N):
        log_f, _, _ = _load_log_f(logits, order, start, size, first, num_classes, stride, HAS_ORDER, BLOCK_N, BLOCK_K)
        scores, _ = _restrict(log_f, support, epsilon)
        _, log_partition = _plan(scores, x)
        inside = (first + j < size)[:, None] & support[None, :]
        potentials = tl.where(inside, scores - log_partition[:, None], -float("inf"))
        new_top = tl.maximum(top, tl.max(potentials, axis=0))
        total = total * tl.exp(top - new_top) + tl.sum(tl.exp(potentials - new_top[None, :]), axis=0)
        top = new_top
    return tl.where(support, top + tl.log(total), 0.0)
