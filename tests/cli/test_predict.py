"""`bagwise predict`, `evaluate`, `apportion` and `export`."""

import json

import numpy as np
import polars as pl
import pytest

from bagwise import ProportionClassifier
from bagwise.commands import prediction
from bagwise.commands.evaluate import class_numbers
from fakes.workplace import QUICK, run


def read(path):
    return {".csv": pl.read_csv, ".parquet": pl.read_parquet, ".arrow": pl.read_ipc}[path.suffix](path)


def run_to_json(line):
    done = run(f"{line} --json")
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


@pytest.fixture
def expected(place_with_model):
    """The probabilities of all people, from Python."""
    model = ProportionClassifier.load(place_with_model / "model")
    return model.predict_proba(place_with_model.people.drop("precinct"))


# ---------------------------------------------------------------- predict


@pytest.mark.parametrize("source", ["csv", "parquet", "arrow"])
@pytest.mark.parametrize("target", ["csv", "parquet", "arrow"])
def test_predictions_in_slices_of_every_file_type(place_with_model, expected, monkeypatch, source, target):
    monkeypatch.setattr(prediction, "_ROWS_PER_SLICE", 50)
    place_with_model.write(f"rows.{source}", place_with_model.survey)
    done = run(f"predict model rows.{source} --keep person --keep precinct --keep person --out out.{target}")
    assert done.exit_code == 0, done.output
    assert done.stderr == "note: columns that the model does not use: vote.\n"
    frame = read(place_with_model / f"out.{target}")
    assert frame.columns == ["person", "precinct", "class", "probability A", "probability B"]
    if target != "csv":  # a reader of CSV may take the leading zeros away
        assert frame["person"].to_list() == place_with_model.survey["person"].to_list()
    np.testing.assert_allclose(frame["probability B"], expected[:, 1], atol=1e-6)
    assert frame["class"].to_list() == np.where(expected[:, 1] > expected[:, 0], "B", "A").tolist()
    assert not [path for path in place_with_model.folder.iterdir() if path.name.startswith(".")]


def test_predictions_without_kept_columns(place_with_model, expected):
    result = run_to_json("predict model people.csv --out new/out.parquet")
    assert read(place_with_model / "new" / "out.parquet").columns == ["class", "probability A", "probability B"]
    assert result["rows"] == 360
    assert result["classes"] == {"A": int((expected[:, 0] >= 0.5).sum()), "B": int((expected[:, 1] > 0.5).sum())}
    assert result["unused_columns"] == []


def test_leading_zeros_survive(place_with_model):
    assert run("predict model survey.csv --keep person --out out.csv").exit_code == 0
    assert (place_with_model / "out.csv").read_text().splitlines()[1].startswith("0000,")


def test_text_that_looks_like_numbers_now(place):
    """CSV has no types: a column that was text when the model was fitted is text, though it could be numbers now."""
    codes = pl.Series("code", ["01", "2"] * 180)
    place.write("people.csv", place.people.with_columns(codes))
    assert run(f"fit people.csv --bag precinct --proportions shares.csv --out model {QUICK}").exit_code == 0
    place.write("people.csv", place.people.with_columns(codes)[1:2])
    done = run("predict model people.csv --out out.csv")
    assert done.exit_code == 0, done.output


def test_an_error_in_a_late_slice_leaves_nothing(place_with_model, monkeypatch):
    monkeypatch.setattr(prediction, "_ROWS_PER_SLICE", 50)
    incomes = place_with_model.people["income"].to_list()
    incomes[301] = float("inf")
    place_with_model.write("people.parquet", place_with_model.people.with_columns(income=pl.Series(incomes)))
    (place_with_model / "out.csv").write_text("precious")
    before = place_with_model.contents()
    done = run("predict model people.parquet --out out.csv --overwrite")
    assert done.exit_code == 2
    assert "column 'income' holds inf" in done.stderr
    assert place_with_model.contents() == before


def test_a_number_beyond_all_others_gives_probabilities(place_with_model):
    ages = [1e300, -1e300, *place_with_model.people["age"][2:].to_list()]
    place_with_model.write("people.csv", place_with_model.people.with_columns(age=pl.Series(ages)))
    assert run("predict model people.csv --out out.parquet").exit_code == 0
    chances = read(place_with_model / "out.parquet").select(pl.col("^probability .*$")).to_numpy()
    np.testing.assert_allclose(chances.sum(axis=1), 1, atol=1e-6)


