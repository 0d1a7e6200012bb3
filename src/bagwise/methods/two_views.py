"""What the methods with a weak and a strong view share: the network must say of the strong what it says of the weak."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from bagwise.bags.loader import Batch
from bagwise.functional.segments import segment_sum
from bagwise.methods.base import Step


def logits_of_views(step: Step) -> tuple[Tensor, Tensor]:
    """Return the logits of the weak and of the strong view, each `[instances, classes]`, from one pass."""
    weak, strong = step.batch.instances, step.batch.strong
    if strong is None:
        raise ValueError("a method with two views needs a batch with a strong view; give the loader a strong_augment.")
    logits = step.model(torch.cat([weak, strong]))
    return logits[: len(weak)], logits[len(weak) :]


def weighted_cross_entropy(logits: Tensor, labels: Tensor, weights: Tensor, batch: Batch) -> Tensor:
    """Mean over the instances of each bag of the weighted cross-entropy to hard labels.

    Args:
        logits: `[instances, classes]`.
        labels: `[instances]` class numbers.
        weights: `[instances]`.
        batch: the bags.

    Returns:
        `[bags]`; 0 for a bag with unknown proportions, so that it gives no loss in any method.
    """
    per_instance = weights * cross_entropy(logits, labels, reduction="none")
    means = segment_sum(per_instance[:, None], batch.layout)[:, 0] / batch.layout.sizes.clamp(min=1)
    return torch.where(batch.proportions[:, 0].isnan(), 0, means)
