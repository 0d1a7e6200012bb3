"""Losses on a GPU: time, share of the memory floor and error against float64, beside what else one could use.

    python benchmarks/gpu.py --record results/benchmarks/gpu.json      # about three minutes on one H200
    python benchmarks/gpu.py --quick                                   # the training sizes alone

Times are medians of `triton.testing.do_bench`, in microseconds, of the loss and its gradient at the logits:
  kernel       our operator: the loss of every bag and its gradient, without autograd, replayed as a CUDA graph
  call         `rot(...).backward()` as a user writes it; on a slow host this is the time to launch it
  graph        the same call replayed as a CUDA graph
Bags that do not fit on chip have no kernel: their call is the PyTorch path.
  unrolled     the paper's 75 steps with autograd through them; "compiled" is one step under torch.compile
  envelope     75 Sinkhorn steps and the envelope gradient in plain PyTorch, replayed as a CUDA graph
  OTT, POT     OTT-JAX (vmap and jit, 75 steps) and a loop over POT, where they can be imported
"""

from __future__ import annotations

import argparse
import json
import os
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor
from torch.nn import functional as F
from triton.testing import do_bench

from bagwise import functional as BF
from bagwise.bags import BagLayout
from bagwise.experiments.provenance import collect_provenance
from bagwise.functional.fused import has_rot_kernel
from bagwise.functional.inputs import prepare
from bagwise.functional.rot import solve_rot
from bagwise.networks import build_network

# bags, size, classes -> what the kernel must reach, in microseconds
TRAINING_SHAPES = {
    (32, 16, 10): 20,
    (512, 16, 10): 20,
    (3125, 16, 10): 25,
    (128, 64, 10): 30,
    (8, 1024, 10): 150,
    (128, 64, 100): 70,
    (100_000, 16, 10): 500,
}
MORE_SHAPES = [(1, 1024, 100), (4096, 256, 10), (64, 4096, 100), (8, 65_536, 10), (1, 1_000_000, 10)]
RAGGED = [(512, 16, 10), (3125, 16, 10), (100_000, 16, 10)]
COMPILED = [(512, 16, 10), (128, 64, 10)]  # torch.compile and JAX take their time at every shape
ALPHA, EPSILON, STEPS = 0.5, 1.0, 75
console = Console(width=150)


class Problem:
    """Random logits and proportions; ragged sizes follow a heavy-tailed law with the same number of instances."""

    def __init__(self, bags: int, size: int, classes: int, ragged: bool = False, seed: int = 0) -> None:
        rng = np.random.default_rng(seed)
        self.shape, self.ragged = (bags, size, classes), ragged
        sizes = np.full(bags, size)
        if ragged:
            weights = rng.pareto(1.5, size=bags) + 0.1
            sizes = 1 + rng.multinomial(bags * (size - 1), weights / weights.sum())
        generator = torch.Generator().manual_seed(seed)
        self.logits = (2 * torch.randn(int(sizes.sum()), classes, generator=generator)).cuda()
        self.proportions = torch.from_numpy(rng.dirichlet(np.ones(classes), size=bags)).float().cuda()
        self.layout = BagLayout.from_sizes(sizes, "cuda")

    @property
    def name(self) -> str:
        """Its sizes in words."""
        return "x".join(map(str, self.shape)) + (" ragged" if self.ragged else "")

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


