"""ROT, the relaxed optimal-transport loss of Dulac-Arnold et al. (2019), section 3.4 and Algorithm 1."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from bagwise.bags.layout import BagLayout
from bagwise.bags.setting_checks import check_alpha, check_choice, check_epsilon
from bagwise.functional.envelope import envelope_loss
from bagwise.functional.fused import fused_rot, has_rot_kernel
from bagwise.functional.inputs import REDUCTIONS, Inputs, check_arguments, reduce_bags
from bagwise.functional.predictions import softmax_and_log
from bagwise.functional.rot_problem import build_problem
from bagwise.functional.rot_solver import solve
from bagwise.functional.segments import expand, segment_logsumexp, segment_max, segment_sum

GRADIENTS = ("envelope", "unrolled")


def rot(
    logits: Tensor,
    bag_index: Tensor | BagLayout,
    proportions: Tensor,
    *,
    alpha: float = 0.5,
    epsilon: float = 1.0,
    gradient: str = "envelope",
    iterations: int = 75,
    reduction: str = "mean",
) -> Tensor:
    r"""Relaxed optimal-transport loss: the cost of the soft labels U that explain the bag best.

    .. math:: \min_U \frac\alpha n \bigl(\langle C,U\rangle - \epsilon H(U)\bigr) + (1-\alpha)\,KL(U1/n \mid z),
              \qquad C = -\log F

    over K x n matrices U whose columns lie on the simplex, with Shannon's entropy H and the generalised KL.

    The paper prints H(U) = -sum U (log U - 1), which is Shannon's plus n here: its loss is lower by the constant
    alpha * epsilon, its gradient is the same. Shannon's H makes the paper's Proposition 2 exact: a bag of one
    instance with a known label gives alpha times the cross-entropy.

    The gradient at the logits is alpha/n (F - U) by the envelope theorem, as if U were fixed labels. An instance
    that gives probability 0 to every class of its bag makes the loss +inf; its gradient stays finite.

    Args:
        logits: `[instances, classes]`, unnormalised scores.
        bag_index: `[instances]` integers in any order, or a `BagLayout`.
        proportions: `[bags, classes]`; a row of NaN is a bag with unknown proportions and gives no loss.
        alpha: weight of the predictions against the proportions, 0 < alpha < 1.
        epsilon: weight of the entropy, > 0; the smaller, the harder the labels. The paper uses 1.
        gradient: "envelope" solves the dual to high accuracy; "unrolled" backpropagates through `iterations` steps
            of the paper's Algorithm 1, for comparison.
        iterations: number of steps of "unrolled"; "envelope" stops on the duality gap.
        reduction: "mean" over the bags with known proportions, "sum", or "none" for `[bags]`.

    Example:
        >>> logits = torch.tensor([[2.0, 0.0], [0.0, 2.0]], requires_grad=True)
        >>> loss = rot(logits, torch.tensor([0, 0]), torch.tensor([[1.0, 0.0]]))
        >>> loss
        tensor(0.5635, grad_fn=<_EnvelopeBackward>)
    """
    check_alpha(alpha)
    check_epsilon(epsilon)
    check_choice("gradient", gradient, GRADIENTS)
    check_choice("reduction", reduction, REDUCTIONS)
    layout = check_arguments(logits, bag_index, proportions)
    if gradient == "envelope" and has_rot_kernel(logits, layout, alpha, epsilon):
        return fused_rot(logits, layout, proportions, alpha, epsilon, reduction)
    inputs = Inputs.of(logits, layout, proportions)
    if gradient == "unrolled":
        if iterations < 1:
            raise ValueError(f"iterations must be at least 1, but got {iterations}. The paper uses 75.")
        return reduce_bags(_unrolled(inputs, alpha, epsilon, iterations), inputs.counted, reduction)
    plan = solve_rot(inputs, alpha, epsilon)
    return envelope_loss(inputs, plan.values, plan.predictions.sub_(plan.labels), alpha, reduction)


@dataclass(frozen=True, eq=False)
class RotPlan:
    """Solution of ROT for ragged bags.

    Attributes:
        labels: `[instances, classes]` soft labels U, one row per instance.
        predictions: `[instances, classes]` F in the solver's precision.
        values: `[bags]` the loss, +inf where an instance rules out every class of its bag.
        gap: `[bags]` duality gap of the labels.
        iterations: `[bags]`.
        converged: `[bags]`.
    """

    labels: Tensor
    predictions: Tensor
    values: Tensor
    gap: Tensor
    iterations: Tensor
    converged: Tensor


@torch.no_grad()
def solve_rot(inputs: Inputs, alpha: float, epsilon: float) -> RotPlan:
    """Solve every bag. Bags that are not counted get some valid plan; empty bags get value 0."""
    layout, logits = inputs.layout, inputs.logits.detach()
    cut = layout.cut(logits.shape[1])
    # at small epsilon float32 would cost digits of the plan
    predictions, log_f = softmax_and_log(logits, torch.float32 if logits.device.type == "mps" else torch.float64)
    filled = torch.from_numpy(np.flatnonzero(layout.host_sizes)).to(log_f.device, non_blocking=True)
    size, z = layout.sizes[filled], inputs.proportions[filled].to(log_f.dtype)
    tolerance = 1e-10 if inputs.logits.dtype == torch.float64 else 1e-6
    problem = build_problem(cut.split(log_f), cut.chunks, size, z, alpha, epsilon, tolerance)
    solution = solve(problem)
    values = torch.where(problem.infeasible, torch.inf, -alpha * epsilon * solution.phi)
    zeros = values.new_zeros(layout.num_bags)  # what an empty bag gets
    return RotPlan(
        labels=cut.join(solution.plan),
        predictions=predictions,
        values=zeros.index_copy(0, filled, values),
        gap=zeros.index_copy(0, filled, (1 - alpha) * solution.kl),
        iterations=zeros.long().index_copy(0, filled, solution.iterations),
        converged=(zeros == 0).index_copy(0, filled, solution.converged),
    )


def _unrolled(inputs: Inputs, alpha: float, epsilon: float, iterations: int) -> Tensor:
    """Algorithm 1 of the paper in the log domain, safe on zeros, with autograd through every step."""
    layout, z = inputs.layout, inputs.proportions
    sizes = layout.sizes.clamp(min=1)[:, None].to(z.dtype)
    scores = inputs.logits.log_softmax(dim=1) / epsilon  # [instances, K]
    possible = segment_max((scores > -torch.inf).to(z.dtype), layout) > 0
    wanted = (z > 0) | (z.sum(dim=1, keepdim=True) == 0)  # unknown: any valid row will do
    support = wanted & possible
    support = torch.where(support.any(dim=1, keepdim=True), support, wanted)  # as in `build_problem`
    allowed = expand(support, layout)
    hopeless = (torch.where(allowed, scores, -torch.inf) == -torch.inf).all(dim=1, keepdim=True)
    # finite stand-ins where a score is not used: -inf would turn into NaN on the way back
    scores = torch.where(allowed & ~hopeless, scores, 0)
    outside = torch.where(allowed, 0.0, -torch.inf).to(scores.dtype)  # it would be torch's default

    tau = 1 / (1 + alpha * epsilon / (1 - alpha))
    log_z = torch.where(support & (z > 0), torch.where(z > 0, z, 1).log(), 0)
    x, minus_log_b = torch.zeros_like(log_z), torch.zeros_like(scores[:, :1])
    for _ in range(iterations):
        log_kb = segment_logsumexp(scores - minus_log_b, layout)
        x = torch.where(support, tau * (sizes.log() + log_z - log_kb), 0)
        minus_log_b = (scores + outside + expand(x, layout)).logsumexp(dim=1, keepdim=True)

    # the objective at U = diag(a) K diag(b); since log U = x + S - L, <C,U> - eps H(U) = eps <x - L, U>
    potentials = expand(x, layout) - minus_log_b
    plan = (potentials + scores + outside).exp()
    transport = epsilon * segment_sum(plan * potentials, layout).sum(dim=1) / sizes[:, 0]
    m = segment_sum(plan, layout) / sizes
    log_ratio = torch.where(m > 0, m, 1).log() - torch.where(m > 0, log_z, 0)
    values = alpha * transport + (1 - alpha) * (m * log_ratio).sum(dim=1)
    infeasible = segment_max(hopeless.to(z.dtype), layout)[:, 0] > 0
    return torch.where(infeasible, torch.inf, values)
