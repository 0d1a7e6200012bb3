"""The inner problem of ROT for ragged bags, and its dual function.

    min over U (columns on the simplex) of  alpha/n ( <C,U> - eps H(U) ) + (1-alpha) KL(U1/n | z)

With beta = (1-alpha)/(alpha eps) and S = log F / eps, every column of the solution is a softmax with one shift
x in R^K that the whole bag shares, U_j = softmax(x + S_j), and x minimises the smooth convex

    phi(x) = 1/n sum_j LSE_k(x_k + S_kj) + beta LSE_k(log z_k - x_k / beta).

Its gradient is m - q with m = U1/n and q = softmax(log z - x/beta), and at any x the duality gap of U is
(1-alpha) KL(m | q), which needs no subtraction of large numbers.

Arrays are class-major, `[classes, instances]` and `[classes, bags]`, as the paper's K x n matrices: the long axis is
the contiguous one, and instances lie bag after bag.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

import numpy as np
import torch
from torch import Tensor

from bagwise.bags.layout import BagLayout


@dataclass(frozen=True, eq=False)
class RotProblem:
    """Bags of any sizes, none of them empty.

    Attributes:
        layout: the bags, their instances in bag order.
        scores: `[K, instances]` S, with -inf for classes outside `support`.
        log_z: `[K, bags]` log proportions; -inf outside `support`.
        support: `[K, bags]` classes that can get mass: z_k > 0 and f_k > 0 for some instance.
        infeasible: `[bags]` true where some instance gives probability 0 to every class of its bag.
        rounding: `[bags]` error that rounding alone leaves in a plan.
        beta: (1-alpha)/(alpha eps).
        tolerance: error of a plan's entries that is asked for.
    """

    layout: BagLayout
    scores: Tensor
    log_z: Tensor
    support: Tensor
    infeasible: Tensor
    rounding: Tensor
    beta: float
    tolerance: float

    @property
    def size(self) -> Tensor:
        """`[bags]` number of instances."""
        return self.layout.sizes.to(self.scores.dtype)

    def select(self, bags: Tensor) -> RotProblem:
        """Return the problem of some of the bags (on the CPU)."""
        layout = BagLayout.from_sizes(self.layout.host_sizes[bags.numpy()])
        values = {name: getattr(self, name)[..., bags] for name in ("log_z", "support", "infeasible", "rounding")}
        return replace(self, layout=layout, scores=self.scores[:, columns_of(self.layout, bags)], **values)

    def softened(self, factor: float) -> RotProblem:
        """Return the problem with an entropy term `factor` times as strong."""
        return self if factor == 1 else replace(self, scores=self.scores / factor, beta=self.beta / factor)


@dataclass(frozen=True, eq=False)
class DualPoint:
    """The dual function and what comes with it at one x.

    Attributes:
        x: `[K, bags]`, 0 outside the support.
        plan: `[K, instances]` U = softmax(x + S).
        log_partition: `[1, instances]` LSE_k(x_k + S_kj).
        mean_plan: `[K, bags]` m = U1/n.
        log_q: `[K, bags]`.
        phi: `[bags]`.
    """

    x: Tensor
    plan: Tensor
    log_partition: Tensor
    mean_plan: Tensor
    log_q: Tensor
    phi: Tensor

    def select(self, layout: BagLayout, bags: Tensor) -> DualPoint:
        """Return the point for some of the bags of `layout`."""
        columns = columns_of(layout, bags)
        by_instance = {"plan", "log_partition"}
        names = (field.name for field in fields(self))
        return DualPoint(*(getattr(self, name)[..., columns if name in by_instance else bags] for name in names))


def build_problem(
    log_f: Tensor, layout: BagLayout, z: Tensor, alpha: float, epsilon: float, tolerance: float
) -> RotProblem:
    """Pose the problem from `log_f [K, instances]` in bag order and `z [K, bags]` (a column may be all zero)."""
    z = torch.where(z.sum(dim=0) > 0, z, 1 / len(z))  # unknown: any valid column will do
    scores, support = log_f / epsilon, z > 0
    infeasible = torch.zeros(layout.num_bags, dtype=torch.bool, device=scores.device)
    lowest = scores.amin(dim=0, keepdim=True)
    # a finite minimum saves all that follows; on a GPU nobody can look without waiting
    if scores.device.type != "cpu" or bool((lowest == -torch.inf).any()):
        # A class that no instance can take leaves the dual at x_k = +inf; leaving it out is its exact limit.
        support = support & (sum_within(layout, (scores > -torch.inf).to(scores.dtype)) > 0)
        support = support | ~support.any(dim=0)  # no class is possible: the loss is +inf in any case
        # An instance that rules out every class of its bag costs +inf whatever the plan: treat it as undecided.
        allowed = spread(layout, support)
        hopeless = ~(allowed & (scores > -torch.inf)).any(dim=0)
        scores = torch.where(hopeless & allowed, 0, scores)
        infeasible = sum_within(layout, hopeless.to(scores.dtype)[None])[0] > 0
        lowest = torch.where(scores > -torch.inf, scores, 0).amin(dim=0, keepdim=True)
    return RotProblem(
        layout=layout,
        scores=torch.where(spread(layout, support), scores, -torch.inf),
        log_z=torch.where(support, torch.where(z > 0, z, 1).log(), -torch.inf),
        support=support,
        infeasible=infeasible,
        rounding=4 * torch.finfo(scores.dtype).eps * (1 + max_within(layout, -lowest)[0]),  # scores are <= 0
        beta=(1 - alpha) / (alpha * epsilon),
        tolerance=tolerance,
    )


def evaluate(problem: RotProblem, x: Tensor) -> DualPoint:
    """Compute the plan, the gradient's two halves and phi at `x [K, bags]`."""
    layout = problem.layout
    shifted = add_within(layout, problem.scores, x)
    top = shifted.amax(dim=0, keepdim=True)
    weights = shifted.sub_(top).exp_()
    total = weights.sum(dim=0, keepdim=True)
    log_partition = total.log() + top
    plan = weights.div_(total)
    log_q = problem.log_z - x / problem.beta
    log_norm = log_q.logsumexp(dim=0)
    return DualPoint(
        x=x,
        plan=plan,
        log_partition=log_partition,
        mean_plan=sum_within(layout, plan) / problem.size,
        log_q=log_q - log_norm,
        phi=sum_within(layout, log_partition)[0] / problem.size + problem.beta * log_norm,
    )


