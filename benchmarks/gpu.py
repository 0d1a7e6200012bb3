"""Losses on a GPU: time, share of the memory floor and error against float64, beside what else one could use.

    python benchmarks/gpu.py --record results/benchmarks/gpu.json      # about three minutes on one H200
    python benchmarks/gpu.py --quick                                   # the training sizes alone

Times are medians of `triton.testing.do_bench`, in microseconds, of the loss and its gradient at the logits:
  kernel       our operator: the loss of every bag and its gradient, without autograd, replayed as a CUDA graph
  call         `rot(...).backward()` as a user writes it; on a slow host this is the time to launch it
  graph        the same call replayed as a CUDA graph
  unrolled     the paper's 75 steps with autograd through them; "compiled" is one step under torch.compile
  envelope     75 Sinkhorn steps and the envelope gradient in plain PyTorch, replayed as a CUDA graph
  OTT, POT     OTT-JAX (vmap and jit, 75 steps) and a loop over POT, where they can be imported

Then exact labels for many bags at once, beside a loop on the host, and the whole training step of a ResNet-18 under
torch.compile, as `bagwise train` runs it.
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch
from gpu_peers import LAWS, Problem, envelope, ott, pot, unrolled_compiled
from rich.console import Console
from rich.table import Table
from scipy.optimize import linear_sum_assignment
from torch.nn import functional as F
from triton.testing import do_bench

from bagwise import functional as BF
from bagwise.bags import BagLayout
from bagwise.experiments.provenance import collect_provenance
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
ASSIGNED = [(3125, 16, 10), (20_000, 16, 10), (2000, 128, 10)]
COMPILED = [(512, 16, 10), (128, 64, 10)]  # torch.compile takes its time at every shape
console = Console(width=150)


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


def bandwidth() -> float:
    """Bytes a second of a large copy, read and written."""
    source = torch.rand(2**28, device="cuda")
    target = torch.empty_like(source)
    return 2 * source.nbytes / (1e-6 * microseconds(lambda: target.copy_(source)))


def bench_rot(problem: Problem, bytes_a_second: float, with_peers: bool) -> dict:
    times = {
        "call": microseconds(backward(BF.rot, problem)),
        "kernel": microseconds(as_graph(problem.kernel)),
        "graph": microseconds(as_graph(backward(BF.rot, problem))),
    }
    row = {
        "problem": problem.name,
        "microseconds": times,
        "floor_microseconds": 1e6 * 8 * problem.logits.numel() / bytes_a_second,
        "must_reach": None if problem.law else TRAINING_SHAPES.get(problem.shape),
        "plan_error": problem.plan_error(),
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
            try:
                row["microseconds"][name] = microseconds(make())
            except Exception as error:  # another library may not run here: that must not cost our own times
                console.print(f"{name} at {problem.name} failed: {error!r}"[:500])
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


def bench_assignments(problem: Problem, host_bags: int = 100) -> list[dict]:
    """Bags a second that get exact labels and the proof of their optimality, and those of a loop over some on the host.

    The loop is `ot.emd` (fractional marginals) or scipy's `linear_sum_assignment` (whole counts).
    """
    bags, size, classes = problem.shape
    logits, layout = problem.logits, problem.layout
    rounded = torch.from_numpy(np.random.default_rng(0).multinomial(size, np.full(classes, 1 / classes), size=bags))
    whole = (rounded / size).float().cuda()
    cost = -logits.log_softmax(dim=1).view(bags, size, classes)[:host_bags].double().cpu().numpy()

    def loop_over_scipy() -> None:
        for matrix, counts in zip(cost, rounded.numpy(), strict=False):
            linear_sum_assignment(matrix[:, np.repeat(np.arange(classes), counts)])

    def loop_over_pot() -> None:
        import ot

        for matrix, z in zip(cost, problem.proportions.double().cpu().numpy(), strict=False):
            ot.emd(np.ones(size), size * z / z.sum(), matrix)

    rows = []
    for how, proportions, loop in (
        ("lp, fractional marginals", problem.proportions, loop_over_pot if find_spec("ot") else None),
        ("lp, whole counts", whole, loop_over_scipy),
        ("combinatorial", problem.proportions, None),
    ):
        plan = BF.apportion(logits, layout, proportions, how=how.split(",")[0])
        seconds = best_seconds(lambda: BF.apportion(logits, layout, proportions, how=how.split(",")[0]))  # noqa: B023
        row = {"how": how, "problem": problem.name, "bags_a_second": bags / seconds}
        row["proved"] = int(plan.converged.sum())
        row["most_iterations"] = int(plan.iterations.max())
        if loop is not None:
            row["host_bags_a_second"] = len(cost) / best_seconds(loop)
        rows.append(row)
    return rows


def best_seconds(run, repeats: int = 3) -> float:
    """Wall-clock seconds, host included: the solver looks at its progress."""
    times = []
    for _ in range(repeats):
        torch.cuda.synchronize()
        start = time.perf_counter()
        run()
        torch.cuda.synchronize()
        times.append(time.perf_counter() - start)
    return min(times)


def bench_training_step(batch: int = 512, bag_size: int = 16, rounds: int = 40) -> dict[str, float]:
    """Median microseconds of a compiled ResNet-18 step (bfloat16, channels last), the losses taking turns."""
    network = (
        build_network("resnet18", (3, 32, 32), num_classes=10, seed=0).cuda().to(memory_format=torch.channels_last)
    )
    model = torch.compile(network, dynamic=False, mode="reduce-overhead")
    optimizer = torch.optim.SGD(network.parameters(), lr=0.01, momentum=0.9, fused=True)
    images = torch.rand(batch, 3, 32, 32, device="cuda").to(memory_format=torch.channels_last)
    labels = torch.randint(10, (batch,), device="cuda")
    layout = BagLayout.from_sizes([bag_size] * (batch // bag_size), "cuda")
    proportions = F.one_hot(labels, 10).float().view(-1, bag_size, 10).mean(dim=1)
    losses = {
        "cross-entropy": lambda logits: F.cross_entropy(logits, labels, reduction="none"),
        "bag_kl": lambda logits: BF.bag_kl(logits, layout, proportions, reduction="none"),
        "rot": lambda logits: BF.rot(logits, layout, proportions, reduction="none"),
    }

    def step(loss) -> None:
        optimizer.zero_grad()
        with torch.autocast("cuda", torch.bfloat16):
            logits = model(images)
        values = loss(logits)
        (values.sum() / len(values)).backward()
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


def show(rows: list[dict], others: list[dict], assignments: list[dict], steps: dict[str, float]) -> None:
    peers = ["unrolled", "compiled", "envelope", "OTT", "POT"]
    table = Table(title="rot, value and gradient: microseconds (in brackets: times our kernel)")
    for column in ("bags x size x classes", "kernel", "goal", "call", "graph", *peers, "floor", "plan error"):
        table.add_column(column, justify="right")
    for row in rows:
        times, goal = row["microseconds"], row["must_reach"]
        kernel, floor = times["kernel"], row["floor_microseconds"]
        table.add_row(
            row["problem"],
            f"{kernel:.1f}",
            "" if goal is None else f"{goal} {'ok' if kernel <= goal else 'NOT REACHED'}",
            f"{times['call']:.0f}",
            f"{times['graph']:.1f}",
            *(f"{times[name]:.0f} ({times[name] / kernel:.0f}x)" if name in times else "" for name in peers),
            f"{floor:.2f} ({floor / kernel:.0%})",
            f"{row['plan_error']:.0e}",
        )
    console.print(table)
    kernels = {row["problem"]: row["microseconds"]["kernel"] for row in rows}
    for name, kernel in kernels.items():
        equal, _, law = name.partition(" ")
        if law:
            console.print(f"{name}: {kernel / kernels[equal]:.2f}x the time of equal bags")
    for row in others:
        console.print(f"{row['loss']} at {row['problem']}: call {row['call']:.0f} us, as a graph {row['graph']:.1f} us")
    for row in assignments:
        loop = f", a loop on the host {row['host_bags_a_second']:,.0f}" if "host_bags_a_second" in row else ""
        console.print(
            f"{row['how']} at {row['problem']}: {row['bags_a_second']:,.0f} bags a second{loop}; "
            f"{row['proved']} proved optimal, at most {row['most_iterations']} iterations"
        )
    base = steps["cross-entropy"]
    for name, step in steps.items():
        console.print(f"compiled ResNet-18 step, batch 512, {name}: {step:.0f} us ({100 * (step / base - 1):+.2f} %)")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--record", type=Path, help="also write the measurements to this JSON file")
    parser.add_argument("--quick", action="store_true", help="only our own times at the training sizes")
    arguments = parser.parse_args()
    import bagwise.kernels.operators  # noqa: F401 - registers the operators

    provenance, bytes_a_second = collect_provenance(), bandwidth()
    problems = [Problem(*shape) for shape in TRAINING_SHAPES]
    if not arguments.quick:
        problems += [Problem(*shape) for shape in MORE_SHAPES]
        problems += [Problem(*shape, law=law) for shape in RAGGED for law in LAWS]
    rows = []
    for problem in problems:
        peers = not arguments.quick and problem.law is None and problem.shape in list(TRAINING_SHAPES)[:6]
        rows.append(bench_rot(problem, bytes_a_second, peers))
    others = [row for shape in ((512, 16, 10), (100_000, 16, 10)) for row in bench_other_losses(Problem(*shape))]
    assignments = [row for shape in ASSIGNED for row in bench_assignments(Problem(*shape))]
    steps = bench_training_step()
    show(rows, others, assignments, steps)
    if arguments.record:
        record = {
            "provenance": asdict(provenance),
            "copy_bytes_a_second": bytes_a_second,
            "rot": rows,
            "other_losses": others,
            "assignments": assignments,
            "resnet18_step_microseconds": steps,
        }
        arguments.record.parent.mkdir(parents=True, exist_ok=True)
        temporary = arguments.record.with_suffix(".tmp")
        temporary.write_text(json.dumps(record, indent=1) + "\n")
        temporary.rename(arguments.record)


if __name__ == "__main__":
    main()
