"""The inner problem of ROT for a block of bags, and its dual function.

    min over U (columns on the simplex) of  alpha/n ( <C,U> - eps H(U) ) + (1-alpha) KL(U1/n | z)

With beta = (1-alpha)/(alpha eps) and S = log F / eps, every column of the solution is a softmax with one shift
x in R^K that the whole bag shares, U_j = softmax(x + S_j), and x minimises the smooth convex

    phi(x) = 1/n sum_j LSE_k(x_k + S_kj) + beta LSE_k(log z_k - x_k / beta).

Its gradient is m - q with m = U1/n and q = softmax(log z - x/beta), and at any x the duality gap of U is
(1-alpha) KL(m | q), which needs no subtraction of large numbers.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

import torch
from torch import Tensor

from bagwise.bags.layout import Block


@dataclass(frozen=True, eq=False)
class RotProblem:
    """A block of bags, b of them padded to n instances with K classes.

    Attributes:
        scores: `[b, n, K]` S, with -inf for classes outside `support`.
        inside: `[b, n]` true on instances, false on padding.
        size: `[b]` number of instances, in the floating-point type of the scores.
        log_z: `[b, K]` log proportions; -inf outside `support`.
        support: `[b, K]` classes that can get mass: z_k > 0 and f_k > 0 for some instance.
        infeasible: `[b]` true where some instance gives probability 0 to every class of its bag.
        beta: (1-alpha)/(alpha eps).
    """

    scores: Tensor
    inside: Tensor
    size: Tensor
    log_z: Tensor
    support: Tensor
    infeasible: Tensor
    beta: float

    def select(self, bags: Tensor) -> RotProblem:
        """Return the problem restricted to some of the bags of the block."""
        tensors = {f.name: getattr(self, f.name)[bags] for f in fields(self) if f.name != "beta"}
        return replace(self, **tensors)

    def softened(self, factor: float) -> RotProblem:
        """Return the problem with an entropy term `factor` times as strong."""
        return self if factor == 1 else replace(self, scores=self.scores / factor, beta=self.beta / factor)


@dataclass(frozen=True, eq=False)
class DualPoint:
    """The dual function and what comes with it at one x.

    Attributes:
        x: `[b, K]`.
        plan: `[b, n, K]` U = softmax(x + S); zero on padding.
        log_partition: `[b, n]` LSE_k(x_k + S_kj).
        mean_plan: `[b, K]` m = U1/n.
        log_q: `[b, K]`.
        phi: `[b]`.
    """

    x: Tensor
    plan: Tensor
    log_partition: Tensor
    mean_plan: Tensor
    log_q: Tensor
    phi: Tensor


def build_problem(log_f: Tensor, block: Block, proportions: Tensor, alpha: float, epsilon: float) -> RotProblem:
    """Collect the bags of a block from `log_f [instances, K]` and `proportions [bags, K]` (rows may be all zero)."""
    scores = log_f[block.rows] / epsilon  # [b, n, K]
    b, n, _ = scores.shape
    inside = block.mask if block.mask is not None else scores.new_ones(b, n, dtype=torch.bool)
    z = proportions[block.bags].to(scores.dtype)
    z = torch.where(z.sum(dim=1, keepdim=True) > 0, z, 1 / z.shape[1])  # unknown: any valid row will do

    # A class that no instance can take leaves the dual at x_k = +inf; leaving it out is its exact limit.
    support = (z > 0) & (scores > -torch.inf).any(dim=1)
    scores = torch.where(support[:, None, :], scores, -torch.inf)
    # An instance that rules out every class of its bag costs +inf whatever the plan: treat it as undecided.
    hopeless = scores.amax(dim=2) == -torch.inf
    undecided = torch.where((support | ~support.any(dim=1, keepdim=True))[:, None, :], 0.0, -torch.inf)
    scores = torch.where(hopeless[:, :, None], undecided, scores)
    support = support | ~support.any(dim=1, keepdim=True)
    return RotProblem(
        scores=scores,
        inside=inside,
        size=inside.sum(dim=1).to(scores.dtype),
        log_z=torch.where(support, torch.where(support, z, 1).log(), -torch.inf),
        support=support,
        infeasible=(hopeless & inside).any(dim=1),
        beta=(1 - alpha) / (alpha * epsilon),
    )


def evaluate(problem: RotProblem, x: Tensor) -> DualPoint:
    """Compute the plan, the gradient's two halves and phi at `x [b, K]` (0 outside the support)."""
    shifted = problem.scores + x[:, None, :]
    log_partition = shifted.logsumexp(dim=2)  # [b, n]
    plan = (shifted - log_partition[:, :, None]).exp() * problem.inside[:, :, None]
    log_q = problem.log_z - x / problem.beta
    log_norm = log_q.logsumexp(dim=1)
    mean_log_partition = (log_partition * problem.inside).sum(dim=1) / problem.size
    return DualPoint(
        x=x,
        plan=plan,
        log_partition=log_partition,
        mean_plan=plan.sum(dim=1) / problem.size[:, None],
        log_q=log_q - log_norm[:, None],
        phi=mean_log_partition + problem.beta * log_norm,
    )


def sinkhorn_step(problem: RotProblem, log_partition: Tensor) -> Tensor:
    """One step of the paper's Algorithm 1, a <- (n z / K b)^tau, as x = log a; b enters as -log b = `log_partition`."""
    tau = problem.beta / (1 + problem.beta)
    # a class outside the support would be a column of -inf, whose logsumexp has a NaN gradient
    potentials = torch.where(problem.support[:, None, :], problem.scores - log_partition[:, :, None], 0)
    log_kb = torch.where(problem.inside[:, :, None], potentials, -torch.inf).logsumexp(dim=1)  # [b, K]
    log_nz = torch.where(problem.support, problem.log_z, 0) + problem.size.log()[:, None]
    return torch.where(problem.support, tau * (log_nz - log_kb), 0)


def relative_entropy(point: DualPoint) -> Tensor:
    """KL(m | q) `[b]`, to full relative precision also when m and q are nearly equal."""
    q = point.log_q.exp()
    ratio = torch.where(q > 0, (point.mean_plan - q) / torch.where(q > 0, q, 1), 0)
    # q ((1+r) log(1+r) - r) summed: each term is >= 0; for small r the closed form cancels, so use its series
    series = ratio.square() * (0.5 - ratio / 6 + ratio.square() / 12)
    closed = torch.xlogy(1 + ratio, 1 + ratio) - ratio
    return (q * torch.where(ratio.abs() < 1e-3, series, closed)).sum(dim=1)
