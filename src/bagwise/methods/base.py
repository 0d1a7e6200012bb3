"""What a method is."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor

from bagwise.bags.layout import BagLayout


class Method(Protocol):
    """A way to learn from bags: a frozen dataclass of hyper-parameters with one function.

    Every method here needs nothing of the network but its logits, which is what lets the training loop cut
    bags larger than memory into chunks. A method that needs the network itself (several views, a teacher)
    would be a second protocol beside this one.
    """

    def loss(self, logits: Tensor, layout: BagLayout, proportions: Tensor, *, reduction: str = "mean") -> Tensor:
        """Return the loss of a batch of bags.

        Args:
            logits: `[instances, classes]`.
            layout: which instance lies in which bag.
            proportions: `[bags, classes]`; a row of NaN is a bag with unknown proportions and gives no loss.
            reduction: "mean" over the bags with known proportions, "sum", or "none" for `[bags]`.
        """
        ...
