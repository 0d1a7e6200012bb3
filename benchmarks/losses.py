"""The losses on this CPU, side by side with what a user would pick instead. Ratios in one run; no GPU.

    python benchmarks/losses.py                                      # prints the tables and what must be reached
    python benchmarks/losses.py --record results/benchmarks/losses.json

Every contestant gets logits and proportions and must give the gradient at the logits (ours give the loss as well).
Times are the median of repeated calls after a warm-up, taken in turns so that a slow moment hits all alike.
"""

import argparse
import gc
import json
import multiprocessing
import statistics
import time
import warnings
from dataclasses import asdict
from functools import partial
from itertools import pairwise
from pathlib import Path

import numpy as np
import ot
import torch
from rich.console import Console
from rich.table import Table
from scipy.optimize import linear_sum_assignment

from bagwise import functional as BF
from bagwise.bags import BagLayout
from bagwise.experiments.provenance import collect_provenance

SHAPES = [(512, 16, 10), (128, 64, 10), (8, 1024, 10), (128, 64, 100)]  # bags, size, classes
ASSIGNMENT_SHAPES = [*SHAPES, (4, 128, 1000), (1, 1024, 10)]
console = Console(width=140)


def make_problem(bags, size, classes, ragged=False, dtype=torch.float32, integral=False, seed=0):
    """Logits, layout and proportions; ragged sizes have the same number of instances in all."""
    rng = np.random.default_rng(seed)
    sizes = np.full(bags, size)
    if ragged:
        sizes = 1 + rng.multinomial(bags * (size - 1), rng.dirichlet(np.ones(bags)))
    logits = torch.from_numpy(rng.normal(scale=2.0, size=(int(sizes.sum()), classes))).to(dtype)
    if integral:
        counts = np.stack([np.bincount(rng.integers(classes, size=n), minlength=classes) for n in sizes])
        proportions = counts / sizes[:, None]
    else:
        proportions = rng.dirichlet(np.ones(classes), size=bags)
    return logits, BagLayout.from_sizes(sizes), torch.from_numpy(proportions).to(dtype)


def bagwise_loss(loss, **options):
    def run(logits, layout, proportions):
        logits = logits.detach().requires_grad_()
        loss(logits, layout, proportions, **options).backward()
        return logits.grad

    return run


def pot_loop(alpha=0.5, epsilon=1.0):
    """What a user of POT writes: one bag after another, the envelope gradient by hand."""

    def run(logits, layout, proportions):
        f = logits.double().softmax(dim=1).numpy()
        gradient = np.empty_like(f)
        for bag, (start, stop) in enumerate(bounds(layout)):
            n = stop - start
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                plan = ot.unbalanced.sinkhorn_unbalanced(
                    proportions[bag].double().numpy(),
                    np.full(n, 1 / n),
                    -alpha * np.log(f[start:stop]).T,
                    alpha * epsilon,
                    (1 - alpha, float("inf")),
                    reg_type="entropy",
                    numItermax=1000,
                    stopThr=1e-9,
                )
            gradient[start:stop] = alpha / n * (f[start:stop] - n * plan.T)
        return gradient

    return run


def emd_loop(logits, layout, proportions):
    f = logits.double().softmax(dim=1).numpy()
    gradient = np.empty_like(f)
    for bag, (start, stop) in enumerate(bounds(layout)):
        n = stop - start
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            plan = ot.emd(
                np.full(n, 1 / n), proportions[bag].double().numpy(), -np.log(f[start:stop]), numItermax=10**7
            )
        gradient[start:stop] = f[start:stop] / n - plan
    return gradient


def assignment_loop(logits, layout, proportions):
    """scipy's linear_sum_assignment on the n x n matrix in which class k has n z_k columns; integral counts only."""
    f = logits.double().softmax(dim=1).numpy()
    gradient = f.copy()
    for bag, (start, stop) in enumerate(bounds(layout)):
        n = stop - start
        counts = np.rint(n * proportions[bag].numpy()).astype(int)
        columns = np.repeat(np.arange(len(counts)), counts)
        rows, chosen = linear_sum_assignment(-np.log(f[start:stop])[:, columns])
        gradient[start + rows, columns[chosen]] -= 1
        gradient[start:stop] /= n
    return gradient


def bounds(layout):
    offsets = np.concatenate([[0], np.cumsum(layout.host_sizes)])
    return list(pairwise(offsets))


