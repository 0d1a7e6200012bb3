"""Equal compute: a budget of network passes, and how many epochs it buys.

An instance that goes forward and backward through the network once is one pass; a forward alone is a third of one,
since the backward pass computes two gradients, of the activations and of the weights, where the forward computes one
product. Budgets are counted per training instance, so that an epoch of an ordinary training costs 1.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

FORWARD = 1 / 3


@dataclass(frozen=True)
class Spending:
    """Epochs of a search with several candidates, and of the final run.

    Attributes:
        passes_per_epoch: what an epoch costs.
        candidates: how many settings are tried.
        search_epochs: epochs of each.
        epochs: of the final run.
    """

    passes_per_epoch: float
    candidates: int
    search_epochs: int
    epochs: int

    @property
    def passes(self) -> float:
        """All that is spent, as if the candidates were trained on all bags."""
        return self.passes_per_epoch * (self.candidates * self.search_epochs + self.epochs)


def split_budget(budget: float, passes_per_epoch: float, candidates: int, search_share: float) -> Spending:
    """Divide a budget between the search and the final run.

    At most `search_share` of it goes into the search, but an epoch for each candidate; a single one needs no search.
    What is left over is less than an epoch.

    Example:
        >>> split_budget(60, passes_per_epoch=1, candidates=3, search_share=0.3)
        Spending(passes_per_epoch=1, candidates=3, search_epochs=6, epochs=42)
        >>> split_budget(60, passes_per_epoch=2, candidates=3, search_share=0.3)
        Spending(passes_per_epoch=2, candidates=3, search_epochs=3, epochs=21)
    """
    search_epochs = 0
    if candidates > 1:
        search_epochs = max(1, _whole(search_share * budget / (passes_per_epoch * candidates)))
    epochs = _whole(budget / passes_per_epoch) - candidates * search_epochs
    if epochs < 1:
        raise ValueError(
            f"a budget of {budget:g} passes must buy at least one epoch after the search, but {candidates} candidates "
            f"at {passes_per_epoch:g} passes an epoch leave none. Raise the budget, or try fewer settings."
        )
    return Spending(passes_per_epoch, candidates, search_epochs, epochs)


def _whole(epochs: float) -> int:
    return math.floor(epochs + 1e-9)  # 20 / (4 / 3) is 15 epochs, whatever the rounding
