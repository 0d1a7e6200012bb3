"""Scores of a network during training: on held-out bags, and, by whoever holds labels, on instances."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import chain
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from bagwise.bags import Bags
from bagwise.bags.data import as_instances
from bagwise.bags.setting_checks import check_count
from bagwise.bags.source import Source, instance_source
from bagwise.bags.validation import check_one_per_instance
from bagwise.metrics import bag_metrics, instance_metrics

Normalise = Callable[[Tensor], Tensor]

INSTANCES_PER_PASS = 2048  # of a network that does not learn


class Evaluator:
    """Scores a network on labelled instances. The only part of a training that holds labels.

    It is built apart from the bags, is handed to `train` as it is, and is called with the network after an epoch;
    nothing flows back.

    Args:
        instances: `[instances, ...]`, tensor, array or map-style dataset.
        labels: `[instances]` class numbers.
        normalise: what is done to the instances on the device, e.g. `ImageAugment.normalise`.
        batch_instances: instances per forward pass.

    Example:
        >>> evaluator = Evaluator(torch.randn(10, 4), torch.arange(10) % 2)
        >>> sorted(evaluator(nn.Linear(4, 2)))
        ['accuracy', 'balanced_accuracy', 'calibration_error', 'log_loss']
    """

    def __init__(
        self,
        instances: Any,
        labels: Any,
        normalise: Normalise | None = None,
        batch_instances: int = INSTANCES_PER_PASS,
    ) -> None:
        check_count("batch_instances", batch_instances)
        self._labels = torch.as_tensor(labels).long()
        self._predictor = Predictor(instances, normalise, batch_instances)
        check_one_per_instance("labels", len(self._labels), len(self._predictor))

    def __call__(self, network: nn.Module) -> dict[str, float]:
        """Return the metrics of `network` by name; see `metrics.instance_metrics`."""
        logits = self._predictor.logits(network)
        self._labels = self._labels.to(logits.device)
        return instance_metrics(logits, self._labels)


class BagEvaluator:
    """Scores a network on bags: `metrics.bag_metrics` of its mean prediction in each bag."""

    def __init__(
        self, bags: Bags, normalise: Normalise | None = None, batch_instances: int = INSTANCES_PER_PASS
    ) -> None:
        if bool(bags.proportions.isnan().all()):
            raise ValueError("held-out bags must have known proportions, but all are unknown (NaN).")
        self._layout, self._proportions = bags.layout, bags.proportions
        self._predictor = Predictor(bags.instances, normalise, batch_instances)

    def __call__(self, network: nn.Module) -> dict[str, float]:
        """Return {"kl": ..., "l1": ...}."""
        logits = self._predictor.logits(network)
        self._layout, self._proportions = self._layout.to(logits.device), self._proportions.to(logits.device)
        return bag_metrics(logits, self._layout, self._proportions)


class Predictor:
    """Instances that stay on the network's device, and a network's logits of all of them."""

    def __init__(
        self, instances: Any, normalise: Normalise | None = None, batch_instances: int = INSTANCES_PER_PASS
    ) -> None:
        self._instances = as_instances(instances)
        self._normalise = normalise
        self._batch_instances = batch_instances
        self._source: tuple[torch.device, Source] | None = None

    def __len__(self) -> int:
        return len(self._instances)

    @torch.no_grad()
    def logits(self, network: nn.Module) -> Tensor:
        """Return the logits `[instances, classes]` as float32, computed in evaluation mode."""
        device = next(chain(network.parameters(), network.buffers(), [torch.empty(0)])).device  # some have neither
        if self._source is None or self._source[0] != device:
            self._source = device, instance_source(self._instances, device)
        rows = np.arange(len(self))
        cuts = np.arange(self._batch_instances, len(rows), self._batch_instances)
        with evaluation_mode(network):
            batches = self._source[1].batches(np.split(rows, cuts), seed=0)
            logits = [network(self._normalise(batch) if self._normalise else batch) for batch in batches]
        return torch.cat(logits).float()


@contextmanager
def evaluation_mode(network: nn.Module) -> Iterator[None]:
    """Put every layer into evaluation mode, and each back into its own mode afterwards."""
    modes = [(module, module.training) for module in network.modules()]
    network.eval()
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training