@pytest.mark.parametrize(
    "line",
    [
        "predict model rows.parquet --out out.csv",
        "evaluate model rows.parquet --label vote",
        "apportion model rows.parquet --proportions counts.csv --out out.csv",
    ],
)
def test_what_the_model_does_not_know_is_told(place_with_model, monkeypatch, line):
    monkeypatch.setattr(prediction, "_ROWS_PER_SLICE", 50)
    homes = ["OWN", *place_with_model.survey["home"][1:359].to_list(), "RENT"]
    incomes = [None, None, *place_with_model.survey["income"][2:].to_list()]
    rows = place_with_model.survey.drop("person").with_columns(
        age=pl.lit(None, dtype=pl.Float64), home=pl.Series(homes), income=pl.Series(incomes)
    )
    place_with_model.write("rows.parquet", rows if "evaluate" in line else rows.drop("vote"))
    done = run(f"{line} --json")
    assert done.exit_code == 0, done.output
    assert done.stderr.splitlines() == [
        "note: categories that the model does not know: home in 2 of 360 rows (such as 'OWN').",
        "note: values missing, unlike when the model was fitted: age in 360 of 360 rows, income in 2 of 360 rows.",
    ]
    assert json.loads(done.stdout)["surprises"] == [
        {"column": "age", "unknown_rows": 0, "example": None, "missing_rows": 360},
        {"column": "income", "unknown_rows": 0, "example": None, "missing_rows": 2},
        {"column": "home", "unknown_rows": 2, "example": "OWN", "missing_rows": 0},
    ]


# ---------------------------------------------------------------- evaluate


def test_scores_by_hand(place_with_model, expected):
    votes = place_with_model.survey["vote"].to_list()
    votes[:10] = [None] * 10
    place_with_model.write("survey.csv", place_with_model.survey.with_columns(vote=pl.Series(votes)))
    result = run_to_json("evaluate model survey.csv --label vote")
    truth, predicted = np.array(votes[10:]), np.where(expected[10:, 1] > expected[10:, 0], "B", "A")
    assert (result["rows"], result["rows_without_label"]) == (350, 10)
    assert result["metrics"]["accuracy"] == pytest.approx((truth == predicted).mean())
    chosen = expected[10:][np.arange(350), (truth == "B").astype(int)]
    assert result["metrics"]["log_loss"] == pytest.approx(-np.log(chosen).mean())
    for score, label in zip(result["classes"], "AB", strict=True):
        both = ((truth == label) & (predicted == label)).sum()
        assert score["rows"] == (truth == label).sum()
        assert score["recall"] == pytest.approx(both / (truth == label).sum())
        assert score["precision"] == pytest.approx(both / (predicted == label).sum())


def test_scores_in_words(place_with_model):
    done = run("evaluate model survey.csv --label vote")
    assert done.exit_code == 0, done.output
    assert "360 labelled rows" in done.stdout
    assert "accuracy" in done.stdout
    place_with_model.write("survey.csv", place_with_model.survey.filter(pl.col("vote") == "A"))
    assert "–" in run("evaluate model survey.csv --label vote").stdout  # no row has class B: nothing to recall


@pytest.mark.parametrize(
    ("labels", "classes"),
    [
        (["no", "yes", None], ["no", "yes"]),
        ([0, 1, None], ["0", "1"]),
        ([0.0, 1.0, float("nan")], ["0", "1"]),
        (["0.0", "1.0", None], ["0", "1"]),
        (["0", "1", "NA"], ["0.0", "1.0"]),
        ([0, 1, None], ["0.0", "1.0"]),
        (["1", "NA", "."], ["1", "NA"]),
        ([False, True, None], ["False", "True"]),
        ([False, True, None], ["false", "true"]),
    ],
)
def test_labels_of_all_kinds(labels, classes):
    assert class_numbers(labels, classes, "vote").tolist() == [0, 1, -1]


@pytest.mark.parametrize("label", ["1.5", 1.5, "A.0", "YES", "-1.0"])
def test_labels_that_are_no_class(label):
    with pytest.raises(ValueError, match="must hold classes of the model"):
        class_numbers([label], ["1", "A", "yes"], "vote")


# ---------------------------------------------------------------- apportion


APPORTION = "apportion model people.csv --proportions counts.csv --out labels.csv"


