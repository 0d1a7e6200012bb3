"""Redraws the README's tables of benchmarks from the records in results/benchmarks; runs no benchmark.

python benchmarks/readme.py
"""

import json
import statistics
from pathlib import Path

from bagwise.experiments.leaderboard.published import read_published
from bagwise.experiments.leaderboard.running import read_benchmark
from bagwise.report.markdown import update_region
from bagwise.report.summary import DATASET_LABELS

ROOT = Path(__file__).parents[1]
RECORDS = ROOT / "results" / "benchmarks"


def read(name):
    return json.loads((RECORDS / f"{name}.json").read_text(encoding="utf-8"))


def table(header, rows):
    """A Markdown table; the first column is text, the others are numbers."""
    ruler = ["---", *["---:"] * (len(header) - 1)]
    return "\n".join(f"| {' | '.join(line)} |" for line in [header, ruler, *rows])


def losses():
    record = read("losses")
    rows = []
    for row in record["rot"]:
        seconds = row["seconds"]
        name = " x ".join(map(str, row["shape"])) + (", ragged" if row["ragged"] else "")
        others = [f"{seconds[other] / seconds['bagwise']:.0f}x slower" for other in ("unrolled", "pot")]
        rows.append([name, f"{1e3 * seconds['bagwise']:.1f} ms", *others])
    header = ["`rot`, value and gradient, float32", "ours", "the paper's 75 unrolled steps", "a loop over POT"]
    return (
        f"{table(header, rows)}\n\nBags x size x classes. One run of `python benchmarks/losses.py` "
        f"({record['provenance']['hardware']}, {record['torch_threads']} threads); the record, with the exact plans "
        "and the memory, is in results/benchmarks/losses.json."
    )


PEERS = {  # in benchmarks/gpu.py -> in words
    "unrolled": "the paper's 75 unrolled steps",
    "compiled": "the same, compiled",
    "envelope": "75 steps and our gradient, as a CUDA graph",
    "OTT": "OTT-JAX",
    "POT": "a loop over POT",
}


def gpu():
    """Times on a GPU: equal bags beside other ways, ragged bags beside equal ones, the whole training step."""
    record = read("gpu")
    kernels = {row["problem"]: row["microseconds"]["kernel"] for row in record["rot"]}
    rows, ragged = [], {}
    for row in record["rot"]:
        times, (numbers, _, law) = row["microseconds"], row["problem"].partition(" ")
        shape = " x ".join(f"{int(number):,}" for number in numbers.split("x"))
        if law:
            ragged.setdefault(shape, {})[law] = f"{times['kernel'] / kernels[numbers]:.1f}x"
            continue
        others = [f"{times[peer] / times['kernel']:,.0f}x slower" if peer in times else "" for peer in PEERS]
        rows.append([shape, f"{times['kernel']:,.0f} µs", *others])
    laws = list(next(iter(ragged.values())))
    ratios = [[shape, *found.values()] for shape, found in ragged.items()]
    steps = record["resnet18_step_microseconds"]
    base = steps["cross-entropy"]
    slower = ", ".join(f"{100 * (steps[name] / base - 1):+.1f} % with `{name}`" for name in ("bag_kl", "rot"))
    assigned = max(row["bags_a_second"] for row in record["assignments"] if row["how"].startswith("lp, fractional"))
    errors = [row["plan_error"] for row in record["rot"]]
    call = statistics.median(row["microseconds"]["call"] for row in record["rot"])
    return (
        f"{table(['`rot`, value and gradient, float32', 'ours', *PEERS.values()], rows)}\n\n"
        f"{table(['ragged sizes, against equal ones', *laws], ratios)}\n\n"
        f"Bags x size x classes. One run of `python benchmarks/gpu.py` ({record['provenance']['hardware']}); plans are "
        f"right to {max(errors):.0e}. Ours is the time on the GPU; one call from Python takes its host {call:.0f} µs, "
        f"which a training step hides: a compiled step of ResNet-18 at batch 512 takes {base / 1e3:.1f} ms with "
        f'supervised cross-entropy, {slower}. `apportion(how="lp")` labels up to {assigned:,.0f} bags a second '
        "exactly. The record is in results/benchmarks/gpu.json."
    )