def race(contestants, problem, seconds=3.0):
    """Median seconds of each contestant; they take turns."""
    times = {name: [] for name in contestants}
    for run in contestants.values():
        run(*problem)
    deadline = time.perf_counter() + seconds
    while time.perf_counter() < deadline or min(map(len, times.values())) < 3:
        for name, run in contestants.items():
            start = time.perf_counter()
            run(*problem)
            times[name].append(time.perf_counter() - start)
    return {name: statistics.median(values) for name, values in times.items()}


def plan_error(problem, epsilon, dtype):
    """Largest error of a plan in `dtype` against POT run to its end, over four bags."""
    logits, layout, proportions = (problem[0].to(dtype), problem[1], problem[2].to(dtype))
    plan = BF.apportion(logits, layout, proportions, epsilon=epsilon).labels.double().numpy()
    worst = 0.0
    for bag, (start, stop) in list(enumerate(bounds(layout)))[:4]:
        n = stop - start
        z = proportions[bag].double()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            reference = ot.unbalanced.sinkhorn_unbalanced(
                z.numpy(),
                np.full(n, 1 / n),
                -0.5 * logits[start:stop].double().log_softmax(dim=1).T.numpy(),
                0.5 * epsilon,
                (0.5, float("inf")),
                reg_type="entropy",
                method="sinkhorn_stabilized" if epsilon < 0.02 else "sinkhorn",
                numItermax=10**6,
                stopThr=1e-15,
            )
        worst = max(worst, float(np.abs(n * reference.T - plan[start:stop]).max()))
    return worst


def unrolled_error(problem, epsilon):
    """Largest error of the plan that the paper's 75 steps stand for, from its gradient."""
    logits, layout, proportions = (problem[0].double(), problem[1], problem[2].double())
    exact = bagwise_loss(BF.rot, epsilon=epsilon, reduction="sum")(logits, layout, proportions)
    paper = bagwise_loss(BF.rot, epsilon=epsilon, gradient="unrolled", reduction="sum")(logits, layout, proportions)
    sizes = layout.sizes[layout.bag_index][:, None]
    return float(((exact - paper).abs() * sizes / 0.5).max())


