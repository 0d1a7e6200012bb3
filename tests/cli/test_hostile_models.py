"""Models, and tables to use them on, that go wrong: one line that says what and how to mend it, nothing written."""

import json
import re

import numpy as np
import polars as pl
import pytest

from fakes.workplace import fails_in_one_line, run

PREDICT = "predict model people.csv --out predictions.csv"
EVALUATE = "evaluate model survey.csv --label vote"
APPORTION = "apportion model people.csv --proportions counts.csv --counts --out labels.csv"
EXPORT = "export model --onnx model.onnx"


@pytest.mark.parametrize("line", [PREDICT, EVALUATE, APPORTION, EXPORT])
@pytest.mark.parametrize(
    ("damage", "fragments"),
    [
        (lambda folder: folder.rename(folder.with_name("moved")), ["model", "no model.json"]),
        (lambda folder: (folder / "model.json").unlink(), ["model", "no model.json"]),
        (lambda folder: (folder / "model.json").write_text("{}"), ["model.json is not the description"]),
        (lambda folder: (folder / "model.json").write_text('{"format":'), ["model.json is not readable as JSON"]),
        (lambda folder: (folder / "model.json").write_bytes(b"\xff\xfe"), ["model.json is not readable"]),
        (lambda folder: retouch(folder, classes=["A", "C"]), ["model.json was changed after it was saved"]),
        (lambda folder: weights(folder).unlink(), ["weights of the model, is missing", "Copy the folder again"]),
        (lambda folder: weights(folder).write_bytes(weights(folder).read_bytes()[:-9]), ["is truncated or changed"]),
    ],
)
def test_damaged_models(place_with_model, line, damage, fragments):
    damage(place_with_model / "model")
    fails_in_one_line(place_with_model, line, *fragments)


def weights(folder):
    (path,) = folder.glob("weights-*.safetensors")
    return path


def retouch(folder, **values):
    content = json.loads((folder / "model.json").read_text())
    content["model"] |= values
    (folder / "model.json").write_text(json.dumps(content))


@pytest.mark.parametrize("line", [PREDICT, APPORTION])
@pytest.mark.parametrize("suffix", ["csv", "parquet"])
@pytest.mark.parametrize(
    ("change", "fragments"),
    [
        (lambda people: people.drop("age"), ["columns that the model was fitted on", "'age' is missing"]),
        (lambda people: people.rename({"age": "Age", "home": "Home"}), ["'age', 'home' are missing", "It has"]),
        (lambda people: people.with_columns(age=pl.lit("old")), ["column 'age' held numbers", "holds text now"]),
        (lambda people: people.with_columns(income=pl.lit(-np.inf)), ["'income' holds -inf in row 0"]),
        (lambda people: people[:0], ["must have at least one row"]),
    ],
)
def test_rows_that_the_model_does_not_fit(place_with_model, line, suffix, change, fragments):
    place = place_with_model
    place.write(f"people.{suffix}", change(place.people))
    fails_in_one_line(place, line.replace("people.csv", f"people.{suffix}"), *fragments)


@pytest.mark.parametrize("line", [PREDICT, APPORTION])
def test_predictions_that_cannot_be_written(place_with_model, line):
    place = place_with_model
    command, out = line.split("--out ")
    (place / out).write_text("precious")
    fails_in_one_line(place, line, f"{out} exists already", "--overwrite")
    fails_in_one_line(place, f"{command} --out out.xlsx", "'out.xlsx'", ".parquet")
    fails_in_one_line(place, f"{command} --out model", "'model'", ".parquet")
    (place / "folder.csv").mkdir()
    fails_in_one_line(place, f"{command} --out folder.csv", "folder.csv is a folder")
    fails_in_one_line(place, f"{command} --out people.csv/out.csv", "people.csv/out.csv cannot be written")
    fails_in_one_line(place, f"{command} --out /proc/out.csv", "/proc/out.csv cannot be written")
    fails_in_one_line(place, f"{command} --out new.csv --keep persn", "people.csv", "'persn'")


def test_columns_that_cannot_be_kept(place_with_model):
    place = place_with_model
    extra = place.people.with_columns(pair=pl.concat_list("income", "income"), **{"class": pl.lit("x")})
    place.write("people.parquet", extra)
    line = PREDICT.replace("people.csv", "people.parquet")
    fails_in_one_line(place, f"{line} --keep class", "--keep class", "Rename it")
    fails_in_one_line(place, f"{line} --keep pair", "CSV cannot hold lists", "'pair'", "Parquet")


