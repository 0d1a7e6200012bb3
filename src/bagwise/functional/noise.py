"""Learning from proportions that are themselves uncertain: counts with privacy noise, or rounded."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from bagwise.bags.layout import BagLayout
from bagwise.bags.setting_checks import check_between, check_choice
from bagwise.functional.inputs import prepare, reduce_bags
from bagwise.functional.proportion import bag_kl
from bagwise.functional.segments import segment_logsumexp

# Variance of the noise in a count, for a scale of 1.
_UNIT_VARIANCE = {"laplace": 2.0, "gaussian": 1.0, "rounding": 1 / 12}

# Counts that miss the size of their bag by more than this many standard deviations are no noise but a mistake.
_FARTHEST_SUM = 10

# Proportions are never taken to be surer than this: beyond it float32 could not tell the difference.
_HIGHEST_PRECISION = 1e6
# Newton steps. The outer one climbs about one unit of the multiplier a step from at most log(classes) below the
# root and is quadratic after that; the inner one is Halley's, cubic from a good start.
_OUTER_STEPS = 12
_INNER_STEPS = 4


@dataclass(frozen=True)
class ProportionNoise:
    """How the published counts of every bag differ from the true ones.

    A *sampled tally*, where only m instances of a bag were drawn and counted, is not among the kinds because it needs
    none: the tally is a bag of m draws from the same instances, and `bag_kl` is already its likelihood, per instance
    counted. (Taking its noise for that of a published count would silence large bags, and does worse.)

    Attributes:
        kind: "laplace": Laplace noise of this scale was added to every count (differential privacy);
            "gaussian": normal noise of this standard deviation was added to every count;
            "rounding": every count was rounded to a multiple of this unit.
        scale: in instances; 0 is no noise.

    Example:
        >>> ProportionNoise("laplace", 3.0).count_variance
        18.0
    """

    kind: Literal["laplace", "gaussian", "rounding"]
    scale: float

    def __post_init__(self) -> None:
        check_choice("the kind of noise", self.kind, _UNIT_VARIANCE)
        check_between("the scale of noise", self.scale, 0, float("inf"))

    @property
    def count_variance(self) -> float:
        """Variance of the noise in a count."""
        return _UNIT_VARIANCE[self.kind] * self.scale**2


def nearest_proportions(
    counts: np.ndarray, sizes: np.ndarray, noise: ProportionNoise, bag_names: Sequence[Hashable]
) -> np.ndarray:
    r"""Turn noisy counts, which may be negative and need not add up to the size of their bag, into proportions.

    Returns the point of the simplex that is nearest to the counts c over the size n (Euclidean distance): under
    normal noise the most likely proportions. With the multiplier t that makes them sum to 1 it is
    :math:`z_k = \max(c_k / n - t, 0)`, so no class is favoured, as it would be if c were clipped and rescaled.

    Args:
        counts: `[bags, classes]` as published; a row of NaN is a bag with unknown proportions and stays one.
        sizes: `[bags]` the true number of instances, which is known from the instances themselves.
        noise: what was added to the counts.
        bag_names: `[bags]` for the messages.

    Example:
        >>> nearest_proportions(np.array([[12.0, -1.0]]), np.array([10]), ProportionNoise("laplace", 2.0), ["a"])
        array([[1., 0.]])
    """
    known = ~np.isnan(counts).all(axis=1)
    if not np.isfinite(counts[known]).all():
        bag = int(np.flatnonzero(known & ~np.isfinite(counts).all(axis=1))[0])
        fix = "Write 0 for a class that does not occur" if np.isnan(counts[bag]).any() else "Correct them"
        raise ValueError(
            f"noisy counts must be finite, but bag {bag_names[bag]!r} has {counts[bag].tolist()}. "
            f"{fix}; for a bag with unknown proportions, leave the whole row empty (missing)."
        )
    num_classes = counts.shape[1]
    gap = np.abs(counts.sum(axis=1) - sizes)
    too_far = known & (gap > _FARTHEST_SUM * np.sqrt(num_classes * noise.count_variance) + 1)
    if too_far.any():
        bag = int(np.flatnonzero(too_far)[0])
        raise ValueError(
            f"the counts of a bag must add up to its size but for the noise ({noise.kind}, scale {noise.scale:g}), but "
            f"bag {bag_names[bag]!r} has {sizes[bag]} instances and its counts sum to {counts[bag].sum():g}. "
            "Correct the scale of the noise, or give all instances of the bag."
        )
    shares = counts / sizes[:, None]
    # t makes the j largest sum to 1, for the largest j that leaves them all positive
    descending = -np.sort(-shares, axis=1)
    multipliers = (np.cumsum(descending, axis=1) - 1) / np.arange(1, num_classes + 1)
    last = np.maximum((descending > multipliers).sum(axis=1), 1) - 1
    nearest = np.maximum(shares - multipliers[np.arange(len(shares)), last][:, None], 0)
    return nearest / nearest.sum(axis=1, keepdims=True)


def noisy_bag_kl(
    logits: Tensor,
    bag_index: Tensor | BagLayout,
    proportions: Tensor,
    noise: ProportionNoise,
    *,
    reduction: str = "mean",
) -> Tensor:
    r"""`bag_kl` for proportions from noisy counts: bags and classes count for as much as they are known.

    Let z be a bag's true proportions, of which only z~ is known: each of its n z~ counts has noise of variance v.
    Read as a likelihood, `bag_kl` says that the n instances are draws from the mean prediction p, which costs
    n KL(z | p) nats; normal noise costs sum_k n^2 (z~_k - z_k)^2 / (2 v) more. The true proportions are unknown, so
    the loss takes the most likely ones (a profile likelihood), per instance:

    .. math:: H(\tilde z) + \min_{z \in \text{simplex}} \Big[ \mathrm{KL}(z \,|\, p)
              + \frac{\lambda}{2} |z - \tilde z|^2 \Big], \qquad \lambda = \frac{n}{v}

    - Without noise the minimum is at z = z~, and the loss is `bag_kl` (at scale 0 it is that very function).
    - To second order the bracket is sum_k (z~_k - p_k)^2 / (2 (p_k + v / n)): the sampling variance p_k / n of a
      share, plus the variance v / n^2 of its noise, both times n. A bag whose noise drowns its counts hardly pulls;
      a large bag under the same noise pulls as before.
    - By the envelope theorem the gradient is that of the cross-entropy to the minimiser, which lies between what was
      published and what is predicted.

    Laplace noise and rounding enter by their variance. The minimiser, z_k = omega(log(lambda p_k) + lambda z~_k - nu)
    / lambda with Wright's omega function and the multiplier nu that makes it sum to 1, takes a fixed number of Newton
    steps, so nothing waits for a GPU.

    Args:
        logits: `[instances, classes]`, unnormalised scores.
        bag_index: `[instances]` integers in any order, or a `BagLayout`.
        proportions: `[bags, classes]`, z~ (see `nearest_proportions`); a row of NaN is a bag
            with unknown proportions and gives no loss.
        noise: kind and scale of the noise.
        reduction: "mean" over the bags with known proportions, "sum", or "none" for `[bags]`.

    Example:
        >>> logits, bag_index = torch.zeros(4, 2), torch.tensor([0, 0, 0, 0])
        >>> proportions = torch.tensor([[1.0, 0.0]])
        >>> bag_kl(logits, bag_index, proportions)
        tensor(0.6931)
        >>> noisy_bag_kl(logits, bag_index, proportions, ProportionNoise("laplace", 2.0))
        tensor(0.1001)
    """
    if noise.scale == 0:
        return bag_kl(logits, bag_index, proportions, reduction=reduction)
    inputs = prepare(logits, bag_index, proportions)
    known, layout = inputs.proportions, inputs.layout
    log_f = inputs.logits.log_softmax(dim=1)
    n = layout.sizes.clamp(min=1).to(log_f.dtype)
    log_p = segment_logsumexp(log_f, layout) - n.log()[:, None]  # [bags, classes]
    # a class that the model excludes would make log p infinite; its share of the minimiser is zero anyway
    log_p = log_p.clamp(min=torch.finfo(log_p.dtype).min / 1e6)

    precision = (n / noise.count_variance).clamp(max=_HIGHEST_PRECISION)[:, None]  # lambda
    likely = _most_likely_proportions(log_p.detach(), known, precision)
    divergence = (torch.xlogy(likely, likely) - likely * log_p).sum(dim=1)
    misfit = precision[:, 0] / 2 * (likely - known).square().sum(dim=1)
    entropy = -torch.xlogy(known, known).sum(dim=1)
    return reduce_bags(divergence + misfit + entropy, inputs.counted, reduction)


@torch.no_grad()
def _most_likely_proportions(log_p: Tensor, known: Tensor, precision: Tensor) -> Tensor:
    """Minimise KL(z | p) + precision / 2 |z - known|^2 over the simplex, for every bag; precision is `[bags, 1]`.

    Stationarity is log z_k + precision z_k = log p_k + precision known_k - nu. The sum of the z_k falls with
    nu and is convex in it, so Newton's method from the left of the root never overshoots.
    """
    level = log_p + precision * known
    # where this is attained z_k = 1 exactly, so the sum is at least 1: left of the root
    nu = (level - precision).amax(dim=1, keepdim=True)
    log_precision = precision.log()
    for _ in range(_OUTER_STEPS):
        omega = _wright_omega(level - nu + log_precision)
        excess = (omega / precision).sum(dim=1, keepdim=True) - 1
        slope = (omega / (1 + omega) / precision).sum(dim=1, keepdim=True)
        nu = nu + excess / slope
    z = _wright_omega(level - nu + log_precision) / precision
    return z / z.sum(dim=1, keepdim=True)


def _wright_omega(x: Tensor) -> Tensor:
    """Solve w + log w = x for w > 0, by Halley's method on u = log w, where exp cannot overflow."""
    log_x = x.clamp(min=1).log()
    u = torch.where(x > 1, log_x, x - x.clamp(max=1).exp() / (1 + x.clamp(max=1).exp()))
    for _ in range(_INNER_STEPS):
        w = u.exp()
        gap = u + w - x
        slope = 1 + w
        u = u - gap / (slope - gap * w / (2 * slope))
    return u.exp()
