"""The losses of an epoch's bags, kept on the device until the host has a reason to wait for them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor, nn

from bagwise.bags import Bags

if TYPE_CHECKING:
    from lightning_fabric import Fabric


class NonFiniteLossError(FloatingPointError):
    """A loss or a weight became NaN or infinite; the message says where, and what to do."""


class LossTally:
    """Sums the losses of the bags of one epoch and finds those that are not finite.

    `add` is called in every step and never waits; `mean` waits for the GPU, so it is called rarely.
    """

    def __init__(self, bags: Bags, fabric: Fabric, epoch: int) -> None:
        self._bags, self._fabric, self._epoch = bags, fabric, epoch
        self._pending: list[tuple[np.ndarray, Tensor]] = []
        self._before: list[np.ndarray] = []  # the bags of the steps that the last look saw
        self._sum = 0.0

    def add(self, bag_numbers: np.ndarray, losses: Tensor) -> None:
        """Take note of the `losses [bags]` of these bags, still on the device."""
        self._pending.append((bag_numbers, losses))

    def mean(self, known_bags: int | np.integer) -> float:
        """Return the mean loss over the `known_bags` bags so far, of all processes; raise where it is not finite."""
        if self._pending:
            local = torch.cat([losses for _, losses in self._pending]).sum(dtype=torch.float64)
            self._sum += float(self._fabric.all_reduce(local, reduce_op="sum"))  # pyright: ignore[reportArgumentType]
        if not np.isfinite(self._sum):
            raise NonFiniteLossError(f"in epoch {self._epoch} {self._explanation()}")
        if self._pending:
            self._before, self._pending = [numbers for numbers, _ in self._pending], []
        return float(self._sum / max(known_bags, 1))

    def check_finite_weights(self, network: nn.Module) -> None:
        """Raise unless all parameters are finite, and say whose fault it is; call it after the last `mean`."""
        try:
            check_finite_weights(network, self._epoch)
        except NonFiniteLossError:
            if hidden := self._hidden_culprits(self._before):
                raise NonFiniteLossError(f"after epoch {self._epoch} {self._explain_hidden(hidden)}") from None
            raise

    def _explanation(self) -> str:
        pending = [(numbers, losses.cpu().numpy()) for numbers, losses in self._pending]
        broken = [step for step, (_, losses) in enumerate(pending) if not np.isfinite(losses).all()]
        # weights that one process broke break the losses of all in the next step: the first to see it knows why
        own = torch.tensor(broken[0] if broken else len(pending), device=self._fabric.device)
        first = int(self._fabric.all_reduce(own.clone(), reduce_op="min"))  # pyright: ignore[reportArgumentType]
        if int(own) > first:
            return "the loss is not finite in another process; its message names the bag."
        earlier = self._before + [numbers for numbers, _ in pending[:first]]
        return self._name_culprits(*pending[first], earlier)

    def _name_culprits(self, numbers: np.ndarray, losses: np.ndarray, earlier: list[np.ndarray]) -> str:
        bad = ~np.isfinite(losses)
        # batch norm spreads one bad instance over the whole batch: look at the instances of all its bags
        if broken := [number for number in numbers if not self._has_finite_instances(number)]:
            return (
                f"the loss is not finite because {self._names(broken)} has instances with NaN or infinite values. "
                "Fill them in or drop those instances."
            )
        if bad.all():
            if hidden := self._hidden_culprits(earlier):
                return self._explain_hidden(hidden)
            return (
                f"the loss of every bag of a batch is not finite (the first: {self._names(numbers[:1])}): "
                "the weights have diverged. Lower the learning rate or add a warm-up."
            )
        if np.isnan(losses).any():
            return (
                f"the loss is NaN for {self._names(numbers[np.isnan(losses)])}: the network gives NaN for instances "
                "that are finite. Look for a division by zero, a logarithm or a root in it, or lower the learning rate."
            )
        return (
            f"the loss is not finite for {self._names(numbers[bad])}: the network gives no probability to a class "
            "that the proportions ask for. Look at the proportions, or lower the learning rate."
        )

    def _hidden_culprits(self, batches: list[np.ndarray]) -> list[int]:
        """Return the bags whose instances break the weights and not their own loss, which is 0 whatever they hold."""
        seen = np.unique(np.concatenate([*batches, np.zeros(0, dtype=np.int64)]))
        unknown = seen[self._bags.proportions[torch.from_numpy(seen), 0].isnan().numpy()]
        return [number for number in unknown.tolist() if not self._has_finite_instances(number)]

    def _explain_hidden(self, numbers: list[int]) -> str:
        return (
            f"the weights are not finite because {self._names(numbers)}, whose proportions are unknown, has instances "
            "with NaN or infinite values. Fill them in or drop those instances."
        )

    def _has_finite_instances(self, number: int) -> bool:
        rows = self._bags.rows_of(np.array([number]))
        return all(bool(torch.as_tensor(self._bags.instances[row]).isfinite().all()) for row in rows.tolist())

    def _names(self, numbers: list[int] | np.ndarray) -> str:
        shown = ", ".join(repr(self._bags.bag_names[number]) for number in numbers[:5])
        more = f" and {len(numbers) - 5} more" if len(numbers) > 5 else ""
        return f"bag {shown}{more}" if len(numbers) == 1 else f"bags {shown}{more}"


def check_finite_weights(network: nn.Module, epoch: int) -> None:
    """Raise unless all parameters are finite; the last step of an epoch can break them without a bad loss."""
    finite = torch.stack([parameter.detach().isfinite().all() for parameter in network.parameters()])
    if not bool(finite.all()):
        raise NonFiniteLossError(
            f"after epoch {epoch} the weights are not finite: a gradient overflowed. "
            "Lower the learning rate or add a warm-up."
        )
