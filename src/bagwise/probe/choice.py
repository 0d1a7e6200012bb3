"""What the bags can teach, by the proportions of held-out bags."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from bagwise.bags.layout import BagLayout
from bagwise.bags.seeds import derived_seed
from bagwise.probe.head import BagsInOrder, fit_head
from bagwise.probe.self_teaching import self_taught_head

_FOLDS, _FOLDS_OF_FEW = 3, 6
_FEW_BAGS = 24  # of fewer, a third would be missed


def folds(known: np.ndarray, seed: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield the bags to fit on and the bags to hold out, so that each of `known`, at least 2, is held out once."""
    order = np.random.default_rng(derived_seed(seed, "probe folds")).permutation(known)
    count = min(len(known), _FOLDS_OF_FEW if len(known) < _FEW_BAGS else _FOLDS)
    for fold in range(count):
        held_out = np.sort(order[fold::count])
        yield np.setdiff1d(known, held_out), held_out


def held_out_divergence(
    rows: Tensor, layout: BagLayout, proportions: Tensor, known: np.ndarray, candidates: Sequence[int], seed: int
) -> dict[int, float]:
    """Score numbers of leading directions by bags that the head was not fitted on.

    Args:
        rows: `[rows, width]`, the leading directions first.
        layout: which row lies in which bag.
        proportions: `[bags, classes]`.
        known: the numbers of the bags with known proportions, at least 2.
        candidates: numbers of directions, ascending.
        seed: which bags are held out together.

    Returns:
        The mean KL(known | predicted) of held-out bags, by candidate. The rows of all bags may have been smoothed
        together: that reads no proportions.
    """
    divergences: dict[int, list[Tensor]] = {count: [] for count in candidates}
    for fitted_on, held_out in folds(known, seed):
        test = BagsInOrder.of(rows, layout, proportions, held_out)
        training = BagsInOrder.of(rows, layout, proportions, fitted_on)
        for count in candidates:
            # each from nothing, as the chosen one will be: from a narrower head they end elsewhere, and worse
            head = fit_head(training.narrowed(count))
            divergences[count].append(test.narrowed(count).divergence(head))
    return {count: float(torch.cat(parts).mean()) for count, parts in divergences.items()}


def divergence_if_self_taught(
    seen: Tensor, rows: Tensor, layout: BagLayout, proportions: Tensor, known: np.ndarray, seed: int
) -> float:
    """Score heads that learn from labels, the first of which come from a head on what is `seen [rows, directions]`.

    The proportions of held-out bags are not shown to them. Returns the mean that `held_out_divergence` returns.
    """
    divergences: list[Tensor] = []
    for fitted_on, held_out in folds(known, seed):
        start = fit_head(BagsInOrder.of(seen, layout, proportions, fitted_on))
        shown = proportions.clone()
        shown[torch.from_numpy(held_out).to(shown.device)] = torch.nan
        head = self_taught_head(rows, layout, shown, probabilities(seen, start))
        divergences.append(BagsInOrder.of(rows, layout, proportions, held_out).divergence(head))
    return float(torch.cat(divergences).mean())


def probabilities(rows: Tensor, head: Tensor) -> Tensor:
    """Return what a head `[width + 1, classes]` says of `rows [rows, width]`."""
    return torch.addmm(head[-1].float(), rows, head[:-1].float()).softmax(dim=1)
