"""The ragged structure of a batch of bags, built once and passed to every loss."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from bagwise.bags.chunks import Cut, chunk_length, cut_bags
from bagwise.bags.size_classes import SizeClasses, sort_by_size
from bagwise.bags.validation import check_bag_index

# Padding is cheaper than another round of small operations: a block may be padded by this many rows
# for free, and by this share of its real rows beyond that.
_FREE_PADDING_ROWS = 256
_PADDING_SHARE = 0.25


@dataclass(frozen=True, eq=False)
class Block:
    """Bags of similar size as one dense array: what solvers that need matrices work on.

    Attributes:
        bags: `[b]` the bags of this block.
        rows: `[b, n]` the instances of each bag; the padding repeats some valid instance.
        mask: `[b, n]` false on padding, or None when nothing is padded.
    """

    bags: Tensor
    rows: Tensor
    mask: Tensor | None


@dataclass(frozen=True, eq=False)
class BagLayout:
    """Which instance lies in which bag.

    Build it with `from_index` or `from_sizes`. That reads the bag index on the host; everything after it,
    losses and gradients included, runs without waiting for the GPU.

    Attributes:
        bag_index: `[instances]` the bag of each instance, in any order.
        sizes: `[bags]` number of instances of each bag.
        order: `[instances]` the instances sorted by bag (stable), or None when they already are.
        num_bags: number of bags, empty ones included.
        common_size: the size that all bags share, or None when they differ.
        host_sizes: `sizes` as a NumPy array, so that nobody has to ask the GPU for it.

    Example:
        >>> layout = BagLayout.from_index(torch.tensor([0, 1, 0, 1, 1]))
        >>> layout.sizes
        tensor([2, 3])
        >>> layout.order
        tensor([0, 2, 1, 3, 4])
    """

    bag_index: Tensor
    sizes: Tensor
    order: Tensor | None
    num_bags: int
    common_size: int | None
    host_sizes: np.ndarray

    @staticmethod
    def from_index(bag_index: Tensor, num_bags: int | None = None) -> BagLayout:
        """Lay out instances whose bag is `bag_index[instance]`; bags are numbered from 0 to `num_bags - 1`."""
        check_bag_index(bag_index, num_bags)
        index = bag_index.detach().cpu().numpy().astype(np.int64)  # a copy: the caller may use the buffer again
        if num_bags is None:
            num_bags = int(index.max()) + 1 if index.size else 0
        sizes = np.bincount(index, minlength=num_bags)
        is_sorted = bool((index[1:] >= index[:-1]).all())
        order = None if is_sorted else torch.from_numpy(np.argsort(index, kind="stable"))
        return _assemble(torch.from_numpy(index), sizes, order, bag_index.device)

    @staticmethod
    def from_sizes(sizes: Tensor | np.ndarray | list[int], device: torch.device | str = "cpu") -> BagLayout:
        """Lay out instances that come bag after bag, `sizes[bag]` of them each."""
        host_sizes = np.array(sizes.cpu() if isinstance(sizes, Tensor) else sizes, dtype=np.int64)
        if host_sizes.ndim != 1 or (host_sizes < 0).any():
            raise ValueError(f"sizes must be a list of counts, one per bag, but got {host_sizes.tolist()}.")
        index = torch.from_numpy(np.repeat(np.arange(len(host_sizes)), host_sizes))
        return _assemble(index, host_sizes, None, torch.device(device))

    @property
    def num_instances(self) -> int:
        """Number of instances in all bags."""
        return self.bag_index.shape[0]

    @property
    def device(self) -> torch.device:
        """Where the index tensors live."""
        return self.bag_index.device

    def to(self, device: torch.device | str, non_blocking: bool = False) -> BagLayout:
        """Return the same layout with its index tensors on `device`."""
        if torch.device(device) == self.device:
            return self

        def move(tensor: Tensor) -> Tensor:
            return tensor.to(device, non_blocking=non_blocking)

        return _ready(
            replace(
                self,
                bag_index=move(self.bag_index),
                sizes=move(self.sizes),
                order=None if self.order is None else move(self.order),
            )
        )

    def in_bag_order(self, values: Tensor) -> Tensor:
        """Return `values [instances, ...]` with the instances of each bag next to each other."""
        return values if self.order is None else values.index_select(0, self.order)

    def cut(self, num_classes: int) -> Cut:
        """The bags that are not empty, cut into chunks of a length that suits so many classes."""
        length = chunk_length(self.host_sizes, num_classes)
        if length not in self._cuts:
            order = None if self.order is None else self.order.cpu().numpy()
            self._cuts[length] = cut_bags(self.host_sizes, order, length, self.device)
        return self._cuts[length]

    @cached_property
    def _cuts(self) -> dict[int, Cut]:
        return {}

    @cached_property
    def offsets(self) -> Tensor:
        """`[bags + 1]` where each bag starts in bag order."""
        starts = np.concatenate([[0], np.cumsum(self.host_sizes)])
        return torch.from_numpy(starts).to(self.device, non_blocking=True)

    @cached_property
    def size_classes(self) -> SizeClasses:
        """The bags sorted by size: what the GPU kernels are launched over."""
        return sort_by_size(self.host_sizes, self.device)

    @cached_property
    def blocks(self) -> tuple[Block, ...]:
        """The bags that are not empty, grouped by size into few dense blocks with little padding."""
        order = np.arange(self.num_instances) if self.order is None else self.order.cpu().numpy()
        starts = np.cumsum(self.host_sizes) - self.host_sizes
        blocks = []
        for bags in _group_by_size(self.host_sizes):
            sizes = self.host_sizes[bags]
            position = np.arange(sizes.max())[None, :]  # [1, n]
            inside = position < sizes[:, None]  # [b, n]
            rows = order[starts[bags][:, None] + np.minimum(position, sizes[:, None] - 1)]
            blocks.append(
                Block(
                    bags=torch.from_numpy(bags).to(self.device),
                    rows=torch.from_numpy(rows).to(self.device),
                    mask=None if inside.all() else torch.from_numpy(inside).to(self.device),
                )
            )
        return tuple(blocks)


def as_layout(bag_index: Tensor | BagLayout, num_bags: int) -> BagLayout:
    """Return the layout of `bag_index`, which may be one already."""
    if isinstance(bag_index, BagLayout):
        if bag_index.num_bags != num_bags:
            raise ValueError(
                f"the layout holds {bag_index.num_bags} bags, but proportions has {num_bags} rows; "
                "there must be one row per bag."
            )
        return bag_index
    return BagLayout.from_index(bag_index, num_bags)


def _assemble(index: Tensor, host_sizes: np.ndarray, order: Tensor | None, device: torch.device) -> BagLayout:
    common = int(host_sizes[0]) if host_sizes.size and (host_sizes == host_sizes[0]).all() else None
    return _ready(
        BagLayout(
            bag_index=index.to(device),
            sizes=torch.from_numpy(host_sizes).to(device),
            order=None if order is None else order.to(device),
            num_bags=len(host_sizes),
            common_size=common or None,  # bags that are all empty share no size worth a fast path
            host_sizes=host_sizes,
        )
    )


def _ready(layout: BagLayout) -> BagLayout:
    """On a GPU, build at once what its kernels ask for: torch.compile cannot run code of the host inside a graph."""
    if layout.device.type == "cuda":
        _ = layout.offsets, layout.size_classes
    return layout


def _group_by_size(sizes: np.ndarray) -> list[np.ndarray]:
    """Split the bags, largest first, into groups that waste little when padded to their largest bag."""
    largest_first = np.argsort(-sizes, kind="stable")
    largest_first = largest_first[sizes[largest_first] > 0]
    descending = sizes[largest_first]
    if len(descending) == 0:
        return []
    # one step per distinct size, not per bag
    starts = np.flatnonzero(np.diff(descending, prepend=-1))
    ends = np.append(starts[1:], len(descending))
    groups: list[np.ndarray] = []
    first, top, real, waste = 0, 0, 0, 0
    for start, end in zip(starts, ends, strict=True):
        size, count = int(descending[start]), int(end - start)
        more = count * (top - size)
        if start == first or waste + more <= max(_FREE_PADDING_ROWS, _PADDING_SHARE * real):
            top = max(top, size)
            real, waste = real + count * size, waste + (more if start != first else 0)
        else:
            groups.append(largest_first[first:start])
            first, top, real, waste = start, size, count * size, 0
    return [*groups, largest_first[first:]]
