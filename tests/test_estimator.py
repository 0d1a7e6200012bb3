import datetime as dt
import json
import pickle

import numpy as np
import pyarrow as pa
import pytest
import torch
from scipy import sparse
from sklearn import config_context
from sklearn.base import clone
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import accuracy_score
from sklearn.model_selection import GridSearchCV, GroupKFold, cross_validate
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks
from torch import nn

from bagwise.estimator import ProportionClassifier
from bagwise.model_folder import ModelFolderError
from bagwise.networks import mlp
from bagwise.tables import read_proportions

FAST = {"network": "linear", "epochs": 10, "learning_rate": 0.1, "batch_size": 64, "device": "cpu", "random_state": 0}


@parametrize_with_checks([ProportionClassifier(**FAST)])
def test_scikit_learn(estimator, check):
    check(estimator)


@pytest.fixture(scope="module")
def wards():
    """600 people in 60 wards, of which only the counts per ward are known; labels are for scoring alone."""
    rng = np.random.default_rng(0)
    leaning = rng.normal(0, 1.5, 60)
    X = np.stack([np.repeat(leaning, 10) + rng.normal(size=600), rng.normal(size=600)], axis=1)
    labels = np.where(X[:, 0] > 0, "yes", "no")
    bags = np.array([f"{ward:03d}" for ward in np.repeat(np.arange(60), 10)])
    counts = {bag: {label: int(((bags == bag) & (labels == label)).sum()) for label in ("yes", "no")} for bag in bags}
    return X, labels, bags, counts


def classifier(**changes):
    return ProportionClassifier(**(FAST | {"counts": True} | changes))


@pytest.fixture(scope="module")
def fitted(wards):
    X, _, bags, counts = wards
    return classifier().fit(X, bags=bags, proportions=counts)


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


def test_bags_of_one_are_logistic_regression():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(300, 2))
    y = (X @ [1.0, -2.0] + rng.logistic(size=300) > 0).astype(int)
    settings = {**FAST, "epochs": 60, "weight_decay": 0.0, "validation_fraction": 0.0}
    ours = ProportionClassifier(**settings).fit(X, y).predict_proba(X)
    reference = LogisticRegression(C=np.inf).fit(X, y).predict_proba(X)
    np.testing.assert_allclose(ours, reference, atol=0.02)


@pytest.mark.parametrize("method", ["kl", "rot", "l2"])
def test_methods_by_name(wards, method):
    X, labels, bags, counts = wards
    assert classifier(method=method).fit(X, bags=bags, proportions=counts).score(X, labels) > 0.9


def test_method_parameters_reach_the_method(wards):
    X, _, bags, counts = wards
    with pytest.raises(ValueError, match="alpha must lie strictly between"):
        classifier(method="rot", method_parameters={"alpha": 2}).fit(X, bags=bags, proportions=counts)


def test_every_form_of_the_proportions_teaches_the_same(wards, fitted):
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


def test_a_fit_repeats_and_leaves_global_randomness_alone(wards, fitted):
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


def test_the_best_epoch_on_held_out_bags_is_kept(wards):
    X, _, bags, counts = wards
    # far too large a learning rate, so that the last epoch is not the best
    model = classifier(learning_rate=30.0, epochs=6).fit(X, bags=bags, proportions=counts)
    scores = [entry["held_out"]["kl"] for entry in model.history_]
    assert model.best_epoch_ == 1 + int(np.argmin(scores))
    held_out = model.bag_report_["bag"][model.bag_report_["held_out"]]
    rows = np.isin(bags, held_out.astype(str))
    score = model.score(X[rows], bags=bags[rows], proportions=read_proportions(counts))
    assert -score == pytest.approx(min(scores), rel=1e-3)


def test_too_few_bags_are_not_held_out(wards):
    X, _, bags, counts = wards
    few = np.isin(bags, sorted(counts)[:10])
    model = classifier().fit(X[few], bags=bags[few], proportions=read_proportions(counts))
    assert not model.bag_report_["held_out"].any()
    assert model.best_epoch_ == 10
    assert "held_out" not in model.history_[0]


