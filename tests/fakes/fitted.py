"""Small fitted models and the bags they were fitted on, quick to make."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from bagwise import ProportionClassifier


@dataclass(frozen=True)
class Fitted:
    """What `write_model_report` takes."""

    classifier: ProportionClassifier
    X: Any
    bags: Any
    proportions: Any


def fit_votes(
    num_bags: int = 60,
    *,
    classes: tuple[str, ...] = ("Green", "Liberal", "Conservative"),
    prefix: str = "precinct",
    largest: int = 30,
    **parameters: Any,
) -> Fitted:
    """Fit a linear model to bags of people whose age and income decide their vote; shares and rows differ by bag."""
    rng = np.random.default_rng(4)
    sizes = rng.integers(min(5, largest), largest + 1, size=num_bags)
    bag_of = np.repeat(np.arange(num_bags), sizes)
    place = rng.normal(size=(num_bags, 2))[bag_of]
    traits = place + rng.normal(size=(len(bag_of), 2))
    directions = np.stack([np.cos(angles := np.arange(len(classes)) * 2 * np.pi / len(classes)), np.sin(angles)])
    logits = 3 * traits @ directions
    shares = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    votes = (shares.cumsum(axis=1) > rng.random((len(bag_of), 1))).argmax(axis=1)
    counts = np.zeros((num_bags, len(classes)))
    np.add.at(counts, (bag_of, votes), 1)
    X = pd.DataFrame(
        {
            "age": 45 + 15 * traits[:, 0],
            "income": 30_000 + 9_000 * traits[:, 1],
            "town": rng.choice(["Ulm", "Bonn"], size=len(bag_of)),
        }
    )
    names = [f"{prefix}-{number:03d}" for number in range(num_bags)]
    proportions = {name: dict(zip(classes, row, strict=True)) for name, row in zip(names, counts, strict=True)}
    bags = np.array(names)[bag_of]
    quick = {"network": "linear", "epochs": 8, "learning_rate": 0.1, "batch_size": 100, "random_state": 0}
    classifier = ProportionClassifier(counts=True, **{**quick, **parameters})
    return Fitted(classifier.fit(X, bags=bags, proportions=proportions), X, bags, proportions)
