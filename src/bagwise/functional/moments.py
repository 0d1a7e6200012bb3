"""Matching the higher moments of a bag's class counts (LLP-MM)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from itertools import combinations_with_replacement

import torch
from torch import Tensor

from bagwise.bags.layout import BagLayout
from bagwise.bags.setting_checks import check_count
from bagwise.functional.inputs import Inputs, prepare, reduce_bags
from bagwise.functional.proportion import bag_kl
from bagwise.functional.segments import segment_sum

# Share of the uniform law in the predicted moments. They are differences of larger numbers, so that a moment near 0
# is known only up to rounding: its logarithm must not be taken.
_SMOOTHING = 1e-4


def moment_matching(
    logits: Tensor,
    bag_index: Tensor | BagLayout,
    proportions: Tensor,
    *,
    order: int = 3,
    reduction: str = "mean",
) -> Tensor:
    r"""Match the labels of r different instances of a bag, drawn at random, for r = 1 to `order`.

    .. math:: -\sum_{r=1}^{s} \sum_{c \in \{1..K\}^r} T_c \log M_c, \qquad
              T_c \propto \prod_k \prod_{t < m_k(c)} (n z_k - t), \qquad
              M_c \propto \sum_{j_1 \ne \dots \ne j_r} f_{j_1 c_1} \cdots f_{j_r c_r}

    where m_k(c) says how often class k occurs in c. T is the law of the labels of r instances drawn without
    replacement (the factorial moments of the counts, up to a factor), M what the predictions say about it. At order 1
    this is `bag_kl`. From order 2 it also asks for sure predictions: where one instance is of a class, another is a
    little less likely to be. That little is of the order of 1/n, so in large bags it hardly tells more than `bag_kl`.

    The sums over different instances follow from the power sums :math:`P_q = \sum_j (\sum_k f_{jk} x_k)^q` by Newton's
    identities for polynomials in x, :math:`r E_r = \sum_q (-1)^{q-1} P_q E_{r-q}`, in float64. This subtracts numbers
    that nearly cancel when r is not far below n, so the moments from order 2 on are mixed with 1e-4 of the uniform
    law. A bag of fewer than r instances has no moment of order r.

    Time and memory grow with the number of monomials, (K + r - 1 choose r) for each instance: 220 for 10 classes at
    order 3, 24,310 at the authors' order 8; 171,700 for 100 classes at order 3.

    Args:
        logits: `[instances, classes]`, unnormalised scores.
        bag_index: `[instances]` integers in any order, or a `BagLayout`.
        proportions: `[bags, classes]`, z; a row of NaN is a bag with unknown proportions and gives no loss.
        order: s, the highest moment.
        reduction: "mean" over the bags with known proportions, "sum", or "none" for `[bags]`.

    Example:
        >>> bag_index, half = torch.tensor([0, 0]), torch.tensor([[0.5, 0.5]])
        >>> unsure, sure = torch.zeros(2, 2), torch.tensor([[9.0, 0.0], [0.0, 9.0]])
        >>> [round(float(moment_matching(s, bag_index, half)), 3) for s in (unsure, sure)]
        [2.079, 1.387]
    """
    check_count("order", order)
    inputs = prepare(logits, bag_index, proportions)
    values = bag_kl(logits, inputs.layout, proportions, reduction="none")
    if order > 1:
        values = values + _higher_moments(inputs, order).to(values.dtype)
    return reduce_bags(values, inputs.counted, reduction)


def _higher_moments(inputs: Inputs, order: int) -> Tensor:
    """Cross-entropy of the moments of order 2 and above, summed; `[bags]`."""
    layout, num_classes = inputs.layout, inputs.logits.shape[1]
    f = inputs.logits.double().softmax(dim=1)
    n = layout.sizes[:, None].double()
    counts = n * inputs.proportions.double()
    total = n.new_zeros(layout.num_bags)
    monomials = f  # [instances, monomials of degree r]
    power_sums, elementary = [segment_sum(f, layout)], [segment_sum(f, layout)]  # degree r at index r - 1
    draws = n.clamp(min=1)  # n (n - 1) ... (n - r + 1)
    for r in range(2, order + 1):
        table = _monomials(num_classes, r, f.device)
        monomials = monomials[:, table.parent] * f[:, table.last]
        power_sums.append(segment_sum(monomials, layout) * table.orderings)
        sign = -1.0 if r % 2 == 0 else 1.0
        e = sign * power_sums[r - 1]
        for q in range(1, r):
            sign = -1.0 if q % 2 == 0 else 1.0
            e = e + sign * _product(power_sums[q - 1], elementary[r - q - 1], table, q)
        elementary.append(e / r)

        enough = n[:, 0] >= r
        draws = draws * (n - r + 1).clamp(min=1)
        predicted = (elementary[-1] * table.repeats / draws).clamp(min=0)
        smoothed = (1 - _SMOOTHING) * predicted + _SMOOTHING / num_classes**r
        known = _falling_powers(counts, table) * table.orderings
        known = known / known.sum(dim=1, keepdim=True).clamp(min=torch.finfo(n.dtype).tiny)
        total = total - torch.where(enough, (known * smoothed.log()).sum(dim=1), 0)
    return total


def _falling_powers(counts: Tensor, table: _Monomials) -> Tensor:
    """Product over classes of c (c - 1) ... (c - m + 1) for each monomial; `[bags, monomials]`."""
    factors = counts[:, table.classes] - table.occurrence  # [bags, monomials, degree]
    return factors.clamp(min=0).prod(dim=2)  # noisy counts need not be whole: no chance is negative


def _product(a: Tensor, b: Tensor, table: _Monomials, degree: int) -> Tensor:
    """Coefficients of the product of homogeneous polynomials, of which `a` has this degree; `[bags, monomials]`."""
    every_pair = (a[:, :, None] * b[:, None, :]).flatten(1)
    return a.new_zeros(len(a), len(table.parent)).index_add(1, table.sums[degree - 1], every_pair)


@dataclass(frozen=True, eq=False)
class _Monomials:
    """All monomials of one degree r in K variables, each a sorted tuple of variables.

    Attributes:
        classes: `[monomials, r]` the tuples.
        occurrence: `[monomials, r]` how often the variable stands before this place in its tuple.
        parent: `[monomials]` the monomial of degree r - 1 without the last variable.
        last: `[monomials]` that variable.
        orderings: `[monomials]` in how many ways the tuple can be ordered.
        repeats: `[monomials]` r! over that: the ways to order equal variables among themselves.
        sums: for q = 1 to r - 1, the product of every monomial of degree q with every one of degree r - q, flat.
    """

    classes: Tensor
    occurrence: Tensor
    parent: Tensor
    last: Tensor
    orderings: Tensor
    repeats: Tensor
    sums: tuple[Tensor, ...]


@lru_cache(maxsize=32)
@torch.inference_mode(False)  # what is kept must also serve a training, whoever asks for it first
def _monomials(num_classes: int, degree: int, device: torch.device) -> _Monomials:
    by_degree = [list(combinations_with_replacement(range(num_classes), r)) for r in range(degree + 1)]
    tuples = by_degree[degree]
    position = [{monomial: i for i, monomial in enumerate(monomials)} for monomials in by_degree]
    repeats = [math.prod(math.factorial(m.count(k)) for k in set(m)) for m in tuples]
    sums = [
        [position[degree][tuple(sorted(a + b))] for a in by_degree[q] for b in by_degree[degree - q]]
        for q in range(1, degree)
    ]
    return _Monomials(
        classes=torch.tensor(tuples, device=device),
        occurrence=torch.tensor([[m[:i].count(k) for i, k in enumerate(m)] for m in tuples], device=device),
        parent=torch.tensor([position[degree - 1][m[:-1]] for m in tuples], device=device),
        last=torch.tensor([m[-1] for m in tuples], device=device),
        orderings=torch.tensor([math.factorial(degree) / ways for ways in repeats], device=device).double(),
        repeats=torch.tensor(repeats, device=device).double(),
        sums=tuple(torch.tensor(indices, device=device) for indices in sums),
    )