def test_unknown_bags_teach_nothing(wards):
    X, _, bags, counts = wards
    hidden = sorted(counts)[:30]
    unknown = {bag: {"yes": None, "no": None} if bag in hidden else counts[bag] for bag in counts}
    model = classifier(validation_fraction=0).fit(X, bags=bags, proportions=unknown)
    assert np.isnan(model.bag_report_["l1"]).sum() == 30
    assert np.isfinite(model.predict_proba(X)).all()


@pytest.fixture(scope="module")
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


@pytest.mark.parametrize("library", ["pyarrow", "polars", "pandas"])
def test_frames_of_any_library(people, wards, library):
    labels, counts = wards[1], wards[3]
    if library == "polars":
        people = pytest.importorskip("polars").from_arrow(people)
    elif library == "pandas":
        people = pytest.importorskip("pandas").DataFrame(people.to_pydict())
    model = classifier().fit(people, bags="ward", proportions=counts)
    assert model.feature_names_in_.tolist() == ["income", "side", "born", "text"]
    assert model.n_features_in_ == 4
    assert model.score(people, labels) > 0.95
    order = ["ward", "text", "side", "born", "income"]
    turned = people.select(order) if library == "pyarrow" else people[order]
    np.testing.assert_array_equal(model.predict_proba(turned), model.predict_proba(people))


def test_the_bag_column_names_the_column_of_the_other_table(people, wards):
    counts = wards[3]
    table = pa.table(
        {
            "ward": list(counts),
            "province": [0] * 60,
            "no": [row["no"] for row in counts.values()],
            "yes": [row["yes"] for row in counts.values()],
        }
    )
    model = classifier(epochs=1).fit(people, bags="ward", proportions=table.drop_columns("province"))
    assert model.classes_.tolist() == ["no", "yes"]
    with pytest.raises(ValueError, match=r"Did you mean 'ward'\?"):
        classifier().fit(people, bags="wards", proportions=table)


def test_sparse_input_is_dense_input(wards):
    X, _, bags, counts = wards
    X = np.where(np.abs(X) < 0.3, 0, X)
    model = classifier().fit(sparse.csr_matrix(X), bags=bags, proportions=counts)
    np.testing.assert_allclose(model.predict_proba(sparse.csc_matrix(X)), model.predict_proba(X), atol=1e-12)


class TestSaving:
    def test_a_loaded_model_is_the_same(self, people, wards, tmp_path):
        model = classifier().fit(people, bags="ward", proportions=wards[3])
        model.save(tmp_path / "model")
        loaded = ProportionClassifier.load(tmp_path / "model")
        np.testing.assert_array_equal(loaded.predict_proba(people), model.predict_proba(people))
        np.testing.assert_array_equal(loaded.predict(people), model.predict(people))
        assert loaded.get_params() == model.get_params()
        assert loaded.history_ == model.history_
        assert str(loaded.preprocessing_) == str(model.preprocessing_)
        assert loaded.feature_names_in_.tolist() == model.feature_names_in_.tolist()

    @pytest.mark.parametrize("labels", [[0, 1], [False, True], [1.0, 2.0], ["a", "b"]])
    def test_labels_of_every_type(self, labels, tmp_path):
        X = np.arange(20.0)[:, None]
        model = classifier(epochs=1, random_state=np.int64(3)).fit(X, np.array(labels * 10))
        model.save(tmp_path)
        loaded = ProportionClassifier.load(tmp_path)
        assert loaded.classes_.dtype == model.classes_.dtype
        np.testing.assert_array_equal(loaded.predict(X), model.predict(X))

    def test_a_network_of_ones_own_is_named_and_asked_for(self, wards, tmp_path):
        X, _, bags, counts = wards
        model = classifier(network=mlp, epochs=1).fit(X, bags=bags, proportions=counts)
        model.save(tmp_path)
        with pytest.raises(ValueError, match=r"of its own, bagwise\.networks:mlp\. Import it and pass it as network="):
            ProportionClassifier.load(tmp_path)
        loaded = ProportionClassifier.load(tmp_path, network=mlp)
        np.testing.assert_array_equal(loaded.predict_proba(X), model.predict_proba(X))

    def test_a_network_that_cannot_be_named_is_not_saved(self, wards, tmp_path):
        X, _, bags, counts = wards
        model = classifier(network=lambda i, k: nn.Linear(i, k), epochs=1).fit(X, bags=bags, proportions=counts)
        with pytest.raises(ValueError, match="not importable by name"):
            model.save(tmp_path / "model")
        assert not (tmp_path / "model").exists()

    def test_weights_of_another_network_are_refused(self, fitted, tmp_path):
        model = clone(fitted).set_params(network=mlp, epochs=1).fit(np.eye(4), [0, 1, 0, 1])
        model.save(tmp_path)
        import bagwise.networks as networks

        real = networks.mlp
        with pytest.MonkeyPatch.context() as patch:
            changed = lambda i, k: real(i, k, hidden=(3,))  # noqa: E731
            changed.__module__, changed.__qualname__ = "bagwise.networks", "mlp"
            patch.setattr(networks, "mlp", changed)
            with pytest.raises(ModelFolderError, match="do not fit the network"):
                ProportionClassifier.load(tmp_path, network=changed)

    def test_pickle_still_works_for_those_who_trust_it(self, wards, fitted):
        loaded = pickle.loads(pickle.dumps(fitted))
        np.testing.assert_array_equal(loaded.predict_proba(wards[0]), fitted.predict_proba(wards[0]))


