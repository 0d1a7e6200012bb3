import numpy as np
import pyarrow as pa
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import accuracy_score
from torch import nn

from bagwise.estimator import ProportionClassifier
from bagwise.fitting import _BestEpoch
from bagwise.tables import read_proportions


def test_it_learns_labels_from_counts(wards, fitted):
    X, labels, _, _ = wards
    assert fitted.classes_.tolist() == ["no", "yes"]
    assert accuracy_score(labels, fitted.predict(X)) > 0.95
    assert fitted.score(X, labels) == accuracy_score(labels, fitted.predict(X))


def test_probabilities_are_probabilities_in_the_order_of_classes(wards, fitted):
    X = wards[0]
    probabilities = fitted.predict_proba(X)
    assert probabilities.dtype == np.float64
    np.testing.assert_allclose(probabilities.sum(axis=1), 1, atol=1e-12)
    np.testing.assert_array_equal(fitted.classes_[probabilities.argmax(axis=1)], fitted.predict(X))


def test_bags_of_one_are_logistic_regression(fast):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(300, 2))
    y = (X @ [1.0, -2.0] + rng.logistic(size=300) > 0).astype(int)
    settings = {**fast, "epochs": 60, "weight_decay": 0.0, "validation_fraction": 0.0}
    ours = ProportionClassifier(**settings).fit(X, y).predict_proba(X)
    reference = LogisticRegression(C=np.inf).fit(X, y).predict_proba(X)
    np.testing.assert_allclose(ours, reference, atol=0.02)


@pytest.mark.parametrize("method", ["kl", "rot", "l2"])
def test_methods_by_name(wards, method, classifier):
    X, labels, bags, counts = wards
    assert classifier(method=method).fit(X, bags=bags, proportions=counts).score(X, labels) > 0.9


def test_method_parameters_reach_the_method(wards, classifier):
    X, _, bags, counts = wards
    with pytest.raises(ValueError, match="alpha must lie strictly between"):
        classifier(method="rot", method_parameters={"alpha": 2}).fit(X, bags=bags, proportions=counts)


def test_every_form_of_the_proportions_teaches_the_same(wards, fitted, classifier):
    X, _, bags, counts = wards
    ids = sorted(counts)
    yes, no = ([counts[bag][label] for bag in ids] for label in ("yes", "no"))
    forms = [
        pa.table({"bag": ids[::-1], "no": no[::-1], "yes": yes[::-1]}),
        read_proportions(counts),
    ]
    for form in forms:
        other = classifier().fit(X, bags=pa.chunked_array([bags]), proportions=form)
        np.testing.assert_array_equal(other.predict_proba(X), fitted.predict_proba(X))
    shares = np.stack([no, yes], axis=1) / 10
    other = classifier(counts=False).fit(X, bags=bags.tolist(), proportions=shares)
    assert other.classes_.tolist() == [0, 1]
    np.testing.assert_allclose(other.predict_proba(X), fitted.predict_proba(X), atol=1e-6)


def test_a_fit_repeats_and_leaves_global_randomness_alone(wards, fitted, classifier):
    X, _, bags, counts = wards
    before = torch.random.get_rng_state(), np.random.get_state()[1].copy()  # noqa: NPY002
    again = classifier().fit(X, bags=bags, proportions=counts)
    classifier(random_state=None, epochs=1).fit(X, bags=bags, proportions=counts)
    assert torch.equal(before[0], torch.random.get_rng_state())
    np.testing.assert_array_equal(before[1], np.random.get_state()[1])  # noqa: NPY002
    np.testing.assert_array_equal(again.predict_proba(X), fitted.predict_proba(X))
    other = classifier(random_state=np.random.RandomState(1)).fit(X, bags=bags, proportions=counts)
    assert not np.array_equal(other.predict_proba(X), fitted.predict_proba(X))


def test_the_report_compares_each_bag(wards, fitted):
    X, _, bags, counts = wards
    report = fitted.bag_report_
    assert {len(column) for column in report.values()} == {60}
    place = report["bag"].tolist().index("007")
    predicted = fitted.predict_proba(X)[bags == "007"].mean(axis=0)
    assert report["size"][place] == 10
    assert report["known yes"][place] == pytest.approx(counts["007"]["yes"] / 10)
    assert report["predicted yes"][place] == pytest.approx(predicted[1])
    assert report["l1"][place] == pytest.approx(2 * abs(counts["007"]["yes"] / 10 - predicted[1]), abs=1e-6)
    assert report["held_out"].sum() == 6
    assert pa.table(report).num_rows == 60  # any frame library takes it as it is


