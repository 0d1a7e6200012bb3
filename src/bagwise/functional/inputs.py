"""The first lines of every loss: check what came in, and bring it into one form."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from bagwise.bags.layout import BagLayout, as_layout
from bagwise.bags.setting_checks import check_choice
from bagwise.bags.validation import check_instances, check_logits, check_proportions

REDUCTIONS = ("mean", "sum", "none")
DIVERGENCES = ("kl", "l1", "l2")


@dataclass(frozen=True, eq=False)
class Inputs:
    """Checked arguments of a loss.

    Attributes:
        logits: `[instances, classes]` in at least float32, still attached to the caller's graph.
        layout: which instance lies in which bag.
        proportions: `[bags, classes]` in the type of the logits; rows of unknown bags are zero.
        counted: `[bags]` true where the proportions are known and the bag is not empty.
    """

    logits: Tensor
    layout: BagLayout
    proportions: Tensor
    counted: Tensor

    @staticmethod
    def of(logits: Tensor, layout: BagLayout, proportions: Tensor) -> Inputs:
        """Bring checked arguments into this form, without a GPU sync."""
        if logits.dtype in (torch.float16, torch.bfloat16):
            logits = logits.float()
        known = ~proportions[:, 0].isnan()
        # where, not multiplication: 0 * NaN is NaN, and would reach the gradient of every other bag
        proportions = torch.where(known[:, None], proportions, 0).to(logits.dtype)
        return Inputs(logits, layout, proportions, known & (layout.sizes > 0))


def prepare(logits: Tensor, bag_index: Tensor | BagLayout, proportions: Tensor) -> Inputs:
    """Check the three arguments that all losses share and bring them into one form, without a GPU sync."""
    return Inputs.of(logits, check_arguments(logits, bag_index, proportions), proportions)


def check_arguments(logits: Tensor, bag_index: Tensor | BagLayout, proportions: Tensor) -> BagLayout:
    """Check the three arguments that all losses share, and return the layout of the bags."""
    check_logits(logits)
    check_proportions(proportions, num_classes=logits.shape[1], device=logits.device)
    layout = as_layout(bag_index, proportions.shape[0])
    check_instances(logits, layout.num_instances, layout.device)
    return layout


def reduce_bags(values: Tensor, counted: Tensor, reduction: str) -> Tensor:
    """Reduce `values [bags]` over the bags that are `counted [bags]`: "mean", "sum", or "none" (zeros elsewhere)."""
    check_choice("reduction", reduction, REDUCTIONS)
    values = torch.where(counted, values, 0)
    if reduction == "none":
        return values
    if reduction == "sum":
        return values.sum()
    return values.sum() / counted.sum().clamp(min=1)