def large_bags():
    """What the leaderboard's preset `full` has found, beside the best that others have published."""
    rows, hardware = [], set()
    for dataset in ("cifar10", "cifar100", "fashion-mnist"):
        found, bags = {}, {}
        for record in read_benchmark(ROOT / "results", dataset, "full"):
            found.setdefault((record.cell.bag_size, record.cell.contender), []).append(record)
            bags[record.cell.bag_size] = record.num_bags
            hardware.add(record.provenance.hardware)
        others = {}
        for entry in read_published(dataset):
            if entry.bag_kind == "uniform":
                others.setdefault(entry.bag_size, []).append((100 * entry.accuracy, entry.method))
        for size in sorted(bags):
            ours = found.get((size, "self-training"), [])
            seconds = f"{statistics.mean(record.seconds for record in ours):.0f} s" if ours else ""
            published = "{:.2f} ({})".format(*max(others[size])) if size in others else "none"
            names = [f"{DATASET_LABELS[dataset]}, {size:,}", f"{bags[size]:,}"]
            rows.append(
                [*names, mean_accuracy(found.get((size, "probe"), [])), mean_accuracy(ours), seconds, published]
            )
    header = ["bags of", "bags", "`probe`", "self-training", "pretraining and all", "best published"]
    draws = {}
    for fit in read("probe")["cifar10, pretrained features, 2 threads"]["measured"]:
        draws.setdefault(fit["bag_size"], []).append(fit)
    several = "; ".join(
        f"{100 * statistics.mean(fit['accuracy'] for fit in draws[size]):.1f} ± "
        f"{100 * statistics.stdev(fit['accuracy'] for fit in draws[size]):.1f} at {size:,}"
        for size in (1024, 4096)
    )
    slowest = max(fit["seconds"] for fits in draws.values() for fit in fits)
    return (
        f"{table(header, rows)}\n\nTest accuracy in % of the last epoch, ResNet-18, one seed or mean ± standard "
        f"deviation over seeds; by `bagwise benchmark --preset full` on {' and '.join(sorted(hardware))}. Seconds are "
        "those of a whole run, pretraining included. Published: by others, on networks and budgets of their own. Over "
        f"three draws of bags, the probe of such features gets {several}, in at most {slowest:.0f} s on two CPU cores."
    )


def mean_accuracy(records):
    found = [100 * record.final.accuracy for record in records]
    if not found:
        return "not run"
    return f"{statistics.mean(found):.1f}" + (f" ± {statistics.stdev(found):.1f}" if len(found) > 1 else "")


def adult():
    """AUC on the test people of Adult: mean over the seeds, and standard deviation."""
    found = {}
    for row in read("adult")["rows"]:
        found.setdefault(row["learned_from"], {}).setdefault(row["network"], []).append(row["auc"])
    rows = [
        [name, *(f"{statistics.mean(values):.4f} ± {statistics.stdev(values):.4f}" for values in by_network.values())]
        for name, by_network in found.items()
    ]
    seeds = {len(values) for by_network in found.values() for values in by_network.values()}
    header = ["Adult census, learned from", *next(iter(found.values()))]
    return (
        f"{table(header, rows)}\n\nAUC on the test people, mean and standard deviation over {max(seeds)} seeds "
        "(`python benchmarks/adult.py`)."
    )


def accuracy_estimate():
    """What the estimate of accuracy says, and the truth."""
    rows = []
    for row in read("accuracy_estimate")["rows"]:
        method = "residuals" if row["bags"].startswith("random") else "temperature"
        estimate, low, high = (100 * value for value in row[method])
        truth = 100 * row["truth"]
        rows.append(
            [
                f"{row['dataset']}, {row['bags']}",
                f"{truth:.1f}",
                f"{estimate:.1f} ({low:.1f} to {high:.1f})",
                f"{estimate - truth:+.1f}",
            ]
        )
    return (
        f"{table(['data, bags', 'truth', 'estimate', 'miss'], rows)}\n\nAccuracy in % of predictions for held-out "
        "bags: the truth, and what `estimate_accuracy` says of them from bags alone with its 95 % interval "
        "(`python benchmarks/accuracy_estimate.py`)."
    )


def main():
    path = ROOT / "README.md"
    text = path.read_text(encoding="utf-8")
    for draw in (losses, gpu, large_bags, adult, accuracy_estimate):
        updated = update_region(text, f"benchmarks/{draw.__name__}", draw())
        if updated is None:
            raise ValueError(f"README.md has no region for results:benchmarks/{draw.__name__}.")
        text = updated
    path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
