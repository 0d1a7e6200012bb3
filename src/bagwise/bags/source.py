"""Where batches of instances come from: a tensor that lives on the device, or a stream to it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader

from bagwise.bags.data import Instances, MapDataset

# Activations, gradients and the optimizer need room too.
_SHARE_OF_FREE_MEMORY = 0.5


def instance_source(instances: Instances, device: torch.device, workers: int = 0) -> Resident | Streamed:
    """Return the fastest source of these instances: on the device where they fit, streamed otherwise."""
    if isinstance(instances, Tensor):
        if instances.device == device or _fits(instances, device):
            return Resident(instances.to(device))
        return Streamed(_Rows(instances), device, workers)
    return Streamed(instances, device, workers)


class Resident:
    """Instances that live on the device as one tensor; a batch is one gather there."""

    def __init__(self, instances: Tensor) -> None:
        self._instances = instances

    def batches(self, rows: Sequence[np.ndarray], seed: int) -> Iterator[Tensor]:  # noqa: ARG002
        """Yield the instances in each of the lists `rows`."""
        if not rows:
            return
        # the row numbers of all batches travel in one copy, so that a step copies nothing
        together = to_device(torch.from_numpy(np.concatenate(rows)), self._instances.device)
        for part in together.split([len(part) for part in rows]):
            yield self._instances.index_select(0, part)


class Streamed:
    """Instances that are read when they are needed, by `workers` processes, through pinned memory."""

    def __init__(self, instances: MapDataset | _Rows, device: torch.device, workers: int) -> None:
        self._instances, self._device, self._workers = instances, device, workers

    def batches(self, rows: Sequence[np.ndarray], seed: int) -> Iterator[Tensor]:
        """Yield the instances in each of the lists `rows`; `seed` is for a dataset that draws at random."""
        loader = DataLoader(
            self._instances,  # pyright: ignore[reportArgumentType]
            batch_sampler=[part.tolist() for part in rows],
            num_workers=self._workers,
            pin_memory=self._device.type == "cuda",
            collate_fn=_stack,
            generator=torch.Generator().manual_seed(seed),
        )
        for batch in loader:
            yield batch.to(self._device, non_blocking=True)


def to_device(tensor: Tensor, device: torch.device) -> Tensor:
    """Copy a CPU tensor to `device` without making a GPU wait."""
    if device.type != "cuda" or tensor.device.type != "cpu":
        return tensor.to(device)
    return tensor.pin_memory().to(device, non_blocking=True)


class _Rows:
    """A tensor as a dataset that hands out many rows at once."""

    def __init__(self, tensor: Tensor) -> None:
        self._tensor = tensor

    def __len__(self) -> int:
        return len(self._tensor)

    def __getitems__(self, rows: list[int]) -> Tensor:
        return self._tensor[rows]


def _stack(items: Any) -> Tensor:
    if isinstance(items, Tensor):
        return items
    if not isinstance(items[0], Tensor):
        raise TypeError(
            f"a dataset of instances must give tensors, but gave {type(items[0]).__name__}. "
            "If it gives (instance, label) pairs, wrap it so that it gives the instance alone."
        )
    return torch.stack(items)


def _fits(tensor: Tensor, device: torch.device) -> bool:
    if device.type != "cuda":
        return True
    free, _ = torch.cuda.mem_get_info(device)
    return tensor.nbytes <= _SHARE_OF_FREE_MEMORY * free
