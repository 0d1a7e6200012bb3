"""What the bags can teach, by the proportions of held-out bags."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from bagwise.bags.layout import BagLayout
from bagwise.bags.seeds import derived_seed
from bagwise.probe.head import BagsInOrder, fit_head
from bagwise.probe.self_teaching import self_taught_head

_FOLDS, _FOLDS_OF_FEW = 3, 6
_FEW_BAGS = 24  # of fewer, a third would be missed
# A head that is off by 10 % more than the best weighs 2 / 3 of it; by twice as much, 1 / 16.
_POWER = 4
_SMALLEST_DIVERGENCE = 1e-12


def folds(known: np.ndarray, seed: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield the bags to fit on and the bags to hold out, so that each of `known`, at least 2, is held out once."""
    order = np.random.default_rng(derived_seed(seed, "probe folds")).permutation(known)
    count = min(len(known), _FOLDS_OF_FEW if len(known) < _FEW_BAGS else _FOLDS)
    for fold in range(count):
        held_out = np.sort(order[fold::count])
        yield np.setdiff1d(known, held_out), held_out


# Heads that were fitted on the same bags: for each number of leading directions one, `[directions + 1, classes]`.
Heads = dict[int, Tensor]


def heads_of_folds(
    rows: Tensor, layout: BagLayout, proportions: Tensor, known: np.ndarray, candidates: Sequence[int], seed: int
) -> list[Heads]:
    """Fit a head to each of several numbers of leading directions, on the bags that a fold does not hold out.

    Args:
        rows: `[rows, width]`, the leading directions first.
        layout: which row lies in which bag.
        proportions: `[bags, classes]`.
        known: the numbers of the bags with known proportions, at least 2.
        candidates: numbers of directions.
        seed: which bags are held out together.
    """
    # each from nothing, as the final one will be: from a narrower head they end elsewhere, and worse
    return [
        fit_heads(BagsInOrder.of(rows, layout, proportions, fitted_on), candidates)
        for fitted_on, _ in folds(known, seed)
    ]


def fit_heads(bags: BagsInOrder, candidates: Sequence[int]) -> Heads:
    """Fit a head to each of several numbers of leading directions."""
    return {count: fit_head(bags.narrowed(count)) for count in candidates}


def held_out_divergence(
    rows: Tensor, layout: BagLayout, proportions: Tensor, known: np.ndarray, heads: Sequence[Heads], seed: int
) -> dict[int, float]:
    """Score numbers of leading directions by bags that the heads of each fold were not fitted on.

    Returns the mean KL(known | predicted) of held-out bags, by candidate. The rows of all bags may have been smoothed
    together: that reads no proportions.
    """
    divergences: dict[int, list[Tensor]] = {count: [] for count in heads[0]}
    for (_, held_out), of_fold in zip(folds(known, seed), heads, strict=True):
        test = BagsInOrder.of(rows, layout, proportions, held_out)
        for count, head in of_fold.items():
            divergences[count].append(test.narrowed(count).divergence(head))
    return {count: float(torch.cat(parts).mean()) for count, parts in divergences.items()}


def divergence_if_self_taught(
    starts: Iterable[Tensor], rows: Tensor, layout: BagLayout, proportions: Tensor, known: np.ndarray, seed: int
) -> float:
    """Score heads that learn from labels, the first of which are those of `starts`, `[rows, classes]` for each fold.

    The proportions of held-out bags are not shown to them, and have no part in a start but for the few weights of
    `averaged_probabilities`, which are those of all folds. Returns the mean that `held_out_divergence` returns.
    """
    divergences: list[Tensor] = []
    for (_, held_out), start in zip(folds(known, seed), starts, strict=True):
        shown = proportions.clone()
        shown[torch.from_numpy(held_out).to(shown.device)] = torch.nan
        head = self_taught_head(rows, layout, shown, start)
        divergences.append(BagsInOrder.of(rows, layout, proportions, held_out).divergence(head))
    return float(torch.cat(divergences).mean())


def averaged_probabilities(rows: Tensor, heads: Heads, criterion: Mapping[int, float]) -> Tensor:
    """Return the mean of what heads on leading directions say of `rows`, weighed by how well held-out bags are met.

    From a few bags no head is right, and each is wrong elsewhere: their mean has fewer mistakes than the best of them.
    Where there are many, those that are much worse hardly count.
    """
    least = max(min(criterion.values()), _SMALLEST_DIVERGENCE)
    weights = {count: (max(criterion[count], least) / least) ** -_POWER for count in heads}
    mean = torch.zeros_like(rows[:, :1])
    for count, head in heads.items():
        mean = mean + weights[count] / sum(weights.values()) * probabilities(rows[:, :count], head)
    return mean


def probabilities(rows: Tensor, head: Tensor) -> Tensor:
    """Return what a head `[width + 1, classes]` says of `rows [rows, width]`."""
    return torch.addmm(head[-1].float(), rows, head[:-1].float()).softmax(dim=1)