def microseconds(run, patience: int = 50) -> float:
    return 1e3 * do_bench(run, warmup=patience // 2, rep=patience, return_mode="median")


def backward(loss, problem: Problem, **options):
    logits = problem.logits.clone().requires_grad_()

    def run() -> None:
        logits.grad = None
        loss(logits, problem.layout, problem.proportions, **options).backward()

    return run


def as_graph(run):
    """Replay of `run` as a CUDA graph."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            run()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    return graph.replay


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


def bandwidth() -> float:
    """Bytes a second of a large copy, read and written."""
    source = torch.rand(2**28, device="cuda")
    target = torch.empty_like(source)
    return 2 * source.nbytes / (1e-6 * microseconds(lambda: target.copy_(source)))


def bench_rot(problem: Problem, bytes_a_second: float, with_peers: bool) -> dict:
    times = {"call": microseconds(backward(BF.rot, problem))}
    error = None
    if has_rot_kernel(problem.logits, problem.layout, ALPHA, EPSILON):
        times["kernel"] = microseconds(as_graph(problem.kernel))
        times["graph"] = microseconds(as_graph(backward(BF.rot, problem)))
        error = problem.plan_error()
    row = {
        "problem": problem.name,
        "microseconds": times,
        "floor_microseconds": 1e6 * 8 * problem.logits.numel() / bytes_a_second,
        "must_reach": None if problem.ragged else TRAINING_SHAPES.get(problem.shape),
        "plan_error": error,
    }
    if with_peers:
        peers = {
            "unrolled": lambda: backward(BF.rot, problem, gradient="unrolled"),
            "envelope": lambda: as_graph(envelope(problem)),
        }
        if problem.shape in COMPILED:
            peers["compiled"] = lambda: unrolled_compiled(problem)
            if find_spec("ott"):
                peers["OTT"] = lambda: ott(problem)
        if find_spec("ot") and problem.shape[0] <= 128:
            peers["POT"] = lambda: pot(problem)
        for name, make in peers.items():
            row["microseconds"][name] = microseconds(make())
    return row


def bench_other_losses(problem: Problem) -> list[dict]:
    losses = {
        "bag_kl": BF.bag_kl,
        "l1": lambda *arguments: BF.proportion_loss(*arguments, divergence="l1"),
        "l2": lambda *arguments: BF.proportion_loss(*arguments, divergence="l2"),
        "avg_kl": BF.avg_kl,
    }
    rows = []
    for name, loss in losses.items():
        run = backward(loss, problem)
        rows.append(
            {"loss": name, "problem": problem.name, "call": microseconds(run), "graph": microseconds(as_graph(run))}
        )
    return rows


def bench_training_step(batch: int = 512, bag_size: int = 16, rounds: int = 40) -> dict[str, float]:
    """Median microseconds of a ResNet-18 step (bfloat16, channels last), the losses taking turns."""
    network = (
        build_network("resnet18", (3, 32, 32), num_classes=10, seed=0).cuda().to(memory_format=torch.channels_last)
    )
    optimizer = torch.optim.SGD(network.parameters(), lr=0.01, momentum=0.9)
    images = torch.rand(batch, 3, 32, 32, device="cuda").to(memory_format=torch.channels_last)
    labels = torch.randint(10, (batch,), device="cuda")
    layout = BagLayout.from_sizes([bag_size] * (batch // bag_size), "cuda")
    proportions = F.one_hot(labels, 10).float().view(-1, bag_size, 10).mean(dim=1)
    losses = {
        "cross-entropy": lambda logits: F.cross_entropy(logits, labels),
        "bag_kl": lambda logits: BF.bag_kl(logits, layout, proportions),
        "rot": lambda logits: BF.rot(logits, layout, proportions),
    }

    def step(loss) -> None:
        optimizer.zero_grad()
        with torch.autocast("cuda", torch.bfloat16):
            logits = network(images)
        loss(logits).backward()
        optimizer.step()

    times: dict[str, list[float]] = {name: [] for name in losses}
    for turn in range(rounds):
        for name, loss in losses.items():
            start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            for _ in range(5):
                step(loss)
            stop.record()
            stop.synchronize()
            if turn >= 3:
                times[name].append(1e3 * start.elapsed_time(stop) / 5)
    return {name: float(np.median(values)) for name, values in times.items()}


def show(rows: list[dict], others: list[dict], steps: dict[str, float]) -> None:
    peers = ["unrolled", "compiled", "envelope", "OTT", "POT"]
    table = Table(title="rot, value and gradient: microseconds (in brackets: times our kernel)")
    for column in ("bags x size x classes", "kernel", "goal", "call", "graph", *peers, "floor", "plan error"):
        table.add_column(column, justify="right")
    for row in rows:
        times, goal = row["microseconds"], row["must_reach"]
        kernel = times.get("kernel")
        ours, floor = kernel or times["call"], row["floor_microseconds"]
        table.add_row(
            row["problem"],
            "" if kernel is None else f"{kernel:.1f}",
            "" if goal is None else f"{goal} {'ok' if kernel and kernel <= goal else 'NOT REACHED'}",
            f"{times['call']:.0f}",
            f"{times['graph']:.1f}" if "graph" in times else "",
            *(f"{times[name]:.0f} ({times[name] / ours:.0f}x)" if name in times else "" for name in peers),
            f"{floor:.2f} ({floor / ours:.0%})",
            "" if row["plan_error"] is None else f"{row['plan_error']:.0e}",
        )
    console.print(table)
    for row in others:
        console.print(f"{row['loss']} at {row['problem']}: call {row['call']:.0f} us, as a graph {row['graph']:.1f} us")
    base = steps["cross-entropy"]
    for name, time in steps.items():
        console.print(f"ResNet-18 step, batch 512, {name}: {time:.0f} us ({100 * (time / base - 1):+.2f} %)")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--record", type=Path, help="also write the measurements to this JSON file")
    parser.add_argument("--quick", action="store_true", help="only our own times at the training sizes")
    arguments = parser.parse_args()
    import bagwise.kernels.operators  # noqa: F401 - registers the operators

    provenance, bytes_a_second = collect_provenance(), bandwidth()
    problems = [Problem(*shape) for shape in TRAINING_SHAPES]
    if not arguments.quick:
        problems += [Problem(*shape) for shape in MORE_SHAPES] + [Problem(*shape, ragged=True) for shape in RAGGED]
    rows = []
    for problem in problems:
        peers = not arguments.quick and not problem.ragged and problem.shape in list(TRAINING_SHAPES)[:6]
        rows.append(bench_rot(problem, bytes_a_second, peers))
    others = [row for shape in ((512, 16, 10), (100_000, 16, 10)) for row in bench_other_losses(Problem(*shape))]
    steps = bench_training_step()
    show(rows, others, steps)
    if arguments.record:
        record = {
            "provenance": asdict(provenance),
            "copy_bytes_a_second": bytes_a_second,
            "rot": rows,
            "other_losses": others,
            "resnet18_step_microseconds": steps,
        }
        arguments.record.parent.mkdir(parents=True, exist_ok=True)
        temporary = arguments.record.with_suffix(".tmp")
        temporary.write_text(json.dumps(record, indent=1) + "\n")
        temporary.rename(arguments.record)


if __name__ == "__main__":
    main()
