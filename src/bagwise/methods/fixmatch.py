"""FixMatch with a loss of bags in place of labels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from bagwise import functional as BF
from bagwise.bags.setting_checks import check_between
from bagwise.methods.base import Step
from bagwise.methods.two_views import logits_of_views, weighted_cross_entropy


@dataclass(frozen=True)
class FixMatch:
    r"""`bag_kl` of the weak view, and where that is sure of an instance, its label for the strong view.

    .. math:: \ell = \mathrm{KL}(z, p) - \frac{\mu}{n} \sum_j [\max_k f_{jk} \ge \tau] \log g_{j \hat y_j},
              \qquad \hat y_j = \arg\max_k f_{jk}

    with the predictions f of the weak and g of the strong view; no gradient flows through the label. After Sohn et al.:
    *FixMatch* (2020), with the proportions in place of labelled instances.

    Attributes:
        threshold: tau, how sure the weak view must be.
        weight: mu, of the strong view.
    """

    threshold: float = 0.95
    weight: float = 0.5

    needs_strong_view: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_between("threshold", self.threshold, 0, 1)
        check_between("weight", self.weight, 0, float("inf"))

    def bag_losses(self, step: Step) -> Tensor:
        """Return the loss of each bag."""
        batch = step.batch
        weak, strong = logits_of_views(step)
        confidence, labels = weak.detach().softmax(dim=1).max(dim=1)
        sure = (confidence >= self.threshold).to(strong.dtype)
        losses = BF.bag_kl(weak, batch.layout, batch.proportions, reduction="none")
        return losses + self.weight * weighted_cross_entropy(strong, labels, sure, batch)
