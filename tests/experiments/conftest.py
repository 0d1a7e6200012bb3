"""A preset and a data set so small that a cell takes a fraction of a second."""

from __future__ import annotations

import pytest

from bagwise.experiments.datasets import load_dataset
from bagwise.experiments.datasets.dataset import Dataset
from bagwise.experiments.grid import PRESETS, Preset
from bagwise.training import Recipe

TINY = Preset(
    network="linear",
    recipe=Recipe(epochs=3, batch_instances=256, schedule="constant"),
    search_epochs=2,
    learning_rates=(0.01, 0.1),
    alphas=(0.3, 0.7),
    bag_sizes=(4, 64),
    held_out=0.2,
    shift=0,
    is_small=True,
)


@pytest.fixture
def tiny_preset(monkeypatch) -> Preset:
    """Register the preset `tiny` for one test."""
    monkeypatch.setitem(PRESETS, "tiny", TINY)
    return TINY


@pytest.fixture(scope="session")
def digits() -> Dataset:
    return load_dataset("digits")
