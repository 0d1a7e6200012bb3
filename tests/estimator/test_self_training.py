"""`ProportionClassifier(method="self-training")`."""

import numpy as np
import pytest

from bagwise import ProportionClassifier


def test_self_training_beats_the_network_it_starts_from():
    """Large bags of clusters: KL alone is at a loss, the labels that fit the bags are not."""
    rng = np.random.default_rng(0)
    labels = rng.integers(4, size=1200)
    X = 2 * np.random.default_rng(9).normal(size=(4, 8))[labels] + rng.normal(size=(1200, 8))
    bags = np.arange(1200) // 50
    counts = np.stack([np.bincount(labels[bags == bag], minlength=4) for bag in range(24)])
    settings = {"counts": True, "device": "cpu", "random_state": 0, "epochs": 8}
    plain = ProportionClassifier("kl", **settings).fit(X, bags=bags, proportions=counts)
    taught = ProportionClassifier("self-training", **settings).fit(X, bags=bags, proportions=counts)
    assert taught.score(X, labels) > max(plain.score(X, labels), 0.9)
    assert [entry["epoch"] for entry in taught.history_] == list(range(1, len(taught.history_) + 1))
    assert taught.best_epoch_ == len(taught.history_)
    assert {candidate["start"] for candidate in taught.history_[-1]["candidates"]} == {
        "network",
        "probe",
        "self-training",
    }
    assert set(taught.history_[-1]["held_out"]) == {"kl", "l1"}


def test_a_saved_self_trained_model_is_the_same(wards, fast, tmp_path):
    X, _, bags, counts = wards
    settings = fast | {"epochs": 2, "network": "mlp"}
    model = ProportionClassifier("self-training", counts=True, **settings).fit(X, bags=bags, proportions=counts)
    model.save(tmp_path)
    np.testing.assert_array_equal(ProportionClassifier.load(tmp_path).predict_proba(X), model.predict_proba(X))
    with pytest.raises(ValueError, match="a hyper-parameter of method 'self-training' must be one of"):
        ProportionClassifier("self-training", method_parameters={"heat": 1}).fit(X, bags=bags, proportions=counts)
