"""Where batches of instances come from: a tensor that lives on the device, or a stream to it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import nullcontext
from itertools import count
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader

from bagwise.bags.data import Instances, MapDataset
from bagwise.bags.randomness import private_randomness
from bagwise.bags.seeds import derived_seed
from bagwise.bags.stored import StoredRows

# Activations, gradients and the optimizer need room too.
_SHARE_OF_FREE_MEMORY = 0.5

# Row numbers that are found and sent to the device at once; all those of a data set on disk might not fit in memory.
_ROWS_AT_ONCE = 2**20

_CPU = torch.device("cpu")


def instance_source(instances: Instances, device: torch.device, workers: int = 0) -> Source:
    """Return the fastest source of these instances: on the device where they fit, streamed otherwise."""
    if isinstance(instances, StoredRows):
        if device.type == "cpu":
            return Stored(instances)
        if _fits(instances.nbytes, device):
            return Resident(instances.to(device))
    elif isinstance(instances, Tensor):
        if instances.device == device or _fits(instances.nbytes, device):
            return Resident(instances.to(device))
        instances = StoredRows(instances.cpu())
    return Streamed(instances, device, workers)


class Source(Protocol):
    """Where batches of instances come from."""

    def batches(self, rows: Iterable[np.ndarray], seed: int) -> Iterator[Tensor]:
        """Yield the instances in each of the lists `rows`; `seed` is for a dataset that draws at random."""
        ...


class Resident:
    """Instances that live on the device as one tensor; a batch is one gather there."""

    def __init__(self, instances: Tensor) -> None:
        self._instances = instances

    def batches(self, rows: Iterable[np.ndarray], seed: int) -> Iterator[Tensor]:  # noqa: ARG002
        """Yield the instances in each of the lists `rows`."""
        for stretch in _stretches(rows):
            # the row numbers of many batches travel in one copy, so that a step copies nothing
            together = to_device(torch.from_numpy(np.concatenate(stretch)), self._instances.device)
            for part in together.split([len(part) for part in stretch]):
                yield self._instances.index_select(0, part)


class Stored:
    """Instances in a file that is mapped into memory, for a network on the CPU."""

    def __init__(self, instances: StoredRows) -> None:
        self._instances = instances

    def batches(self, rows: Iterable[np.ndarray], seed: int) -> Iterator[Tensor]:  # noqa: ARG002
        """Yield the instances in each of the lists `rows`."""
        for part in rows:
            yield self._instances.__getitems__(part)


class Streamed:
    """Instances that are read when they are needed, by `workers` processes, through pinned memory."""

    def __init__(self, instances: MapDataset, device: torch.device, workers: int) -> None:
        self._instances, self._device, self._workers = instances, device, workers

    def batches(self, rows: Iterable[np.ndarray], seed: int) -> Iterator[Tensor]:
        """Yield the instances in each of the lists `rows`; `seed` is for a dataset that draws at random."""
        loader = DataLoader(
            self._instances,  # pyright: ignore[reportArgumentType]
            batch_sampler=(part.tolist() for part in rows),  # pyright: ignore[reportArgumentType]
            num_workers=self._workers,
            pin_memory=self._device.type == "cuda",
            collate_fn=_stack,
            generator=torch.Generator().manual_seed(seed),
        )
        batches = iter(loader)
        for number in count():
            # workers are seeded by the loader; in this process whatever a dataset draws from is lent to it
            lent = nullcontext() if self._workers else private_randomness(derived_seed(seed, "batch", number), _CPU)
            with lent:
                batch = next(batches, None)
            if batch is None:
                return
            yield batch.to(self._device, non_blocking=True)


def to_device(tensor: Tensor, device: torch.device) -> Tensor:
    """Copy a CPU tensor to `device` without making a GPU wait."""
    if device.type != "cuda" or tensor.device.type != "cpu":
        return tensor.to(device)
    return tensor.pin_memory().to(device, non_blocking=True)


def _stretches(rows: Iterable[np.ndarray]) -> Iterator[list[np.ndarray]]:
    """Yield successive lists of rows together, until they hold `_ROWS_AT_ONCE` of them."""
    stretch: list[np.ndarray] = []
    filled = 0
    for part in rows:
        stretch.append(part)
        filled += len(part)
        if filled >= _ROWS_AT_ONCE:
            yield stretch
            stretch, filled = [], 0
    if stretch:
        yield stretch


def _stack(items: Any) -> Tensor:
    if isinstance(items, Tensor):
        return items
    if not isinstance(items[0], Tensor):
        raise TypeError(
            f"a dataset of instances must give tensors, but gave {type(items[0]).__name__}. "
            "If it gives (instance, label) pairs, wrap it so that it gives the instance alone."
        )
    shapes = dict.fromkeys(tuple(item.shape) for item in items)
    if len(shapes) > 1:
        raise ValueError(
            f"the instances of a batch must have one shape, but have {', '.join(map(str, list(shapes)[:2]))}. Pad or "
            "crop them. If each entry is a whole bag, join them: torch.cat(bags), with "
            "bag_ids=np.repeat(np.arange(len(bags)), [len(bag) for bag in bags])."
        )
    return torch.stack(items)


def _fits(nbytes: int, device: torch.device) -> bool:
    if device.type != "cuda":
        return True
    free, _ = torch.cuda.mem_get_info(device)
    return nbytes <= _SHARE_OF_FREE_MEMORY * free
