"""`BagLoader`: whole bags packed into batches, in an order that follows from the seed and the epoch alone."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from bagwise.bags.augment import Augment
from bagwise.bags.data import Bags
from bagwise.bags.layout import BagLayout
from bagwise.bags.seeds import derived_seed
from bagwise.bags.setting_checks import check_count
from bagwise.bags.source import instance_source, to_device


@dataclass(frozen=True, eq=False)
class Batch:
    """Some whole bags on one device.

    Attributes:
        pieces: the instances, bag after bag, in tensors `[at most chunk_instances, ...]`: a tuple of one, unless
            the batch is larger than a chunk; then every pass over `pieces` loads them anew, with equal values.
        layout: which instance lies in which bag.
        proportions: `[bags, classes]`.
        bag_numbers: `[bags]` their numbers in the `Bags` (on the host).
        strong: a second view of the instances, `[instances, ...]`, where the loader has a `strong_augment` and the
            batch is not in pieces.
    """

    pieces: Iterable[Tensor]
    layout: BagLayout
    proportions: Tensor
    bag_numbers: np.ndarray
    strong: Tensor | None = None

    @property
    def is_in_pieces(self) -> bool:
        """Whether the batch is larger than a chunk."""
        return not isinstance(self.pieces, tuple)

    @property
    def instances(self) -> Tensor:
        """All instances, `[instances, ...]`."""
        return torch.cat(list(self.pieces)) if self.is_in_pieces else next(iter(self.pieces))


@dataclass(frozen=True, eq=False)
class EpochPlan:
    """The batches of an epoch, over all processes.

    Attributes:
        batches: the bag numbers of each batch.
        known_bags: `[batches]` how many bags of each have known proportions.
        instances: `[batches]` how many instances each has.
    """

    batches: tuple[np.ndarray, ...]
    known_bags: np.ndarray
    instances: np.ndarray


class BagLoader:
    """Packs whole bags into batches of at most `batch_instances`; a larger bag is a batch of its own.

    Everything random follows from `(seed, epoch)`, so a run that resumes needs no state of the loader. On a
    GPU, data that fits lives there, and a step copies nothing and waits for nothing.

    With several processes a batch is split among them, bag by bag: `batch_instances` is the number for all
    processes together, so that the number of processes does not change what is learned. A process left
    without a bag gets the first bag of the batch with its proportions hidden, which gives no loss.

    Args:
        bags: what to load.
        batch_instances: most instances in a batch, over all processes.
        seed: seed of the order and of the augmentation.
        device: where batches are wanted.
        augment: what is done to the raw instances on the device; None hands them out as they are.
        strong_augment: gives each whole batch a second view of the same raw instances; None gives none.
        rank: number of this process.
        world_size: number of processes.
        drop_last: leave out the last batch of an epoch when it is not full (and not the only one), so that
            all batches of equal-size bags have one shape.
        chunk_instances: batches with more instances than this are handed out in pieces of this size.
        workers: processes that read a dataset (or a tensor too large for the GPU); 0 reads in this one.

    Example:
        >>> bags = Bags(torch.randn(6, 2), [0, 0, 1, 1, 2, 2], torch.full((3, 2), 0.5))
        >>> loader = BagLoader(bags, batch_instances=4, seed=0)
        >>> [batch.layout.num_bags for batch in loader.epoch(0)]
        [2, 1]
    """

    def __init__(
        self,
        bags: Bags,
        batch_instances: int,
        *,
        seed: int,
        device: torch.device | str = "cpu",
        augment: Augment | None = None,
        strong_augment: Augment | None = None,
        rank: int = 0,
        world_size: int = 1,
        drop_last: bool = False,
        chunk_instances: int | None = None,
        workers: int = 0,
    ) -> None:
        check_count("batch_instances", batch_instances)
        if chunk_instances is not None:
            check_count("chunk_instances", chunk_instances)
        self.bags = bags
        self.device = torch.device(device)
        self._batch_instances, self._chunk = batch_instances, chunk_instances
        self._seed, self._drop_last = seed, drop_last
        self._rank, self._world_size = rank, world_size
        self._augment, self._strong_augment = augment, strong_augment
        self._source = instance_source(bags.instances, self.device, workers)
        self._known = ~bags.proportions[:, 0].isnan().numpy()
        self._equal_layouts: dict[tuple[int, int], BagLayout] = {}

    def plan(self, epoch: int) -> EpochPlan:
        """Return what this epoch will consist of, over all processes."""
        all_sizes = self.bags.layout.host_sizes
        generator = np.random.default_rng(derived_seed(self._seed, "order", epoch))
        order = generator.permutation(self.bags.num_bags)
        ends = np.cumsum(all_sizes[order])
        batches, start, filled = [], 0, 0
        while start < len(order):
            stop = int(np.searchsorted(ends, filled + self._batch_instances, side="right"))
            stop = max(stop, start + 1)  # a bag larger than a batch goes alone
            batches.append(order[start:stop])
            start, filled = stop, int(ends[stop - 1])
        if self._drop_last and len(batches) > 1:
            one_bag_more = all_sizes[batches[-1]].sum() + all_sizes.mean()
            if one_bag_more <= self._batch_instances:  # it would have fitted: the batch is not full
                batches.pop()
        return EpochPlan(
            batches=tuple(batches),
            known_bags=np.array([self._known[batch].sum() for batch in batches]),
            instances=np.array([all_sizes[batch].sum() for batch in batches]),
        )

    def epoch(self, number: int) -> Iterator[Batch]:
        """Yield this process's share of every batch of epoch `number`."""
        shares = [self._share(batch) for batch in self.plan(number).batches]
        rows = (self.bags.rows_of(bags) for bags, _ in shares if not self._is_oversize(bags))
        stream = self._source.batches(rows, derived_seed(self._seed, "read", number, self._rank))
        proportions = self._proportions(shares)
        for place, (bags, _) in enumerate(shares):
            where = number, self._rank, place
            if self._is_oversize(bags):
                pieces, strong = self._in_pieces(bags, where), None
            else:
                raw = next(stream)
                pieces, strong = (self._augmenter(where)(raw),), self._strong_view(raw, where)
            yield Batch(
                pieces=pieces,
                layout=self._layout(self.bags.layout.host_sizes[bags]),
                proportions=next(proportions),
                bag_numbers=bags,
                strong=strong,
            )

    def _share(self, batch: np.ndarray) -> tuple[np.ndarray, bool]:
        """Return this process's bags of a batch, and whether they are a stand-in with hidden proportions."""
        if self._world_size == 1:
            return batch, False
        sizes = self.bags.layout.host_sizes[batch]
        middles = np.cumsum(sizes) - sizes / 2  # a bag goes to the process in whose stretch its middle lies
        own = batch[(middles * self._world_size / sizes.sum()).astype(np.int64) == self._rank]
        return (own, False) if len(own) else (batch[:1], True)

    def _proportions(self, shares: list[tuple[np.ndarray, bool]]) -> Iterator[Tensor]:
        """Yield the proportions of each share; those of the whole epoch travel to the device in one copy."""
        numbers = np.concatenate([bags for bags, _ in shares])
        counts = [len(bags) for bags, _ in shares]
        together = self.bags.proportions[torch.from_numpy(numbers)]
        together[torch.from_numpy(np.repeat([hidden for _, hidden in shares], counts))] = torch.nan
        yield from to_device(together, self.device).split(counts)

    def _layout(self, sizes: np.ndarray) -> BagLayout:
        if (sizes != sizes[0]).any():
            return BagLayout.from_sizes(sizes).to(self.device, non_blocking=True)
        key = len(sizes), int(sizes[0])
        if key not in self._equal_layouts:
            self._equal_layouts[key] = BagLayout.from_sizes(sizes, self.device)
        return self._equal_layouts[key]

    def _is_oversize(self, bags: np.ndarray) -> bool:
        return self._chunk is not None and self.bags.layout.host_sizes[bags].sum() > self._chunk

    def _in_pieces(self, bags: np.ndarray, where: tuple[int, ...]) -> _Pieces:
        rows = self.bags.rows_of(bags)

        def load() -> Iterator[Tensor]:
            augmented = self._augmenter(where)
            starts = range(0, len(rows), self._chunk or len(rows))
            parts = np.split(rows, starts[1:])
            for piece in self._source.batches(parts, derived_seed(self._seed, "read", *where)):
                yield augmented(piece)

        return _Pieces(load)

    def _augmenter(self, where: tuple[int, ...]) -> Callable[[Tensor], Tensor]:
        """Return the augmentation of the batch at this place; a second one made for it draws the same."""
        augment = self._augment
        if augment is None:
            return lambda instances: instances
        generator = torch.Generator(self.device).manual_seed(derived_seed(self._seed, "augment", *where))
        return lambda instances: augment(instances, generator)

    def _strong_view(self, instances: Tensor, where: tuple[int, ...]) -> Tensor | None:
        if self._strong_augment is None:
            return None
        generator = torch.Generator(self.device).manual_seed(derived_seed(self._seed, "strong augment", *where))
        return self._strong_augment(instances, generator)


class _Pieces:
    """An iterable that loads its pieces anew each time, so that they need not be kept."""

    def __init__(self, load: Callable[[], Iterator[Tensor]]) -> None:
        self._load = load

    def __iter__(self) -> Iterator[Tensor]:
        return self._load()
