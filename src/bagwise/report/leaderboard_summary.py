"""Many records -> a leaderboard: who reached what on which bags, who is ahead, and what others have published."""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from bagwise.experiments.leaderboard.presets import PRESETS, BenchmarkCell
from bagwise.experiments.leaderboard.published import Published
from bagwise.experiments.records import Record
from bagwise.report.summary import DATASET_LABELS, LOSS_LABELS, Accuracy

CONTENDER_LABELS = {
    **LOSS_LABELS,
    "lp": "LP",
    "combinatorial": "Combinatorial",
    "l1": "L1",
    "l2": "L2",
    "easy-llp": "EasyLLP",
    "dsq": "DSQ",
    "count-likelihood": "Count likelihood",
    "llp-mm": "LLP-MM",
    "llpfc": "LLPFC",
    "mixbag": "MixBag",
    "llp-vat": "LLP-VAT",
    "fixmatch": "FixMatch",
    "softmatch": "SoftMatch",
    "ahil": "AHIL",
    "llp-dc": "LLP-DC",
    "probe": "Probe",
    "self-training": "Self-training",
}


class Setting(NamedTuple):
    """Bags of one kind and size: a column of the leaderboard."""

    bag_kind: str
    bag_size: int

    def __str__(self) -> str:
        return f"{self.bag_kind} bags of {self.bag_size}"


@dataclass(frozen=True)
class Score:
    """What a contender reached in a setting, over the seeds that have a record.

    Attributes:
        accuracy: with its spread over seeds.
        balanced_accuracy: mean over seeds, like the rest; None where a value was not finite.
        seconds: of all its runs, the search included.
        epochs: of the final run, summed over its stages.
        path: `(seconds, accuracy)` along the final run, the mean over seeds; the search comes before its first point.
            In several stretches where epochs between them were not evaluated, as in self-training after KL.
    """

    accuracy: Accuracy
    balanced_accuracy: float | None
    log_loss: float | None
    calibration_error: float | None
    seconds: float
    epochs: float
    path: tuple[tuple[tuple[float, float], ...], ...]


@dataclass(frozen=True)
class Leaderboard:
    """What the records of one data set and preset say.

    Attributes:
        chance: the accuracy of always naming the most frequent class; where no record tells it, of balanced classes.
        num_test: how many test instances there are.
        budgets: passes per training instance; several, if the preset was changed in between.
        on_gpu: whether its networks are for a GPU, and one was there.
        contenders: the best first.
        behind: how far each is behind the best of a setting, on average over the settings it has a record of.
        settings: kinds of bags in the order of the plan, sizes ascending.
        scores: contender -> setting -> score.
        published: what others report for this data set, all settings.
    """

    dataset: str
    preset: str
    chance: float
    num_test: int
    budgets: tuple[float, ...]
    on_gpu: bool
    contenders: tuple[str, ...]
    behind: dict[str, float]
    settings: tuple[Setting, ...]
    scores: dict[str, dict[Setting, Score]]
    published: tuple[Published, ...]

    @property
    def title(self) -> str:
        """The data set as people write it."""
        return DATASET_LABELS.get(self.dataset, self.dataset)

    @property
    def bag_kinds(self) -> tuple[str, ...]:
        """The kinds of bags that have a record."""
        return tuple(dict.fromkeys(setting.bag_kind for setting in self.settings))

    @property
    def missing(self) -> tuple[tuple[str, Setting], ...]:
        """The combinations of a contender and a setting without a record."""
        return tuple((c, s) for c in self.contenders for s in self.settings if s not in self.scores[c])

    @property
    def max_seeds(self) -> int:
        """The largest number of seeds behind a number."""
        return max(score.accuracy.seeds for scores in self.scores.values() for score in scores.values())

    def sizes(self, bag_kind: str) -> tuple[int, ...]:
        """The bag sizes of a kind of bags."""
        return tuple(setting.bag_size for setting in self.settings if setting.bag_kind == bag_kind)

    def ranking(self, setting: Setting) -> list[tuple[str, Accuracy]]:
        """Return the contenders of a setting, the best first; of equal ones the one that is ahead overall."""
        present = [(c, self.scores[c][setting].accuracy) for c in self.contenders if setting in self.scores[c]]
        return sorted(present, key=lambda entry: -entry[1].mean)

    def leaders(self, setting: Setting) -> list[str]:
        """Return the best contender of a setting and those that its lead does not tell apart from it."""
        ranking = self.ranking(setting)
        best = ranking[0][1]
        return [name for name, accuracy in ranking if is_within_spread(best, accuracy, self.num_test)]


