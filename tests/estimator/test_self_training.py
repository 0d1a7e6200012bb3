"""`ProportionClassifier(method="self-training")`."""

import numpy as np
import pytest

from bagwise import ProportionClassifier
from bagwise.self_training import improvement


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


def test_the_last_epoch_has_the_score_of_what_was_learned_from_labels_also_where_it_is_refused(monkeypatch):
    rng = np.random.default_rng(0)
    labels, bags = rng.integers(2, size=400), np.arange(400) // 8
    X = 3 * labels[:, None] + rng.normal(size=(400, 3))
    counts = np.stack([np.bincount(labels[bags == bag], minlength=2) for bag in range(50)])
    monkeypatch.setattr(improvement, "_better", lambda logits, first, *_: first)
    model = ProportionClassifier("self-training", network="linear", counts=True, device="cpu", random_state=0, epochs=4)
    model.fit(X, bags=bags, proportions=counts)
    assert model.best_epoch_ <= len(model.history_) - 4
    divergence = {candidate["start"]: candidate["kl"] for candidate in model.history_[-1]["candidates"]}
    assert model.history_[-1]["held_out"]["kl"] == pytest.approx(divergence["self-training"], rel=1e-3)
    assert model.history_[model.best_epoch_ - 1]["held_out"]["kl"] == pytest.approx(divergence["network"], rel=1e-3)
    assert divergence["self-training"] != pytest.approx(divergence["network"], rel=0.01)


def test_a_saved_self_trained_model_is_the_same(wards, fast, tmp_path):
    X, _, bags, counts = wards
    settings = fast | {"epochs": 2, "network": "mlp"}
    model = ProportionClassifier("self-training", counts=True, **settings).fit(X, bags=bags, proportions=counts)
    model.save(tmp_path)
    np.testing.assert_array_equal(ProportionClassifier.load(tmp_path).predict_proba(X), model.predict_proba(X))
    with pytest.raises(ValueError, match="a hyper-parameter of method 'self-training' must be one of"):
        ProportionClassifier("self-training", method_parameters={"heat": 1}).fit(X, bags=bags, proportions=counts)
