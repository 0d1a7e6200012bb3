"""The likelihood of the number of instances of each class in a bag."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from bagwise.bags.layout import BagLayout
from bagwise.functional.inputs import prepare, reduce_bags
from bagwise.functional.segments import expand, segment_max, segment_sum

# Halvings of the bracket of the tilt. It starts as wide as the logits are spread, and any tilt gives the right
# value: this one only has to leave the count near the mean.
_HALVINGS = 40
# The log-probability of what the predictions exclude: one that is finite, as 0 * inf would be NaN in the gradient.
_EXCLUDED = -1e6
# Counts a whole period away from the mean may be as likely as exp(-this): less than the rounding of float64.
_NEGLIGIBLE = 40


def count_likelihood(
    logits: Tensor, bag_index: Tensor | BagLayout, proportions: Tensor, *, reduction: str = "mean"
) -> Tensor:
    r"""Negative log-likelihood of each class's count, with the instances independent of each other.

    .. math:: -\sum_k \log P\Big(\sum_j Y_{jk} = n z_k\Big), \qquad Y_{jk} \sim \mathrm{Bernoulli}(f_{jk})

    The count of a class follows the Poisson-binomial law of the predictions f = softmax(s). Unlike a loss on the mean
    prediction it falls when predictions become sure: a bag half of each class is best explained by sure instances.
    Every class is taken against the rest, so a bag of one gives the sum of K binary cross-entropies. See
    Shukla, Zeng, Ahmed, Van den Broeck: *A Unified Approach to Count-Based Weakly-Supervised Learning* (2023).

    **How.** With c = n z_k, any tilt t, and l_j the log-odds of f_j,

    .. math:: \log P(c) = \sum_j \log(1 - f_j + f_j e^t) - t c + \log P_t(c), \qquad g_j = \sigma(l_j + t)

    where P_t is the law with probabilities g. Choosing t so that its mean is c leaves a probability of the order of
    :math:`1 / \sqrt n`, in no danger of underflow, which the discrete Fourier transform of its characteristic function
    gives. The law is so narrow around c that about :math:`\sqrt{20 n}` frequencies are enough for full float64
    precision (Hoeffding's inequality), so time and memory are of the order of :math:`n^{3/2} K` for a bag, where
    dynamic programming takes n^2 K in n steps, one after the other. Bags of similar size are taken together, so that a
    large one does not make the others slow. All of it is done in float64.

    Counts n z_k are rounded to whole numbers. The value is in nats for the whole bag, and grows with its size.
    A count that the predictions exclude (logits of -inf) gives a very large number, 1e6 or so, and finite gradients.

    Args:
        logits: `[instances, classes]`, unnormalised scores s.
        bag_index: `[instances]` integers in any order, or a `BagLayout`.
        proportions: `[bags, classes]`, z; a row of NaN is a bag with unknown proportions and gives no loss.
        reduction: "mean" over the bags with known proportions, "sum", or "none" for `[bags]`.

    Example:
        >>> logits, bag_index = torch.zeros(2, 2), torch.tensor([0, 0])
        >>> count_likelihood(logits, bag_index, torch.tensor([[0.5, 0.5]]))  # each count is 1 with probability 1/2
        tensor(1.3863)
    """
    inputs = prepare(logits, bag_index, proportions)
    layout = inputs.layout
    sizes = layout.sizes[:, None].double()
    counts = (sizes * inputs.proportions.double()).round()
    log_f, log_rest = _log_odds(inputs.logits.double())

    none, every = counts <= 0, counts >= sizes
    # where all or none are of a class the tilt would be infinite, and the likelihood is a plain product
    inner = torch.where(none | every, sizes / 2, counts)
    tilt = _tilt(log_f.detach() - log_rest.detach(), inner, layout)
    by_instance = expand(tilt, layout)
    log_scale = segment_sum(torch.logaddexp(log_rest, log_f + by_instance), layout) - tilt * inner
    log_tilted = _log_probability((log_f - log_rest + by_instance).sigmoid(), inner, layout)
    log_likelihood = torch.where(
        none,
        segment_sum(log_rest, layout),
        torch.where(every, segment_sum(log_f, layout), log_scale + log_tilted),
    )
    values = -log_likelihood.sum(dim=1)
    return reduce_bags(values.to(inputs.logits.dtype), inputs.counted, reduction)


def _log_odds(logits: Tensor) -> tuple[Tensor, Tensor]:
    """Return log f and log(1 - f), both finite, and accurate where f is near 0 and where it is near 1."""
    log_f = logits.log_softmax(dim=1)
    log_f = log_f.masked_fill(log_f == -torch.inf, _EXCLUDED)
    # 1 - f cancels only for a class with f > 1/2, which is the largest: sum the others instead
    largest = torch.zeros_like(logits, dtype=torch.bool).scatter(1, logits.argmax(dim=1, keepdim=True), True)
    log_others = log_f.masked_fill(largest, -torch.inf).logsumexp(dim=1, keepdim=True)
    small = torch.where(largest, 0, log_f.exp())
    return log_f, torch.where(largest, log_others, torch.log1p(-small))


@torch.no_grad()
def _tilt(log_odds: Tensor, counts: Tensor, layout: BagLayout) -> Tensor:
    """Solve sum_j sigmoid(log_odds_j + tilt) = counts for the tilt, `[bags, classes]`, by bisection."""
    log_odds = log_odds.clamp(_EXCLUDED, -_EXCLUDED)  # a wider bracket would leave the tilt too coarse
    share = (counts / layout.sizes.clamp(min=1)[:, None]).logit()
    low = share - segment_max(log_odds, layout)
    high = share + segment_max(-log_odds, layout)
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        too_low = segment_sum((log_odds + expand(middle, layout)).sigmoid(), layout) < counts
        low, high = torch.where(too_low, middle, low), torch.where(too_low, high, middle)
    middle = (low + high) / 2
    return torch.where(middle.isfinite(), middle, 0)  # an empty bag has no bracket


def _log_probability(g: Tensor, counts: Tensor, layout: BagLayout) -> Tensor:
    """Log-probability of `counts [bags, classes]` successes with probabilities `g [instances, classes]`.

    One size class of the bags after the other, because the number of frequencies follows from the largest bag.
    """
    if layout.common_size is not None:
        return _log_probability_of_similar(g, counts, layout.common_size, partial(segment_sum, layout=layout))
    classes = layout.size_classes
    found = []
    for bags, width in zip(classes.bags.long().split(classes.counts), classes.widths, strict=True):
        # of those that are not empty: empty ones are in the narrowest class, and add nothing
        sizes = layout.host_sizes[(layout.host_sizes > width // 2) & (layout.host_sizes <= width)]
        rows, place = _members(bags, layout, int(sizes.sum()))
        summed = partial(_sum_by_place, place=place, num_bags=len(bags))
        largest = int(sizes.max(initial=0))
        found.append(_log_probability_of_similar(g.index_select(0, rows), counts[bags], largest, summed))
    if not found:
        return torch.zeros_like(counts)
    return torch.empty_like(counts).index_copy(0, classes.bags.long(), torch.cat(found))


def _members(bags: Tensor, layout: BagLayout, count: int) -> tuple[Tensor, Tensor]:
    """Return the `count` instances of `bags`, and for each the place of its bag among them; no GPU sync."""
    sizes = layout.sizes[bags]
    place = torch.repeat_interleave(sizes, output_size=count)
    shift = layout.offsets[bags] - (sizes.cumsum(0) - sizes)  # from a row's place among them to that in bag order
    rows = torch.arange(count, device=bags.device) + shift[place]
    return rows if layout.order is None else layout.order[rows], place


def _sum_by_place(values: Tensor, place: Tensor, num_bags: int) -> Tensor:
    return values.new_zeros(num_bags, values.shape[1]).index_add(0, place, values)


def _log_probability_of_similar(g: Tensor, counts: Tensor, largest: int, summed: Callable[[Tensor], Tensor]) -> Tensor:
    r"""Log-probability as above, of bags of at most `largest` instances; `summed` sums over the instances of each bag.

    P(c) = 1/M sum_m exp(-i w_m c) prod_j (1 - g_j + g_j exp(i w_m)) at the frequencies w_m = 2 pi m / M. The terms of
    m and M - m are conjugate, so half of them are taken, in polar form. M is odd: at w = pi a factor could be 0.
    """
    half = min((largest + 1) // 2, math.ceil(math.sqrt(_NEGLIGIBLE * largest / 2) / 2))
    period = 2 * half + 1
    w = 2 * math.pi / period * torch.arange(1, half + 1, dtype=g.dtype, device=g.device)  # [frequencies]
    g = g[:, :, None]  # [instances, classes, 1]
    log_modulus = torch.log1p(-4 * g * (1 - g) * (w / 2).sin().square()) / 2
    angle = torch.atan2(g * w.sin(), 1 - g + g * w.cos())
    shape = (*counts.shape, half)
    log_modulus = summed(log_modulus.flatten(1)).view(shape)
    angle = summed(angle.flatten(1)).view(shape)
    terms = log_modulus.exp() * (angle - w * counts[:, :, None]).cos()
    probability = (1 + 2 * terms.sum(dim=2)) / period
    return probability.clamp(min=torch.finfo(g.dtype).tiny).log()