def sinkhorn_step(problem: RotProblem, point: DualPoint) -> Tensor:
    """One step of the paper's Algorithm 1, a <- (n z / K b)^tau, as x = log a `[K, bags]`."""
    log_kb = (problem.size * point.mean_plan).log() - point.x
    # Where the mass of a class underflows it is summed in the log domain. On a GPU nobody can look without waiting.
    if point.x.device.type != "cpu" or not bool((problem.support <= (point.mean_plan > 1e-200)).all()):
        potentials = torch.where(spread(problem.layout, problem.support), problem.scores - point.log_partition, 0)
        top = max_within(problem.layout, potentials)
        total = sum_within(problem.layout, add_within(problem.layout, potentials, -top).exp())
        log_kb = total.log() + top
    tau = problem.beta / (1 + problem.beta)
    return torch.where(problem.support, tau * (problem.log_z + problem.size.log() - log_kb), 0)


def relative_entropy(point: DualPoint) -> Tensor:
    """KL(m | q) `[bags]`, to full relative precision also when m and q are nearly equal."""
    q = point.log_q.exp()
    ratio = torch.where(q > 0, (point.mean_plan - q) / q, 0)
    # q ((1+r) log(1+r) - r) summed: each term is >= 0; for small r the closed form cancels, so use its series
    series = ratio * ratio * (0.5 - ratio * (1 / 6 - ratio / 12))
    closed = torch.xlogy(1 + ratio, 1 + ratio) - ratio
    return (q * torch.where(ratio.abs() < 1e-3, series, closed)).sum(dim=0)


def outer_products(layout: BagLayout, values: Tensor) -> Tensor:
    """V V^T of each bag, `[bags, K, K]`, from `values [K, instances]` in bag order."""
    num_classes = len(values)
    if layout.common_size is not None:
        dense = values.view(num_classes, layout.num_bags, layout.common_size).transpose(0, 1)
        return dense @ dense.mT
    products = values.new_empty(layout.num_bags, num_classes, num_classes)
    for block in layout.blocks:
        dense = values[:, block.rows]  # [K, b, n]
        dense = (dense if block.mask is None else dense * block.mask).transpose(0, 1)
        products.index_copy_(0, block.bags, dense @ dense.mT)
    return products


def add_within(layout: BagLayout, values: Tensor, per_bag: Tensor) -> Tensor:
    """`values [K, instances]` plus `per_bag [K, bags]` of each instance's bag."""
    if layout.common_size is None:
        return spread(layout, per_bag).add_(values)
    shape = len(values), layout.num_bags, layout.common_size
    return (values.view(shape) + per_bag[:, :, None]).view(values.shape)


def multiply_within(layout: BagLayout, values: Tensor, per_bag: Tensor) -> Tensor:
    """`values [K, instances]` times `per_bag [K, bags]` of each instance's bag."""
    if layout.common_size is None:
        return spread(layout, per_bag).mul_(values)
    shape = len(values), layout.num_bags, layout.common_size
    return (values.view(shape) * per_bag[:, :, None]).view(values.shape)


def spread(layout: BagLayout, values: Tensor) -> Tensor:
    """Give every instance the column of its bag: `[K, bags]` -> `[K, instances]`."""
    if layout.common_size is not None:
        shape = len(values), layout.num_bags, layout.common_size
        return values[:, :, None].expand(shape).reshape(len(values), -1)
    if values.device.type == "cpu":  # ten times as fast as torch's indexing
        return torch.from_numpy(np.repeat(values.numpy(), layout.host_sizes, axis=1))
    return values.index_select(1, layout.bag_index)


def sum_within(layout: BagLayout, values: Tensor) -> Tensor:
    """Sum `values [K, instances]`, in bag order, within each bag: `[K, bags]`."""
    if layout.common_size is not None:
        return values.view(len(values), layout.num_bags, layout.common_size).sum(dim=2)
    if values.device.type == "cpu":
        return torch.from_numpy(np.add.reduceat(values.numpy(), _starts(layout), axis=1))
    return values.new_zeros(len(values), layout.num_bags).index_add(1, layout.bag_index, values)


def max_within(layout: BagLayout, values: Tensor) -> Tensor:
    """Largest of `values [K, instances]`, in bag order, in each bag: `[K, bags]`."""
    if layout.common_size is not None:
        return values.view(len(values), layout.num_bags, layout.common_size).amax(dim=2)
    lowest = values.new_full((len(values), layout.num_bags), -torch.inf)
    return lowest.scatter_reduce(1, layout.bag_index.expand_as(values), values, "amax")


def columns_of(layout: BagLayout, bags: Tensor) -> Tensor:
    """The places of the instances of some bags, bag after bag (on the CPU)."""
    sizes = layout.host_sizes[bags.numpy()]
    shift = _starts(layout)[bags.numpy()] - (np.cumsum(sizes) - sizes)
    return torch.from_numpy(np.arange(sizes.sum()) + np.repeat(shift, sizes))


def _starts(layout: BagLayout) -> np.ndarray:
    return np.cumsum(layout.host_sizes) - layout.host_sizes
