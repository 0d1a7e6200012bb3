"""The inner problem of ROT for ragged bags, and its dual function.

    min over U (columns on the simplex) of  alpha/n ( <C,U> - eps H(U) ) + (1-alpha) KL(U1/n | z)

With beta = (1-alpha)/(alpha eps) and S = log F / eps, every column of the solution is a softmax with one shift
x in R^K that the whole bag shares, U_j = softmax(x + S_j), and x minimises the smooth convex

    phi(x) = 1/n sum_j LSE_k(x_k + S_kj) + beta LSE_k(log z_k - x_k / beta).

Its gradient is m - q with m = U1/n and q = softmax(log z - x/beta), and at any x the duality gap of U is
(1-alpha) KL(m | q), which needs no subtraction of large numbers.

Instances lie in c chunks of n places (see `bags.chunks`), one after another: an array `[c, n, K]` holds the transpose
of the paper's K x n matrix of every chunk. Exponentials are taken once, at an `Anchor`; a move of x from there only
rescales W = exp(x + S), as in the paper's U = diag(a) W diag(b), and every sum is a product of small matrices.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from bagwise.bags.chunks import SMALLEST_FOR_BLAS, Chunks

# How far x may move from its anchor. A weight that underflows there is less than 1e-300 of the largest of its
# instance; e^100 times more, when its class rises and the others fall, it would still be less than 1e-256.
_FARTHEST = 50.0


@dataclass(frozen=True, eq=False)
class RotProblem:
    """Bags of any sizes, none of them empty.

    Attributes:
        chunks: which chunk belongs to which bag.
        scores: `[c, n, K]` S.
        size: `[bags, 1]` number of instances.
        log_z: `[bags, K]` log proportions; -inf outside `support`.
        support: `[bags, K]` classes that can get mass: z_k > 0 and f_k > 0 for some instance.
        outside: `[bags, K]` 0 in the support and -inf outside.
        infeasible: `[bags]` true where some instance gives probability 0 to every class of its bag.
        rounding: `[bags]` error that rounding alone leaves in a plan.
        beta: (1-alpha)/(alpha eps).
        tolerance: error of a plan's entries that is asked for.
    """

    chunks: Chunks
    scores: Tensor
    size: Tensor
    log_z: Tensor
    support: Tensor
    outside: Tensor
    infeasible: Tensor
    rounding: Tensor
    beta: float
    tolerance: float

    @property
    def on_cpu(self) -> bool:
        """Whether a decision may depend on a number. On a GPU nobody can look without waiting."""
        return self.scores.device.type == "cpu"

    def select(self, bags: Tensor) -> RotProblem:
        """Return the problem of some of the bags."""
        chunks, chosen = self.chunks.select(bags)
        per_bag = ("size", "log_z", "support", "outside", "infeasible", "rounding")
        values = {name: getattr(self, name)[bags] for name in per_bag}
        return replace(self, chunks=chunks, scores=self.scores[chosen], **values)

    def shifted(self, x: Tensor) -> Tensor:
        """x + S `[c, n, K]`, with -inf for classes outside the support."""
        return self.scores + self.chunks.spread(x + self.outside)[:, None, :]

    def softened(self, factor: float) -> RotProblem:
        """Return the problem with an entropy term `factor` times as strong."""
        return self if factor == 1 else replace(self, scores=self.scores / factor, beta=self.beta / factor)


@dataclass(frozen=True, eq=False)
class Anchor:
    """The exponentials at one x.

    Attributes:
        x: `[bags, K]`, 0 outside the support.
        weights: `[c, n, K]` W = exp(x + S - top).
        by_class: `[c, K, n]` the same transposed; a copy where the matrices are too small for BLAS.
        top: `[c, n]` the largest x_k + S_kj.
    """

    x: Tensor
    weights: Tensor
    by_class: Tensor
    top: Tensor

    @staticmethod
    def at(problem: RotProblem, x: Tensor) -> Anchor:
        """Take the exponentials at `x [bags, K]`."""
        shifted = problem.shifted(x)
        top = shifted.amax(dim=2, keepdim=True)
        weights = shifted.sub_(top).exp_()
        small = weights[:1].numel() < SMALLEST_FOR_BLAS
        return Anchor(x, weights, weights.mT.contiguous() if small else weights.mT, top[:, :, 0])

    def sums(self, chunks: Chunks, scaling: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """With a = `scaling [bags, K]`: t = W^T a and b = 1/t (0 on padding), `[c, n]`, and W b `[bags, K]`."""
        # the vector on the left: on the right BLAS takes four times as long
        t = torch.bmm(chunks.spread(scaling)[:, None, :], self.weights.mT)[:, 0]
        b = t.reciprocal() if chunks.inside is None else chunks.inside / t
        return t, b, chunks.total(torch.bmm(b[:, None, :], self.by_class.mT)[:, 0])


@dataclass(frozen=True, eq=False)
class DualPoint:
    """The dual function and what comes with it at one x.

    Attributes:
        anchor: where the exponentials were taken.
        x: `[bags, K]`, 0 outside the support.
        a: `[bags, K]` exp(x - anchor.x).
        b: `[c, n]` such that the plan is U = diag(a) W diag(b); 0 on padding.
        mean_plan: `[bags, K]` m = U1/n.
        q: `[bags, K]`.
        phi: `[bags]`.
    """

    anchor: Anchor
    x: Tensor
    a: Tensor
    b: Tensor
    mean_plan: Tensor
    q: Tensor
    phi: Tensor

    @property
    def gradient(self) -> Tensor:
        """Of phi, `[bags, K]`."""
        return self.mean_plan - self.q

    def plan(self, chunks: Chunks) -> Tensor:
        """U = softmax(x + S), `[c, n, K]`."""
        return (self.anchor.weights * self.b[:, :, None]).mul_(chunks.spread(self.a)[:, None, :])

    def relative_entropy(self) -> Tensor:
        """KL(m | q) `[bags]`, to full relative precision also when m and q are nearly equal."""
        ratio = torch.where(self.q > 0, self.gradient / self.q, 0)
        # q ((1+r) log(1+r) - r) summed: each term is >= 0; for small r the closed form cancels, so use its series
        series = ratio * ratio * (0.5 - ratio * (1 / 6 - ratio / 12))
        closed = torch.xlogy(1 + ratio, 1 + ratio) - ratio
        return (self.q * torch.where(ratio.abs() < 1e-3, series, closed)).sum(dim=1)

    def where(self, chunks: Chunks, accept: Tensor, other: DualPoint) -> DualPoint:
        """Return this point for the bags where `accept [bags]` is true, and the other one for the rest."""
        by_bag, by_chunk = accept[:, None], chunks.spread(accept)[:, None]
        anchor = self.anchor
        if anchor is not other.anchor:
            anchor = Anchor(
                x=torch.where(by_bag, anchor.x, other.anchor.x),
                weights=torch.where(by_chunk[:, :, None], anchor.weights, other.anchor.weights),
                by_class=torch.where(by_chunk[:, :, None], anchor.by_class, other.anchor.by_class),
                top=torch.where(by_chunk, anchor.top, other.anchor.top),
            )
        return DualPoint(
            anchor=anchor,
            x=torch.where(by_bag, self.x, other.x),
            a=torch.where(by_bag, self.a, other.a),
            b=torch.where(by_chunk, self.b, other.b),
            mean_plan=torch.where(by_bag, self.mean_plan, other.mean_plan),
            q=torch.where(by_bag, self.q, other.q),
            phi=torch.where(accept, self.phi, other.phi),
        )


def build_problem(
    log_f: Tensor, chunks: Chunks, size: Tensor, z: Tensor, alpha: float, epsilon: float, tolerance: float
) -> RotProblem:
    """Pose the problem from `log_f [c, n, K]`, overwritten, `size [bags]` and `z [bags, K]` (a row may be all zero)."""
    z = torch.where(z.sum(dim=1, keepdim=True) > 0, z, 1 / z.shape[1])  # unknown: any valid row will do
    scores, support = log_f.div_(epsilon), z > 0
    infeasible = torch.zeros_like(support[:, 0])
    lowest = scores.amin(dim=(1, 2))
    # a finite minimum saves all that follows; on a GPU nobody can look without waiting
    if scores.device.type != "cpu" or bool((lowest == -torch.inf).any()):
        possible = scores > -torch.inf
        # A class that no instance can take leaves the dual at x_k = +inf; leaving it out is its exact limit.
        support = support & (chunks.total(possible.any(dim=1).to(z.dtype)) > 0)
        # where none is left the loss is +inf, and with the whole of z again every instance shows it below
        support = torch.where(support.any(dim=1, keepdim=True), support, z > 0)
        # An instance that rules out every class of its bag costs +inf whatever the plan: treat it as undecided.
        allowed = chunks.spread(support)[:, None, :]
        hopeless = ~(allowed & possible).any(dim=2, keepdim=True)
        scores = torch.where(hopeless & allowed, 0, scores)
        infeasible = chunks.total(hopeless.any(dim=1).to(z.dtype))[:, 0] > 0
        lowest = torch.where(scores > -torch.inf, scores, 0).amin(dim=(1, 2))
    return RotProblem(
        chunks=chunks,
        scores=scores,
        size=size.to(scores.dtype)[:, None],
        log_z=torch.where(support, torch.where(z > 0, z, 1).log(), -torch.inf),
        support=support,
        outside=torch.where(support, 0.0, -torch.inf).to(scores.dtype),
        infeasible=infeasible,
        rounding=4 * torch.finfo(scores.dtype).eps * (1 + chunks.largest(-lowest)),  # scores are <= 0
        beta=(1 - alpha) / (alpha * epsilon),
        tolerance=tolerance,
    )


def evaluate(problem: RotProblem, x: Tensor, anchor: Anchor) -> DualPoint:
    """Compute the gradient's two halves and phi at `x [bags, K]`, from `anchor` or, if that is far, from a new one."""
    chunks = problem.chunks
    if not problem.on_cpu or not bool(((x - anchor.x).abs() <= _FARTHEST).all()):
        anchor = Anchor.at(problem, x)
    a = (x - anchor.x).exp()
    t, b, mass = anchor.sums(chunks, a)
    log_partition = t.log().add_(anchor.top)  # LSE_k(x_k + S_kj)
    if chunks.inside is not None:
        log_partition *= chunks.inside
    log_q = problem.log_z - x / problem.beta  # not normalised
    log_norm = log_q.logsumexp(dim=1, keepdim=True)
    mean_log_partition = chunks.total(log_partition.sum(dim=1, keepdim=True)) / problem.size
    return DualPoint(
        anchor=anchor,
        x=x,
        a=a,
        b=b,
        mean_plan=a * mass / problem.size,
        q=(log_q - log_norm).exp(),
        phi=(mean_log_partition + problem.beta * log_norm)[:, 0],
    )
