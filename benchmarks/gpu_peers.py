"""The problems that benchmarks/gpu.py times, and what else one could use to solve them."""

from __future__ import annotations

import os

import numpy as np
import torch
from torch import Tensor

from bagwise.bags import BagLayout
from bagwise.functional.inputs import prepare
from bagwise.functional.rot import solve_rot

ALPHA, EPSILON, STEPS = 0.5, 1.0, 75


# weights of the bags' sizes; the last is heavy-tailed: of 512 bags, the largest holds a sixth of all instances
LAWS = {
    "uniform": lambda rng, bags: rng.uniform(0, 2, size=bags),
    "lognormal": lambda rng, bags: rng.lognormal(0, 0.5, size=bags),
    "pareto": lambda rng, bags: rng.pareto(1.5, size=bags) + 0.1,
}


class Problem:
    """Random logits and proportions; ragged sizes follow one of the `LAWS` with the same number of instances."""

    def __init__(self, bags: int, size: int, classes: int, law: str | None = None, seed: int = 0) -> None:
        rng = np.random.default_rng(seed)
        self.shape, self.law = (bags, size, classes), law
        sizes = np.full(bags, size)
        if law is not None:
            weights = LAWS[law](rng, bags)
            sizes = 1 + rng.multinomial(bags * (size - 1), weights / weights.sum())
        generator = torch.Generator().manual_seed(seed)
        self.logits = (2 * torch.randn(int(sizes.sum()), classes, generator=generator)).cuda()
        self.proportions = torch.from_numpy(rng.dirichlet(np.ones(classes), size=bags)).float().cuda()
        self.layout = BagLayout.from_sizes(sizes, "cuda")

    @property
    def name(self) -> str:
        """Its sizes in words."""
        return "x".join(map(str, self.shape)) + (f" {self.law}" if self.law else "")

    def kernel(self) -> tuple[Tensor, Tensor, Tensor]:
        """Loss of every bag, gradient, and the factor between them and the loss's."""
        layout, classes = self.layout, self.layout.size_classes
        where = (layout.order, layout.offsets, classes.bags, classes.widths, classes.counts)
        return torch.ops.bagwise.rot.default(self.logits, self.proportions, *where, ALPHA, EPSILON, "none")

    def plan_error(self, most_bags: int = 64) -> float:
        """Largest error of the kernel's plan in the first bags, against the reference in float64."""
        sizes = self.layout.host_sizes[:most_bags]
        rows = int(sizes.sum())
        layout = BagLayout.from_sizes(sizes)
        logits, proportions = self.logits[:rows].double().cpu(), self.proportions[: len(sizes)].double().cpu()
        exact = solve_rot(prepare(logits, layout, proportions), ALPHA, EPSILON).labels
        weight = (ALPHA / layout.sizes.double())[layout.bag_index][:, None]
        ours = logits.softmax(dim=1) - self.kernel()[1][:rows].double().cpu() / weight
        return float((ours - exact).abs().max())


def sinkhorn_step(scores: Tensor, x: Tensor, log_nz: Tensor, tau: float) -> Tensor:
    """One step of the paper's Algorithm 1 in the log domain for `scores [bags, size, classes]`."""
    log_b = -(scores + x[:, None, :]).logsumexp(dim=2, keepdim=True)
    return tau * (log_nz - (scores + log_b).logsumexp(dim=1))


def unrolled_compiled(problem: Problem):
    """75 steps with autograd through them, each one a call of a compiled function."""
    bags, size, classes = problem.shape
    step = torch.compile(sinkhorn_step)
    logits = problem.logits.clone().requires_grad_()
    log_z, tau = problem.proportions.log(), 1 / (1 + ALPHA * EPSILON / (1 - ALPHA))

    def run() -> None:
        logits.grad = None
        scores = logits.log_softmax(dim=1).view(bags, size, classes) / EPSILON
        x = torch.zeros_like(log_z)
        for _ in range(STEPS):
            x = step(scores, x, log_z + np.log(size), tau)
        log_plan = (scores + x[:, None, :]).log_softmax(dim=2)
        plan = log_plan.exp()
        mean = plan.mean(dim=1)
        loss = ALPHA * EPSILON * (plan * (log_plan - scores)).sum(dim=(1, 2)) / size
        loss = loss + (1 - ALPHA) * (mean * (mean.log() - log_z)).sum(dim=1)
        loss.mean().backward()

    return run


def envelope(problem: Problem):
    bags, size, classes = problem.shape
    log_z, tau = problem.proportions.log(), 1 / (1 + ALPHA * EPSILON / (1 - ALPHA))

    def run() -> Tensor:
        log_f = problem.logits.log_softmax(dim=1).view(bags, size, classes)
        x = torch.zeros_like(log_z)
        for _ in range(STEPS):
            x = sinkhorn_step(log_f / EPSILON, x, log_z + np.log(size), tau)
        return ALPHA / size * (log_f.exp() - (log_f / EPSILON + x[:, None, :]).softmax(dim=2))

    return run


def ott(problem: Problem):
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # JAX would take most of the memory
    import jax
    from ott.geometry.geometry import Geometry
    from ott.solvers import linear

    bags, size, classes = problem.shape
    tau = 1 / (1 + ALPHA * EPSILON / (1 - ALPHA))

    def loss(logits, z):
        geometry = Geometry(cost_matrix=-jax.nn.log_softmax(logits).T, epsilon=EPSILON)
        out = linear.solve(geometry, a=z, b=np.full(size, 1 / size), tau_a=tau, max_iterations=STEPS, threshold=0.0)
        return out.reg_ot_cost

    gradient = jax.jit(jax.vmap(jax.value_and_grad(loss)))
    logits = jax.numpy.asarray(problem.logits.view(bags, size, classes).cpu().numpy())
    z = jax.numpy.asarray(problem.proportions.cpu().numpy())
    return lambda: jax.block_until_ready(gradient(logits, z))


def pot(problem: Problem):
    import ot

    bags, size, classes = problem.shape
    cost = -problem.logits.log_softmax(dim=1).view(bags, size, classes).double().cpu().numpy()
    z, uniform = problem.proportions.double().cpu().numpy(), np.full(size, 1 / size)

    def run() -> None:
        for bag in range(bags):
            ot.unbalanced.sinkhorn_unbalanced(
                z[bag], uniform, ALPHA * cost[bag].T, ALPHA * EPSILON, (1 - ALPHA, float("inf")),
                reg_type="entropy", numItermax=STEPS, stopThr=0,
            )  # fmt: skip

    return run
