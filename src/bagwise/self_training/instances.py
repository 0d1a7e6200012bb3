"""Instances in ordinary shuffled batches, whatever bags they lie in."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from bagwise.bags.data import Instances
from bagwise.bags.seeds import derived_seed
from bagwise.bags.setting_checks import check_count
from bagwise.bags.source import instance_source, to_device
from bagwise.training.evaluation import INSTANCES_PER_PASS


def rows_in_memory(instances: Instances) -> Tensor:
    """Return all instances as a probe takes them, `[instances, features]` floating point, without a needless copy."""
    if isinstance(instances, Tensor):
        rows = instances.flatten(1)
    else:
        batches = ShuffledInstances(instances, INSTANCES_PER_PASS, seed=0, device=torch.device("cpu"))
        rows = torch.cat([batch.flatten(1) for _, batch in batches.in_order(INSTANCES_PER_PASS)])
    return rows if rows.is_floating_point() else rows.float()


class ShuffledInstances:
    """Batches of `batch_instances` instances, all of one shape; each epoch has an order of its own.

    What is left over at the end of an epoch, less than a batch, waits for another epoch.

    Args:
        instances: a tensor or a map-style dataset.
        batch_instances: instances in a batch; fewer where there are not as many.
        seed: decides, with the epoch, the order and all that is drawn for a batch.
        device: where batches are wanted.

    Example:
        >>> batches = ShuffledInstances(torch.arange(10), batch_instances=4, seed=0, device=torch.device("cpu"))
        >>> [len(rows) for rows, _ in batches.epoch(0)]
        [4, 4]
    """

    def __init__(self, instances: Instances, batch_instances: int, *, seed: int, device: torch.device) -> None:
        check_count("batch_instances", batch_instances)
        self.device = device
        self.num_instances = len(instances)
        self._seed = seed
        self._batch_instances = min(batch_instances, self.num_instances)
        self._source = instance_source(instances, device)

    @property
    def num_batches(self) -> int:
        """Number of batches in an epoch."""
        return self.num_instances // self._batch_instances

    def epoch(self, number: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield the row numbers `[batch]` and the raw instances `[batch, ...]` of every batch, on the device."""
        order = np.random.default_rng(derived_seed(self._seed, "order", number)).permutation(self.num_instances)
        order = order[: self.num_batches * self._batch_instances]
        rows = np.split(order, self.num_batches)
        numbers = to_device(torch.from_numpy(order), self.device).split(self._batch_instances)  # in one copy
        yield from zip(numbers, self._source.batches(rows, derived_seed(self._seed, "read", number)), strict=True)

    def in_order(self, batch_instances: int) -> Iterator[tuple[slice, Tensor]]:
        """Yield all instances as they lie, in batches of at most `batch_instances`, with their place."""
        cuts = np.arange(batch_instances, self.num_instances, batch_instances)
        rows = np.split(np.arange(self.num_instances), cuts)
        for part, batch in zip(rows, self._source.batches(rows, seed=0), strict=True):
            yield slice(int(part[0]), int(part[-1]) + 1), batch

    def generator(self, purpose: str, epoch: int) -> torch.Generator:
        """Return the generator, on the device, of what is drawn for one purpose in an epoch."""
        return torch.Generator(self.device).manual_seed(derived_seed(self._seed, purpose, epoch))