def test_the_weights_of_the_chosen_epoch_are_kept(wards, classifier):
    X, _, bags, counts = wards
    # far too large a learning rate, so that epochs differ widely
    model = classifier(learning_rate=30.0, epochs=6).fit(X, bags=bags, proportions=counts)
    scores = [entry["held_out"]["kl"] for entry in model.history_]
    held_out = model.bag_report_["bag"][model.bag_report_["held_out"]]
    rows = np.isin(bags, held_out.astype(str))
    score = model.score(X[rows], bags=bags[rows], proportions=read_proportions(counts))
    assert -score == pytest.approx(scores[model.best_epoch_ - 1], rel=1e-3)
    assert scores[model.best_epoch_ - 1] <= np.median(scores)


@pytest.mark.parametrize(
    ("divergences", "chosen"),
    [
        ([[4, 4, 4, 4], [3, 3, 3, 3], [3.1, 3.1, 3.1, 3.1]], 2),  # surely worse than the best
        ([[4, 4, 4, 4], [3, 3, 3, 3], [2, 4, 2, 4.1]], 3),  # worse by chance
        ([[4, 4, 4, 4], [2, 4, 2, 4], [2.9, 2.9, 2.9, 2.9]], 3),  # better
        ([[2, 4, 2, 4], [3, 3, 3, 3.1], [9, 9, 9, 9]], 2),
        ([[3], [3], [4]], 2),  # a single bag
    ],
)
def test_a_later_epoch_is_kept_unless_it_is_clearly_worse(divergences, chosen):
    values = iter(divergences)
    best = _BestEpoch(lambda network: (np.array(next(values), dtype=float), 0.0))
    for epoch in range(len(divergences)):
        network = nn.Linear(1, 1)
        nn.init.constant_(network.weight, epoch + 1)
        best(network)
    assert best.epoch == chosen
    assert best.weights["weight"] == chosen


def test_too_few_bags_are_not_held_out(wards, classifier):
    X, _, bags, counts = wards
    few = np.isin(bags, sorted(counts)[:10])
    model = classifier().fit(X[few], bags=bags[few], proportions=read_proportions(counts))
    assert not model.bag_report_["held_out"].any()
    assert model.best_epoch_ == 10
    assert "held_out" not in model.history_[0]


def test_unknown_bags_teach_nothing(wards, classifier):
    X, _, bags, counts = wards
    hidden = sorted(counts)[:30]
    unknown = {bag: {"yes": None, "no": None} if bag in hidden else counts[bag] for bag in counts}
    model = classifier(validation_fraction=0).fit(X, bags=bags, proportions=unknown)
    assert np.isnan(model.bag_report_["l1"]).sum() == 30
    assert np.isfinite(model.predict_proba(X)).all()


def test_many_bags_of_one_take_no_loop_over_bags(classifier):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(200_000, 3)).astype(np.float32)  # a loop over the bags in each step would take minutes
    model = classifier(epochs=1, batch_size=8192).fit(X, (X[:, 0] > 0).astype(int))
    assert model.score(X[:1000], X[:1000, 0] > 0) > 0.9


@pytest.mark.parametrize(("method", "alone"), [("llpfc", "kl"), ("mixbag", "kl"), ("dsq", "l2")])
def test_a_method_that_compares_bags_gets_several_in_a_batch(method, alone):
    """Of a few bags each would be a batch of its own: LLPFC would learn nothing, MixBag and DSQ what others learn."""
    rng = np.random.default_rng(0)
    labels = rng.random(400) < np.repeat(rng.random(40), 10)
    X = labels[:, None] + 0.3 * rng.standard_normal((400, 2))
    shares = {bag: {"no": 1 - share, "yes": share} for bag, share in enumerate(labels.reshape(40, 10).mean(axis=1))}
    fitted, other = (
        ProportionClassifier(name, network="linear", learning_rate=0.03, random_state=0).fit(
            X, bags=np.arange(400) // 10, proportions=shares
        )
        for name in (method, alone)
    )
    assert not np.allclose(fitted.predict_proba(X), other.predict_proba(X), atol=0.01)
    assert (fitted.predict(X) == np.where(labels, "yes", "no")).mean() > 0.9
