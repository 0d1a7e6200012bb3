"""L2P-AHIL: a second view, with labels weighed by two entropies."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from bagwise import functional as BF
from bagwise.bags.layout import BagLayout
from bagwise.bags.setting_checks import check_between, check_positive
from bagwise.functional.segments import expand, segment_logsumexp, segment_sum
from bagwise.methods.base import Step
from bagwise.methods.two_views import logits_of_views, weighted_cross_entropy


@dataclass(frozen=True)
class AHIL:
    r"""`FixMatch` with weights that ask how sure the network is of an instance, and how well its class fits the bag.

    .. math:: w_j = \exp\Big(-\frac{H_j^2}{\beta_i}\Big) \exp\Big(-\frac{(H_{b k} - \log n z_k)^2}{\beta_b}\Big),
              \qquad k = \arg\max_k f_{jk}

    H_j is the entropy of the prediction for the instance. H_bk is the entropy of class k's probabilities over the bag,
    divided by their sum: were the network right and sure, n z_k instances would share them equally, and it would be
    log(n z_k). A class with z_k = 0 gets no weight. After Ma, Li, Li, Guan: *L2P-AHIL* (2025), as their code has it.

    Attributes:
        weight: of the strong view.
        beta_instance: how unsure of an instance the network may be.
        beta_bag: how far from the expected entropy a class may be in a bag.
    """

    weight: float = 0.5
    beta_instance: float = 5.0
    beta_bag: float = 5.0

    needs_strong_view: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_between("weight", self.weight, 0, float("inf"))
        check_positive("beta_instance", self.beta_instance)
        check_positive("beta_bag", self.beta_bag)

    def bag_losses(self, step: Step) -> Tensor:
        """Return the loss of each bag."""
        batch = step.batch
        weak, strong = logits_of_views(step)
        labels = weak.detach().argmax(dim=1)
        weights = self._weights(weak.detach(), labels, batch.layout, batch.proportions)
        losses = BF.bag_kl(weak, batch.layout, batch.proportions, reduction="none")
        return losses + self.weight * weighted_cross_entropy(strong, labels, weights, batch)

    def _weights(self, logits: Tensor, labels: Tensor, layout: BagLayout, proportions: Tensor) -> Tensor:
        log_f = logits.log_softmax(dim=1)
        of_instance = torch.special.entr(log_f.exp()).sum(dim=1)  # [instances]
        shares = (log_f - expand(segment_logsumexp(log_f, layout), layout)).exp()  # of each class's total in the bag
        of_class = segment_sum(torch.special.entr(shares), layout)  # [bags, classes]
        expected = (layout.sizes[:, None] * proportions).to(of_class.dtype).log()  # -inf where z = 0
        of_bag = expand((of_class - expected).square(), layout).gather(1, labels[:, None])[:, 0]
        weights = (-of_instance.square() / self.beta_instance - of_bag / self.beta_bag).exp()
        return weights.nan_to_num(0)  # in a bag with unknown proportions; NaN would reach the gradient