@pytest.mark.parametrize(
    ("options", "tolerance"),
    [
        ("", 1e-6),
        ("--how lp", 1e-6),
        ("--how combinatorial --alpha 0.01", 1e-6),
        ("--how rot --alpha 0.01", 0.5),
        ("--how rot", 0.5),
    ],
)
def test_labels_that_agree_with_the_bags(place_with_model, options, tolerance):
    result = run_to_json(f"{APPORTION} {options} --keep precinct")
    labels = read(place_with_model / "labels.csv").group_by("precinct")
    found = labels.agg(pl.col("probability A").mean(), classes=(pl.col("class") == "A").mean()).sort("precinct")
    gaps = (found["probability A"] - place_with_model.shares["A"]).abs()
    assert gaps.max() < tolerance
    assert result["gap_after"] == pytest.approx(2 * gaps.mean(), abs=1e-5)
    assert result["gap_after"] < result["gap_before"]
    gaps_of_classes = (found["classes"] - place_with_model.shares["A"]).abs()
    assert result["gap_classes"] == pytest.approx(2 * gaps_of_classes.mean(), abs=1e-5)
    if tolerance < 0.1:
        assert gaps_of_classes.max() < tolerance
    assert (result["rows"], result["bags"], result["bags_unknown"]) == (360, 30, 0)


def test_the_miss_is_that_of_the_classes_written(place_with_model):
    assert "; the classes miss the proportions by 0.00 points, the model alone by " in run(APPORTION).stdout
    result = run_to_json(f"{APPORTION} --how rot --overwrite")
    assert result["gap_classes"] > 1e-3
    said = run(f"{APPORTION} --how rot --overwrite").stdout
    classes, probabilities = 50 * result["gap_classes"], 50 * result["gap_after"]
    assert (
        f"the classes miss the proportions by {classes:.2f} points, the probabilities by {probabilities:.2f}," in said
    )


def test_shares_that_no_whole_number_of_rows_meets(place_with_model):
    """Classes then miss by less than one row per class and bag; the probabilities meet the shares all the same."""
    shares = place_with_model.shares.with_columns(A=pl.lit(0.3), B=pl.lit(0.7))
    place_with_model.write("counts.csv", shares)
    result = run_to_json(APPORTION)
    assert result["gap_after"] == pytest.approx(0, abs=1e-6)
    assert 0 < result["gap_classes"] <= 2 / 12


def test_bags_help(place_with_model):
    """Hard labels that meet the votes of each precinct are right more often than those of the model alone."""
    assert run(f"{APPORTION} --how lp").exit_code == 0
    assert run("predict model people.csv --out predictions.csv").exit_code == 0
    right = [
        (read(place_with_model / name)["class"] == place_with_model.survey["vote"]).mean()
        for name in ("labels.csv", "predictions.csv")
    ]
    assert right[0] > right[1]


def test_rows_of_unknown_bags_keep_their_predictions(place_with_model, expected):
    counts = place_with_model.counts.with_columns(
        pl.when(pl.col("precinct") == "ward-00").then(None).otherwise(pl.col("A", "B")).name.keep()
    )
    place_with_model.write("counts.csv", counts)
    assert "\n1 bag with unknown proportions keeps the model's predictions\n" in run(APPORTION).stdout
    assert run_to_json(f"{APPORTION} --overwrite")["bags_unknown"] == 1
    labels = read(place_with_model / "labels.csv")
    np.testing.assert_allclose(labels["probability A"][:12], expected[:12, 0], atol=1e-6)
    assert not np.allclose(labels["probability A"][12:24], expected[12:24, 0], atol=1e-3)
    place_with_model.write(
        "counts.csv", pl.concat([counts[:1], counts[:1], counts[2:]]).with_columns(counts["precinct"])
    )
    assert "\n2 bags with unknown proportions keep the model's" in run(f"{APPORTION} --overwrite").stdout
    place_with_model.write("counts.csv", place_with_model.counts)
    assert "unknown" not in run(f"{APPORTION} --overwrite").stdout


# ---------------------------------------------------------------- export


def test_an_export_gives_the_same_probabilities(place):
    onnxruntime = pytest.importorskip("onnxruntime")
    line = f"fit people.csv --bag precinct --proportions shares.csv --ignore home --out model {QUICK}"
    assert run(line).exit_code == 0
    result = run_to_json("export model --onnx new/model.onnx")
    assert result == {"onnx": "new/model.onnx", "columns": ["age", "income"], "classes": ["A", "B"]}
    numbers = place.people.select("age", "income")
    session = onnxruntime.InferenceSession(str(place / "new" / "model.onnx"))
    (exported,) = session.run(None, {"x": numbers.fill_null(float("nan")).to_numpy().astype(np.float64)})
    np.testing.assert_allclose(exported, ProportionClassifier.load(place / "model").predict_proba(numbers), atol=1e-5)
