"""Fit 10 million rows x 20 columns in 100,000 bags from a Parquet file: time and memory, against a fit with labels.

    python benchmarks/parquet.py --rows 1000000
    python benchmarks/parquet.py --record results/benchmarks/parquet.json

Every fit is a process of its own: `ProportionClassifier.fit_parquet`, linear, one epoch, bags of 100 on average, a
tenth of them held out, batches of at most 512 instances. "labels" is the same loop on the same inputs, with every row
as a bag of one. "unsorted" has the rows of each bag scattered over the file. The peak of resident memory counts
imports, and those pages of the temporary file that are in memory at the time. The system takes these back when it
needs them: for a file larger than memory the anonymous part is what counts.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import polars as pl
import torch
from rich.console import Console
from rich.table import Table

from bagwise import fitting
from bagwise.bags import Bags
from bagwise.estimator import ProportionClassifier
from bagwise.experiments.provenance import collect_provenance
from bagwise.tables.spool import spool_parquet, survey_parquet

COLUMNS, BAG_SIZE, BATCH = 20, 100, 512
ROWS_PER_PART = 500_000
MOST_BYTES, MOST_TIMES = 2e9, 1.3
INPUTS = [f"x{place}" for place in range(COLUMNS)]
KINDS = ("sorted", "labels", "unsorted")
console = Console(width=140)


@dataclass(frozen=True)
class Fit:
    """What one process measured; times in seconds, memory in bytes."""

    kind: str
    total: float  # all of the fit, without imports
    processor: float  # time of all cores in it, which others on the machine change less
    loop: float  # time of all cores in the training loop alone, its evaluation of held-out bags included
    peak_resident: int
    peak_anonymous: int
    accuracy: float  # on rows that no fit has seen


def draw(bags, shifts, seed):
    """Rows `[rows, columns]` of these bags, and their labels; the shift of a bag moves its share of each class."""
    weights = np.random.default_rng(0).normal(size=COLUMNS).astype(np.float32)
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(len(bags), COLUMNS)).astype(np.float32) + shifts[bags, None] * np.sign(weights)
    return x, rng.random(len(bags)) < 1 / (1 + np.exp(-(x @ weights)))


def make_files(folder, rows):
    """Write a table sorted by bag, one whose bags are scattered over all of it, and the counts of both."""
    num_bags = rows // BAG_SIZE
    shifts = np.random.default_rng(1).normal(size=num_bags, scale=0.1).astype(np.float32)
    for kind in ("sorted", "unsorted"):
        parts, counts = [], np.zeros((num_bags, 2), dtype=np.int64)
        for start in range(0, rows, ROWS_PER_PART):
            size, rng = min(ROWS_PER_PART, rows - start), np.random.default_rng(start)
            if kind == "sorted":
                bags = start // BAG_SIZE + np.sort(rng.integers(size // BAG_SIZE, size=size))
            else:
                bags = rng.integers(num_bags, size=size)
            x, labels = draw(bags, shifts, seed=2 + start)
            np.add.at(counts, (bags, labels.astype(int)), 1)
            parts.append(folder / f"{kind}-{start}.parquet")
            frame_of(x, bag=bags, label=labels).write_parquet(parts[-1])
        pl.scan_parquet(parts).sink_parquet(folder / f"{kind}.parquet")
        for part in parts:
            part.unlink()
        table = pl.DataFrame({"bag": range(num_bags), "no": counts[:, 0], "yes": counts[:, 1]})
        table.write_parquet(folder / f"{kind}-counts.parquet")


def frame_of(x, **others):
    return pl.DataFrame({**others, **dict(zip(INPUTS, x.T, strict=True))})


def classifier(method):
    return ProportionClassifier(
        method, network="linear", epochs=1, batch_size=BATCH, counts=True, device="cpu", random_state=0
    )


def fit_bags(folder, kind):
    counts = pl.read_parquet(folder / f"{kind}-counts.parquet")
    return classifier("kl").fit_parquet(folder / f"{kind}.parquet", bags="bag", proportions=counts, columns=INPUTS)


def fit_labels(folder):
    """The steps of `fit_parquet`, with the label of every row as the proportions of a bag of one."""
    model = classifier("supervised")
    survey = survey_parquet(folder / "sorted.parquet", "bag", INPUTS)
    model.bag_column_, model.classes_ = "bag", np.array(["no", "yes"])
    model._set_columns(survey.preprocessing, is_named=True)
    labels = pl.read_parquet(folder / "sorted.parquet", columns=["label"])["label"].to_numpy()
    shares = np.stack([~labels, labels], axis=1).astype(np.float32)
    rows = len(labels)
    return model._fit_bags(Bags.in_order(spool_parquet(survey), np.ones(rows, dtype=np.int64), shares, range(rows)))


def memory(field):
    """A line of /proc/self/status, in bytes."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError(f"/proc/self/status has no {field}; this benchmark runs on Linux.")


