"""Solves ROT's dual: a few Sinkhorn steps bring it near, damped Newton steps finish it."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from bagwise.functional.rot_problem import Anchor, DualPoint, RotProblem, evaluate
from bagwise.functional.rot_sinkhorn import sinkhorn_steps

_WARM_STEPS = 16
_CLASSES_PER_WARM_STEP = 10  # one more for so many classes: the cost of a Newton step grows faster
_SOFT_BETA = 5.0
_NEWTON_STEPS = 1000  # a guard: 0 to 3 are usual at epsilon = 1, 10 to 50 at 0.01; up to 450 with logits of 300
_NEWTON_STEPS_UNCHECKED = 30  # on a GPU nobody looks whether all bags are done: looking would make it wait


@dataclass(frozen=True, eq=False)
class RotSolution:
    """Solution for every bag.

    Attributes:
        plan: `[c, n, K]` soft labels.
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
    state = _warm_start(problem)
    if problem.on_cpu:
        state = _run_until_done(problem, state)
    else:
        for _ in range(_NEWTON_STEPS_UNCHECKED):
            state = state.step(problem)
    point = state.point
    return RotSolution(point.plan(problem.chunks), point.phi, state.kl, state.iterations, state.done)


def _warm_start(problem: RotProblem) -> _Newton:
    """Sinkhorn steps; where proportions are nearly hard constraints (large beta), on softened problems first.

    Softening by r divides S and beta by r, as a larger epsilon would; the potential r x is continuous in r.
    """
    softening = max(1.0, problem.beta / _SOFT_BETA)
    soft = problem.softened(softening)
    anchor = Anchor.at(soft, torch.zeros_like(problem.log_z))
    x, steps = sinkhorn_steps(soft, anchor, _WARM_STEPS + problem.log_z.shape[1] // _CLASSES_PER_WARM_STEP)
    state = _Newton.start(soft, x, anchor, steps)
    if softening == 1:
        return state
    while softening > 1:
        harder = max(1.0, softening / 2)
        x = state.step(soft).point.x * (softening / harder)
        soft, softening, steps = problem.softened(harder), harder, steps + 1
        state = _Newton.start(soft, x, Anchor.at(soft, x), steps)
    anchor = state.point.anchor
    x, _ = sinkhorn_steps(problem, anchor, 1)
    return _Newton.start(problem, x, anchor, steps + 1)


def _run_until_done(problem: RotProblem, state: _Newton) -> _Newton:
    """Newton steps, on fewer and fewer bags: those that are done leave once they are the majority."""
    whole, result = problem, state
    bags = torch.arange(len(state.done))  # the working set
    for _ in range(_NEWTON_STEPS):
        left = (~state.done).nonzero()[:, 0]
        if len(left) == 0:
            break
        if 2 * len(left) < len(bags):
            result = result.updated(bags, state)
            bags, problem, state = bags[left], *state.select(problem, left)
        state = state.step(problem)
    if len(bags) == len(result.done):
        return state
    result = result.updated(bags, state)
    return _look(whole, evaluate(whole, result.point.x, result.point.anchor), result.length, result.iterations)


@dataclass(frozen=True, eq=False)
class _Newton:
    """Damped Newton: the point, and how long a step to try from it, for each bag."""

    point: DualPoint
    kl: Tensor  # [bags]
    done: Tensor  # [bags]
    length: Tensor  # [bags]
    iterations: Tensor  # [bags]

    @staticmethod
    def start(problem: RotProblem, x: Tensor, anchor: Anchor, steps: int) -> _Newton:
        point = evaluate(problem, x, anchor)
        iterations = torch.full_like(point.phi, steps, dtype=torch.long)
        return _look(problem, point, torch.ones_like(point.phi), iterations)

    def step(self, problem: RotProblem) -> _Newton:
        """Try a step; a bag where phi does not fall enough keeps its point and shortens the step."""
        old = self.point
        direction = _newton_direction(problem, old)
        slope = (old.gradient * direction).sum(dim=1)
        trial = evaluate(problem, old.x + self.length[:, None] * direction, old.anchor)
        rounding = 1e3 * torch.finfo(trial.phi.dtype).eps * (1 + old.phi.abs())
        accept = (trial.phi <= old.phi + 1e-4 * self.length * slope + rounding) & ~self.done
        iterations = self.iterations + (~self.done).long()
        if problem.on_cpu and bool(accept.all()):
            return _look(problem, trial, torch.ones_like(self.length), iterations)
        # phi is convex along the direction: the two slopes say where its minimum lies
        shrink = (slope / (slope - (trial.gradient * direction).sum(dim=1))).clamp(0.02, 0.5)
        length = torch.where(accept, 1.0, self.length * shrink)
        # at a point that is kept the direction comes out the same again
        return _look(problem, trial.where(problem.chunks, accept, old), length, iterations)

    def select(self, problem: RotProblem, bags: Tensor) -> tuple[RotProblem, _Newton]:
        """Return the problem and the state of some of the bags."""
        part, x = problem.select(bags), self.point.x[bags]
        point = evaluate(part, x, Anchor.at(part, x))
        return part, _look(part, point, self.length[bags], self.iterations[bags])

    def updated(self, bags: Tensor, part: _Newton) -> _Newton:
        """Return this state with x and the counts of some bags taken from `part`; the rest is stale."""
        x = self.point.x.index_copy(0, bags, part.point.x)
        iterations = self.iterations.index_copy(0, bags, part.iterations)
        return replace(self, point=replace(self.point, x=x), iterations=iterations)


def _look(problem: RotProblem, point: DualPoint, length: Tensor, iterations: Tensor) -> _Newton:
    """Look which bags are done at `point`."""
    kl = point.relative_entropy()
    bound = (problem.size[:, 0] * problem.beta * kl / 2).sqrt()
    done = (bound <= problem.tolerance) | (point.gradient.abs().amax(dim=1) <= problem.rounding)
    return _Newton(point, kl, done, length, iterations)


def _newton_direction(problem: RotProblem, point: DualPoint) -> Tensor:
    """Compute the Newton direction `[bags, K]`.

    The Hessian diag(m) - U U^T/n + (diag q - q q^T)/beta is a graph Laplacian (its rows sum to zero): scaled by its
    diagonal it is well conditioned whatever the class frequencies, and the null vector, a constant shift of x, is
    filled in by a rank-one term.
    """
    m, q = point.mean_plan, point.q
    # Far from the solution a class may have m << q; the true curvature m would then send it far too high.
    # The logarithmic mean of m and q turns its step into log(q/m), the one that Sinkhorn takes; near the
    # solution the two means agree and the step is Newton's.
    curvature = torch.maximum(m, _logarithmic_mean(m, q)) + q / problem.beta
    hessian = -_overlap(problem, point)
    hessian.addcmul_(q[:, :, None], q[:, None, :], value=-1 / problem.beta)
    diagonal = hessian.diagonal(dim1=1, dim2=2).add_(curvature)
    # a class with no mass on either side (or outside the support) has a zero row; it must not move
    live = diagonal > torch.finfo(diagonal.dtype).tiny ** 0.5
    scale = torch.where(live, diagonal, torch.inf).rsqrt()
    null = torch.where(live, diagonal, 0).sqrt()
    null = null / null.norm(dim=1, keepdim=True).clamp(min=torch.finfo(null.dtype).tiny)
    scaled = hessian.mul_(scale[:, :, None]).mul_(scale[:, None, :]).addcmul_(null[:, :, None], null[:, None, :])
    scaled.diagonal(dim1=1, dim2=2).add_(torch.where(live, 1e-14, 1.0))
    factor, _ = torch.linalg.cholesky_ex(scaled)
    descent = -point.gradient * scale
    direction = torch.cholesky_solve(descent[:, :, None], factor)[:, :, 0] * scale
    # a factorisation that failed gives non-finite numbers: fall back on the diagonal of the Hessian
    return torch.where(direction.isfinite().all(dim=1, keepdim=True), direction, descent * scale)


def _overlap(problem: RotProblem, point: DualPoint) -> Tensor:
    """U U^T / n of every bag, `[bags, K, K]`."""
    columns = point.anchor.weights * point.b[:, :, None]  # [c, n, K]
    a = point.a / problem.size.sqrt()
    return problem.chunks.total(columns.mT @ columns).mul_(a[:, :, None]).mul_(a[:, None, :])


def _logarithmic_mean(a: Tensor, b: Tensor) -> Tensor:
    """(b - a) / (log b - log a) where both are positive and apart, else a."""
    tiny = torch.finfo(a.dtype).tiny
    log_ratio = b.clamp(min=tiny).log() - a.clamp(min=tiny).log()
    return torch.where(log_ratio.abs() > 1e-6, (b - a) / log_ratio, a)
