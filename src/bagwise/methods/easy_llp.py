"""EasyLLP: surrogate labels that are right on average."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from bagwise import functional as BF
from bagwise.bags.layout import BagLayout
from bagwise.bags.setting_checks import check_choice
from bagwise.functional.unbiased import CORRECTIONS


@dataclass(frozen=True)
class EasyLLP:
    """Cross-entropy to surrogate labels from the proportions and the class prior: `functional.easy_llp`.

    Only for bags drawn at random from one population. Noisier the larger the bags; wants a small learning rate.

    Attributes:
        correction: "absolute" keeps the loss of a bag from going below 0; "none" is the unbiased estimate, with
            which training diverges easily.
        prior: the share of each class among all instances. None: the training loop takes it from its bags.
    """

    correction: str = "absolute"
    prior: tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        check_choice("correction", self.correction, CORRECTIONS)

    def with_prior(self, prior: tuple[float, ...]) -> EasyLLP:
        """Return this method with the class prior of the data at hand, unless one was given."""
        return self if self.prior is not None else replace(self, prior=prior)

    def loss(self, logits: Tensor, layout: BagLayout, proportions: Tensor) -> Tensor:
        """Return `functional.easy_llp` of each bag, `[bags]`."""
        if self.prior is None:
            raise ValueError(
                "method 'easy-llp' needs the class prior of all bags, but has none. Train with bagwise.training.train, "
                "which fills it in, or call with_prior() with the mean of the proportions, weighted by bag size."
            )
        prior = torch.tensor(self.prior).to(logits.device, non_blocking=True)
        return BF.easy_llp(logits, layout, proportions, prior=prior, correction=self.correction, reduction="none")
