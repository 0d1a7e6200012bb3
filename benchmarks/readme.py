"""Redraws the README's tables of benchmarks from the records in results/benchmarks; runs no benchmark.

python benchmarks/readme.py
"""

import json
import statistics
from pathlib import Path

from bagwise.experiments.leaderboard.published import read_published
from bagwise.report.markdown import update_region

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


def self_training():
    """Self-training of a network that was pretrained without proportions, the probe that it starts from, and others."""
    paths = sorted((RECORDS / "self_training").glob("cifar10-*-seed*.json"))
    records = [json.loads(path.read_text(encoding="utf-8")) for path in paths]
    rows, by_probe = [], {}
    for row in read("probe")["cifar10, pretrained features"]["measured"]:
        by_probe.setdefault(row["bag_size"], []).append(row)
    trained = {record["bag_size"]: record for record in records}
    by_size = {}
    for entry in read_published("cifar10"):
        if entry.bag_kind == "uniform":
            by_size.setdefault(entry.bag_size, []).append(entry)
    published = {size: max(entries, key=lambda entry: entry.accuracy) for size, entries in by_size.items()}
    for size, fits in by_probe.items():
        found = [100 * fit["accuracy"] for fit in fits]
        cells = [
            f"{size:,}",
            f"{fits[0]['num_bags']:,}",
            f"{statistics.mean(found):.1f} ± {statistics.stdev(found):.1f}",
        ]
        if record := trained.get(size):
            accuracy, epochs = record["history"][-1]["evaluation"]["accuracy"], record["recipe"]["epochs"]
            cells += [f"{100 * accuracy:.1f}", f"{epochs}", f"{record['seconds']:.0f} s"]
        else:
            cells += ["not run", "", ""]
        best = published.get(size)
        rows.append([*cells, f"{100 * best.accuracy:.2f} ({best.method})" if best else "none"])
    header = ["CIFAR-10, bags of", "bags", "`probe`", "self-training", "its epochs", "pretraining and all"]
    header.append("best published")
    pretraining, seconds = records[0]["pretraining"], max(row["seconds"] for fits in by_probe.values() for row in fits)
    return (
        f"{table(header, rows)}\n\nTest accuracy in %. ResNet-18, pretrained once without proportions and labels "
        f"({pretraining['recipe']['epochs']} epochs, {pretraining['seconds']:.0f} s of one "
        f"{records[0]['provenance']['hardware']}; with all labels a linear head on its features gets "
        f"{100 * pretraining['scores']['linear']:.1f}). `probe`: mean and standard deviation over three draws of "
        f"bags, at most {seconds:.0f} s on one CPU core. Self-training: one seed, last epoch, from the probe as it "
        "was before it learned from its own labels. Published: by others, on networks and budgets of their own."
    )


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
    for draw in (losses, gpu, self_training, adult, accuracy_estimate):
        updated = update_region(text, f"benchmarks/{draw.__name__}", draw())
        if updated is None:
            raise ValueError(f"README.md has no region for results:benchmarks/{draw.__name__}.")
        text = updated
    path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
