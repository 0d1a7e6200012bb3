"""LLP-VAT: predictions that do not change where they would change most."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn.functional import kl_div
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd

from bagwise import functional as BF
from bagwise.bags.setting_checks import check_between, check_positive
from bagwise.bags.validation import check_floating_instances
from bagwise.functional.segments import segment_sum
from bagwise.methods.base import Step


@dataclass(frozen=True)
class LLPVAT:
    r"""`bag_kl`, and the prediction of each instance must stand a small step in the worst direction.

    .. math:: \ell = \mathrm{KL}(z, p) + \lambda(t) \frac1n \sum_j \mathrm{KL}\big(f(x_j) \,|\, f(x_j + r_j)\big)

    r_j is the step of a given length that changes the prediction most, to second order: one power iteration from a
    random direction (Miyato et al.: *Virtual Adversarial Training*, 2018). The weight rises as
    exp(-5 (1 - t / ramp)^2) over the first `ramp` of the training. After Tsai and Lin: *LLP-VAT* (2020). The instances
    and their shifted copies pass through the network together, so batch norm sees both.

    Attributes:
        weight: lambda at the end of the ramp.
        length: of the step, as the root mean square over the inputs of an instance, so that it means the same for few
            inputs and for many. The paper's 6 on normalised CIFAR pictures is 0.108.
        probe: length of the step that looks for the direction, measured likewise.
        ramp: share of the training over which the weight rises.
    """

    weight: float = 0.05
    length: float = 0.108
    probe: float = 1e-3
    ramp: float = 0.4

    needs_strong_view: ClassVar[bool] = False

    def __post_init__(self) -> None:
        check_between("weight", self.weight, 0, float("inf"))
        check_positive("length", self.length)
        check_positive("probe", self.probe)
        check_between("ramp", self.ramp, 0, 1)

    def bag_losses(self, step: Step) -> Tensor:
        """Return the loss of each bag."""
        batch, instances = step.batch, step.batch.instances
        check_floating_instances("llp-vat", instances)
        shift = self.length * self._worst_direction(step.network, instances, step.generator)
        logits = step.model(torch.cat([instances, instances + shift]))
        here, shifted = logits[: len(instances)], logits[len(instances) :]
        divergence = _divergence(here.detach(), shifted)
        means = segment_sum(divergence[:, None], batch.layout)[:, 0] / batch.layout.sizes.clamp(min=1)
        stability = torch.where(batch.proportions[:, 0].isnan(), 0, means)
        losses = BF.bag_kl(here, batch.layout, batch.proportions, reduction="none")
        return losses + self._weight_at(step.progress) * stability

    def _weight_at(self, progress: float) -> float:
        left = 1 - progress / self.ramp if progress < self.ramp else 0.0
        return self.weight * math.exp(-5 * left * left)

    def _worst_direction(self, network: nn.Module, instances: Tensor, generator: torch.Generator) -> Tensor:
        """Return, for each instance, about the direction in which its prediction changes most."""
        noise = torch.randn(instances.shape, generator=generator, device=instances.device, dtype=instances.dtype)
        direction = _normalised(noise).requires_grad_()
        with _comparable_passes(network):
            with torch.no_grad():
                here = network(instances)
            shifted = network(instances + self.probe * direction)
            # the divergence is quadratic near 0, so this is its Hessian times the random direction
            (gradient,) = torch.autograd.grad(_divergence(here, shifted).sum(), direction)
        return _normalised(gradient)


@contextmanager
def _comparable_passes(network: nn.Module) -> Iterator[None]:
    """Let two passes differ by their inputs alone: no dropout, and batch norm leaves its running statistics alone."""
    norms = [module for module in network.modules() if isinstance(module, _BatchNorm) and module.track_running_stats]
    dropouts = [module for module in network.modules() if isinstance(module, _DropoutNd) and module.training]
    for norm in norms:
        norm.track_running_stats = False  # in training it still normalises by the batch
    for dropout in dropouts:
        dropout.training = False
    try:
        yield
    finally:
        for norm in norms:
            norm.track_running_stats = True
        for dropout in dropouts:
            dropout.training = True


def _divergence(logits: Tensor, others: Tensor) -> Tensor:
    """KL divergence of the prediction by `others` from that by `logits`, `[instances]`."""
    return kl_div(others.log_softmax(dim=1), logits.log_softmax(dim=1), reduction="none", log_target=True).sum(dim=1)


def _normalised(values: Tensor) -> Tensor:
    """Scale the values of each instance to a root mean square of 1; where all are 0 they stay 0."""
    flat = values.flatten(start_dim=1)
    largest = flat.abs().amax(dim=1, keepdim=True)  # so that squares of tiny gradients do not vanish
    flat = flat / torch.where(largest > 0, largest, 1)
    size = flat.square().mean(dim=1, keepdim=True).sqrt()
    return (flat / torch.where(size > 0, size, 1)).view_as(values)
