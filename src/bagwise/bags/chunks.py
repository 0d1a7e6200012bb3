"""Ragged bags as one dense array: every bag is cut into chunks of one length, and only its last one is padded."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

SMALLEST_FOR_BLAS = 400  # entries of a matrix; torch multiplies smaller ones by itself, at half the speed


@dataclass(frozen=True, eq=False)
class Chunks:
    """Which bag each of c chunks belongs to. Empty bags have no chunk and no number.

    Attributes:
        num_bags: number of bags.
        bag: `[c]` the bag of every chunk, or None when chunk i is bag i.
        inside: `[c, n]` 1 on instances and 0 on padding (float32), or None when nothing is padded.
    """

    num_bags: int
    bag: Tensor | None
    inside: Tensor | None

    def spread(self, per_bag: Tensor) -> Tensor:
        """Give every chunk the row of its bag: `[bags, ...]` -> `[c, ...]`."""
        return per_bag if self.bag is None else per_bag.index_select(0, self.bag)

    def total(self, per_chunk: Tensor) -> Tensor:
        """Sum the chunks of every bag: `[c, ...]` -> `[bags, ...]`."""
        if self.bag is None:
            return per_chunk
        return per_chunk.new_zeros(self.num_bags, *per_chunk.shape[1:]).index_add_(0, self.bag, per_chunk)

    def largest(self, per_chunk: Tensor) -> Tensor:
        """Largest over the chunks of every bag: `[c, ...]` -> `[bags, ...]`."""
        if self.bag is None:
            return per_chunk
        lowest = per_chunk.new_full((self.num_bags, *per_chunk.shape[1:]), -torch.inf)
        index = self.bag.view(-1, *[1] * (per_chunk.ndim - 1)).expand_as(per_chunk)
        return lowest.scatter_reduce_(0, index, per_chunk, "amax")

    def select(self, bags: Tensor) -> tuple[Chunks, Tensor]:
        """Return the chunks of some of the bags, and which ones they are."""
        chosen, bag = bags, None
        if self.bag is not None:
            number = torch.full((self.num_bags,), -1, device=bags.device)
            number[bags] = torch.arange(len(bags), device=bags.device)
            chosen = (number[self.bag] >= 0).nonzero()[:, 0]
            bag = number[self.bag[chosen]]
        return Chunks(len(bags), bag, None if self.inside is None else self.inside[chosen]), chosen


@dataclass(frozen=True, eq=False)
class Cut:
    """The instances of all bags as chunks of n places. Bags of one size are one chunk each, without padding.

    Attributes:
        chunks: the bags of the chunks.
        length: n.
        rows: `[c * n]` the instance at every place, the padding repeating one of the same bag; None when place i
            holds instance i.
        slots: `[instances]` the place of every instance, or None likewise.
    """

    chunks: Chunks
    length: int
    rows: Tensor | None
    slots: Tensor | None

    def split(self, values: Tensor) -> Tensor:
        """From `values [instances, K]` to `[c, n, K]`."""
        placed = values if self.rows is None else values.index_select(0, self.rows)
        return placed.reshape(-1, self.length, values.shape[1])

    def join(self, values: Tensor) -> Tensor:
        """From `values [c, n, K]` back to `[instances, K]`."""
        flat = values.flatten(0, 1)
        return flat if self.slots is None else flat.index_select(0, self.slots)


def chunk_length(sizes: np.ndarray, num_classes: int) -> int:
    """How long to make the chunks of bags of `sizes [bags]`: shorter ones are more of them, longer ones more padding.

    A third of a usual bag is a good length, if a chunk then is a matrix that is large enough for BLAS.
    """
    sizes = sizes[sizes > 0]
    mean = int(sizes.sum()) // max(1, len(sizes))
    if (sizes == mean).all():
        return max(1, mean)
    return max(1, min(5 * mean // 8, max(mean // 3, -(-SMALLEST_FOR_BLAS // num_classes))))


def cut_bags(sizes: np.ndarray, order: np.ndarray | None, length: int, device: torch.device) -> Cut:
    """Cut bags of `sizes [bags]` whose instances are `order [instances]`, bag after bag (None: as they come)."""
    sizes = sizes[sizes > 0]
    equal = bool((sizes == length).all())
    if equal and order is None:
        return Cut(Chunks(len(sizes), None, None), length, None, None)

    def move(array: np.ndarray) -> Tensor:
        return torch.from_numpy(array).to(device)

    chunks_of = -(-sizes // length)  # [bags]
    bag = np.repeat(np.arange(len(sizes)), chunks_of)  # [c]
    first_chunk = np.cumsum(chunks_of) - chunks_of
    start = (np.arange(len(bag)) - first_chunk[bag]) * length  # [c] of a chunk in its bag
    position = start[:, None] + np.arange(length)  # [c, n] in the bag
    last = sizes[bag][:, None] - 1
    inside = position <= last
    rows = ((np.cumsum(sizes) - sizes)[bag][:, None] + np.minimum(position, last)).ravel()
    rows = rows if order is None else order[rows]
    places = np.flatnonzero(inside)
    slots = np.empty(len(places), dtype=np.int64)
    slots[rows[places]] = places
    chunks = Chunks(len(sizes), None if equal else move(bag), None if equal else move(inside.astype(np.float32)))
    return Cut(chunks, length, move(rows), move(slots))