def is_within_spread(best: Accuracy, other: Accuracy, num_test: int) -> bool:
    """Whether an accuracy is behind the best by no more than the best varies.

    That is the best's standard deviation over seeds, but at least the standard error of an accuracy on `num_test`
    instances, sqrt(p (1 - p) / num_test): seeds share the test set, so their spread knows nothing of it. The other's
    own spread does not count: a method that fails with every second seed is not as good as one that never does.
    """
    p = (best.mean * num_test + 2) / (num_test + 4)  # after Agresti and Coull: a perfect score is not perfectly certain
    sampling = math.sqrt(p * (1 - p) / num_test)
    return best.mean - other.mean <= max(best.spread or 0.0, sampling) + 1e-9


def summarise_benchmark(records: Sequence[Record[BenchmarkCell]], published: Sequence[Published] = ()) -> Leaderboard:
    """Summarise the records of one data set and preset, given in the order of the sweep."""
    if not records:
        raise ValueError("there is no record to summarise; run the benchmark first, without --report-only.")
    groups: dict[tuple[str, Setting], list[Record[BenchmarkCell]]] = defaultdict(list)
    for record in records:
        groups[record.cell.contender, Setting(record.cell.bag_kind, record.cell.bag_size)].append(record)
    kinds = list(dict.fromkeys(setting.bag_kind for _, setting in groups))
    settings = sorted({setting for _, setting in groups}, key=lambda s: (kinds.index(s.bag_kind), s.bag_size))
    names = dict.fromkeys(contender for contender, _ in groups)
    scores = {
        name: {setting: _score(groups[name, setting]) for setting in settings if (name, setting) in groups}
        for name in names
    }
    best = {s: max(scores[name][s].accuracy.mean for name in names if s in scores[name]) for s in settings}
    behind = {
        name: statistics.fmean(best[setting] - score.accuracy.mean for setting, score in scores[name].items())
        for name in names
    }
    first = records[0]
    return Leaderboard(
        dataset=first.cell.dataset,
        preset=first.cell.preset,
        chance=max(record.largest_class or 0 for record in records) or 1 / first.num_classes,
        num_test=first.num_test or 1,
        budgets=tuple(sorted({record.compute.budget for record in records if record.compute is not None})),
        on_gpu=not PRESETS[first.cell.preset].is_small and any(record.provenance.cuda for record in records),
        contenders=tuple(sorted(names, key=lambda name: behind[name])),
        behind=behind,
        settings=tuple(settings),
        scores=scores,
        published=tuple(published),
    )


def _score(records: list[Record[BenchmarkCell]]) -> Score:
    accuracies = [record.final.accuracy or 0.0 for record in records]
    spread = statistics.stdev(accuracies) if len(accuracies) > 1 else None
    return Score(
        accuracy=Accuracy(statistics.fmean(accuracies), spread, len(accuracies)),
        balanced_accuracy=_mean([record.final.balanced_accuracy for record in records]),
        log_loss=_mean([record.final.log_loss for record in records]),
        calibration_error=_mean([record.final.calibration_error for record in records]),
        seconds=statistics.fmean(record.seconds for record in records),
        epochs=statistics.fmean(len(record.curve.epoch) for record in records),
        path=_mean_path(records),
    )


def _mean(values: list[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.fmean(known) if len(known) == len(values) else None


def _mean_path(records: list[Record[BenchmarkCell]]) -> tuple[tuple[tuple[float, float], ...], ...]:
    """Average over seeds, at the epochs that every seed evaluated; the last point is the end of all runs.

    A stretch ends where more epochs pass without an evaluation than before the first one.
    """
    per_seed = []
    for record in records:
        # what came before the final run (the search), and what its epochs do not count (compilation, evaluation)
        elapsed = record.seconds - sum(record.curve.seconds)
        path = {}
        for epoch, accuracy, seconds in zip(
            record.curve.epoch, record.curve.test_accuracy, record.curve.seconds, strict=True
        ):
            elapsed += seconds
            if accuracy is not None:
                path[epoch] = elapsed, accuracy
        per_seed.append(path)
    epochs = sorted(set.intersection(*(set(path) for path in per_seed)))
    stretches: list[list[tuple[float, float]]] = []
    last = -math.inf
    for epoch in epochs:
        seconds, accuracy = (statistics.fmean(path[epoch][place] for path in per_seed) for place in (0, 1))
        if epoch - last > epochs[0]:
            stretches.append([])
        stretches[-1].append((seconds, accuracy))
        last = epoch
    return tuple(map(tuple, stretches))
