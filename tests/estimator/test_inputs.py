import numpy as np
import pyarrow as pa
import pytest
from scipy import sparse


@pytest.mark.parametrize("library", ["pyarrow", "polars", "pandas"])
def test_frames_of_any_library(people, wards, library, classifier):
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


def test_the_bag_column_names_the_column_of_the_other_table(people, wards, classifier):
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


def test_sparse_input_is_dense_input(wards, classifier):
    X, _, bags, counts = wards
    X = np.where(np.abs(X) < 0.3, 0, X)
    model = classifier().fit(sparse.csr_matrix(X), bags=bags, proportions=counts)
    np.testing.assert_allclose(model.predict_proba(sparse.csc_matrix(X)), model.predict_proba(X), atol=1e-12)


def test_a_model_of_an_array_takes_a_frame_by_place(wards, fitted):
    X = wards[0]
    frame = pa.table({"first": X[:, 0], "second": X[:, 1]})
    np.testing.assert_array_equal(fitted.predict_proba(frame), fitted.predict_proba(X))


def test_new_data_that_does_not_fit(people, wards, fitted, classifier):
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
