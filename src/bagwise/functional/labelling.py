"""The E step: labels of all instances from what is thought of each and from the proportions of its bag."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from bagwise.bags.layout import BagLayout
from bagwise.bags.setting_checks import check_between
from bagwise.functional.apportion import apportion

# Weight of the predictions against the proportions: so little that every bag's plan meets its proportions to a percent.
_ALPHA = 0.005
_LEAST = 1e-8  # a probability of zero could never recover


@dataclass(frozen=True)
class Labelling:
    """How the bank of probabilities becomes labels to learn from, and how fast it changes.

    Attributes:
        temperature: labels are the plan to the power of 1 / temperature: below 1 they are surer than the plan. Without
            it, soft labels make soft predictions, and those softer labels.
        cut: instances whose label gives no class as much as this are not learned from, for the time being.
        least: share of the instances of each class, the surest, that are learned from however low their labels are: a
            class that nobody is sure of must not vanish.
        memory: share of the bank that is kept when the teacher's predictions of an epoch are mixed in.
        warmup: share of the epochs, from the first on, in which the bank stays as it is: a student that has just begun
            knows less than what it is taught.
    """

    temperature: float = 0.75
    cut: float = 0.8
    least: float = 0.5
    memory: float = 0.7
    warmup: float = 0.1

    def __post_init__(self) -> None:
        if not 0 < self.temperature <= 1:
            raise ValueError(f"temperature must lie above 0 and not above 1, but got {self.temperature}.")
        check_between("cut", self.cut, 0, 1)
        check_between("least", self.least, 0, 1)
        check_between("memory", self.memory, 0, 1)
        check_between("warmup", self.warmup, 0, 1)


def apportioned(bank: Tensor, layout: BagLayout, proportions: Tensor) -> Tensor:
    """Return the labels `[instances, classes]` that meet the proportions of every bag and are closest to `bank`.

    Instances of bags with unknown proportions keep their probabilities.
    """
    return apportion(bank.clamp(min=_LEAST).log(), layout, proportions, how="rot", alpha=_ALPHA).labels


def sharpened(labels: Tensor, temperature: float) -> Tensor:
    """Return `labels [instances, classes]` to the power of 1 / temperature, each row divided by its sum.

    Example:
        >>> sharpened(torch.tensor([[0.2, 0.8]]), temperature=0.5).round(decimals=3)
        tensor([[0.0590, 0.9410]])
    """
    return (labels.clamp(min=_LEAST).log() / temperature).softmax(dim=1)


def is_sure(labels: Tensor, cut: float, least: float) -> Tensor:
    """Return which instances have a label to learn from, `[instances]`.

    Example:
        >>> is_sure(torch.tensor([[0.9, 0.1], [0.6, 0.4], [0.4, 0.6], [0.3, 0.7]]), cut=0.8, least=0.5)
        tensor([ True, False, False,  True])
    """
    confidence, winner = labels.max(dim=1)
    # the place of each instance among those of its class, the surest first: sort by confidence, then stably by class
    by_confidence = confidence.argsort(descending=True, stable=True)
    order = by_confidence[winner[by_confidence].argsort(stable=True)]
    counts = torch.bincount(winner, minlength=labels.shape[1])
    first = counts.cumsum(0) - counts
    place = torch.empty_like(order)
    place[order] = torch.arange(len(order), device=order.device) - first[winner[order]]
    return (confidence >= cut) | (place < least * counts[winner])


def mixed(bank: Tensor, predictions: Tensor, memory: float) -> Tensor:
    """Return the bank after one epoch's predictions, both `[instances, classes]`."""
    return torch.lerp(predictions, bank, memory)