def peak_memory(name, shape):
    """MiB by which one call raises the peak of a fresh process."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(_peak_memory, (name, shape))


def _peak_memory(name, shape):
    problem = make_problem(*shape)
    run = ROT_CONTESTANTS[name]
    run(*make_problem(2, 3, shape[2]))  # imports and thread pools
    gc.collect()
    Path("/proc/self/clear_refs").write_text("5")  # the kernel forgets the peak so far
    before = _memory("VmRSS")
    run(*problem)
    return (_memory("VmHWM") - before) / 1024


def _memory(field):
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(field))


ROT_CONTESTANTS = {
    "bagwise": bagwise_loss(BF.rot),
    "unrolled": bagwise_loss(BF.rot, gradient="unrolled"),
    "pot": pot_loop(),
}


def bench_rot():
    table = Table(
        title="rot, value and gradient, float32, alpha .5, epsilon 1 (ms; in brackets: times slower than ours)"
    )
    for column in (
        "bags x size x classes",
        "sizes",
        "bagwise",
        "unrolled, 75 steps",
        "POT loop",
        "MiB ours",
        "MiB unrolled",
    ):
        table.add_column(column, justify="right")
    rows = []
    for shape in SHAPES:
        for ragged in (False, True):
            times = race(ROT_CONTESTANTS, make_problem(*shape, ragged=ragged))
            memory = {} if ragged else {name: peak_memory(name, shape) for name in ("bagwise", "unrolled")}
            rows.append({"shape": shape, "ragged": ragged, "seconds": times, "peak_mib": memory})
            ours = times["bagwise"]
            table.add_row(
                "x".join(map(str, shape)),
                "ragged" if ragged else "equal",
                f"{1e3 * ours:.2f}",
                *(f"{1e3 * times[name]:.1f} ({times[name] / ours:.1f}x)" for name in ("unrolled", "pot")),
                *(f"{memory[name]:.0f}" if memory else "" for name in ("bagwise", "unrolled")),
            )
    console.print(table)
    return rows


def bench_ragged():
    """Ragged bags and equal ones with as many instances, in turns."""
    run = ROT_CONTESTANTS["bagwise"]
    rows = []
    for shape in SHAPES:
        equal, ragged = make_problem(*shape), make_problem(*shape, ragged=True)
        times = race({"equal": partial(run, *equal), "ragged": partial(run, *ragged)}, ())
        rows.append({"shape": shape, "seconds": times})
    return rows


def bench_accuracy():
    table = Table(title="largest error of the plan at 128x64x10")
    for column in ("epsilon", "bagwise float32", "bagwise float64", "75 unrolled steps, float64"):
        table.add_column(column, justify="right")
    rows = []
    for epsilon in (1.0, 0.05):
        problem = make_problem(128, 64, 10, dtype=torch.float64)
        row = {
            "epsilon": epsilon,
            "float32": plan_error(problem, epsilon, torch.float32),
            "float64": plan_error(problem, epsilon, torch.float64),
            "unrolled": unrolled_error(problem, epsilon),
        }
        rows.append(row)
        table.add_row(f"{epsilon:g}", *(f"{row[name]:.1e}" for name in ("float32", "float64", "unrolled")))
    console.print(table)
    return rows


def bench_assignment():
    table = Table(title="exact plans, value and gradient, float64, whole counts (ms; in brackets: times ours)")
    for column in ("bags x size x classes", "sizes", "transport_lp", "ot.emd loop", "scipy LSA loop", "combinatorial"):
        table.add_column(column, justify="right")
    rows = []
    contestants = {
        "transport_lp": bagwise_loss(BF.transport_lp),
        "emd": emd_loop,
        "lsa": assignment_loop,
        "combinatorial": bagwise_loss(BF.combinatorial),
    }
    for shape in ASSIGNMENT_SHAPES:
        for ragged in (False, True) if shape[0] > 1 else (False,):
            problem = make_problem(*shape, ragged=ragged, dtype=torch.float64, integral=True)
            times = race(contestants, problem)
            rows.append({"shape": shape, "ragged": ragged, "seconds": times})
            ours = times["transport_lp"]
            table.add_row(
                "x".join(map(str, shape)),
                "ragged" if ragged else "equal",
                f"{1e3 * ours:.2f}",
                *(f"{1e3 * times[name]:.2f} ({times[name] / ours:.1f}x)" for name in ("emd", "lsa")),
                f"{1e3 * times['combinatorial']:.2f}",
            )
    console.print(table)
    return rows


def requirements(rot, ragged, accuracy, assignment):
    """What the project asks of itself: (claim, measured, limit, whether it must be at most or at least that)."""
    main = next(row["seconds"] for row in rot if row["shape"] == (128, 64, 10) and not row["ragged"])
    yield "rot, times faster than unrolled, 128x64x10", main["unrolled"] / main["bagwise"], 5, "at least"
    yield "rot, times faster than a POT loop, 128x64x10", main["pot"] / main["bagwise"], 20, "at least"
    for row in accuracy:
        yield f"rot, plan error in float32, epsilon {row['epsilon']:g}", row["float32"], 1e-5, "at most"
        yield f"rot, plan error in float64, epsilon {row['epsilon']:g}", row["float64"], 1e-9, "at most"
    for row in ragged:
        ratio = row["seconds"]["ragged"] / row["seconds"]["equal"]
        yield f"rot, ragged against equal, {'x'.join(map(str, row['shape']))}", ratio, 1.5, "at most"
    for row in assignment:
        name = "x".join(map(str, row["shape"])) + (" ragged" if row["ragged"] else "")
        seconds = row["seconds"]
        if row["shape"][1:] == (1024, 10) and not row["ragged"]:
            yield f"combinatorial against ot.emd, {name}", seconds["combinatorial"] / seconds["emd"], 5, "at most"
        best = min(seconds["emd"], seconds["lsa"])
        yield f"transport_lp against the better of emd and LSA, {name}", seconds["transport_lp"] / best, 1.2, "at most"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--record", type=Path, help="also write the measurements to this JSON file")
    arguments = parser.parse_args()
    provenance = collect_provenance()
    rot, ragged, accuracy, assignment = bench_rot(), bench_ragged(), bench_accuracy(), bench_assignment()
    table = Table(title="must reach")
    for column, justify in (("claim", "left"), ("measured", "right"), ("limit", "right"), ("", "left")):
        table.add_column(column, justify=justify)
    checks = []
    for claim, measured, limit, kind in requirements(rot, ragged, accuracy, assignment):
        reached = measured >= limit if kind == "at least" else measured <= limit
        checks.append({"claim": claim, "measured": measured, "limit": limit, "kind": kind, "reached": reached})
        table.add_row(claim, f"{measured:.3g}", f"{kind} {limit:g}", "ok" if reached else "NOT REACHED")
    console.print(table)
    if arguments.record:
        record = {
            "provenance": asdict(provenance),
            "torch_threads": torch.get_num_threads(),
            "rot": rot,
            "rot_ragged_and_equal_in_turns": ragged,
            "accuracy": accuracy,
            "assignment": assignment,
            "must_reach": checks,
        }
        arguments.record.parent.mkdir(parents=True, exist_ok=True)
        arguments.record.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
