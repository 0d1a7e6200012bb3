"""What all kernels share: which bags a program works on, and their logits as one tile on chip.

A tile is `[BAGS, WIDTH, BLOCK_K]`: some bags, padded to WIDTH instances and BLOCK_K classes (powers of two). Bags are
ragged: a program finds the rows of its bags by their offsets. Everything is in float32 and in units of log 2, for
which GPUs have instructions.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import triton
import triton.language as tl

from bagwise.kernels.arithmetic import exp2, log2

LOG2_E = tl.constexpr(1.4426950408889634)
LN_2 = tl.constexpr(0.6931471805599453)
INF = tl.constexpr(float("inf"))

_RESIDENT_ENTRIES = 16_384  # a larger tile does not fit into the registers of one program
_WAVE_ENTRIES = 2**20  # about what all programs that run at once can hold
_SHARED_ENTRIES = (256, 1_024)  # bags of at least so many entries share a program, up to so many together...
_FULL_GRID = 1_024  # ...when there are more of them than this, which keeps the GPU busy


@dataclass(frozen=True)
class Launch:
    """Bags `first` to `first + count` of those sorted by size, all with at most `width` instances.

    Attributes:
        first: of the bags sorted by size.
        count: number of bags.
        width: instances of a bag, padded.
        block_k: classes, padded.
        bags_per_program: small bags can share a program, which hides the latency of one by working on the others.
    """

    first: int
    count: int
    width: int
    block_k: int
    bags_per_program: int

    @staticmethod
    def of(first: int, count: int, width: int, block_k: int) -> Launch:
        """Choose the shape of the tiles."""
        least, most = _SHARED_ENTRIES
        entries = width * block_k
        bags = min(most // entries, count // _FULL_GRID) if entries >= least else 1
        return Launch(first, count, width, block_k, 2 ** (max(1, bags).bit_length() - 1))  # the power of two below

    @property
    def entries(self) -> int:
        """Size of a tile."""
        return self.bags_per_program * self.width * self.block_k

    @property
    def grid(self) -> tuple[int]:
        """Number of programs."""
        return (triton.cdiv(self.count, self.bags_per_program),)


@lru_cache(maxsize=256)
def plan_launches(widths: tuple[int, ...], counts: tuple[int, ...], num_classes: int) -> tuple[int, tuple[Launch, ...]]:
    """Return how many of the sizes are too large for one tile, and launches for the bags of the others.

    A launch costs microseconds, padding costs nothing while the GPU is not full: smaller bags join the launch of
    larger ones as long as all of it runs at once.
    """
    block_k = class_block(num_classes)
    large, position = 0, 0
    parts: list[tuple[int, int, int]] = []  # first, count, width
    for width, count in zip(widths, counts, strict=True):
        padded = max(2, width)
        if padded * block_k > _RESIDENT_ENTRIES:
            large += 1
        elif parts and (parts[-1][1] + count) * parts[-1][2] * block_k <= _WAVE_ENTRIES:
            first, before, wider = parts.pop()
            parts.append((first, before + count, wider))
        else:
            parts.append((position, count, padded))
        position += count
    return large, tuple(Launch.of(*part, block_k) for part in parts)


def class_block(num_classes: int) -> int:
    """Classes padded to a power of two."""
    return max(2, triton.next_power_of_2(num_classes))


@triton.jit
def find_bags(bags, offsets, order, first, count, HAS_ORDER: tl.constexpr, BAGS: tl.constexpr, WIDTH: tl.constexpr):
    """This program's bags `[BAGS]`, which of them exist, their sizes, their rows `[BAGS, WIDTH]`, which are real."""
    slot = tl.program_id(0) * BAGS + tl.arange(0, BAGS)
    exists = slot < count
    bag = tl.load(bags + first + slot, mask=exists, other=0)
    start = tl.load(offsets + bag, mask=exists, other=0)
    size = (tl.load(offsets + bag + 1, mask=exists, other=0) - start).to(tl.int32)
    place = tl.arange(0, WIDTH)
    inside = place[None, :] < size[:, None]
    row = start[:, None] + place[None, :]
    if HAS_ORDER:
        row = tl.load(order + row, mask=inside, other=0)
    return bag, exists, size, row, inside


