"""Exponential moving average of a network's weights."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import nn
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
        self._parameters = [parameter.detach() for parameter in network.parameters()]
        pairs = list(zip(self._network.buffers(), _places(network), strict=True))
        numbers = [pair for pair in pairs if pair[0].is_floating_point()]
        self._averages = [*self._network.parameters(), *(average for average, _ in numbers)]
        self._buffers = [place for _, place in numbers]
        self._copied = [pair for pair in pairs if not pair[0].is_floating_point()]

    @property
    def network(self) -> nn.Module:
        """The network with averaged weights, in evaluation mode."""
        for average, (held, name) in self._copied:  # only when somebody looks: in each step it would cost many kernels
            average.copy_(held[name])
        return self._network

    @torch.no_grad()
    def update(self) -> None:
        """Move the average towards the network's present weights; call it after each step."""
        decay = min(self._decay, (1 + self.updates) / (10 + self.updates))
        live = [*self._parameters, *(held[name].detach() for held, name in self._buffers)]
        get_ema_multi_avg_fn(decay)(self._averages, live, self.updates)  # one kernel for all tensors
        self.updates += 1


def _places(network: nn.Module) -> list[tuple[dict[str, Any], str]]:
    """Return where each buffer is held, in the order of `buffers()`: a network may replace one by another tensor."""
    names = [name.rpartition(".") for name, _ in network.named_buffers()]
    return [(network.get_submodule(owner)._buffers, name) for owner, _, name in names]
