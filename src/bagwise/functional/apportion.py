"""The labels themselves: how each bag's proportions are shared out among its instances."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from bagwise.bags.layout import BagLayout
from bagwise.bags.setting_checks import check_alpha, check_choice, check_epsilon
from bagwise.functional.combinatorial import solve_combinatorial
from bagwise.functional.inputs import prepare
from bagwise.functional.rot import solve_rot
from bagwise.functional.segments import expand
from bagwise.functional.transport import solve_transport

HOW = ("rot", "lp", "combinatorial")


@dataclass(frozen=True, eq=False)
class Plan:
    """Labels for the instances of every bag, and how good they are.

    Attributes:
        labels: `[instances, classes]` one distribution per instance; one-hot where the plan is a hard labeling.
        gap: `[bags]` how far the plan's cost may lie above the optimum; 0 where it is proved optimal.
        iterations: `[bags]` steps that the solver took.
        converged: `[bags]` true where the plan is optimal to the solver's accuracy.
    """

    labels: Tensor
    gap: Tensor
    iterations: Tensor
    converged: Tensor


@torch.no_grad()
def apportion(
    logits: Tensor,
    bag_index: Tensor | BagLayout,
    proportions: Tensor,
    *,
    how: str = "rot",
    alpha: float = 0.5,
    epsilon: float = 1.0,
    divergence: str = "kl",
    marginals: str = "fractional",
) -> Plan:
    """Label the instances of each bag as its proportions and the predictions together suggest.

    Instances of a bag with unknown proportions keep their predictions.

    Args:
        logits: `[instances, classes]`, unnormalised scores.
        bag_index: `[instances]` integers in any order, or a `BagLayout`.
        proportions: `[bags, classes]`; a row of NaN is a bag with unknown proportions.
        how: "rot" (soft labels, see `rot`), "lp" (proportions met exactly, see `transport_lp`) or "combinatorial"
            (hard labels, proportions met as closely as `alpha` says, see `combinatorial`).
        alpha: weight of the predictions against the proportions ("rot", "combinatorial").
        epsilon: softness of the labels ("rot").
        divergence: distance of the proportions ("combinatorial").
        marginals: what "lp" does when size times proportions is not a whole number: "fractional" or "rounded".

    Example:
        >>> logits = torch.tensor([[2.0, 0.0], [1.0, 0.0], [0.0, 0.5]])
        >>> plan = apportion(logits, torch.tensor([0, 0, 0]), torch.tensor([[1 / 3, 2 / 3]]), how="lp")
        >>> plan.labels.argmax(dim=1)
        tensor([0, 1, 1])
    """
    check_choice("how", how, HOW)
    inputs = prepare(logits, bag_index, proportions)
    if how == "rot":
        check_alpha(alpha)
        check_epsilon(epsilon)
        solution = solve_rot(inputs, alpha, epsilon)
        labels, gap, converged = solution.labels, solution.gap, solution.converged
    else:
        if how == "lp":
            solution = solve_transport(inputs, marginals)
        else:
            check_alpha(alpha)
            solution = solve_combinatorial(inputs, alpha, divergence)
        labels, converged = solution.labels, solution.optimal
        gap = torch.where(converged, 0.0, torch.inf)
    counted = expand(inputs.counted[:, None], inputs.layout)
    labels = torch.where(counted, labels.to(inputs.logits.dtype), inputs.logits.softmax(dim=1))
    return Plan(labels, gap, solution.iterations, converged)
