"""The learning rate over the course of a training."""

from __future__ import annotations

import math

from bagwise.training.recipe import Recipe


def learning_rate(recipe: Recipe, progress: float) -> float:
    """Return the learning rate at `progress`, the share of the training that is done (0 at the first step).

    Example:
        >>> recipe = Recipe(learning_rate=0.1, schedule="step")
        >>> learning_rate(recipe, 0.25), round(learning_rate(recipe, 0.5), 6)
        (0.1, 0.01)
    """
    warmup = recipe.warmup
    if warmup is None:
        warmup = 0.25 if recipe.schedule == "one-cycle" else 0.0
    if progress < warmup:
        return recipe.learning_rate * progress / warmup
    after = (progress - warmup) / (1 - warmup)  # share of what follows the warm-up
    if recipe.schedule == "constant":
        factor = 1.0
    elif recipe.schedule == "step":
        factor = 1.0 if progress < 0.5 else 0.1
    elif recipe.schedule == "cosine":
        factor = (1 + math.cos(math.pi * after)) / 2
    else:
        factor = 1 - after
    return recipe.learning_rate * factor
