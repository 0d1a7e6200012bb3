"""Run one cell of the leaderboard."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path

from bagwise.experiments.leaderboard.bag_kinds import BAG_KINDS
from bagwise.experiments.leaderboard.contenders import CONTENDERS
from bagwise.experiments.leaderboard.contest import Task
from bagwise.experiments.leaderboard.data import BenchmarkData
from bagwise.experiments.leaderboard.presets import PRESETS, BenchmarkCell
from bagwise.experiments.provenance import collect_provenance
from bagwise.experiments.records import Compute, Metrics, Record, read_record, rounded
from bagwise.experiments.sweep import Announce
from bagwise.experiments.time_limit import TimeLimit
from bagwise.experiments.trials import one_thread
from bagwise.training import Evaluator


def run_benchmark_cell(
    cell: BenchmarkCell, work: Path, limit: TimeLimit, announce: Announce, *, data: Mapping[str, BenchmarkData]
) -> Record[BenchmarkCell]:
    """Compute the record of a cell, given the data sets by name."""
    provenance = collect_provenance(is_small=PRESETS[cell.preset].is_small)
    task = make_task(cell, data[cell.dataset])
    with one_thread() if task.is_small else contextlib.nullcontext():
        attempt = CONTENDERS[cell.contender].run(task, work, limit, announce)
    outcome, labels = attempt.outcome, data[cell.dataset].test_labels
    return Record(
        cell=cell,
        num_classes=task.bags.num_classes,
        num_bags=task.bags.num_bags,
        network=task.network,
        chosen=outcome.chosen,
        recipe=asdict(outcome.recipe),
        selection=outcome.selection,
        curve=outcome.curve(),
        final=Metrics.rounded(outcome.history[-1]["evaluation"]),
        seconds=outcome.seconds,
        provenance=provenance,
        num_test=len(labels),
        compute=Compute(task.budget, float(f"{attempt.passes:.5g}")),
        largest_class=rounded(float(labels.bincount().max() / len(labels))),
    )


def make_task(cell: BenchmarkCell, data: BenchmarkData) -> Task:
    """Make the bags of a cell, and forget the labels. Every contender gets the same bags."""
    preset = PRESETS[cell.preset]
    setup = preset.tables if data.is_table else preset.images
    weak = data.views.weak
    return Task(
        name=cell.name,
        bags=BAG_KINDS[cell.bag_kind](data.train, data.train_labels, data.num_classes, cell.bag_size, cell.seed),
        instances=data.train,
        views=data.views,
        network=setup.network,
        recipe=replace(setup.recipe, seed=cell.seed),
        learning_rates=setup.learning_rates,
        budget=preset.budget,
        search_share=preset.search_share,
        held_out=preset.held_out,
        evaluator=lambda: Evaluator(data.test, data.test_labels, normalise=None if weak is None else weak.normalise),
        evaluate_every=preset.evaluate_every,
        checkpoint_every=preset.checkpoint_every,
        is_small=preset.is_small,
    )


def cell_passes(cell: BenchmarkCell) -> float:
    """Return how much work a cell is: its budget."""
    return PRESETS[cell.preset].budget


def benchmark_folder(out: Path, dataset: str, preset: str) -> Path:
    """Return where the records of a data set and preset lie."""
    return out / dataset / "benchmark" / preset


def read_benchmark(out: Path, dataset: str, preset: str) -> list[Record[BenchmarkCell]]:
    """Read every record of a data set and preset, in the order of the sweep."""
    order = {name: place for place, name in enumerate(CONTENDERS)}
    kinds = {name: place for place, name in enumerate(BAG_KINDS)}
    records = [read_record(path, BenchmarkCell) for path in benchmark_folder(out, dataset, preset).glob("*.json")]

    def place(record: Record[BenchmarkCell]) -> tuple[int, ...]:
        cell = record.cell
        # a contender or kind that has left the leaderboard comes last
        return cell.seed, kinds.get(cell.bag_kind, len(kinds)), cell.bag_size, order.get(cell.contender, len(order))

    return sorted(records, key=place)
