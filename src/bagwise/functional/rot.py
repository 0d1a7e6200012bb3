"""ROT, the relaxed optimal-transport loss of Dulac-Arnold et al. (2019), section 3.4 and Algorithm 1."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from bagwise.bags.layout import BagLayout
from bagwise.bags.validation import check_alpha, check_choice, check_epsilon
from bagwise.functional.envelope import envelope_loss
from bagwise.functional.inputs import Inputs, prepare, reduce_bags
from bagwise.functional.rot_problem import RotProblem, build_problem, sinkhorn_step
from bagwise.functional.rot_solver import solve
from bagwise.functional.segments import expand


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
        tensor(0.5635, grad_fn=<DivBackward0>)
    """
    check_alpha(alpha)
    check_epsilon(epsilon)
    check_choice("gradient", gradient, ("envelope", "unrolled"))
    inputs = prepare(logits, bag_index, proportions)
    if gradient == "unrolled":
        if iterations < 1:
            raise ValueError(f"iterations must be at least 1, but got {iterations}. The paper uses 75.")
        values = _unrolled(inputs, alpha, epsilon, iterations)
    else:
        plan = solve_rot(inputs, alpha, epsilon)
        sizes = expand(inputs.layout.sizes[:, None], inputs.layout).to(plan.labels.dtype)
        grad_logits = (alpha / sizes) * (_precise(inputs.logits).softmax(dim=1) - plan.labels)
        values = envelope_loss(inputs.logits, inputs.layout, plan.values, grad_logits)
    return reduce_bags(values, inputs.counted, reduction)


@dataclass(frozen=True, eq=False)
class RotPlan:
    """Solution of ROT for ragged bags.

    Attributes:
        labels: `[instances, classes]` soft labels U, one row per instance.
        values: `[bags]` the loss, +inf where an instance rules out every class of its bag.
        gap: `[bags]` duality gap of the labels.
        iterations: `[bags]`.
        converged: `[bags]`.
    """

    labels: Tensor
    values: Tensor
    gap: Tensor
    iterations: Tensor
    converged: Tensor


@torch.no_grad()
def solve_rot(inputs: Inputs, alpha: float, epsilon: float) -> RotPlan:
    """Solve every bag. Bags that are not counted get some valid plan; empty bags get value 0."""
    log_f = _precise(inputs.logits).log_softmax(dim=1)
    num_bags, layout = inputs.layout.num_bags, inputs.layout
    values, gap = log_f.new_zeros(num_bags), log_f.new_zeros(num_bags)
    iterations = torch.zeros(num_bags, dtype=torch.long, device=log_f.device)
    converged = torch.ones(num_bags, dtype=torch.bool, device=log_f.device)
    labels = [log_f.new_zeros(0, log_f.shape[1])]
    for block in layout.blocks:
        problem = build_problem(log_f, block, inputs.proportions, alpha, epsilon)
        solution = solve(problem)
        value = torch.where(problem.infeasible, torch.inf, -alpha * epsilon * solution.phi)
        values = values.index_copy(0, block.bags, value)
        gap = gap.index_copy(0, block.bags, (1 - alpha) * solution.kl)
        iterations = iterations.index_copy(0, block.bags, solution.iterations)
        converged = converged.index_copy(0, block.bags, solution.converged)
        labels.append(solution.plan.flatten(0, 1))
    return RotPlan(torch.cat(labels)[layout.block_slot], values, gap, iterations, converged)


def _unrolled(inputs: Inputs, alpha: float, epsilon: float, iterations: int) -> Tensor:
    """Algorithm 1 of the paper in the log domain, safe on zeros, with autograd through every step."""
    log_f = inputs.logits.log_softmax(dim=1)
    values = log_f.new_zeros(inputs.layout.num_bags)
    for block in inputs.layout.blocks:
        problem = build_problem(log_f, block, inputs.proportions, alpha, epsilon)
        x, minus_log_b = torch.zeros_like(problem.log_z), torch.zeros_like(problem.scores[:, :, 0])
        for _ in range(iterations):
            x = sinkhorn_step(problem, minus_log_b)
            minus_log_b = (problem.scores + x[:, None, :]).logsumexp(dim=2)
        value = _primal(problem, x, minus_log_b, alpha, epsilon)
        values = values.index_copy(0, block.bags, torch.where(problem.infeasible, torch.inf, value))
    return values


def _primal(problem: RotProblem, x: Tensor, minus_log_b: Tensor, alpha: float, epsilon: float) -> Tensor:
    """The objective at U = diag(a) K diag(b); since log U = x + S - L, <C,U> - eps H(U) = eps <x - L, U>."""
    potentials = x[:, None, :] - minus_log_b[:, :, None]
    plan = (potentials + problem.scores).exp() * problem.inside[:, :, None]
    transport = epsilon * (plan * potentials).sum(dim=(1, 2)) / problem.size
    m = plan.sum(dim=1) / problem.size[:, None]
    log_ratio = torch.where(m > 0, torch.where(m > 0, m, 1).log() - torch.where(m > 0, problem.log_z, 0), 0)
    return alpha * transport + (1 - alpha) * (m * log_ratio).sum(dim=1)


def _precise(logits: Tensor) -> Tensor:
    """Detach, and take float64 where the device has it: at small epsilon float32 would cost digits of the plan."""
    return logits.detach() if logits.device.type == "mps" else logits.detach().double()
