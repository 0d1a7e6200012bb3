"""Exponential moving average of a network's weights."""

from __future__ import annotations

import copy
from itertools import chain

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import get_ema_multi_avg_fn


class AveragedNetwork:
    r"""A copy of a network that follows it slowly; its weights are smoother and usually better.

    .. math:: a \leftarrow a + (1 - d_t)(w - a), \qquad d_t = \min(d, (1 + t) / (10 + t))

    after step t = 0, 1, ...: the decay d is reached gradually, so that the initial weights do not linger.
    Running statistics of normalisation layers are averaged too; integers are copied.
    """

    def __init__(self, network: nn.Module, decay: float) -> None:
        self.updates = 0
        self._network = copy.deepcopy(network).eval().requires_grad_(False)
        self._decay = decay
        pairs = list(zip(_tensors(self._network), _tensors(network), strict=True))
        self._averages = [average for average, live in pairs if live.is_floating_point()]
        self._live = [live for _, live in pairs if live.is_floating_point()]
        self._copied = [(average, live) for average, live in pairs if not live.is_floating_point()]

    @property
    def network(self) -> nn.Module:
        """The network with averaged weights, in evaluation mode."""
        for average, live in self._copied:  # only when somebody looks: in each step it would cost many kernels
            average.copy_(live)
        return self._network

    @torch.no_grad()
    def update(self) -> None:
        """Move the average towards the network's present weights; call it after each step."""
        decay = min(self._decay, (1 + self.updates) / (10 + self.updates))
        get_ema_multi_avg_fn(decay)(self._averages, self._live, self.updates)  # one kernel for all tensors
        self.updates += 1


def _tensors(network: nn.Module) -> list[Tensor]:
    return [tensor.detach() for tensor in chain(network.parameters(), network.buffers())]
