import numpy as np


def test_patience_saves_epochs(wards, classifier):
    X, _, bags, counts = wards
    still = classifier(learning_rate=0.0, patience=3).fit(X, bags=bags, proportions=counts)  # no epoch is better
    assert len(still.history_) == 4
    all_epochs = classifier(learning_rate=0.0, patience=None).fit(X, bags=bags, proportions=counts)
    assert len(all_epochs.history_) == 10


def test_until_it_stops_it_is_the_same_training(wards, classifier):
    X, _, bags, counts = wards
    settings = {"learning_rate": 30.0, "epochs": 8}  # far too large a rate: progress is a matter of luck
    patient = classifier(**settings, patience=1).fit(X, bags=bags, proportions=counts)
    all_epochs = classifier(**settings, patience=None).fit(X, bags=bags, proportions=counts)
    scores = [entry["held_out"]["kl"] for entry in all_epochs.history_]
    first_rise = next(epoch for epoch in range(1, 8) if scores[epoch] >= min(scores[:epoch]))
    assert len(patient.history_) == first_rise + 1 < 8
    assert [entry["held_out"]["kl"] for entry in patient.history_] == scores[: first_rise + 1]


def test_without_held_out_bags_there_is_no_early_stop(wards, classifier):
    X, _, bags, counts = wards
    model = classifier(patience=1, validation_fraction=0, learning_rate=30.0).fit(X, bags=bags, proportions=counts)
    assert len(model.history_) == 10
    assert model.best_epoch_ == 10


def test_the_noise_of_the_labels_does_not_reach_the_choice(wards, classifier):
    """`y` beside bags is not looked at: not for training, not for stopping."""
    X, labels, bags, counts = wards
    rng = np.random.default_rng(0)
    plain = classifier(patience=2).fit(X, bags=bags, proportions=counts)
    with_y = classifier(patience=2).fit(X, rng.permutation(labels), bags=bags, proportions=counts)
    np.testing.assert_array_equal(with_y.predict_proba(X), plain.predict_proba(X))
    assert [e["held_out"] for e in with_y.history_] == [e["held_out"] for e in plain.history_]
