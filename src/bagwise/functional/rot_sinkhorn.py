"""Sinkhorn steps, the paper's Algorithm 1, for all bags at once: how the solver of ROT comes near the solution."""

from __future__ import annotations

import torch
from torch import Tensor

from bagwise.functional.rot_problem import Anchor, RotProblem


def sinkhorn_steps(problem: RotProblem, anchor: Anchor, most: int) -> tuple[Tensor, int]:
    """Take steps of the paper's Algorithm 1, a <- (n z / K b)^tau, from x = log a at the anchor.

    Stops after `most` steps or, on a CPU, when the bags seem to be done. Returns x `[bags, K]` and the number of steps.
    """
    tau, log_nz = problem.beta / (1 + problem.beta), problem.log_z + problem.size.log()
    if problem.on_cpu:
        x, steps = anchor.x, 0
        for steps in range(1, most + 1):
            _, _, mass = anchor.sums(problem.chunks, (x - anchor.x).exp())
            old, x = x, torch.where(problem.support, tau * (log_nz + anchor.x - mass.log()), 0)
            if steps % 2 == 0 and 2 * steps > most and _seem_done(problem, x - old):
                break
        if bool(x.isfinite().all()):
            return x, steps
    x = anchor.x  # a number was too large or too small, or nobody can look: in the log domain
    for _ in range(most):
        x = torch.where(problem.support, tau * (log_nz - _log_kb(problem, x)), 0)
    return x, most


def _seem_done(problem: RotProblem, moved: Tensor) -> bool:
    """Whether a Sinkhorn step that moved x by `moved [bags, K]` came near enough to the solution.

    The step was -tau log(m/q) plus a constant, and it leaves at most about tau of log(m/q). KL(m|q) is about half the
    variance of that, which is at most a quarter of its squared range.
    """
    span = (moved + problem.outside).amax(dim=1) - (moved - problem.outside).amin(dim=1)
    bound = (problem.size[:, 0] * problem.beta).sqrt() * span / 4
    return bool((bound <= problem.tolerance).all())


def _log_kb(problem: RotProblem, x: Tensor) -> Tensor:
    """log K b `[bags, K]` with K = exp(S), b = 1 / K^T a and a = exp(x), never leaving the log domain."""
    chunks = problem.chunks
    log_b = -problem.shifted(x).logsumexp(dim=2, keepdim=True)
    if chunks.inside is not None:
        log_b += chunks.inside.log()[:, :, None]
    log_kb = (problem.scores + log_b).logsumexp(dim=1)  # [c, K]
    top = chunks.largest(log_kb).clamp(min=torch.finfo(x.dtype).min)  # -inf where no instance can take the class
    return chunks.total((log_kb - chunks.spread(top)).exp()).log() + top
