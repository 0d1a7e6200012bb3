"""SoftMatch with a loss of bags in place of labels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from bagwise import functional as BF
from bagwise.bags.setting_checks import check_between
from bagwise.functional.segments import expand
from bagwise.methods.base import Step
from bagwise.methods.two_views import logits_of_views, weighted_cross_entropy

_LEAST_VARIANCE = 1e-6


@dataclass(frozen=True)
class SoftMatch:
    r"""`FixMatch` with a soft threshold that follows how sure the network is on average.

    .. math:: w_j = \exp\Big(-\frac{\min(c_j - m, 0)^2}{2 v / s^2}\Big), \qquad c_j = \max_k f_{jk}

    weighs the label of an instance for its strong view; m and v are moving means of the mean and the variance of c over
    the instances of a batch. After Chen et al.: *SoftMatch* (2023).

    Attributes:
        weight: of the strong view.
        momentum: of the moving means.
        sharpness: s; the weight falls like a normal curve whose standard deviation is that of c, divided by s.
    """

    weight: float = 0.5
    momentum: float = 0.999
    sharpness: float = 2.0

    needs_strong_view: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_between("weight", self.weight, 0, float("inf"))
        check_between("momentum", self.momentum, 0, 1)
        check_between("sharpness", self.sharpness, 0, float("inf"))

    def initial_state(self, num_classes: int) -> dict[str, Tensor]:
        """Return the moving means before the first step: nobody is surer than chance, and all differ."""
        return {"mean": torch.tensor(1 / num_classes), "variance": torch.tensor(1.0)}

    def bag_losses(self, step: Step) -> Tensor:
        """Return the loss of each bag, after the moving means have taken a step."""
        batch = step.batch
        weak, strong = logits_of_views(step)
        confidence, labels = weak.detach().softmax(dim=1).max(dim=1)
        self._follow(step, confidence)
        below = (confidence - step.state["mean"]).clamp(max=0)
        variance = step.state["variance"].clamp(min=_LEAST_VARIANCE)
        weights = (-(below.square()) * self.sharpness**2 / (2 * variance)).exp()
        losses = BF.bag_kl(weak, batch.layout, batch.proportions, reduction="none")
        return losses + self.weight * weighted_cross_entropy(strong, labels, weights, batch)

    def _follow(self, step: Step, confidence: Tensor) -> None:
        """Move the means towards those of this batch, over the instances of all processes."""
        # a bag with unknown proportions may be the stand-in of a process without a bag, which must not be counted
        known = ~step.batch.proportions[:, :1].isnan()
        confidence = confidence.to(step.state["mean"].dtype)
        counted = expand(known.to(confidence.dtype), step.batch.layout)[:, 0]
        total, count = step.total(torch.stack([counted @ confidence, counted.sum()]))
        mean = total / count.clamp(min=1)
        spread = step.total(counted @ (confidence - mean).square()) / (count - 1).clamp(min=1)
        pace = (1 - self.momentum) * (count > 0)
        step.state["mean"].lerp_(mean, pace)
        step.state["variance"].lerp_(spread, pace)