@triton.jit
def find_rows(order, start, size, begin, HAS_ORDER: tl.constexpr, CHUNK: tl.constexpr):
    """Rows `begin ...` of a bag, `[1, CHUNK]`, and which are real."""
    place = (begin + tl.arange(0, CHUNK))[None, :]
    inside = place < size[:, None]
    row = start[:, None] + place
    if HAS_ORDER:
        row = tl.load(order + row, mask=inside, other=0)
    return row, inside


@triton.jit
def load_proportions(proportions, bag, usable, NUM_CLASSES: tl.constexpr, BLOCK_K: tl.constexpr):
    """z `[BAGS, BLOCK_K]`, and which bags `[BAGS]` count: usable and with known proportions. Others get z = 1."""
    k = tl.arange(0, BLOCK_K)
    real = usable[:, None] & (k < NUM_CLASSES)[None, :]
    z = tl.load(proportions + bag[:, None].to(tl.int64) * NUM_CLASSES + k[None, :], mask=real, other=0.0)
    z = z.to(tl.float32)
    total = tl.sum(z, axis=1)
    counted = usable & (total == total)  # a row of NaN is a bag with unknown proportions
    return tl.where(counted[:, None], z, (k < NUM_CLASSES).to(tl.float32)[None, :]), counted


@triton.jit
def load_logits(logits, row, inside, NUM_CLASSES: tl.constexpr, BLOCK_K: tl.constexpr):
    """The rows `[BAGS, WIDTH, BLOCK_K]`; padding rows are 0, padding classes -inf."""
    k = tl.arange(0, BLOCK_K)
    is_class = (k < NUM_CLASSES)[None, None, :]
    s = tl.load(
        logits + row[:, :, None] * NUM_CLASSES + k[None, None, :], mask=inside[:, :, None] & is_class, other=0.0
    )
    return tl.where(is_class, s.to(tl.float32), -INF)


@triton.jit
def log_softmax(s):
    """log2 softmax of the logits `[BAGS, WIDTH, BLOCK_K]`, and which rows `[BAGS, WIDTH]` are free of NaN."""
    s = (s - tl.max(s, axis=2)[:, :, None]) * LOG2_E
    log_total = log2(tl.sum(exp2(s), axis=2))
    return s - log_total[:, :, None], log_total == log_total


@triton.jit
def scores_in(s, support):
    """Logits in units of log 2, -inf outside the classes `support [BAGS, BLOCK_K]` of the bag, 0 at each row's best.

    Logits of 10,000 hold three decimals in float32, and so does the probability of a class that is far from the best
    of all; the difference of two good ones is exact. A row that rules out all of them is hopeless, and undecided.
    """
    s = tl.where(support[:, None, :], s, -INF)
    best = tl.max(s, axis=2)
    hopeless = best == -INF
    scores = (s - tl.where(hopeless, 0.0, best)[:, :, None]) * LOG2_E
    return tl.where(hopeless[:, :, None] & support[:, None, :], 0.0, scores), hopeless


@triton.jit
def best_log_f(log_f, support, is_number):
    """log2 f of the best class in the support `[BAGS, WIDTH]`: what `scores_in` left out. 0 in a hopeless row."""
    best = tl.max(tl.where(support[:, None, :], log_f, -INF), axis=2)
    return tl.where(is_number, tl.where(best == -INF, 0.0, best), float("nan"))


@triton.jit
def store_rows(gradient, row, inside, values, NUM_CLASSES: tl.constexpr, BLOCK_K: tl.constexpr):
    """Write `values [BAGS, WIDTH, BLOCK_K]` to their rows of `gradient [instances, classes]`."""
    k = tl.arange(0, BLOCK_K)
    real = inside[:, :, None] & (k < NUM_CLASSES)[None, None, :]
    tl.store(gradient + row[:, :, None] * NUM_CLASSES + k[None, None, :], values, mask=real)
