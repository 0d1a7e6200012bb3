"""Solves ROT's dual: a few Sinkhorn steps bring it near, damped Newton steps finish it."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from bagwise.functional.rot_problem import DualPoint, RotProblem, evaluate, relative_entropy, sinkhorn_step

_WARM_STEPS = 5
_SOFT_BETA = 5.0
_NEWTON_STEPS = 200  # a guard: 1 to 5 are usual at epsilon = 1, 10 to 50 at 0.01
_NEWTON_STEPS_UNCHECKED = 30  # on a GPU nobody looks whether all bags are done: looking would make it wait


@dataclass(frozen=True, eq=False)
class RotSolution:
    """Solution for a block of bags.

    Attributes:
        plan: `[b, n, K]` soft labels; zero on padding.
        phi: `[b]` the dual function at the solution.
        kl: `[b]` KL(m | q), the duality gap divided by 1-alpha.
        iterations: `[b]` steps taken, Sinkhorn and Newton together.
        converged: `[b]` true where the plan is certified, or exact to the rounding of its inputs.
    """

    plan: Tensor
    phi: Tensor
    kl: Tensor
    iterations: Tensor
    converged: Tensor


def solve(problem: RotProblem) -> RotSolution:
    """Minimise phi for every bag of the block.

    A bag is done when its plan is certified. The primal is strongly convex, so a plan whose gap is
    (1-alpha) KL(m|q) lies within sqrt(n beta KL(m|q) / 2) of the optimum in every entry; the bound asked for is
    1e-10 in float64. Potentials are not looked at: adding a constant to x is a slow mode that leaves U unchanged.
    """
    x, steps = _warm_start(problem)
    state = _Newton.start(problem, x, steps)
    x, iterations, converged = (_run_checked if x.device.type == "cpu" else _run_unchecked)(problem, state)
    point = evaluate(problem, x)
    return RotSolution(point.plan, point.phi, relative_entropy(point), iterations, converged)


def _warm_start(problem: RotProblem) -> tuple[Tensor, int]:
    """Sinkhorn steps; where proportions are nearly hard constraints (large beta), on softened problems first.

    Softening by r divides S and beta by r, as a larger epsilon would; the potential r x is continuous in r.
    """
    softening = max(1.0, problem.beta / _SOFT_BETA)
    soft = problem.softened(softening)
    log_partition = soft.scores.logsumexp(dim=2)
    for _ in range(_WARM_STEPS):
        x = sinkhorn_step(soft, log_partition)
        log_partition = (soft.scores + x[:, None, :]).logsumexp(dim=2)
    steps = _WARM_STEPS
    if softening == 1:
        return x, steps
    while softening > 1:
        x = _Newton.start(soft, x, steps).step(soft).point.x
        harder = max(1.0, softening / 2)
        x, soft, softening, steps = x * (softening / harder), problem.softened(harder), harder, steps + 1
    return sinkhorn_step(problem, (problem.scores + x[:, None, :]).logsumexp(dim=2)), steps + 1


def _run_checked(problem: RotProblem, state: _Newton) -> tuple[Tensor, Tensor, Tensor]:
    """Newton steps on the bags that still need them: the working set shrinks as bags finish."""
    x, iterations, converged = state.point.x.clone(), state.iterations.clone(), state.done.clone()
    bags = torch.arange(len(x))  # of the working set
    for _ in range(_NEWTON_STEPS):
        x[bags], iterations[bags], converged[bags] = state.point.x, state.iterations, state.done
        unfinished = (~state.done).nonzero()[:, 0]
        if len(unfinished) == 0:
            break
        if len(unfinished) < len(bags):
            bags, problem, state = bags[unfinished], problem.select(unfinished), state.select(unfinished)
        state = state.step(problem)
    return x, iterations, converged


def _run_unchecked(problem: RotProblem, state: _Newton) -> tuple[Tensor, Tensor, Tensor]:
    """A fixed number of Newton steps: nothing on the host depends on the data, so a GPU never waits."""
    for _ in range(_NEWTON_STEPS_UNCHECKED):
        state = state.step(problem)
    return state.point.x, state.iterations, state.done


@dataclass(frozen=True, eq=False)
class _Newton:
    """Damped Newton over a block: the point, the direction under trial and its step length, for each bag."""

    point: DualPoint
    kl: Tensor  # [b]
    direction: Tensor  # [b, K]
    slope: Tensor  # [b] directional derivative, negative
    length: Tensor  # [b]
    done: Tensor  # [b]
    iterations: Tensor  # [b]

    @staticmethod
    def start(problem: RotProblem, x: Tensor, steps: int) -> _Newton:
        iterations = torch.full((x.shape[0],), steps, device=x.device)
        return _aim(problem, evaluate(problem, x), torch.ones_like(problem.size), iterations)

    def step(self, problem: RotProblem) -> _Newton:
        """Try the step; a bag where phi does not fall enough keeps its point and halves the step."""
        trial = evaluate(problem, self.point.x + self.length[:, None] * self.direction)
        rounding = 1e3 * torch.finfo(trial.phi.dtype).eps * (1 + self.point.phi.abs())
        falls = trial.phi <= self.point.phi + 1e-4 * self.length * self.slope + rounding
        accept = falls & ~self.done
        # phi is convex along the direction: the two slopes say where its minimum lies
        slope = ((trial.mean_plan - trial.log_q.exp()) * self.direction).sum(dim=1)
        shrink = (self.slope / (self.slope - slope)).clamp(0.02, 0.5)
        point = _choose(accept, trial, self.point)
        aimed = _aim(problem, point, torch.ones_like(self.length), self.iterations + (~self.done).int())
        # a rejected bag keeps its direction (the same point gives the same one) at half the length
        return _Newton(
            point=aimed.point,
            kl=aimed.kl,
            direction=aimed.direction,
            slope=aimed.slope,
            length=torch.where(accept, 1.0, self.length * shrink),
            done=aimed.done | self.done,
            iterations=aimed.iterations,
        )

    def select(self, bags: Tensor) -> _Newton:
        point = DualPoint(*(getattr(self.point, name)[bags] for name in DualPoint.__dataclass_fields__))
        rest = (getattr(self, name)[bags] for name in _Newton.__dataclass_fields__ if name != "point")
        return _Newton(point, *rest)


def _aim(problem: RotProblem, point: DualPoint, length: Tensor, iterations: Tensor) -> _Newton:
    """Compute the Newton direction at `point` and whether the bag is done there.

    The Hessian diag(m) - U U^T/n + (diag q - q q^T)/beta is a graph Laplacian (its rows sum to zero): scaled by its
    diagonal it is well conditioned whatever the class frequencies, and the null vector, a constant shift of x, is
    filled in by a rank-one term.
    """
    m, q = point.mean_plan, point.log_q.exp()
    gradient = m - q
    hessian = -(point.plan.mT @ point.plan) / problem.size[:, None, None] - q[:, :, None] * q[:, None, :] / (
        problem.beta
    )
    # Far from the solution a class may have m << q; the true curvature m would then send it far too high.
    # The logarithmic mean of m and q turns its step into log(q/m), the one that Sinkhorn takes; near the
    # solution the two means agree and the step is Newton's.
    curvature = torch.maximum(m, _logarithmic_mean(m, q))
    hessian.diagonal(dim1=1, dim2=2).add_(curvature + q / problem.beta)
    # a class with no mass on either side (or outside the support) has a zero row; it must not move
    weight = hessian.diagonal(dim1=1, dim2=2).clone()
    live = weight > torch.finfo(weight.dtype).tiny ** 0.5
    scale = torch.where(live, torch.where(live, weight, 1).rsqrt(), 0)
    scaled = hessian * scale[:, :, None] * scale[:, None, :]
    null = torch.where(live, weight.sqrt(), 0)
    null = null / null.norm(dim=1, keepdim=True).clamp(min=torch.finfo(null.dtype).tiny)
    scaled = scaled + null[:, :, None] * null[:, None, :]
    scaled.diagonal(dim1=1, dim2=2).add_((~live).to(scaled.dtype) + 1e-14)
    factor, _ = torch.linalg.cholesky_ex(scaled)
    solved = torch.cholesky_solve((-gradient * scale)[:, :, None], factor)[:, :, 0]
    direction = torch.where(live, solved * scale, 0)
    # a factorisation that failed gives non-finite numbers: fall back on the diagonal of the Hessian
    broken = ~direction.isfinite().all(dim=1, keepdim=True)
    direction = torch.where(broken, -gradient * scale.square(), direction)

    kl = relative_entropy(point)
    precision = torch.finfo(kl.dtype).eps
    bound = (problem.size * problem.beta * kl / 2).sqrt()
    finite = torch.where(problem.scores > -torch.inf, problem.scores, 0)
    rounding = 4 * precision * (1 + finite.abs().amax(dim=(1, 2)))
    done = (bound <= 1e-2 * precision**0.5) | (gradient.abs().amax(dim=1) <= rounding)
    return _Newton(point, kl, direction, (gradient * direction).sum(dim=1), length, done, iterations)


def _logarithmic_mean(a: Tensor, b: Tensor) -> Tensor:
    """(b - a) / (log b - log a) where both are positive and apart, else a."""
    tiny = torch.finfo(a.dtype).tiny
    log_ratio = b.clamp(min=tiny).log() - a.clamp(min=tiny).log()
    apart = log_ratio.abs() > 1e-6
    return torch.where(apart, (b - a) / torch.where(apart, log_ratio, 1), a)


def _choose(accept: Tensor, new: DualPoint, old: DualPoint) -> DualPoint:
    parts = []
    for name in DualPoint.__dataclass_fields__:
        a, b = getattr(new, name), getattr(old, name)
        parts.append(torch.where(accept.view(-1, *[1] * (a.ndim - 1)), a, b))
    return DualPoint(*parts)