def test_onnx_gives_the_same_probabilities(tmp_path):
    pytest.importorskip("onnxscript")
    runtime = pytest.importorskip("onnxruntime")
    rng = np.random.default_rng(0)
    X = rng.normal(size=(200, 4)) * [1, 1e3, 1, 1] + [0, 1e9, 0, 0]
    X[:, 3] = 7  # constant
    y = (X[:, 0] > 0).astype(int)
    X[rng.random(200) < 0.2, 1] = np.nan
    model = classifier(network="mlp", epochs=3, learning_rate=0.01).fit(X, y)
    model.export_onnx(tmp_path / "model.onnx")
    session = runtime.InferenceSession(tmp_path / "model.onnx")
    for rows in (1, 7, 200):
        (got,) = session.run(["probabilities"], {"x": X[:rows]})
        np.testing.assert_allclose(got, model.predict_proba(X[:rows]), atol=1e-5)


def test_onnx_is_for_numbers(people, wards, tmp_path):
    model = classifier(epochs=1).fit(people, bags="ward", proportions=wards[3])
    with pytest.raises(
        ValueError, match="only columns of numbers and booleans can be exported, but 'side' is category"
    ):
        model.export_onnx(tmp_path / "model.onnx")


class TestInsideScikitLearn:
    def test_cross_validation_slices_bags_but_not_proportions(self):
        rng = np.random.default_rng(0)
        X = rng.normal(size=(80, 2))
        y = (X[:, 0] > 0).astype(int)
        # as many bags as rows: what scikit-learn would slice, were it a list
        table = read_proportions({row: np.eye(2)[label] for row, label in enumerate(y)})
        params = {"bags": np.arange(80), "proportions": table}
        model = ProportionClassifier(**FAST).set_params(epochs=50)
        scores = cross_validate(model, X, y, cv=3, params=params, error_score="raise")
        assert scores["test_score"].min() > 0.9

    def test_metadata_routing_through_a_search_over_a_pipeline(self, wards):
        X, _, bags, counts = wards
        with config_context(enable_metadata_routing=True):
            request = {"bags": True, "proportions": True}
            model = classifier(epochs=3).set_fit_request(**request).set_score_request(**request)
            pipeline = make_pipeline(StandardScaler(), model)
            search = GridSearchCV(
                pipeline,
                {"proportionclassifier__learning_rate": [1e-6, 0.1]},
                cv=GroupKFold(3),
                error_score="raise",
            )
            search.fit(X, groups=bags, bags=bags, proportions=read_proportions(counts))
        assert search.best_params_ == {"proportionclassifier__learning_rate": 0.1}


def test_many_bags_of_one_are_quick():
    import time

    rng = np.random.default_rng(0)
    X = rng.normal(size=(200_000, 3)).astype(np.float32)
    model = classifier(epochs=1, batch_size=8192)
    started = time.perf_counter()
    model.fit(X, (X[:, 0] > 0).astype(int))
    assert time.perf_counter() - started < 30  # about 1 s; a Python loop over the bags in each step takes minutes
    assert model.score(X[:1000], X[:1000, 0] > 0) > 0.9


