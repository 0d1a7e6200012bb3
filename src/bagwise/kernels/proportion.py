"""Losses on a bag's mean prediction, and AvgKL: softmax, the bag's sums, the loss and its gradient in one launch.

With f the predictions, p = sum_j f_j / n and g = d loss / d p, the derivative at the logits of instance j is
f_j (g - <f_j, g>) / n. For the cross-entropy "kl", g_k = -z_k / p_k; there f_jk / (n p_k), the share of instance j in
the class, is computed in the log domain, so that a class that the whole bag finds unlikely does no harm.

A bag that does not fit on chip is cut into pieces: one launch sums up each piece, a second adds the pieces and takes
the gradient.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from bagwise.kernels.arithmetic import exp2, log2
from bagwise.kernels.tiles import (
    INF,
    LN_2,
    Launch,
    class_block,
    find_bags,
    find_rows,
    load_logits,
    load_proportions,
    log_softmax,
    store_rows,
)

_CHUNK_ENTRIES = 4_096
_CHUNKS_PER_PIECE = 4
_MAX_PIECES = 128
_NUM_WARPS = 8


def launch_proportion(
    launch: Launch,
    logits: Tensor,
    proportions: Tensor,
    order: Tensor | None,
    offsets: Tensor,
    bags: Tensor,
    divergence: str,
    values: Tensor,
    gradient: Tensor,
) -> None:
    """Write the loss `[bags]` and its derivative at the logits `[instances, classes]` for the bags of one launch."""
    entries = launch.width * launch.block_k
    _proportion_kernel[(launch.count,)](
        logits,
        offsets if order is None else order,
        offsets,
        bags,
        proportions,
        values,
        gradient,
        launch.first,
        launch.count,
        DIVERGENCE=divergence,
        HAS_ORDER=order is not None,
        NUM_CLASSES=proportions.shape[1],
        BAGS=1,
        WIDTH=launch.width,
        BLOCK_K=launch.block_k,
        num_warps=min(16, max(1, entries // 512)),
    )


def launch_large_proportion(
    num_bags: int,
    longest: int,
    logits: Tensor,
    proportions: Tensor,
    order: Tensor | None,
    offsets: Tensor,
    bags: Tensor,
    divergence: str,
    values: Tensor,
    gradient: Tensor,
) -> None:
    """Write loss and derivative of the first `num_bags` of `bags`, none of them larger than `longest`."""
    block_k = class_block(proportions.shape[1])
    chunk = max(2, _CHUNK_ENTRIES // block_k)
    pieces = min(_MAX_PIECES, triton.next_power_of_2(triton.cdiv(longest, _CHUNKS_PER_PIECE * chunk)))
    sums = torch.empty((num_bags, pieces, 2, block_k), device=logits.device, dtype=torch.float32)
    for finish in (False, True):
        _piece_kernel[(num_bags, pieces)](
            logits,
            offsets if order is None else order,
            offsets,
            bags,
            proportions,
            sums,
            values,
            gradient,
            FINISH=finish,
            DIVERGENCE=divergence,
            HAS_ORDER=order is not None,
            NUM_CLASSES=proportions.shape[1],
            PIECES=pieces,
            CHUNK=chunk,
            BLOCK_K=block_k,
            num_warps=_NUM_WARPS,
        )


@triton.jit(do_not_specialize=["first", "count"])  # compiled once for all batches
def _proportion_kernel(
    logits,
    order,
    offsets,
    bags,
    proportions,
    values,
    gradient,
    first,
    count,
    DIVERGENCE: tl.constexpr,
    HAS_ORDER: tl.constexpr,
    NUM_CLASSES: tl.constexpr,
    BAGS: tl.constexpr,
    WIDTH: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    bag, exists, size, row, inside = find_bags(bags, offsets, order, first, count, HAS_ORDER, BAGS, WIDTH)
    z, counted = load_proportions(proportions, bag, exists & (size > 0), NUM_CLASSES, BLOCK_K)
    n = tl.maximum(size, 1).to(tl.float32)
    log_f, _ = log_softmax(load_logits(logits, row, inside, NUM_CLASSES, BLOCK_K))
    peak, total = _sums(log_f, z, inside, DIVERGENCE)
    mean = _log_mean(peak, total, n, DIVERGENCE)
    tl.store(values + bag, tl.where(counted, _loss(mean, z, DIVERGENCE), 0.0), mask=exists)
    slope = tl.where(counted[:, None, None], _slope(log_f, mean, z, n, DIVERGENCE), 0.0)
    store_rows(gradient, row, inside, slope, NUM_CLASSES, BLOCK_K)


@triton.jit
def _piece_kernel(
    logits,
    order,
    offsets,
    bags,
    proportions,
    sums,
    values,
    gradient,
    FINISH: tl.constexpr,
    DIVERGENCE: tl.constexpr,
    HAS_ORDER: tl.constexpr,
    NUM_CLASSES: tl.constexpr,
    PIECES: tl.constexpr,
    CHUNK: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    slot = tl.program_id(0)
    piece = tl.program_id(1)
    k = tl.arange(0, BLOCK_K)[None, :]
    bag = tl.load(bags + slot + tl.arange(0, 1))  # [1], as one bag of a tile
    start = tl.load(offsets + bag)
    size = (tl.load(offsets + bag + 1) - start).to(tl.int32)
    length = tl.max(size, axis=0)
    n = size.to(tl.float32)
    z, counted = load_proportions(proportions, bag, size > 0, NUM_CLASSES, BLOCK_K)
    board = sums + slot * (PIECES * 2 * BLOCK_K)  # [PIECES, 2, BLOCK_K]: peak and total of every piece
    if FINISH:
        of_piece = board + tl.arange(0, PIECES)[:, None] * (2 * BLOCK_K)
        peaks = tl.load(of_piece + k)
        totals = tl.load(of_piece + BLOCK_K + k)
        peak = tl.max(peaks, axis=0)[None, :]
        total = tl.sum(totals * exp2(peaks - peak), axis=0)[None, :]
        mean = _log_mean(peak, total, n, DIVERGENCE)
        if piece == 0:
            tl.store(values + bag, tl.where(counted, _loss(mean, z, DIVERGENCE), 0.0))
        for begin in range(piece * CHUNK, length, PIECES * CHUNK):
            row, inside = find_rows(order, start, size, begin, HAS_ORDER, CHUNK)
            log_f, _ = log_softmax(load_logits(logits, row, inside, NUM_CLASSES, BLOCK_K))
            slope = tl.where(counted[:, None, None], _slope(log_f, mean, z, n, DIVERGENCE), 0.0)
            store_rows(gradient, row, inside, slope, NUM_CLASSES, BLOCK_K)
    else:
        peak = tl.full([1, BLOCK_K], -1e30, dtype=tl.float32)  # of a piece without rows, below any other
        total = tl.zeros([1, BLOCK_K], dtype=tl.float32)
        for begin in range(piece * CHUNK, length, PIECES * CHUNK):
            row, inside = find_rows(order, start, size, begin, HAS_ORDER, CHUNK)
            log_f, _ = log_softmax(load_logits(logits, row, inside, NUM_CLASSES, BLOCK_K))
            chunk_peak, chunk_total = _sums(log_f, z, inside, DIVERGENCE)
            higher = tl.maximum(peak, chunk_peak)
            total = total * exp2(peak - higher) + chunk_total * exp2(chunk_peak - higher)
            peak = higher
        if DIVERGENCE == "avg_kl":
            peak = tl.zeros([1, BLOCK_K], dtype=tl.float32)
        tl.store(board + piece * (2 * BLOCK_K) + k, peak)
        tl.store(board + piece * (2 * BLOCK_K) + BLOCK_K + k, total)


@triton.jit
def _sums(log_f, z, inside, DIVERGENCE: tl.constexpr):
    """Sum over the rows of f, as 2^peak times a total (`[BAGS, BLOCK_K]` each); for AvgKL of log f, with peak 0."""
    if DIVERGENCE == "avg_kl":
        used = inside[:, :, None] & (z > 0)[:, None, :]  # 0 * -inf is 0 here
        return tl.zeros_like(z), tl.sum(tl.where(used, log_f, 0.0), axis=1)
    log_f = tl.where(inside[:, :, None], log_f, -INF)
    peak = tl.max(log_f, axis=1)
    peak = tl.where(peak == -INF, -1e30, peak)
    return peak, tl.sum(exp2(log_f - peak[:, None, :]), axis=1)


@triton.jit
def _log_mean(peak, total, n, DIVERGENCE: tl.constexpr):
    """log2 p `[BAGS, BLOCK_K]`; for AvgKL the mean of log2 f."""
    if DIVERGENCE == "avg_kl":
        return total / n[:, None]
    return peak + log2(total) - log2(n)[:, None]


@triton.jit
def _loss(mean, z, DIVERGENCE: tl.constexpr):
    """The loss `[BAGS]` from `_log_mean` and the proportions."""
    if DIVERGENCE == "l1":
        return tl.sum(tl.abs(z - exp2(mean)), axis=1)
    if DIVERGENCE == "l2":
        difference = z - exp2(mean)
        return tl.sum(difference * difference, axis=1)
    return tl.sum(z * tl.where(z > 0, mean, 0.0), axis=1) * -LN_2


@triton.jit
def _slope(log_f, mean, z, n, DIVERGENCE: tl.constexpr):
    """Derivative of the loss at the logits `[BAGS, WIDTH, BLOCK_K]`."""
    f = exp2(log_f)
    if DIVERGENCE == "avg_kl":
        return (f * tl.sum(z, axis=1)[:, None, None] - z[:, None, :]) / n[:, None, None]
    if DIVERGENCE == "kl":
        # a class that nobody can take makes the loss +inf; its gradient stays finite
        used = (z > 0) & (mean > -INF)
        log_total = tl.where(used, mean + log2(n)[:, None], 0.0)
        pull = tl.where(used, z, 0.0)[:, None, :] * exp2(log_f - log_total[:, None, :])
        return f * tl.sum(pull, axis=2)[:, :, None] - pull
    p = exp2(mean)
    g = 2.0 * (p - z)
    if DIVERGENCE == "l1":
        g = tl.where(p > z, 1.0, tl.where(p < z, -1.0, 0.0))
    across = tl.sum(f * g[:, None, :], axis=2)
    return f * (g[:, None, :] - across[:, :, None]) / n[:, None, None]
