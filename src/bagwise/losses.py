"""The losses of `bagwise.functional` as modules: hyper-parameters in the constructor, one call in `forward`."""

from __future__ import annotations

from torch import Tensor, nn

from bagwise import functional as BF
from bagwise.bags.layout import BagLayout
from bagwise.bags.setting_checks import check_alpha, check_choice, check_count, check_epsilon
from bagwise.functional.inputs import DIVERGENCES, REDUCTIONS
from bagwise.functional.proportion import Divergence
from bagwise.functional.rot import GRADIENTS
from bagwise.functional.transport import MARGINALS
from bagwise.functional.unbiased import CORRECTIONS

__all__ = [
    "AvgKLLoss",
    "BagKLLoss",
    "CombinatorialLoss",
    "CountLikelihoodLoss",
    "DebiasedSquaresLoss",
    "EasyLLPLoss",
    "ForwardCorrectionLoss",
    "MomentMatchingLoss",
    "ProportionLoss",
    "ROTLoss",
    "TransportLPLoss",
]


class _BagLoss(nn.Module):
    """What all losses share: the reduction, "mean", "sum" or "none"."""

    def __init__(self, reduction: str = "mean") -> None:
        super().__init__()
        check_choice("reduction", reduction, REDUCTIONS)
        self.reduction = reduction


class BagKLLoss(_BagLoss):
    """See `bagwise.functional.bag_kl`."""

    def forward(self, logits: Tensor, bag_index: Tensor | BagLayout, proportions: Tensor) -> Tensor:
        """Return the loss."""
        return BF.bag_kl(logits, bag_index, proportions, reduction=self.reduction)


class AvgKLLoss(_BagLoss):
    """See `bagwise.functional.avg_kl`."""

    def forward(self, logits: Tensor, bag_index: Tensor | BagLayout, proportions: Tensor) -> Tensor:
        """Return the loss."""
        return BF.avg_kl(logits, bag_index, proportions, reduction=self.reduction)


class ProportionLoss(_BagLoss):
    """See `bagwise.functional.proportion_loss`."""

    def __init__(self, divergence: str | Divergence = "kl", reduction: str = "mean") -> None:
        super().__init__(reduction)
        if not callable(divergence):
            check_choice("divergence", divergence, DIVERGENCES)
        self.divergence = divergence

    def forward(self, logits: Tensor, bag_index: Tensor | BagLayout, proportions: Tensor) -> Tensor:
        """Return the loss."""
        return BF.proportion_loss(logits, bag_index, proportions, divergence=self.divergence, reduction=self.reduction)


class ROTLoss(_BagLoss):
    """See `bagwise.functional.rot`."""

    def __init__(
        self,
        alpha: float = 0.5,
        epsilon: float = 1.0,
        gradient: str = "envelope",
        iterations: int = 75,
        reduction: str = "mean",
    ) -> None:
        super().__init__(reduction)
        check_alpha(alpha)
        check_epsilon(epsilon)
        check_choice("gradient", gradient, GRADIENTS)
        self.alpha, self.epsilon, self.gradient, self.iterations = alpha, epsilon, gradient, iterations

    def forward(self, logits: Tensor, bag_index: Tensor | BagLayout, proportions: Tensor) -> Tensor:
        """Return the loss."""
        return BF.rot(
            logits,
            bag_index,
            proportions,
            alpha=self.alpha,
            epsilon=self.epsilon,
            gradient=self.gradient,
            iterations=self.iterations,
            reduction=self.reduction,
        )


class TransportLPLoss(_BagLoss):
    """See `bagwise.functional.transport_lp`."""

    def __init__(self, marginals: str = "fractional", reduction: str = "mean") -> None:
        super().__init__(reduction)
        check_choice("marginals", marginals, MARGINALS)
        self.marginals = marginals

    def forward(self, logits: Tensor, bag_index: Tensor | BagLayout, proportions: Tensor) -> Tensor:
        """Return the loss."""
        return BF.transport_lp(logits, bag_index, proportions, marginals=self.marginals, reduction=self.reduction)


class CombinatorialLoss(_BagLoss):
    """See `bagwise.functional.combinatorial`."""

    def __init__(self, alpha: float = 0.5, divergence: str = "kl", reduction: str = "mean") -> None:
        super().__init__(reduction)
        check_alpha(alpha)
        check_choice("divergence", divergence, DIVERGENCES)
        self.alpha, self.divergence = alpha, divergence

    def forward(self, logits: Tensor, bag_index: Tensor | BagLayout, proportions: Tensor) -> Tensor:
        """Return the loss."""
        return BF.combinatorial(
            logits,
            bag_index,
            proportions,
            alpha=self.alpha,
            divergence=self.divergence,
            reduction=self.reduction,
        )


class EasyLLPLoss(_BagLoss):
    """See `bagwise.functional.easy_llp`. The class prior is a buffer: it moves to the device with the module."""

    def __init__(self, prior: Tensor, correction: str = "absolute", reduction: str = "mean") -> None:
        super().__init__(reduction)
        check_choice("correction", correction, CORRECTIONS)
        self.prior: Tensor
        self.register_buffer("prior", prior)
        self.correction = correction

    def forward(self, logits: Tensor, bag_index: Tensor | BagLayout, proportions: Tensor) -> Tensor:
        """Return the loss."""
        return BF.easy_llp(
            logits, bag_index, proportions, prior=self.prior, correction=self.correction, reduction=self.reduction
        )


class DebiasedSquaresLoss(_BagLoss):
    """See `bagwise.functional.debiased_squares`."""

    def forward(self, logits: Tensor, bag_index: Tensor | BagLayout, proportions: Tensor) -> Tensor:
        """Return the loss."""
        return BF.debiased_squares(logits, bag_index, proportions, reduction=self.reduction)


class CountLikelihoodLoss(_BagLoss):
    """See `bagwise.functional.count_likelihood`."""

    def forward(self, logits: Tensor, bag_index: Tensor | BagLayout, proportions: Tensor) -> Tensor:
        """Return the loss."""
        return BF.count_likelihood(logits, bag_index, proportions, reduction=self.reduction)


class MomentMatchingLoss(_BagLoss):
    """See `bagwise.functional.moment_matching`."""

    def __init__(self, order: int = 3, reduction: str = "mean") -> None:
        super().__init__(reduction)
        check_count("order", order)
        self.order = order

    def forward(self, logits: Tensor, bag_index: Tensor | BagLayout, proportions: Tensor) -> Tensor:
        """Return the loss."""
        return BF.moment_matching(logits, bag_index, proportions, order=self.order, reduction=self.reduction)


class ForwardCorrectionLoss(_BagLoss):
    """See `bagwise.functional.forward_correction`."""

    def forward(self, logits: Tensor, bag_index: Tensor | BagLayout, proportions: Tensor) -> Tensor:
        """Return the loss."""
        return BF.forward_correction(logits, bag_index, proportions, reduction=self.reduction)
