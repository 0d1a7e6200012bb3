"""LLP-DC: a second view, with labels that meet the proportions of the bag exactly."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from bagwise import functional as BF
from bagwise.bags.setting_checks import check_between
from bagwise.methods.base import Step
from bagwise.methods.two_views import logits_of_views, weighted_cross_entropy


@dataclass(frozen=True)
class LLPDC:
    """`FixMatch` whose labels are those of the whole bag: the likeliest labeling that has the bag's counts.

    The labels of the strong view are the exact plan of the weak view's predictions (`functional.apportion` with
    how="lp", counts rounded to whole numbers), where the weak view gives its label a probability of at least
    `threshold`. After Ma, Li, Li, Guan: *Learning from Label Proportions with Dual-proportion Constraints* (2026),
    who solve it as a flow. The solver reads its answer on the host, so on a GPU a step makes the device wait.

    Attributes:
        threshold: how likely the label must be to the weak view; 0.6 to 0.95 in the paper.
        weight: of the strong view.
    """

    threshold: float = 0.6
    weight: float = 0.5

    needs_strong_view: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_between("threshold", self.threshold, 0, 1)
        check_between("weight", self.weight, 0, float("inf"))

    def bag_losses(self, step: Step) -> Tensor:
        """Return the loss of each bag."""
        batch = step.batch
        weak, strong = logits_of_views(step)
        plan = BF.apportion(weak.detach(), batch.layout, batch.proportions, how="lp", marginals="rounded")
        labels = plan.labels.argmax(dim=1)
        confidence = weak.detach().softmax(dim=1).gather(1, labels[:, None])[:, 0]
        sure = (confidence >= self.threshold).to(strong.dtype)
        losses = BF.bag_kl(weak, batch.layout, batch.proportions, reduction="none")
        return losses + self.weight * weighted_cross_entropy(strong, labels, sure, batch)
