"""Unbiased estimates of the loss of instances, from proportions alone: EasyLLP and debiased squares.

Both hold for bags whose instances were drawn at random from one population. Bags that differ by design (wards, days,
clusters) break that assumption: their differences are then read as noise of the draw, and the estimate is biased.
"""

from __future__ import annotations

import torch
from torch import Tensor

from bagwise.bags.layout import BagLayout
from bagwise.bags.setting_checks import check_choice
from bagwise.bags.validation import check_prior
from bagwise.functional.inputs import prepare, reduce_bags
from bagwise.functional.segments import expand, segment_sum

CORRECTIONS = ("absolute", "none")


def easy_llp(
    logits: Tensor,
    bag_index: Tensor | BagLayout,
    proportions: Tensor,
    *,
    prior: Tensor,
    correction: str = "absolute",
    reduction: str = "mean",
) -> Tensor:
    r"""EasyLLP: the cross-entropy to surrogate labels that are right on average.

    .. math:: -\frac1n \sum_j \sum_k w_k \log f_{jk}, \qquad w = n z - (n - 1) \pi

    with the class prior pi of the population. Of the n labels in z one is the instance's own and the others are
    draws from pi, so the mean of w over bags that hold an instance is its label: the loss is an unbiased estimate of
    the supervised cross-entropy (Busa-Fekete, Choi, Dick, Gentile, Munoz Medina: *Easy Learning from Label
    Proportions*, 2023).

    Its variance grows with the bags. A class rarer in a bag than in the population has a negative weight, so without
    a correction the loss is unbounded below and training diverges easily. `correction="absolute"` takes the absolute
    value of each bag's estimate, which bounds it by 0 and costs the unbiasedness. Use a small learning rate, and do
    not expect calibrated probabilities.

    Args:
        logits: `[instances, classes]`, unnormalised scores.
        bag_index: `[instances]` integers in any order, or a `BagLayout`.
        proportions: `[bags, classes]`, z; a row of NaN is a bag with unknown proportions and gives no loss.
        prior: `[classes]`, pi: the share of each class among all instances, not only those of this batch.
        correction: "absolute", or "none" for the unbiased estimate, which may be negative.
        reduction: "mean" over the bags with known proportions, "sum", or "none" for `[bags]`.

    Example:
        >>> logits, bag_index = torch.tensor([[2.0, 0.0], [0.0, 1.0]]), torch.tensor([0, 0])
        >>> proportions, prior = torch.tensor([[0.5, 0.5]]), torch.tensor([0.6, 0.4])
        >>> easy_llp(logits, bag_index, proportions, prior=prior)
        tensor(1.0201)
    """
    check_choice("correction", correction, CORRECTIONS)
    inputs = prepare(logits, bag_index, proportions)
    check_prior(prior, num_classes=logits.shape[1], device=logits.device)
    n = inputs.layout.sizes.clamp(min=1).to(inputs.logits.dtype)[:, None]
    weights = n * inputs.proportions - (n - 1) * prior.to(n.dtype)  # [bags, classes]
    log_f = inputs.logits.log_softmax(dim=1)
    # a class without weight contributes 0, also where log f is infinite
    weights = expand(weights, inputs.layout)
    per_instance = -(weights * torch.where(weights != 0, log_f, 0)).sum(dim=1, keepdim=True)
    values = (segment_sum(per_instance, inputs.layout) / n)[:, 0]
    if correction == "absolute":
        values = values.abs()
    return reduce_bags(values, inputs.counted, reduction)


def debiased_squares(
    logits: Tensor, bag_index: Tensor | BagLayout, proportions: Tensor, *, reduction: str = "mean"
) -> Tensor:
    r"""Debiased squares (DSQ): an unbiased estimate of the squared error of the instances (the Brier score).

    Let r_b = p_b - z_b be the gap between a bag's mean prediction and its proportions. For random bags

    .. math:: n \, E |r_b|^2 = E |f - y|^2 + (n - 1) |\mu - \pi|^2,

    where mu and pi are the mean prediction and the class prior of the population: `l2` alone punishes a shifted mean
    n times too much. Two bags that share no instance give an unbiased estimate of what to subtract, so with B bags

    .. math:: n_b |r_b|^2 - (n_b - 1) \Big\langle r_b, \frac{1}{B - 1} \sum_{c \ne b} r_c \Big\rangle.

    See Busa-Fekete, Dick, Gentile, Kaplan, Koren, Stemmer: *Nearly Optimal Sample Complexity for Learning with Label
    Proportions* (2025), for the square loss and its variance reduction. The form in use elsewhere follows mu by a
    moving mean of past predictions, which lag behind the network. This one has no state, needs no prior, and its
    gradient is unbiased too. But **a bag's value depends on its company**, the other bags of the batch (with several
    processes: of this process's share): give it several bags a batch. A bag that is alone has nothing to subtract.
    Values may be negative.

    Args:
        logits: `[instances, classes]`, unnormalised scores.
        bag_index: `[instances]` integers in any order, or a `BagLayout`.
        proportions: `[bags, classes]`; a row of NaN is a bag with unknown proportions and gives no loss.
        reduction: "mean" over the bags with known proportions, "sum", or "none" for `[bags]`.

    Example:
        >>> logits, bag_index = torch.zeros(4, 2), torch.tensor([0, 0, 1, 1])
        >>> proportions = torch.tensor([[1.0, 0.0], [1.0, 0.0]])
        >>> debiased_squares(logits, bag_index, proportions, reduction="none")
        tensor([0.5000, 0.5000])
    """
    inputs = prepare(logits, bag_index, proportions)
    n = inputs.layout.sizes.clamp(min=1).to(inputs.logits.dtype)[:, None]
    mean_prediction = segment_sum(inputs.logits.softmax(dim=1), inputs.layout) / n
    gap = torch.where(inputs.counted[:, None], mean_prediction - inputs.proportions, 0)  # [bags, classes]
    num_others = (inputs.counted.sum() - 1).clamp(min=1)
    gap_of_others = (gap.sum(dim=0) - gap) / num_others
    values = (n * gap.square() - (n - 1) * gap * gap_of_others).sum(dim=1)
    return reduce_bags(values, inputs.counted, reduction)
