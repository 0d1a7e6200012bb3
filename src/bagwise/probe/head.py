"""The linear head: the KL of bags and a small ridge, solved to the end."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np
import torch
from scipy.optimize import minimize
from threadpoolctl import ThreadpoolController
from torch import Tensor

from bagwise.bags.layout import BagLayout

# Strength of the ridge on weights of rows whose mean square length is 16. It was chosen once by looking at labels of
# Fashion-MNIST, so the probe's accuracy there is no evidence, and we quote none.
_RIDGE = 1e-5
_MOST_STEPS = 60
# Steps end when one lowers the loss by less than this share of what it was at the start.
_SMALLEST_GAIN = 1e-6
# So that a class that no bag holds has a finite bias, and one that no row is given a finite loss.
_SMALLEST_SHARE = 1e-6


@dataclass(frozen=True, eq=False)
class BagsInOrder:
    """Rows bag after bag, and the known proportions of the bags.

    Attributes:
        rows: `[rows, width]`.
        sizes: `[bags]` number of rows of each bag, none of them 0.
        ends: `[bags]` the place of the last row of each.
        bag_of: `[rows]` the bag of each row.
        proportions: `[bags, classes]` float64, all known.
    """

    rows: Tensor
    sizes: Tensor
    ends: Tensor
    bag_of: Tensor
    proportions: Tensor

    @staticmethod
    def of(rows: Tensor, layout: BagLayout, proportions: Tensor, bags: np.ndarray) -> BagsInOrder:
        """Take some `bags`, by number, out of all."""
        chosen = torch.from_numpy(bags).to(rows.device)
        place = torch.full((layout.num_bags,), len(bags), device=rows.device)
        place[chosen] = torch.arange(len(bags), device=rows.device)
        place = place[layout.bag_index]
        in_order = torch.argsort(place, stable=True)[: int(layout.host_sizes[bags].sum())]
        sizes = layout.sizes[chosen]
        return BagsInOrder(rows[in_order], sizes, sizes.cumsum(0) - 1, place[in_order], proportions[chosen].double())

    def narrowed(self, width: int) -> BagsInOrder:
        """Keep the leading columns of the rows."""
        return BagsInOrder(self.rows[:, :width].contiguous(), self.sizes, self.ends, self.bag_of, self.proportions)

    def divergence(self, head: Tensor) -> Tensor:
        """Return KL(known | predicted) of each bag, `[bags]`, for `head [width + 1, classes]`, biases last."""
        return _divergence(self.proportions, _predict(self, head)[1])


def fit_head(bags: BagsInOrder) -> Tensor:
    r"""Return weights W and, in the last row, biases: `[width + 1, classes]` float64, that minimise

    .. math:: \mathrm{mean}_b \, \mathrm{KL}(z_b \,|\, p_b) + \tfrac12 \, \mathrm{ridge} \, \|W\|^2

    over the bags b with proportions z and mean prediction p: `functional.bag_kl`, less its smallest value. L-BFGS,
    from the overall shares for every row; nothing is random.

    The passes over the rows are in their own precision, float32, with classes before rows in memory, which a CPU takes
    a fifth of the time for. The divergence itself, a small difference of large numbers, is in float64.
    """
    width, num_classes = bags.rows.shape[1], bags.proportions.shape[1]
    first = bags.proportions.new_zeros(width + 1, num_classes)
    first[-1] = bags.proportions.mean(dim=0).clamp(min=_SMALLEST_SHARE).log()
    # Solved for the weights times these scales, which takes a third of the steps: the spread of the last directions is
    # a small part of that of the first. It changes the way to the minimum, not the minimum.
    scales = torch.ones_like(first[:, :1])
    spread = bags.rows.std(dim=0, correction=min(1, len(bags.rows) - 1))  # one row has none, and NaN would spoil it all
    scales[:-1, 0] = spread.double().clamp(min=1e-6).sqrt()
    # divided by the loss of a blind guess, because L-BFGS-B measures its gains against 1
    blind = max(float(_divergence(bags.proportions, bags.proportions.mean(dim=0)).mean()), 1e-12)

    def as_head(flat: np.ndarray) -> Tensor:
        return torch.from_numpy(flat.reshape(width + 1, num_classes)).to(bags.rows.device) / scales

    def value_and_gradient(flat: np.ndarray) -> tuple[float, np.ndarray]:
        head = as_head(flat)
        value, gradient = _loss(bags, head)
        value = value + 0.5 * _RIDGE * head[:-1].square().sum()
        gradient[:-1] += _RIDGE * head[:-1]
        return float(value) / blind, (gradient / scales).flatten().cpu().numpy() / blind

    options = {"maxiter": _MOST_STEPS, "maxcor": 20, "ftol": _SMALLEST_GAIN, "gtol": 0.0}
    begin = (first * scales).flatten().cpu().numpy()
    with blas_of_scipy().limit(limits=1):
        return as_head(minimize(value_and_gradient, begin, jac=True, method="L-BFGS-B", options=options).x)


@cache
def blas_of_scipy() -> ThreadpoolController:
    """The OpenBLAS that NumPy and SciPy bring along.

    L-BFGS-B asks it for products of a few numbers, and its threads, which wait for more by spinning, take the cores
    from torch's: one thread is never slower, and much faster where the cores are busy. Torch has a BLAS of its own.
    """
    return ThreadpoolController().select(prefix="libscipy_openblas")


def _predict(bags: BagsInOrder, head: Tensor) -> tuple[Tensor, Tensor]:
    """Return the probabilities `[classes, rows]` and their means over bags `[bags, classes]` in float64."""
    head = head.to(bags.rows.dtype)
    probabilities = torch.addmm(head[-1][:, None], head[:-1].T, bags.rows.T).softmax(dim=0)
    sums = probabilities.cumsum(dim=1, dtype=torch.float64)[:, bags.ends]
    return probabilities, sums.diff(dim=1, prepend=sums.new_zeros(len(sums), 1)).T / bags.sizes[:, None]


def _loss(bags: BagsInOrder, head: Tensor) -> tuple[Tensor, Tensor]:
    """Return the mean divergence of the bags and its gradient by the head, float64."""
    f, means = _predict(bags, head)
    # with r = z / p of its bag, over its size and the number of bags, a row's logits have the gradient f (<f, r> - r)
    ratios = bags.proportions / means.clamp(min=_SMALLEST_SHARE) / (bags.sizes[:, None] * len(means))
    weighted = f * ratios.T.to(f.dtype).index_select(1, bags.bag_of)
    by_logits = torch.addcmul(-weighted, f, weighted.sum(dim=0))  # [classes, rows]
    gradient = torch.cat([by_logits @ bags.rows, by_logits.sum(dim=1, keepdim=True)], dim=1)
    return _divergence(bags.proportions, means).mean(), gradient.T.double()


def _divergence(known: Tensor, predicted: Tensor) -> Tensor:
    return (torch.xlogy(known, known) - torch.xlogy(known, predicted.clamp(min=_SMALLEST_SHARE))).sum(dim=1)
