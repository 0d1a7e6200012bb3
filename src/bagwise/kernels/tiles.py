"""What all kernels share: which bags a program works on, and their logits as one tile on chip.

A tile is `[BAGS, WIDTH, BLOCK_K]`: some bags, padded to WIDTH instances and BLOCK_K classes (powers of two). Bags are
ragged: a program finds the rows of its bags by their offsets. Everything is in float32 and in units of log 2, for
which GPUs have instructions.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from itertools import combinations, pairwise

import triton
import triton.language as tl

from bagwise.kernels.arithmetic import exp2, log2

LOG2_E = tl.constexpr(1.4426950408889634)
LN_2 = tl.constexpr(0.6931471805599453)
INF = tl.constexpr(float("inf"))

_RESIDENT_ENTRIES = 16_384  # a larger tile does not fit into the registers of one program
_WAVE_ENTRIES = 2**20  # about what all programs that run at once can hold
_ONE_WARP_ENTRIES = 512  # the largest tile of one bag that is left to a single warp
_SHARED_ENTRIES, _SHARED_BAGS = 1_024, 4  # bags that share a program have at most so many entries together...
_FULL_GRID = 1_024  # ...and share it when there are more of them than this, which keeps the GPU busy
_MAX_PARTS = 3  # of a launch; each is a copy of the kernel's code


@dataclass(frozen=True)
class Part:
    """Bags that have tiles of one shape.

    Attributes:
        count: number of bags.
        width: instances of a bag, padded.
        bags_per_program: small bags can share a program, which hides the latency of one by working on the others.
    """

    count: int
    width: int
    bags_per_program: int

    @staticmethod
    def of(count: int, width: int, block_k: int) -> Part:
        """Choose how many bags share a program: the power of two below what fits."""
        bags = min(_SHARED_ENTRIES // (width * block_k), _SHARED_BAGS, count // _FULL_GRID)
        return Part(count, width, 2 ** (max(1, bags).bit_length() - 1))


@dataclass(frozen=True)
class Launch:
    """Bags `first` and following of those sorted by size.

    A launch costs microseconds, and two of them seldom run side by side: bags with different tiles are parts of one
    launch where a warp can serve either.

    Attributes:
        first: of the bags sorted by size.
        block_k: classes, padded.
        parts: bag after bag, the wider ones first; at most `_MAX_PARTS`.
    """

    first: int
    block_k: int
    parts: tuple[Part, ...]

    @property
    def counts(self) -> tuple[int, ...]:
        """Number of bags of each of `_MAX_PARTS` parts."""
        return (*[part.count for part in self.parts], *[0] * (_MAX_PARTS - len(self.parts)))

    @property
    def widths(self) -> tuple[int, ...]:
        """Width of each part."""
        return tuple(part.width for part in self.parts)


@lru_cache(maxsize=256)
def plan_launches(widths: tuple[int, ...], counts: tuple[int, ...], num_classes: int) -> tuple[int, tuple[Launch, ...]]:
    """Return how many of the sizes are too large for one tile, and launches for the bags of the others.

    Padding costs nothing while the GPU is not full: where tiles take several warps, smaller bags join the launch of
    larger ones as long as all of it runs at once. What a warp can serve alone is one launch, of several parts.
    """
    block_k = class_block(num_classes)
    padded = [(max(2, width), count) for width, count in zip(widths, counts, strict=True)]
    large = sum(width * block_k > _RESIDENT_ENTRIES for width, _ in padded)
    narrow = [size for size in padded[large:] if size[0] * block_k <= _ONE_WARP_ENTRIES]
    wide: list[tuple[int, int]] = []
    for width, count in padded[large : len(padded) - len(narrow)]:
        if wide and (wide[-1][1] + count) * wide[-1][0] * block_k <= _WAVE_ENTRIES:
            wider, before = wide.pop()
            wide.append((wider, before + count))
        else:
            wide.append((width, count))
    groups = [[size] for size in wide]
    if narrow:
        groups.append(_with_least_padding(narrow))
    launches: list[Launch] = []
    position = sum(counts[:large])
    for group in groups:
        parts = tuple(Part.of(count, width, block_k) for width, count in group)
        launches.append(Launch(position, block_k, parts))
        position += sum(part.count for part in parts)
    return large, tuple(launches)


def _with_least_padding(sizes: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Join neighbouring (width, count), the widest first, into `_MAX_PARTS` at most, each as wide as its widest."""
    cuts = range(1, len(sizes))
    splits = combinations(cuts, min(_MAX_PARTS, len(sizes)) - 1)
    ways = [[sizes[begin:end] for begin, end in pairwise((0, *split, len(sizes)))] for split in splits]
    joined = [[(part[0][0], sum(count for _, count in part)) for part in way] for way in ways]
    return min(joined, key=lambda way: sum(width * count for width, count in way))


def class_block(num_classes: int) -> int:
    """Classes padded to a power of two."""
    return max(2, triton.next_power_of_2(num_classes))


@triton.jit
def find_bags(
    bags, offsets, order, program, first, count, HAS_ORDER: tl.constexpr, BAGS: tl.constexpr, WIDTH: tl.constexpr
):
    """A program's bags `[BAGS]`, which of them exist, their sizes, their rows `[BAGS, WIDTH]`, which are real.

    Programs are counted within their part of the launch, whose bags are `first` to `first + count`.
    """
    slot = program * BAGS + tl.arange(0, BAGS)
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
