"""People in wards, of which only the counts are known, and a classifier that is quick to fit."""

import datetime as dt

import numpy as np
import pyarrow as pa
import pytest

from bagwise.estimator import ProportionClassifier

FAST = {"network": "linear", "epochs": 10, "learning_rate": 0.1, "batch_size": 64, "device": "cpu", "random_state": 0}


@pytest.fixture(scope="session")
def fast():
    """Parameters for a quick fit."""
    return dict(FAST)


@pytest.fixture(scope="session")
def classifier():
    """A function from changed parameters to a classifier of counts."""
    return lambda **changes: ProportionClassifier(**(FAST | {"counts": True} | changes))


@pytest.fixture(scope="session")
def wards():
    """600 people in 60 wards, of which only the counts per ward are known; labels are for scoring alone."""
    rng = np.random.default_rng(0)
    leaning = rng.normal(0, 1.5, 60)
    X = np.stack([np.repeat(leaning, 10) + rng.normal(size=600), rng.normal(size=600)], axis=1)
    labels = np.where(X[:, 0] > 0, "yes", "no")
    bags = np.array([f"{ward:03d}" for ward in np.repeat(np.arange(60), 10)])
    counts = {bag: {label: int(((bags == bag) & (labels == label)).sum()) for label in ("yes", "no")} for bag in bags}
    return X, labels, bags, counts


@pytest.fixture(scope="session")
def people(wards):
    X, labels, bags, _ = wards
    rng = np.random.default_rng(1)
    return pa.table(
        {
            "income": pa.array(X[:, 0], mask=rng.random(600) < 0.1),
            "ward": bags,
            "side": np.where(rng.random(600) < 0.9, labels, "unsure"),
            "born": pa.array([dt.date(1950 + int(i), 1, 1) for i in rng.integers(0, 50, 600)]),
            "text": [row.tolist() for row in rng.normal(size=(600, 3))],
        }
    )


@pytest.fixture(scope="session")
def fitted(wards, classifier):
    X, _, bags, counts = wards
    return classifier().fit(X, bags=bags, proportions=counts)
