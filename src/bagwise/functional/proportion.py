"""Losses on a bag's mean prediction, and the paper's baseline AvgKL.

Dulac-Arnold, Zeghidour, Cuturi, Beyer, Vert: *Deep multi-class learning from label proportions* (2019), section 3.1.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from bagwise.bags.layout import BagLayout
from bagwise.bags.setting_checks import check_choice
from bagwise.functional.fused import fused_proportion_loss, has_kernels
from bagwise.functional.inputs import DIVERGENCES, REDUCTIONS, Inputs, check_arguments, reduce_bags
from bagwise.functional.segments import expand, segment_logsumexp, segment_sum

Divergence = Callable[[Tensor, Tensor], Tensor]


def bag_kl(logits: Tensor, bag_index: Tensor | BagLayout, proportions: Tensor, *, reduction: str = "mean") -> Tensor:
    r"""Cross-entropy between a bag's proportions and its mean prediction: the paper's KL loss.

    .. math:: -\sum_k z_k \log p_k, \qquad p = \frac1n \sum_j \mathrm{softmax}(s_j)

    This is KL(z | p) + H(z): the minimum, at p = z, is the entropy of the proportions. It is the log of the mean,
    not the mean of the log (`avg_kl`).

    A class with z_k = 0 contributes exactly 0, also where p_k = 0. A class with z_k > 0 and p_k = 0 makes the
    loss +inf.

    Args:
        logits: `[instances, classes]`, unnormalised scores s.
        bag_index: `[instances]` integers in any order, or a `BagLayout`.
        proportions: `[bags, classes]`, z; a row of NaN is a bag with unknown proportions and gives no loss.
        reduction: "mean" over the bags with known proportions, "sum", or "none" for `[bags]`.

    Example:
        >>> logits = torch.tensor([[2.0, 0.0], [0.0, 2.0], [1.0, 0.0]])
        >>> bag_index = torch.tensor([0, 0, 1])
        >>> proportions = torch.tensor([[0.5, 0.5], [1.0, 0.0]])
        >>> bag_kl(logits, bag_index, proportions, reduction="none")
        tensor([0.6931, 0.3133])
    """
    return proportion_loss(logits, bag_index, proportions, divergence="kl", reduction=reduction)


def proportion_loss(
    logits: Tensor,
    bag_index: Tensor | BagLayout,
    proportions: Tensor,
    *,
    divergence: str | Divergence = "kl",
    reduction: str = "mean",
) -> Tensor:
    r"""Divergence d(z, p) between a bag's proportions z and its mean prediction p.

    Args:
        logits: `[instances, classes]`, unnormalised scores.
        bag_index: `[instances]` integers in any order, or a `BagLayout`.
        proportions: `[bags, classes]`; a row of NaN is a bag with unknown proportions and gives no loss.
        divergence: "kl" (cross-entropy, as `bag_kl`), "l1" (sum of absolute differences), "l2" (sum of squared
            differences), or a callable from `(proportions [bags, classes], predicted [bags, classes])` to `[bags]`.
        reduction: "mean" over the bags with known proportions, "sum", or "none" for `[bags]`.

    Example:
        >>> logits, bag_index = torch.zeros(4, 2), torch.tensor([0, 0, 1, 1])
        >>> proportions = torch.tensor([[0.5, 0.5], [1.0, 0.0]])
        >>> proportion_loss(logits, bag_index, proportions, divergence="l1", reduction="none")
        tensor([0., 1.])
    """
    check_choice("reduction", reduction, REDUCTIONS)
    layout = check_arguments(logits, bag_index, proportions)
    if not callable(divergence):
        check_choice("divergence", divergence, DIVERGENCES)
        if has_kernels(logits, layout):
            return fused_proportion_loss(logits, layout, proportions, divergence, reduction)
    inputs = Inputs.of(logits, layout, proportions)
    if callable(divergence):
        # an unknown bag is shown its own prediction as the target, so that no divergence sees an empty row
        predicted = _mean_prediction(inputs)
        target = torch.where(inputs.counted[:, None], inputs.proportions, predicted.detach())
        values = divergence(target, predicted)
        if values.shape != (inputs.layout.num_bags,):
            raise ValueError(
                f"a divergence must return one value per bag, [{inputs.layout.num_bags}], but returned "
                f"{list(values.shape)}; sum over the classes, dim=1."
            )
    elif divergence == "kl":
        values = _cross_entropy(inputs)
    elif divergence == "l1":
        values = (inputs.proportions - _mean_prediction(inputs)).abs().sum(dim=1)
    else:
        values = (inputs.proportions - _mean_prediction(inputs)).square().sum(dim=1)
    return reduce_bags(values, inputs.counted, reduction)


def avg_kl(logits: Tensor, bag_index: Tensor | BagLayout, proportions: Tensor, *, reduction: str = "mean") -> Tensor:
    r"""Mean over a bag's instances of the cross-entropy to the bag's proportions: the paper's baseline AvgKL.

    .. math:: -\frac1n \sum_j \sum_k z_k \log f_{jk}

    It gives every instance the bag's proportions as its label, so even a perfect classifier does not minimise it
    on a mixed bag. It is here as a baseline; use `bag_kl` or `rot` to learn.

    Args:
        logits: `[instances, classes]`, unnormalised scores.
        bag_index: `[instances]` integers in any order, or a `BagLayout`.
        proportions: `[bags, classes]`; a row of NaN is a bag with unknown proportions and gives no loss.
        reduction: "mean" over the bags with known proportions, "sum", or "none" for `[bags]`.

    Example:
        >>> sure_and_right = torch.tensor([[4.0, -4.0], [-4.0, 4.0]])
        >>> bag_index, half = torch.tensor([0, 0]), torch.tensor([[0.5, 0.5]])
        >>> bag_kl(sure_and_right, bag_index, half), avg_kl(sure_and_right, bag_index, half)
        (tensor(0.6931), tensor(4.0003))
    """
    check_choice("reduction", reduction, REDUCTIONS)
    layout = check_arguments(logits, bag_index, proportions)
    if has_kernels(logits, layout):
        return fused_proportion_loss(logits, layout, proportions, "avg_kl", reduction)
    inputs = Inputs.of(logits, layout, proportions)
    log_f = inputs.logits.log_softmax(dim=1)
    z = expand(inputs.proportions, inputs.layout)
    per_instance = -_weighted(z, log_f)  # [instances]
    sizes = inputs.layout.sizes.clamp(min=1)
    values = segment_sum(per_instance[:, None], inputs.layout)[:, 0] / sizes
    return reduce_bags(values, inputs.counted, reduction)


def _cross_entropy(inputs: Inputs) -> Tensor:
    log_f = inputs.logits.log_softmax(dim=1)
    log_n = inputs.layout.sizes.clamp(min=1).to(log_f.dtype).log()  # log of an integer would be float32
    log_p = segment_logsumexp(log_f, inputs.layout) - log_n[:, None]  # [bags, classes]
    return -_weighted(inputs.proportions, log_p)


def _weighted(weights: Tensor, log_values: Tensor) -> Tensor:
    """Sum weights * log_values over classes, with 0 * -inf = 0 in value and in gradient."""
    used = weights > 0
    return (weights * torch.where(used, log_values, 0)).sum(dim=1)


def _mean_prediction(inputs: Inputs) -> Tensor:
    f = inputs.logits.softmax(dim=1)
    return segment_sum(f, inputs.layout) / inputs.layout.sizes.clamp(min=1)[:, None]
