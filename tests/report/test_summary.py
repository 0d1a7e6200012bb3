import dataclasses
import statistics

import pytest

from bagwise.report.summary import Accuracy, summarise
from fakes.records import BAG_SIZES, LOSSES, final_accuracy, make_grid, make_record


def test_mean_and_spread_are_over_seeds():
    summary = summarise(make_grid(seeds=3), BAG_SIZES, LOSSES)
    point = summary.accuracy["kl"][64]
    values = [final_accuracy("kl", 64, seed) for seed in range(3)]
    assert point.mean == pytest.approx(statistics.fmean(values))
    assert point.spread == pytest.approx(statistics.stdev(values))
    assert point.seeds == 3
    assert summary.chance == 0.1
    assert summary.missing == ()


def test_one_seed_has_no_spread():
    summary = summarise(make_grid(seeds=1), BAG_SIZES, LOSSES)
    assert summary.accuracy["rot"][1].spread is None
    assert summary.max_seeds == 1


def test_curves_are_averaged_where_every_seed_was_evaluated():
    first, second = make_record("kl", 16, 0, accuracy=0.4), make_record("kl", 16, 1, accuracy=0.7)
    gaps = (None, *second.curve.test_accuracy[1:])
    second = dataclasses.replace(second, curve=dataclasses.replace(second.curve, test_accuracy=gaps))
    epochs, accuracy = summarise([first, second], [16], ["kl"]).curves["kl"][16]
    assert epochs == [2, 3, 4, 5, 6]
    assert accuracy[-1] == pytest.approx(0.55)


def test_missing_cells_are_listed_and_unplanned_ones_counted_in():
    records = [make_record("kl", 16), make_record("rot", 32)]
    summary = summarise(records, bag_sizes=[1, 16], losses=["kl", "rot"])
    assert summary.bag_sizes == (1, 16, 32)
    assert summary.losses == ("kl", "rot")
    assert set(summary.missing) == {("kl", 1), ("kl", 32), ("rot", 1), ("rot", 16)}


def test_accuracies_print_in_percent():
    assert str(Accuracy(0.98765, None, 1)) == "98.8"
    assert str(Accuracy(0.98765, 0.00449, 3)) == "98.8 ± 0.4"


def test_nothing_cannot_be_summarised():
    with pytest.raises(ValueError, match="no record"):
        summarise([], BAG_SIZES, LOSSES)