NAN_WARD = {"a": [None, None], "b": [0.5, 0.5]}


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({}, ValueError, "requires y to be passed"),
        ({"bags": ["a", "b"]}, ValueError, "bags were given without proportions"),
        ({"proportions": NAN_WARD}, ValueError, "proportions were given without bags"),
        ({"bags": ["a"], "proportions": {"a": [0.5, 0.5]}}, ValueError, "one entry per instance, .* 1 entries and 2"),
        ({"bags": ["a", "b"], "proportions": NAN_WARD}, ValueError, "at least 2 bags .* there is only 1"),
        ({"bags": ["a", None], "proportions": NAN_WARD}, ValueError, "every instance must have a bag id"),
        ({"bags": ["a", "c"], "proportions": NAN_WARD}, ValueError, "bag 'c' is missing"),
        ({"bags": [1, 2], "proportions": {"1": [0, 1], "2": [1, 0]}}, ValueError, "integers .* but text"),
        ({"bags": ["a", "b"], "proportions": {"a": [30, 10], "b": [1, 3]}}, ValueError, "pass counts=True"),
        ({"bags": ["a", "b"], "proportions": {"a": [0.7, 0.7], "b": [1, 0]}}, ValueError, "bag 'a' sums to 1.4"),
        ({"bags": ["a", "b"], "proportions": {"a": [30.5, 69.5], "b": [1, 0]}}, ValueError, "percentages"),
        ({"bags": "ward", "proportions": NAN_WARD}, TypeError, "bags='ward' names a column, so X must be"),
        ({"y": [1, 1]}, ValueError, "at least 2 classes, but holds only one class: .*1"),
    ],
)
def test_arguments_that_make_no_sense(arguments, error, message):
    with pytest.raises(error, match=message):
        ProportionClassifier(**FAST).fit([[1.0], [2.0]], **arguments)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"method": "kll"}, r"Did you mean 'kl'\?"),
        ({"network": "mpl"}, r"Did you mean 'mlp'\?"),
        ({"device": "gpu"}, "device must be one of 'auto', 'cpu', 'cuda'"),
        ({"validation_fraction": 1.0}, "validation_fraction must be at least 0 and less than 1"),
        ({"epochs": 0}, "epochs must be at least 1"),
        ({"random_state": -1}, "random_state must be at least 0"),
    ],
)
def test_parameters_that_make_no_sense(changes, message):
    with pytest.raises(ValueError, match=message):
        ProportionClassifier(**(FAST | changes)).fit([[1.0], [2.0]], [0, 1])


def test_new_data_that_does_not_fit(people, wards, fitted):
    model = classifier(epochs=1).fit(people, bags="ward", proportions=wards[3])
    with pytest.raises(TypeError, match="pass a data frame with the same columns, not ndarray"):
        model.predict(np.zeros((2, 4)))
    with pytest.raises(ValueError, match="'income' is missing"):
        model.predict(people.drop_columns("income"))
    with pytest.raises(ValueError, match="at least one row"):
        model.predict(people.slice(0, 0))
    with pytest.raises(ValueError, match=r"X has 3 features, but ProportionClassifier is expecting 2"):
        fitted.predict(np.zeros((2, 3)))
    with pytest.raises(ValueError, match="sparse X must not hold NaN"):
        fitted.predict(sparse.csr_matrix([[np.nan, 1.0]]))
    with pytest.raises(ValueError, match="labels y of the instances, or bags and proportions"):
        fitted.score(wards[0])
    with pytest.raises(ValueError, match=r"classes that the model was fitted on, \['no', 'yes'\], but have \[0, 1\]"):
        fitted.score(wards[0][:1], bags=["a"], proportions={"a": [1, 2]})


def test_a_model_of_an_array_takes_a_frame_by_place(wards, fitted):
    X = wards[0]
    frame = pa.table({"first": X[:, 0], "second": X[:, 1]})
    np.testing.assert_array_equal(fitted.predict_proba(frame), fitted.predict_proba(X))


def test_the_saved_model_is_readable(fitted, tmp_path):
    fitted.save(tmp_path)
    model = json.loads((tmp_path / "model.json").read_text())["model"]
    assert model["classes"] == ["no", "yes"]
    assert model["preprocessing"]["numbers"]["names"] == ["x0", "x1"]
