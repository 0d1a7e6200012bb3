"""ROT of bags that do not fit on chip: teams of programs stream through them, still in one launch.

The iteration is that of `rot`, with exponentials in every step, so that nothing has to be kept between steps. The
members of a team work on one bag; each adds up its rows' share of the class masses m, posts it, waits for the others
and then takes the same step as they do. Waiting is safe because the launch is cooperative: all programs run at once.
Bags too small for a team wait in a queue, from which every program takes one after the other when it has time.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, lru_cache

import torch
import triton
import triton.language as tl
from torch import Tensor

from bagwise.kernels.arithmetic import exp2, log2
from bagwise.kernels.rot import DualSteps, allowed_error, last_step, log_normaliser, plan_error
from bagwise.kernels.tiles import (
    INF,
    LN_2,
    best_log_f,
    class_block,
    find_rows,
    load_logits,
    load_proportions,
    log_softmax,
    scores_in,
    store_rows,
)

_CHUNK_ENTRIES = 4_096
_SLAB_ENTRIES = 4_096  # of the team's messages, read at once
_NUM_WARPS = 16
_MAX_STEPS = 500

_NO_MASS = tl.constexpr(2.0**-60)  # a class with less mass than this, though it should have some, is summed in logs
_LOG_NO_MASS = tl.constexpr(-59.5)
_SOME_MASS = tl.constexpr(2.0**-50)
_ROUNDING = tl.constexpr(4e-13)  # see `allowed_error`: classes are shared by more rows than in `rot`


@dataclass(frozen=True)
class Teams:
    """Who works on the large bags, which are sorted by size.

    Attributes:
        rows_per_member: a bag with more rows has a team, with a member for each so many of its rows.
        num_teams: number of bags with a team; they are the first.
        num_programs: members of all teams, and programs that have only the queue.
    """

    rows_per_member: int
    num_teams: int
    num_programs: int

    @staticmethod
    @lru_cache(maxsize=256)
    def of(widths: tuple[int, ...], counts: tuple[int, ...], chunk: int, num_processors: int) -> Teams:
        """Make the teams as large as the processors allow, for `counts` bags of up to `widths` rows."""
        rows = chunk
        while True:
            larger = [(width, count) for width, count in zip(widths, counts, strict=True) if width > rows]
            members = sum(count * triton.cdiv(width, rows) for width, count in larger)
            if members <= num_processors:
                break
            rows *= 2
        num_teams = sum(count for _, count in larger)
        return Teams(rows, num_teams, min(num_processors, members + sum(counts) - num_teams))


def launch_large_rot(
    widths: list[int],
    counts: list[int],
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
    """Write loss and derivative of the first of `bags`: `counts` of them with up to `widths` instances."""
    block_k = class_block(proportions.shape[1])
    chunk = max(2, _CHUNK_ENTRIES // block_k)
    num_processors = _num_processors(logits.device)
    teams = Teams.of(tuple(widths), tuple(counts), chunk, num_processors)
    mailbox = torch.empty((num_processors, 2, block_k), device=logits.device, dtype=torch.float32)
    arrivals = torch.zeros(teams.num_teams + 1, device=logits.device, dtype=torch.int32)  # the last one is the queue
    steps = DualSteps.of(alpha, epsilon)
    _large_rot_kernel[(teams.num_programs,)](
        logits,
        offsets if order is None else order,
        offsets,
        bags,
        proportions,
        values,
        gradient,
        mailbox,
        arrivals,
        sum(counts),
        teams.num_teams,
        teams.rows_per_member,
        alpha,
        epsilon,
        steps.inverse_epsilon,
        steps.beta,
        steps.gain,
        steps.quarter,
        MAX_STEPS=_MAX_STEPS,
        HAS_ORDER=order is not None,
        NUM_CLASSES=proportions.shape[1],
        MAX_TEAMS=triton.next_power_of_2(num_processors),
        SLAB=max(1, min(128, _SLAB_ENTRIES // block_k)),
        CHUNK=chunk,
        BLOCK_K=block_k,
        num_warps=_NUM_WARPS,
        enable_fp_fusion=False,  # as in `launch_rot`: all must take the same steps
        launch_cooperative_grid=True,
    )


@cache
def _num_processors(device: torch.device) -> int:
    if device.type == "cpu":
        return 1  # Triton's interpreter runs one program after the other
    return torch.cuda.get_device_properties(device).multi_processor_count


@triton.jit(do_not_specialize=["num_bags", "num_teams", "rows_per_member"])  # compiled once for all batches
def _large_rot_kernel(
    logits,
    order,
    offsets,
    bags,
    proportions,
    values,
    gradient,
    mailbox,
    arrivals,
    num_bags,
    num_teams,
    rows_per_member,
    alpha,
    epsilon,
    inverse_epsilon,
    beta,
    gain,
    quarter,
    MAX_STEPS: tl.constexpr,
    HAS_ORDER: tl.constexpr,
    NUM_CLASSES: tl.constexpr,
    MAX_TEAMS: tl.constexpr,
    SLAB: tl.constexpr,
    CHUNK: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    k = tl.arange(0, BLOCK_K)[None, :]
    queue = arrivals + num_teams
    slot, member, team, box = _find_team(bags, offsets, mailbox, num_teams, rows_per_member, MAX_TEAMS, BLOCK_K)
    if team == 0:
        slot = num_teams + tl.atomic_add(queue, 1)
        team = 1
        member = 0
    while slot < num_bags:
        bag = tl.load(bags + slot + tl.arange(0, 1))  # [1], as one bag of a tile
        start = tl.load(offsets + bag)
        size = (tl.load(offsets + bag + 1) - start).to(tl.int32)
        length = tl.max(size, axis=0)
        n = tl.maximum(size, 1).to(tl.float32)
        z, counted = load_proportions(proportions, bag, size > 0, NUM_CLASSES, BLOCK_K)
        bell = arrivals + slot
        posts = 0

        highest = tl.full([1, BLOCK_K], -INF, dtype=tl.float32)
        for begin in range(member * CHUNK, length, team * CHUNK):
            row, inside = find_rows(order, start, size, begin, HAS_ORDER, CHUNK)
            s = load_logits(logits, row, inside, NUM_CLASSES, BLOCK_K)
            highest = tl.maximum(highest, tl.max(tl.where(inside[:, :, None], s, -INF), axis=1))
        highest = _over_team(highest, box, bell, member, team, posts, True, SLAB, BLOCK_K)
        posts += 1
        support = (z > 0) & (highest > -INF)
        possible = tl.max(support.to(tl.int32), axis=1) > 0
        support = tl.where(possible[:, None], support, z > 0)

        # Masses are in shares of the bag, and their logarithms are exact ones: the error of a fast logarithm grows with
        # its value and changes at random from step to step, so that a bag of a million would never be done.
        log_z = tl.log2(tl.where(support, z, 1.0))
        whole = tl.full([1], 1.0, dtype=tl.float32)
        moving = support & counted[:, None]
        # Each starts as a tensor of its own: Triton overlooks a loop variable that takes over another's first value.
        x = tl.zeros([1, BLOCK_K], dtype=tl.float32)
        earlier = tl.zeros([1, BLOCK_K], dtype=tl.float32)
        residual = tl.zeros([1, BLOCK_K], dtype=tl.float32)
        momentum = 1.0
        steps = 0
        state = 1  # 0: done; 1: go on; 2: some mass underflows
        while (state > 0) & (steps < MAX_STEPS):
            peak = tl.zeros([1, BLOCK_K], dtype=tl.float32)  # masses are summed relative to 2^peak
            if state == 2:
                likeliest = tl.full([1, BLOCK_K], -INF, dtype=tl.float32)
                for begin in range(member * CHUNK, length, team * CHUNK):
                    row, inside = find_rows(order, start, size, begin, HAS_ORDER, CHUNK)
                    s = load_logits(logits, row, inside, NUM_CLASSES, BLOCK_K)
                    log_plan, _, _ = _log_plan(s, support, inside, x, inverse_epsilon)
                    likeliest = tl.maximum(likeliest, tl.max(log_plan, axis=1))
                likeliest = _over_team(likeliest, box, bell, member, team, posts, True, SLAB, BLOCK_K)
                peak = tl.where(moving, likeliest, 0.0)
                posts += 1
                # as in `rot`: only differences of x matter, and q must not vanish as a whole
                level = tl.max(tl.where(moving, log_z - x / beta, -INF), axis=1)
                x = tl.where(moving, x + beta * level[:, None], 0.0)
                earlier = x + 0.0
                momentum = 1.0
            mass = tl.zeros([1, CHUNK, BLOCK_K], dtype=tl.float32)  # summed over the rows once, for which threads wait
            for begin in range(member * CHUNK, length, team * CHUNK):
                row, inside = find_rows(order, start, size, begin, HAS_ORDER, CHUNK)
                s = load_logits(logits, row, inside, NUM_CLASSES, BLOCK_K)
                log_plan, _, _ = _log_plan(s, support, inside, x, inverse_epsilon)
                mass += exp2(log_plan - peak[:, None, :])
            m = _over_team(tl.sum(mass, axis=1), box, bell, member, team, posts, False, SLAB, BLOCK_K)
            posts += 1
            m = m / n[:, None]
            log_m = peak + tl.log2(tl.maximum(m, _NO_MASS))
            residual = tl.where(moving, log_z - x / beta - log_m, 0.0)
            q = tl.where(moving, exp2(tl.minimum(log_z - x / beta, 100.0)), 0.0)
            error = tl.where(counted, n * plan_error(m * exp2(peak), q, residual, whole, beta), 0.0)
            lost = moving & (log_m < _LOG_NO_MASS) & (q > _SOME_MASS)
            verdict = tl.where(error > allowed_error(n, beta, _ROUNDING), 1 + tl.max(lost.to(tl.int32), axis=1), 0)
            state = tl.max(verdict, axis=0)
            ahead = earlier + momentum * (x + gain * residual - earlier)
            earlier = x
            x = ahead
            momentum = 1.0 / (1.0 - quarter * tl.where(momentum == 1.0, 2.0, momentum))
            steps += 1

        x = last_step(earlier, residual, beta)
        partition = tl.zeros([1], dtype=tl.float32)
        infeasible = tl.zeros([1], dtype=tl.float32)
        for begin in range(member * CHUNK, length, team * CHUNK):
            row, inside = find_rows(order, start, size, begin, HAS_ORDER, CHUNK)
            s = load_logits(logits, row, inside, NUM_CLASSES, BLOCK_K)
            log_f, is_number = log_softmax(s)
            log_plan, log_partition, hopeless = _log_plan(s, support, inside, x, inverse_epsilon)
            log_partition += best_log_f(log_f, support, is_number) * inverse_epsilon
            partition += tl.sum(tl.where(inside, log_partition, 0.0), axis=1)
            infeasible = tl.maximum(infeasible, tl.max((hopeless & inside & is_number).to(tl.float32), axis=1))
            slope = (alpha / n)[:, None, None] * (exp2(log_f) - exp2(log_plan))
            slope = tl.where(counted[:, None, None], slope, 0.0)
            store_rows(gradient, row, inside, slope, NUM_CLASSES, BLOCK_K)
        mine = tl.where(k == 0, partition[:, None], tl.where(k == 1, infeasible[:, None], 0.0))
        totals = _over_team(mine, box, bell, member, team, posts, False, SLAB, BLOCK_K)
        partition = tl.sum(tl.where(k == 0, totals, 0.0), axis=1)
        infeasible = tl.sum(tl.where(k == 1, totals, 0.0), axis=1)
        value = (alpha * epsilon * partition / n + (1 - alpha) * log_normaliser(z, support, x, beta)) * -LN_2
        value = tl.where(infeasible > 0, INF, value)
        if member == 0:
            tl.store(values + bag, tl.where(counted, value, 0.0))
        slot = num_teams + tl.atomic_add(queue, 1)
        team = 1
        member = 0


@triton.jit
def _find_team(bags, offsets, mailbox, num_teams, rows_per_member, MAX_TEAMS: tl.constexpr, BLOCK_K: tl.constexpr):
    """This program's bag, its place in the team, the size of the team (0 without one) and the team's mailboxes."""
    program = tl.program_id(0)
    slots = tl.arange(0, MAX_TEAMS)
    has_team = slots < num_teams
    bag = tl.load(bags + slots, mask=has_team, other=0)
    start = tl.load(offsets + bag, mask=has_team, other=0)
    size = tl.load(offsets + bag + 1, mask=has_team, other=0) - start
    members = ((size + rows_per_member - 1) // rows_per_member).to(tl.int32)
    ends = tl.cumsum(members, axis=0)
    slot = tl.sum((has_team & (ends <= program)).to(tl.int32), axis=0)
    team = tl.sum(tl.where(slots == slot, members, 0), axis=0)
    first = tl.sum(tl.where(slots < slot, members, 0), axis=0)
    return slot, program - first, team, mailbox + first * (2 * BLOCK_K)


@triton.jit
def _log_plan(s, support, inside, x, inverse_epsilon):
    """log2 U `[1, CHUNK, BLOCK_K]` (-inf on padding), log2 of the normalisers `[1, CHUNK]`, and the hopeless rows."""
    scores, hopeless = scores_in(s, support)
    shifted = scores * inverse_epsilon + x[:, None, :]
    top = tl.max(shifted, axis=2)
    log_partition = top + log2(tl.sum(exp2(shifted - top[:, :, None]), axis=2))
    return tl.where(inside[:, :, None], shifted - log_partition[:, :, None], -INF), log_partition, hopeless


@triton.jit
def _over_team(
    mine,
    box,
    bell,
    member,
    team,
    posts,
    LARGEST: tl.constexpr,
    SLAB: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    """Sum or maximum over the team of what every member posts, `mine [1, BLOCK_K]`: the same number for all of them.

    Two mailboxes are used in turn: nobody posts the next but one before all have read this one.
    """
    if team > 1:
        k = tl.arange(0, BLOCK_K)[None, :]
        nothing = -INF if LARGEST else 0.0
        box += (posts % 2) * (team * BLOCK_K)
        tl.store(box + member * BLOCK_K + k, mine)
        tl.debug_barrier()  # all of it is written before the bell rings
        arrived = tl.atomic_add(bell, 1, sem="acq_rel") + 1
        while arrived < team * (posts + 1):
            arrived = tl.atomic_add(bell, 0, sem="acquire")
        tl.debug_barrier()
        mine = tl.full([1, BLOCK_K], nothing, dtype=tl.float32)
        for begin in range(0, team, SLAB):
            other = begin + tl.arange(0, SLAB)[:, None]
            posted = tl.load(box + other * BLOCK_K + k, mask=other < team, other=nothing, cache_modifier=".cg")
            if LARGEST:
                mine = tl.maximum(mine, tl.max(posted, axis=0)[None, :])
            else:
                mine += tl.sum(posted, axis=0)[None, :]
    return mine
