"""Solves ROT's dual: a few Sinkhorn steps bring it near, damped Newton steps finish it."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

import torch
from torch import Tensor

from bagwise.bags.layout import BagLayout
from bagwise.functional.rot_problem import (
    DualPoint,
    RotProblem,
    evaluate,
    multiply_within,
    outer_products,
    relative_entropy,
    sinkhorn_step,
    spread,
    sum_within,
)

_WARM_STEPS = 5
_SOFT_BETA = 5.0
_NEWTON_STEPS = 200  # a guard: 1 to 5 are usual at epsilon = 1, 10 to 50 at 0.01
_NEWTON_STEPS_UNCHECKED = 30  # on a GPU nobody looks whether all bags are done: looking would make it wait


@dataclass(frozen=True, eq=False)
class RotSolution:
    """Solution for every bag.

    Attributes:
        plan: `[K, instances]` soft labels, in bag order.
        phi: `[bags]` the dual function at the solution.
        kl: `[bags]` KL(m | q), the duality gap divided by 1-alpha.
        iterations: `[bags]` steps taken, Sinkhorn and Newton together.
        converged: `[bags]` true where the plan is certified, or exact to the rounding of its inputs.
    """

    plan: Tensor
    phi: Tensor
    kl: Tensor
    iterations: Tensor
    converged: Tensor


def solve(problem: RotProblem) -> RotSolution:
    """Minimise phi for every bag.

    A bag is done when its plan is certified. The primal is strongly convex, so a plan whose gap is
    (1-alpha) KL(m|q) lies within sqrt(n beta KL(m|q) / 2) of the optimum in every entry; `problem.tolerance`
    is asked of that bound. Potentials are not looked at: adding a constant to x is a slow mode that leaves U unchanged.
    """
    point, steps = _warm_start(problem)
    state = _Newton.start(problem, point, steps)
    if point.x.device.type != "cpu":
        for _ in range(_NEWTON_STEPS_UNCHECKED):
            state = state.step(problem)
    elif not bool(state.done.all()):
        state = _run_until_done(problem, state)
    return RotSolution(state.point.plan, state.point.phi, state.kl, state.iterations, state.done)


def _warm_start(problem: RotProblem) -> tuple[DualPoint, int]:
    """Sinkhorn steps; where proportions are nearly hard constraints (large beta), on softened problems first.

    Softening by r divides S and beta by r, as a larger epsilon would; the potential r x is continuous in r.
    """
    softening = max(1.0, problem.beta / _SOFT_BETA)
    soft = problem.softened(softening)
    point = evaluate(soft, torch.zeros_like(problem.log_z))
    for _ in range(_WARM_STEPS):
        point = evaluate(soft, sinkhorn_step(soft, point))
    if softening == 1:
        return point, _WARM_STEPS
    steps = _WARM_STEPS
    while softening > 1:
        x = _Newton.start(soft, point, steps).step(soft).point.x
        harder = max(1.0, softening / 2)
        soft = problem.softened(harder)
        point = evaluate(soft, x * (softening / harder))
        softening, steps = harder, steps + 1
    return evaluate(problem, sinkhorn_step(problem, point)), steps + 1


def _run_until_done(problem: RotProblem, state: _Newton) -> _Newton:
    """Newton steps, on fewer and fewer bags: those that are done leave once they are the majority."""
    whole, result = problem, state
    bags = torch.arange(problem.layout.num_bags)  # the working set
    for _ in range(_NEWTON_STEPS):
        state = state.step(problem)
        num_done, num_bags = int(state.done.sum()), len(bags)
        if num_done == num_bags:
            break
        if 2 * num_done > num_bags:
            result = result.updated(bags, state)
            left = (~state.done).nonzero()[:, 0]
            state = state.select(problem.layout, left)
            bags, problem = bags[left], problem.select(left)
    if len(bags) == whole.layout.num_bags:
        return state
    result = result.updated(bags, state)
    point = evaluate(whole, result.point.x)
    return replace(result, point=point, kl=relative_entropy(point))


@dataclass(frozen=True, eq=False)
class _Newton:
    """Damped Newton: the point, the direction under trial and its step length, for each bag."""

    point: DualPoint
    kl: Tensor  # [bags]
    direction: Tensor  # [K, bags]
    slope: Tensor  # [bags] directional derivative, negative
    length: Tensor  # [bags]
    done: Tensor  # [bags]
    iterations: Tensor  # [bags]

    @staticmethod
    def start(problem: RotProblem, point: DualPoint, steps: int) -> _Newton:
        iterations = torch.full((problem.layout.num_bags,), steps, device=point.x.device)
        return _aim(problem, point, torch.ones_like(point.phi), iterations)

    def step(self, problem: RotProblem) -> _Newton:
        """Try the step; a bag where phi does not fall enough keeps its point and shortens the step."""
        trial = evaluate(problem, self.point.x + self.length * self.direction)
        rounding = 1e3 * torch.finfo(trial.phi.dtype).eps * (1 + self.point.phi.abs())
        accept = (trial.phi <= self.point.phi + 1e-4 * self.length * self.slope + rounding) & ~self.done
        iterations = self.iterations + (~self.done).long()
        if trial.phi.device.type == "cpu" and bool(accept.all()):
            return _aim(problem, trial, torch.ones_like(self.length), iterations)
        # phi is convex along the direction: the two slopes say where its minimum lies
        slope = ((trial.mean_plan - trial.log_q.exp()) * self.direction).sum(dim=0)
        shrink = (self.slope / (self.slope - slope)).clamp(0.02, 0.5)
        length = torch.where(accept, 1.0, self.length * shrink)
        # at a point that is kept the direction comes out the same again
        return _aim(problem, _choose(problem, accept, trial, self.point), length, iterations)

    def select(self, layout: BagLayout, bags: Tensor) -> _Newton:
        """Return the state of some of the bags."""
        rest = {field.name: getattr(self, field.name)[..., bags] for field in fields(self) if field.name != "point"}
        return _Newton(point=self.point.select(layout, bags), **rest)

    def updated(self, bags: Tensor, part: _Newton) -> _Newton:
        """Return this state with x, the counts and the verdicts of some bags taken from `part`; the rest is stale."""
        return replace(
            self,
            point=replace(self.point, x=self.point.x.index_copy(1, bags, part.point.x)),
            done=self.done.index_copy(0, bags, part.done),
            iterations=self.iterations.index_copy(0, bags, part.iterations),
        )


def _aim(problem: RotProblem, point: DualPoint, length: Tensor, iterations: Tensor) -> _Newton:
    """Compute the Newton direction at `point` and whether the bag is done there.

    The Hessian diag(m) - U U^T/n + (diag q - q q^T)/beta is a graph Laplacian (its rows sum to zero): scaled by its
    diagonal it is well conditioned whatever the class frequencies, and the null vector, a constant shift of x, is
    filled in by a rank-one term.
    """
    m, q = point.mean_plan, point.log_q.exp()
    gradient = m - q
    kl = relative_entropy(point)
    bound = (problem.size * problem.beta * kl / 2).sqrt()
    done = (bound <= problem.tolerance) | (gradient.abs().amax(dim=0) <= problem.rounding)
    if done.device.type == "cpu" and bool(done.all()):
        return _Newton(point, kl, gradient, kl, length, done, iterations)  # no further step is taken

    # Far from the solution a class may have m << q; the true curvature m would then send it far too high.
    # The logarithmic mean of m and q turns its step into log(q/m), the one that Sinkhorn takes; near the
    # solution the two means agree and the step is Newton's.
    curvature = torch.maximum(m, _logarithmic_mean(m, q)) + q / problem.beta  # [K, bags]
    squares = sum_within(problem.layout, point.plan * point.plan) / problem.size
    weight = curvature - squares - q * q / problem.beta  # the Hessian's diagonal
    # a class with no mass on either side (or outside the support) has a zero row; it must not move
    live = weight > torch.finfo(weight.dtype).tiny ** 0.5
    scale = torch.where(live, weight, torch.inf).rsqrt()
    null = torch.where(live, weight, 0).sqrt()
    null = (null / null.norm(dim=0).clamp(min=torch.finfo(null.dtype).tiny)).T  # [bags, K]
    spread_q = (q * scale).T * problem.beta**-0.5
    scaled = null[:, :, None] * null[:, None, :]
    scaled -= spread_q[:, :, None] * spread_q[:, None, :]
    scaled -= outer_products(problem.layout, multiply_within(problem.layout, point.plan, scale * problem.size.rsqrt()))
    scaled.diagonal(dim1=1, dim2=2).add_(torch.where(live, curvature * scale * scale, 1).T + 1e-14)
    factor, _ = torch.linalg.cholesky_ex(scaled)
    descent = -gradient * scale
    direction = torch.cholesky_solve(descent.T[:, :, None], factor)[:, :, 0].T * scale
    # a factorisation that failed gives non-finite numbers: fall back on the diagonal of the Hessian
    direction = torch.where(direction.isfinite().all(dim=0), direction, descent * scale)
    return _Newton(point, kl, direction, (gradient * direction).sum(dim=0), length, done, iterations)


def _logarithmic_mean(a: Tensor, b: Tensor) -> Tensor:
    """(b - a) / (log b - log a) where both are positive and apart, else a."""
    tiny = torch.finfo(a.dtype).tiny
    log_ratio = b.clamp(min=tiny).log() - a.clamp(min=tiny).log()
    return torch.where(log_ratio.abs() > 1e-6, (b - a) / log_ratio, a)


def _choose(problem: RotProblem, accept: Tensor, new: DualPoint, old: DualPoint) -> DualPoint:
    by_instance = spread(problem.layout, accept[None])
    parts = []
    for field in fields(DualPoint):
        a, b = getattr(new, field.name), getattr(old, field.name)
        parts.append(torch.where(by_instance if field.name in ("plan", "log_partition") else accept, a, b))
    return DualPoint(*parts)
