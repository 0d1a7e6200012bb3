import contextlib
import gc
import tempfile
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from bagwise import BagWarning, ProportionClassifier
from bagwise.estimator import classifier as classifier_module
from bagwise.estimator import ways

ROWS, WARDS = 900, 30


def people(seed=0):
    rng = np.random.default_rng(seed)
    age = rng.normal(size=ROWS)
    return pl.DataFrame(
        {
            "ward": [f"ward {ward}" for ward in rng.integers(0, WARDS, ROWS)],
            "age": [None if row % 9 == 0 else value for row, value in enumerate(age)],
            "town": rng.choice(["Ulm", "Bonn", "Köln"], ROWS),
            "vote": np.where(age + rng.normal(size=ROWS) > 0, "yes", "no"),
        }
    )


def counts_of(frame):
    votes = frame.group_by("ward").agg(no=(pl.col("vote") == "no").sum(), yes=(pl.col("vote") == "yes").sum())
    return votes.sort("no", "ward")  # in another order than the bags


@pytest.fixture
def table(tmp_path):
    frame = people()
    frame.write_parquet(tmp_path / "people.parquet")
    return tmp_path / "people.parquet", frame.drop("vote"), counts_of(frame)


def test_a_column_of_the_bags_is_warned_of_as_in_memory(tmp_path):
    frame = people().with_columns(district=pl.col("ward") + "!")
    frame.drop("vote").write_parquet(tmp_path / "people.parquet")
    model = ProportionClassifier(network="linear", epochs=1, counts=True, random_state=0)
    with pytest.warns(BagWarning, match="column 'district' has one value in each bag"):
        model.fit_parquet(tmp_path / "people.parquet", bags="ward", proportions=counts_of(frame))


@pytest.fixture
def temporary(tmp_path, monkeypatch):
    """A folder of temporary files, and how many mappings of files in it the process has."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))

    def mapped():
        gc.collect()
        return sum(str(folder) in line for line in Path("/proc/self/maps").read_text().splitlines())

    return folder, mapped


def files_of_ours(folder):
    """All but the cache of torch's compiler, which it makes there when it is first loaded."""
    return [path for path in folder.iterdir() if not path.name.startswith("torchinductor")]


def new_classifier(**options):
    return ProportionClassifier(
        network="linear", epochs=3, batch_size=64, counts=True, device="cpu", random_state=0, **options
    )


def without_times(history):
    return [{name: entry[name] for name in ("epoch", "loss", "held_out") if name in entry} for entry in history]


@pytest.mark.parametrize("by_ward", [False, True])
@pytest.mark.parametrize("validation_fraction", [0, 0.2])
def test_a_file_teaches_what_the_same_frame_does(table, by_ward, validation_fraction):
    path, frame, counts = table
    if by_ward:
        frame = frame.sort("ward", maintain_order=True)
    frame.write_parquet(path)
    expected = new_classifier(validation_fraction=validation_fraction).fit(frame, bags="ward", proportions=counts)
    fitted = new_classifier(validation_fraction=validation_fraction).fit_parquet(
        path, bags="ward", proportions=counts, columns=["age", "town"]
    )
    assert fitted.classes_.tolist() == expected.classes_.tolist() == ["no", "yes"]
    assert fitted.preprocessing_ == expected.preprocessing_
    assert (fitted.n_features_in_, fitted.feature_names_in_.tolist()) == (2, ["age", "town"])
    assert (fitted.bag_column_, fitted.best_epoch_) == ("ward", expected.best_epoch_)
    assert without_times(fitted.history_) == without_times(expected.history_)
    assert fitted.warnings_ == expected.warnings_
    np.testing.assert_array_equal(fitted.predict_proba(frame), expected.predict_proba(frame))
    assert fitted.bag_report_.keys() == expected.bag_report_.keys()
    for name, column in expected.bag_report_.items():
        np.testing.assert_array_equal(fitted.bag_report_[name], column)


def test_the_report_compares_every_bag_with_the_mean_of_its_rows(table):
    path, frame, counts = table
    fitted = new_classifier().fit_parquet(path, bags="ward", proportions=counts, columns=["age", "town"])
    shares = pl.DataFrame({"ward": frame["ward"], "yes": fitted.predict_proba(frame)[:, 1]})
    means = shares.group_by("ward").agg(pl.col("yes").mean(), pl.len()).sort("ward")
    assert fitted.bag_report_["bag"].tolist() == means["ward"].to_list()
    assert fitted.bag_report_["size"].tolist() == means["len"].to_list()
    np.testing.assert_allclose(fitted.bag_report_["predicted yes"], means["yes"], rtol=1e-12)
    known = counts.sort("ward").select(pl.col("yes") / (pl.col("yes") + pl.col("no")))["yes"]
    np.testing.assert_allclose(fitted.bag_report_["known yes"], known, rtol=1e-6)


def test_a_model_fitted_on_a_file_is_saved_and_loaded(table, tmp_path):
    path, frame, counts = table
    fitted = new_classifier().fit_parquet(path, bags="ward", proportions=counts, columns=["town", "age"])
    fitted.save(tmp_path / "model")
    loaded = ProportionClassifier.load(tmp_path / "model")
    np.testing.assert_array_equal(loaded.predict_proba(frame), fitted.predict_proba(frame))


def test_no_temporary_file_outlives_the_fit(table, temporary, monkeypatch):
    path, _, counts = table
    folder, mapped = temporary
    seen = []
    train = ways.fit_network
    monkeypatch.setattr(
        ways, "fit_network", lambda *args, **options: (seen.append(mapped()), train(*args, **options))[1]
    )
    new_classifier().fit_parquet(path, bags="ward", proportions=counts, columns=["age"])
    assert seen == [1]  # the inputs are in a file
    assert mapped() == 0
    assert not files_of_ours(folder)


def test_no_temporary_file_outlives_an_interrupt(table, temporary, monkeypatch):
    path, _, counts = table
    folder, mapped = temporary

    def interrupted(*args, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr(ways, "fit_network", interrupted)
    with contextlib.suppress(KeyboardInterrupt):  # pytest.raises would keep what the traceback holds on to
        new_classifier().fit_parquet(path, bags="ward", proportions=counts, columns=["age"])
    assert mapped() == 0
    assert not files_of_ours(folder)


def test_proportions_that_do_not_fit_are_refused_before_the_inputs_are_written(table, monkeypatch):
    path, _, counts = table
    monkeypatch.setattr(classifier_module, "spool_parquet", lambda survey: pytest.fail("too late"))
    with pytest.raises(ValueError, match="bag 'ward 7' is missing"):
        new_classifier().fit_parquet(path, bags="ward", proportions=counts.filter(pl.col("ward") != "ward 7"))
    with pytest.raises(ValueError, match="Did you mean 'ward'"):
        new_classifier().fit_parquet(path, bags="wrad", proportions=counts)
    unknown = counts.with_columns(pl.when(pl.col("ward") == "ward 7").then(pl.col("no", "yes")))
    with pytest.raises(ValueError, match="at least 2 bags"):
        new_classifier().fit_parquet(path, bags="ward", proportions=unknown)
