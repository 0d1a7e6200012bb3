"""How many directions the bags can teach: chosen by the proportions of held-out bags."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from bagwise.bags.layout import BagLayout
from bagwise.bags.seeds import derived_seed
from bagwise.probe.head import BagsInOrder, fit_head

_FOLDS = 3


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
    order = np.random.default_rng(derived_seed(seed, "probe folds")).permutation(known)
    divergences: dict[int, list[Tensor]] = {count: [] for count in candidates}
    for fold in range(min(_FOLDS, len(known))):
        held_out = np.sort(order[fold::_FOLDS])
        test = BagsInOrder.of(rows, layout, proportions, held_out)
        training = BagsInOrder.of(rows, layout, proportions, np.setdiff1d(known, held_out))
        head = None
        for count in candidates:
            head = fit_head(training.narrowed(count), start=head)
            divergences[count].append(test.narrowed(count).divergence(head))
    return {count: float(torch.cat(parts).mean()) for count, parts in divergences.items()}