@pytest.mark.parametrize(
    ("labels", "fragments"),
    [
        (lambda vote: vote.replace_strict({"A": "a"}, default="B"), ["column 'vote'", "'a'", "Did you mean 'A'?"]),
        (lambda vote: vote.replace_strict({"A": 1}, default=2), ["column 'vote'", "'A', 'B'"]),
        (lambda vote: pl.Series("vote", [None] * len(vote)), ["column 'vote'", "empty in all", "Fill it in"]),
    ],
)
def test_labels_that_are_none(place_with_model, labels, fragments):
    place = place_with_model
    place.write("survey.csv", place.survey.with_columns(labels(place.survey["vote"])))
    fails_in_one_line(place, EVALUATE, *fragments)


def test_a_label_that_is_not_there_or_is_an_input(place_with_model):
    fails_in_one_line(place_with_model, EVALUATE.replace("vote", "votes"), "survey.csv", "Did you mean 'vote'?")
    fails_in_one_line(place_with_model, EVALUATE.replace("vote", "home"), "'home' is an input", "--ignore home")


def test_proportions_that_the_model_does_not_fit(place_with_model):
    place = place_with_model
    fails_in_one_line(place, f"{APPORTION} --how lpp", "--how", "Did you mean 'lp'?")
    fails_in_one_line(place, f"{APPORTION} --how rot --alpha 1", "alpha must lie strictly between 0 and 1")
    fails_in_one_line(place, f"{APPORTION} --alpha 0.1", "--how lp meets exactly, but got 0.1", "choose --how rot")
    fails_in_one_line(place, f"{APPORTION} --bag ward", "a column of people.csv", "'precinct'", "'ward'")
    place.write("counts.csv", place.counts.rename({"B": "C"}))
    fails_in_one_line(place, APPORTION, "counts.csv must have a column for each class", "'B'")
    place.write("counts.csv", place.counts[1:])
    fails_in_one_line(place, APPORTION, "bag 'ward-00' is missing", "Add its row")


def test_models_that_cannot_be_exported(place_with_model):
    fails_in_one_line(place_with_model, EXPORT, "'home' holds text", "Turn it into numbers")
    fails_in_one_line(place_with_model, EXPORT.replace("model.onnx", "people.csv"), "people.csv exists already")


# ---------------------------------------------------------------- anything at all

SCRAPS = [
    b"",
    b",",
    b"\n",
    b'"',
    b";",
    b"NaN",
    b"-inf",
    b"1e999",
    b"007",
    b"-5",
    b"\x00",
    b"\xff",
    b"ward-01",
    b"9" * 40,
]
LINES = [
    "fit people.csv --bag precinct --proportions shares.csv --dry-run",
    "fit people.parquet --bag precinct --proportions counts.csv --counts --dry-run",
    "fit people.csv --bag precinct --proportions counts.csv --noise gaussian:2 --counts --dry-run",
    "predict model people.csv --keep home --out out.parquet --overwrite",
    "predict model people.parquet --out out.csv --overwrite",
    "evaluate model survey.csv --label vote",
    "apportion model people.csv --proportions counts.csv --out out.csv --overwrite",
]


@pytest.mark.parametrize("line", LINES)
def test_tables_with_something_wrong_anywhere(place_with_model, line):
    """Cells replaced by scraps, bytes by others: the command works, or fails in one line."""
    rng = np.random.default_rng(len(line))
    names = [
        name for name in ("people.csv", "people.parquet", "shares.csv", "counts.csv", "survey.csv") if name in line
    ]
    for _ in range(8):
        name = names[rng.integers(len(names))]
        whole = (place_with_model / name).read_bytes()
        pieces = re.split(rb"([,\n])", whole) if name.endswith("csv") else [bytes([byte]) for byte in whole]
        for place in rng.integers(len(pieces), size=rng.choice([1, 3])):
            pieces[place] = SCRAPS[rng.integers(len(SCRAPS))]
        (place_with_model / name).write_bytes(b"".join(pieces))
        done = run(line)
        assert done.exit_code in (0, 2), done.output
        if done.exit_code == 2:
            assert re.fullmatch(r"error: .{20,800}\n", done.stderr), done.stderr
        (place_with_model / name).write_bytes(whole)
