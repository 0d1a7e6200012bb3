"""The KL loss for proportions that are known to be noisy."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from bagwise.bags.layout import BagLayout
from bagwise.functional.noise import ProportionNoise, noisy_bag_kl


@dataclass(frozen=True)
class NoisyKL:
    """`KL` where the known proportions themselves are uncertain: `functional.noise.noisy_bag_kl`.

    Not in the registry of names, since it means nothing without the noise of the data at hand.

    Attributes:
        noise: what was done to the counts before they were published.
    """

    noise: ProportionNoise

    def loss(self, logits: Tensor, layout: BagLayout, proportions: Tensor) -> Tensor:
        """Return `functional.noise.noisy_bag_kl` of each bag, `[bags]`."""
        return noisy_bag_kl(logits, layout, proportions, self.noise, reduction="none")