def work(kind, folder):
    """Fit, in a process of its own, and print what was measured."""
    torch.set_num_threads(1)  # small layers: a second thread mostly waits
    peak, done = [0], threading.Event()

    def watch():
        while not done.wait(0.02):
            peak[0] = max(peak[0], memory("RssAnon"))

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    train, loop = fitting.train, []

    def timed(*arguments, **options):
        before = time.process_time()
        result = train(*arguments, **options)
        loop.append(time.process_time() - before)
        return result

    fitting.train = timed
    started, processor_started = time.perf_counter(), time.process_time()
    model = fit_labels(folder) if kind == "labels" else fit_bags(folder, kind)
    total, processor = time.perf_counter() - started, time.process_time() - processor_started
    done.set()
    watcher.join()
    resident = memory("VmHWM")
    x, labels = draw(np.zeros(100_000, dtype=int), np.zeros(1, dtype=np.float32), seed=1)
    accuracy = float(((model.predict(frame_of(x)) == "yes") == labels).mean())
    print(json.dumps(asdict(Fit(kind, total, processor, loop[0], resident, peak[0], accuracy))))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--repeats", type=int, default=1, help="fits of each kind; the fastest counts")
    parser.add_argument("--record", type=Path, help="also write the measurements to this JSON file")
    parser.add_argument("--work", nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.work:
        work(arguments.work[0], Path(arguments.work[1]))
        return
    provenance = collect_provenance()
    fits = []
    with tempfile.TemporaryDirectory(prefix="bagwise-benchmark-") as folder:
        make_files(Path(folder), arguments.rows)
        for _ in range(arguments.repeats):
            for kind in KINDS:
                command = [sys.executable, __file__, "--work", kind, folder]
                answer = subprocess.run(command, check=True, capture_output=True, text=True)
                fits.append(Fit(**json.loads(answer.stdout.splitlines()[-1])))
                console.print(f"[dim]{fits[-1]}[/dim]")

    best = {kind: min((fit for fit in fits if fit.kind == kind), key=lambda fit: fit.total) for kind in KINDS}
    num_bags = arguments.rows // BAG_SIZE
    table = Table(title=f"{arguments.rows:,} rows x {COLUMNS} columns in {num_bags:,} bags, one epoch")
    for column in ("fit", "seconds", "x labels", "processor s", "x labels", "in the loop", "x labels"):
        table.add_column(column, justify="left" if column == "fit" else "right")
    for column in ("peak GB", "anonymous GB", "accuracy %"):
        table.add_column(column, justify="right")
    for kind, fit in best.items():
        cells = [kind]
        for name in ("total", "processor", "loop"):
            times = getattr(fit, name) / getattr(best["labels"], name)
            cells += [
                f"{getattr(fit, name):.1f}",
                f"{times:.2f}{' !' if kind == 'sorted' and times > MOST_TIMES else ''}",
            ]
        peak = f"{fit.peak_resident / 1e9:.2f}{'' if kind == 'labels' or fit.peak_resident < MOST_BYTES else ' !'}"
        table.add_row(*cells, peak, f"{fit.peak_anonymous / 1e9:.2f}", f"{100 * fit.accuracy:.1f}")
    console.print(table)
    if arguments.record:
        record = {
            "provenance": asdict(provenance),
            "rows": arguments.rows,
            "columns": COLUMNS,
            "bag_size": BAG_SIZE,
            "batch_instances": BATCH,
            "limits": {"peak_resident": MOST_BYTES, "times_labels": MOST_TIMES},
            "fits": [asdict(fit) for fit in fits],
        }
        arguments.record.parent.mkdir(parents=True, exist_ok=True)
        arguments.record.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
