"""A preset and a data set so small that a cell takes a fraction of a second."""

from __future__ import annotations

import pytest
import torch

from bagwise.experiments.leaderboard.data import BenchmarkData, Views, load_benchmark_data
from bagwise.experiments.leaderboard.presets import PRESETS, BenchmarkPreset
from fakes.tiny_benchmark import TINY


@pytest.fixture
def tiny_preset(monkeypatch) -> BenchmarkPreset:
    """Register the preset `tiny` for one test."""
    monkeypatch.setitem(PRESETS, "tiny", TINY)
    return TINY


@pytest.fixture(scope="session")
def digits() -> BenchmarkData:
    return load_benchmark_data("digits")


@pytest.fixture(scope="session")
def few_digits(digits) -> BenchmarkData:
    """A fifth of the digits, for what is slow."""
    return BenchmarkData(
        "digits",
        10,
        digits.train[::5],
        digits.train_labels[::5],
        digits.test[::5],
        digits.test_labels[::5],
        views=digits.views,
    )


@pytest.fixture(scope="session")
def table() -> BenchmarkData:
    """A table of two classes that a line parts."""
    from bagwise.bags.swapped_columns import SwappedColumns

    rows = torch.randn(600, 4, generator=torch.Generator().manual_seed(0))
    labels = (rows[:, 0] > 0).long()
    return BenchmarkData(
        "adult", 2, rows[:480], labels[:480], rows[480:], labels[480:], views=Views(None, SwappedColumns())
    )
