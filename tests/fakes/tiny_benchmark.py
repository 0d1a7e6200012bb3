"""A preset of the leaderboard so small that a cell takes a fraction of a second."""

from __future__ import annotations

from dataclasses import replace

from bagwise.experiments.leaderboard.presets import BenchmarkPreset, Setup
from bagwise.training import Recipe

SETUP = Setup(
    network="linear",
    recipe=Recipe(batch_instances=256, optimizer="adam", schedule="constant"),
    learning_rates=(0.003, 0.03),
)
TINY = BenchmarkPreset(
    images=SETUP, tables=SETUP, budget=12, bag_kinds=("uniform",), bag_sizes=(4, 64), seeds=1, is_small=True
)
CHECKPOINTED = replace(TINY, checkpoint_every=1)
