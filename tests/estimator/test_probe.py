"""`ProportionClassifier(method="probe")`: the same estimator, without training."""

import numpy as np
import pyarrow as pa
import pytest
from scipy import sparse

from bagwise import ProportionClassifier
from bagwise.model_folder import ModelFolderError, read_model, write_model
from bagwise.report.model import write_model_report


@pytest.fixture(scope="module")
def embedded():
    """A table with one column of embeddings, in 8 large bags: table, bags, counts, labels (to score)."""
    rng = np.random.default_rng(0)
    bags = np.repeat([f"site {site}" for site in range(8)], 60)
    shares = np.repeat(rng.dirichlet([1, 1, 1], 8), 60, axis=0)
    labels = np.array([rng.choice(["cat", "dog", "fox"], p=share) for share in shares])
    centres = dict(zip(("cat", "dog", "fox"), rng.normal(size=(3, 12)), strict=True))
    vectors = [(centres[label] + 0.5 * rng.normal(size=12)).tolist() for label in labels]
    counts = {
        bag: {label: int(((bags == bag) & (labels == label)).sum()) for label in centres} for bag in dict.fromkeys(bags)
    }
    return pa.table({"vector": vectors, "site": bags}), counts, labels


@pytest.fixture(scope="module")
def fitted(embedded):
    table, counts, _ = embedded
    return ProportionClassifier("probe", counts=True, device="cpu", random_state=0).fit(
        table, bags="site", proportions=counts
    )


def test_it_learns_from_a_column_of_lists(embedded, fitted):
    table, _, labels = embedded
    assert fitted.score(table, labels) > 0.95
    assert fitted.predict_proba(table).shape == (480, 3)


def test_what_it_tells_of_the_fit(fitted):
    (entry,) = fitted.history_
    assert fitted.best_epoch_ == 1
    best = min(entry["candidates"], key=lambda candidate: candidate["kl"])
    assert (entry["rounds"], entry["directions"]) == (best["rounds"], best["directions"])
    assert "held_out" not in entry  # 8 bags are too few to hold any out
    assert fitted.bag_report_["l1"].max() < 0.2


def test_a_saved_model_is_the_same(embedded, fitted, tmp_path):
    table, _, _ = embedded
    fitted.save(tmp_path)
    loaded = ProportionClassifier.load(tmp_path)
    np.testing.assert_array_equal(loaded.predict_proba(table), fitted.predict_proba(table))
    assert loaded.history_ == fitted.history_


def test_a_saved_model_that_was_tampered_with_is_refused(fitted, tmp_path):
    fitted.save(tmp_path)
    model, tensors = read_model(tmp_path)
    write_model(tmp_path, model, {name: tensor for name, tensor in tensors.items() if name != "network.bank"})
    with pytest.raises(ModelFolderError, match="do not fit the network: a probe has the tensors"):
        ProportionClassifier.load(tmp_path)


def test_held_out_bags_are_judged_and_not_learned_from(wards):
    X, _, bags, counts = wards
    model = ProportionClassifier("probe", counts=True, random_state=0).fit(X, bags=bags, proportions=counts)
    held_out = model.bag_report_["held_out"]
    assert held_out.sum() == 6
    assert model.history_[0]["held_out"]["l1"] < 0.2
    changed = dict(counts)
    for bag in model.bag_report_["bag"][held_out]:
        changed[bag] = {"yes": 5, "no": 5}
    again = ProportionClassifier("probe", counts=True, random_state=0).fit(X, bags=bags, proportions=changed)
    np.testing.assert_array_equal(again.predict_proba(X), model.predict_proba(X))


def test_settings_reach_the_probe_and_are_checked(wards):
    X, _, bags, counts = wards
    settings = {"neighbours": 5, "rounds": 1, "directions": 1, "self_taught": False}
    model = ProportionClassifier("probe", method_parameters=settings, counts=True, random_state=0)
    assert model.fit(X, bags=bags, proportions=counts).history_[0]["directions"] == 1
    assert int(model.network_.neighbours) == 5
    with pytest.raises(ValueError, match="Did you mean 'neighbours'"):
        ProportionClassifier("probe", method_parameters={"neighbors": 5}).fit(X, bags=bags, proportions=counts)
    with pytest.raises(ValueError, match="Did you mean 'probe'"):
        ProportionClassifier("prob").fit(X, bags=bags, proportions=counts)


def test_a_sparse_matrix_gives_what_the_dense_one_gives(wards):
    X, _, bags, counts = wards
    X = np.abs(X)
    model = ProportionClassifier("probe", counts=True, random_state=0)
    dense = model.fit(sparse.csr_matrix(X), bags=bags, proportions=counts).predict_proba(X)
    np.testing.assert_allclose(model.predict_proba(sparse.csr_matrix(X)), dense, atol=1e-6)


def test_a_row_is_predicted_alike_alone_and_among_others(wards):
    X, _, bags, counts = wards
    model = ProportionClassifier("probe", counts=True, random_state=0).fit(X, bags=bags, proportions=counts)
    together = model.predict_proba(X[:20])
    np.testing.assert_allclose(np.concatenate([model.predict_proba(X[i : i + 1]) for i in range(20)]), together)


def test_labels_without_bags_are_bags_of_one(wards):
    X, labels, _, _ = wards
    assert ProportionClassifier("probe", random_state=0).fit(X, labels).score(X, labels) > 0.9


def test_the_report_is_written(embedded, fitted, tmp_path):
    table, counts, _ = embedded
    fitted_on = {bag: [row[label] for label in fitted.classes_] for bag, row in counts.items()}
    assert len(fitted_on) == 8
    write_model_report(tmp_path / "report.html", fitted, table, "site", counts)
    assert "nearest rows and a linear head" in (tmp_path / "report.html").read_text(encoding="utf-8")


def test_onnx_gives_the_same_probabilities(wards, tmp_path):
    pytest.importorskip("onnxscript")
    runtime = pytest.importorskip("onnxruntime")
    X, _, bags, counts = wards
    settings = {"rounds": 2}
    model = ProportionClassifier("probe", method_parameters=settings, counts=True, random_state=0)
    model.fit(X, bags=bags, proportions=counts).export_onnx(tmp_path / "model.onnx")
    session = runtime.InferenceSession(tmp_path / "model.onnx")
    for rows in (1, 7, 600):
        (got,) = session.run(["probabilities"], {"x": X[:rows]})
        np.testing.assert_allclose(got, model.predict_proba(X[:rows]), atol=1e-5)


def test_methods_that_compare_two_views_fit_too(people, wards, classifier):
    model = classifier(method="fixmatch", epochs=1).fit(people, bags="ward", proportions=wards[3])
    assert model.predict_proba(people).shape == (600, 2)


def test_inputs_of_one_column_are_swapped_together(people):
    from bagwise.estimator.inputs import column_of_each_input
    from bagwise.tables.preprocessing import fit_preprocessing
    from bagwise.tables.reading import read_table

    preprocessing = fit_preprocessing(read_table(people.drop(["ward"])))
    columns = column_of_each_input(preprocessing)
    widths = {name: width for name, _, width, _ in preprocessing.treatments()}
    assert len(columns) == preprocessing.width == sum(widths.values())
    # income and its mark are one column, as are the categories and the parts of a date; 3 numbers of a list are 3
    assert columns[:2] == (0, 0)
    assert len(set(columns)) == 1 + 1 + 1 + 3
