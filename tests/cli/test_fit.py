"""`bagwise fit`: what it writes, what it says, and inputs that look odd but are fine."""

import html
import inspect
import json
import re
import shutil

import numpy as np
import polars as pl
import pytest

from bagwise import ProportionClassifier
from bagwise.cli.fit import fit
from bagwise.cli.messages import show_json
from bagwise.commands import fit as fitting
from bagwise.commands import understanding
from fakes.workplace import FIT, QUICK, count_votes, fit_to_json, make_people, run, warnings_of


def test_a_model_and_a_report(place):
    done = run(
        "fit people.csv --bag precinct --proportions counts.csv --counts --network linear --epochs 3 --out model"
    )
    assert done.exit_code == 0, done.output
    assert all(line.startswith("warning: ") for line in done.stderr.splitlines())
    assert "360 rows in 30 bags, 2 classes: A, B" in done.stdout
    assert "model: model\nreport: model/report.html\n" in done.stdout
    assert "<html" in (place / "model" / "report.html").read_text()
    model = ProportionClassifier.load(place / "model")
    assert model.preprocessing_.names == ("age", "income", "home")
    assert (model.network, model.epochs, model.counts, model.random_state) == ("linear", 3, True, 0)
    assert {path.name for path in place.folder.iterdir()} >= {"model"}
    assert not [path for path in place.folder.iterdir() if path.name.startswith(".")]


def test_the_command_line_fits_what_python_fits(place):
    assert run(FIT).exit_code == 0
    ours = ProportionClassifier.load(place / "model")
    theirs = ProportionClassifier(network="linear", epochs=2, random_state=0)
    theirs.fit(place.people, bags="precinct", proportions=place.shares)
    inputs = place.people.drop("precinct")
    np.testing.assert_allclose(ours.predict_proba(inputs), theirs.predict_proba(inputs), atol=1e-6)


def test_every_kind_of_file_gives_the_same_model(place):
    place.write("people.arrow", place.people)
    place.write("shares.parquet", place.shares)
    inputs = place.people.drop("precinct")
    probabilities = []
    for rows, shares in [("csv", "csv"), ("parquet", "csv"), ("arrow", "parquet")]:
        line = FIT.replace("people.csv", f"people.{rows}").replace("shares.csv", f"shares.{shares}")
        assert run(f"{line} --overwrite").exit_code == 0
        probabilities.append(ProportionClassifier.load(place / "model").predict_proba(inputs))
    np.testing.assert_allclose(probabilities[1], probabilities[0], atol=1e-4)
    np.testing.assert_allclose(probabilities[2], probabilities[0], atol=1e-4)


def test_a_result_for_machines(place):
    result = fit_to_json(FIT)
    assert result["model"] == "model"
    assert result["report"] is None
    assert (result["rows"], result["bags"], result["classes"]) == (360, 30, ["A", "B"])
    assert result["best_epoch"] in (1, 2)
    assert set(result["held_out"]) == {"kl", "l1", "l1_of_overall_shares"}
    assert "Only 3 bags could be held out" in result["warnings"][0]
    assert result["accuracy"] is None
    assert "Only 3 bags could be held out; it takes 20 or more" in result["no_accuracy"]


def test_a_probe(place):
    done = run("fit people.csv --bag precinct --proportions shares.csv --method probe --out model")
    assert done.exit_code == 0, done.output
    assert "a linear head on " in done.stdout
    assert "epochs" not in done.stdout
    assert "a linear head, " in (place / "model" / "report.html").read_text()
    assert run("predict model people.csv --out predicted.csv").exit_code == 0
    result = fit_to_json(
        "fit people.csv --bag precinct --proportions shares.csv --method probe --out other --no-report"
    )
    assert result["directions"] == ProportionClassifier.load(place / "other").history_[0]["directions"]


def test_how_it_was_trained_is_said_alike_on_the_terminal_and_on_the_page(place):
    done = run(f"{FIT} --report")
    page = (place / "model" / "report.html").read_text()
    training = fit_to_json(f"{FIT} --overwrite")["training"]
    assert "of 2 was kept: the last that met the proportions of held-out bags as closely as the best" in training
    assert training in done.stdout.splitlines()
    assert training in page


def test_held_out_bags_are_missed_alike_on_the_terminal_in_the_result_and_on_the_page(place):
    """By three classes: by the mean over classes it would be a third less."""
    thirds = place.shares.with_columns(A=pl.col("A") / 2, C=pl.col("A") / 2)
    place.write("shares.csv", thirds)
    done = run(f"{FIT} --report")
    page = (place / "model" / "report.html").read_text()
    words = r"held-out bags: the predicted shares are off by (\d+\.\d) points .* overall shares: (\d+\.\d)\)"
    ((said, blind),) = re.findall(words, done.stdout)
    assert f"3 bags kept from training, the predicted shares are off by {said} points" in page
    assert f"Giving every bag the overall shares would be off by {blind} points" in page
    held_out = fit_to_json(f"{FIT} --overwrite")["held_out"]
    assert f"{50 * held_out['l1']:.1f}" == said
    assert f"{50 * held_out['l1_of_overall_shares']:.1f}" == blind
    report = ProportionClassifier.load(place / "model").bag_report_
    assert 50 * report["l1"][report["held_out"]].mean() == pytest.approx(float(said), abs=0.1)


def test_an_estimate_of_accuracy_where_there_are_bags_enough(place):
    survey = make_people(rows_per_bag=4, bags=240)
    place.write("people.csv", survey.drop("person", "vote"))
    place.write("counts.csv", count_votes(survey))
    line = FIT.replace("shares.csv", "counts.csv --counts").replace("--epochs 2", "--epochs 5")
    accuracy = fit_to_json(line)["accuracy"]
    assert accuracy["num_bags"] == 24
    assert fit_to_json(f"{line} --overwrite")["no_accuracy"] is None
    assert 0 <= accuracy["low"] <= accuracy["accuracy"] <= accuracy["high"] <= 1
    assert fit_to_json(f"{line} --overwrite --report")["accuracy"] == accuracy  # the page shows the very same


def test_no_estimate_of_accuracy_where_noise_would_count_as_mistakes(place):
    survey = make_people(rows_per_bag=4, bags=240)
    place.write("people.csv", survey.drop("person", "vote"))
    place.write("counts.csv", count_votes(survey))
    line = FIT.replace("shares.csv", "counts.csv --counts --noise laplace:2")
    done = run(f"{line} --report")
    why = "How many rows get the right class is not estimated: the counts were changed before they were published"
    assert why in done.stdout
    assert "estimated accuracy" not in done.stdout
    page = (place / "model" / "report.html").read_text()
    assert why in page
    assert "not estimated</small>" in page
    assert "cross_validate" not in page  # it does not know of the noise either
    result = fit_to_json(f"{line} --overwrite")
    assert result["accuracy"] is None
    assert why in result["no_accuracy"]


def test_a_large_parquet_file_is_described_by_some_of_its_bags(place, monkeypatch):
    monkeypatch.setattr(fitting, "MOST_ROWS", 100)
    monkeypatch.setattr(fitting, "_ROWS_PER_SLICE", 50)
    done = run(f"{FIT.replace('people.csv', 'people.parquet')} --report")
    assert done.exit_code == 0, done.output
    page = (place / "model" / "report.html").read_text()
    assert "Only 3 bags could be held out" in page  # all of them are among the bags described
    assert "of which this page describes" in page


def test_seeds(place):
    weights = []
    for seed in (1, 1, 2):
        assert run(f"{FIT} --overwrite --seed {seed}").exit_code == 0
        weights.append(ProportionClassifier.load(place / "model").network_.state_dict())
    first, again, other = ([tensor.tolist() for tensor in state.values()] for state in weights)
    assert first == again != other


def test_the_defaults_are_those_of_the_estimator():
    ours, theirs = (inspect.signature(function).parameters for function in (fit, ProportionClassifier))
    for name in ("method", "network", "epochs", "learning_rate", "batch_size", "device", "counts"):
        assert ours[name].default == theirs[name].default


# ---------------------------------------------------------------- dry run


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_a_column_of_the_bags_is_named_by_dry_run_fit_and_report(place, suffix, monkeypatch):
    place.write(f"rich.{suffix}", place.people.with_columns(mean=pl.col("income").mean().over("precinct")))
    line = f"fit rich.{suffix} --bag precinct --proportions shares.csv"
    words = "column 'mean' has one value in each bag"
    (warning,) = fit_to_json(f"{line} --dry-run")["warnings"]
    assert warning.startswith(words)
    assert "--ignore mean" in warning
    assert fit_to_json(f"{line} --ignore mean --dry-run")["warnings"] == []
    fitted = run(f"{line} --network linear --epochs 2 --out model")
    assert fitted.stderr.count(words) == 1
    report = html.unescape((place / "model" / "report.html").read_text())
    assert report.count(words.capitalize()) == 1
    monkeypatch.setattr(understanding, "_MOST_VALUES_TO_COMPARE", 360)
    assert fit_to_json(f"{line} --dry-run")["warnings"] == []  # the fit itself will tell


def test_the_terminal_the_result_and_the_page_have_the_same_warnings(place):
    place.write("shares.csv", place.shares.with_columns(A=pl.lit(0.5), B=pl.lit(0.5)))
    line = f"{FIT.replace('people.csv', 'survey.csv')} --ignore person --json"
    done = run(f"{line} --report")
    warnings = json.loads(done.stdout)["warnings"]
    of_the_table, of_the_bags, of_the_numbers, *_ = warnings
    assert "column 'vote' holds the names of classes" in of_the_table
    assert "1 distinct rows of proportions" in of_the_bags
    assert "Only 3 bags could be held out" in of_the_numbers
    assert warnings_of(done) == warnings
    page = html.unescape((place / "model" / "report.html").read_text())
    assert re.findall("<li>(.*)</li>", page)[: len(warnings)] == [text[0].upper() + text[1:] for text in warnings]
    without_page = run(f"{line} --overwrite")
    assert json.loads(without_page.stdout)["warnings"] == warnings_of(without_page) == warnings


def test_warnings_of_the_tables_come_before_the_training(place, monkeypatch):
    def fail(*_, **__):
        raise ValueError("no training today.")

    monkeypatch.setattr(ProportionClassifier, "fit", fail)
    done = run(f"{FIT.replace('people.csv', 'survey.csv')}")
    warning, error = done.stderr.splitlines()
    assert "column 'vote' holds the names of classes" in warning
    assert error == "error: no training today."


# ---------------------------------------------------------------- odd, but fine


def with_ids(place, ids, rows="people.csv", shares="shares.csv"):
    """Rename the wards 'ward-00', 'ward-01', ... in both tables."""
    new = pl.col("precinct").replace_strict({f"ward-{number:02d}": name for number, name in enumerate(ids)})
    place.write(rows, place.people.with_columns(new))
    place.write(shares, place.shares.with_columns(new))


@pytest.mark.parametrize(
    "ids",
    [
        [f"Übersee-Straße № {number} 🗳" for number in range(30)],
        [f"{number:03d}" for number in range(30)],
        [f'a,"{number}"\nb' for number in range(30)],
        list(range(30)),
        [f"2020-01-{number + 1:02d}" for number in range(30)],
        [number + 0.5 for number in range(30)],
    ],
    ids=["unicode", "leading zeros", "quotes, commas and lines", "integers", "dates", "fractions"],
)
def test_ids_of_all_kinds(place, ids):
    with_ids(place, ids)
    assert run(FIT).exit_code == 0
    with_ids(place, ids, "people.parquet", "shares.parquet")
    line = f"{FIT} --overwrite".replace("people.csv", "people.parquet").replace("shares.csv", "shares.parquet")
    done = run(line)
    assert done.exit_code == 0, done.output


@pytest.mark.parametrize(("rows", "shares"), [("parquet", "csv"), ("csv", "parquet")])
def test_integers_in_one_file_are_the_digits_in_a_csv_file(place, rows, shares):
    with_ids(place, list(range(30)), f"people.{rows}", f"shares.{shares}")
    done = run(FIT.replace("people.csv", f"people.{rows}").replace("shares.csv", f"shares.{shares}"))
    assert done.exit_code == 0, done.output


def test_unknown_bags_and_further_columns(place):
    shares = place.shares.with_columns(
        A=pl.when(pl.col("precinct") == "ward-03").then(None).otherwise("A"),
        B=pl.when(pl.col("precinct") == "ward-03").then(None).otherwise("B"),
        mayor=pl.lit("Smith"),
    )
    place.write("shares.csv", shares.rename({"precinct": "place"}).select("mayor", "place", "A", "B").drop("mayor"))
    result = fit_to_json("fit people.csv --bag precinct --proportions shares.csv --dry-run")
    assert (result["bags"], result["bags_unknown"]) == (30, 1)
    place.write("shares.csv", shares)
    result = fit_to_json("fit people.csv --bag precinct --proportions shares.csv --classes A,B --dry-run")
    assert list(result["classes"]) == ["A", "B"]


def test_a_byte_order_mark_and_the_lines_of_windows(place):
    for name in ("people.csv", "shares.csv"):
        text = (place / name).read_text()
        (place / name).write_bytes(b"\xef\xbb\xbf" + text.replace("\n", "\r\n").encode())
    assert run(FIT).exit_code == 0


def test_noisy_counts_may_be_negative(place):
    rng = np.random.default_rng(0)
    noisy = place.counts.with_columns(
        A=pl.col("A") + pl.Series(rng.laplace(scale=2, size=30)),
        B=pl.col("B") + pl.Series(rng.laplace(scale=2, size=30)),
    )
    assert noisy["A"].min() < 0
    place.write("counts.csv", noisy)
    line = FIT.replace("shares.csv", "counts.csv --counts --noise laplace:2")
    done = run(f"{line} --report")
    assert done.exit_code == 0, done.output
    noise = ProportionClassifier.load(place / "model").proportion_noise
    assert (noise.kind, noise.scale) == ("laplace", 2)


def test_a_million_bags_of_one(place):
    rows = 1_000_000
    x = np.random.default_rng(0).normal(size=rows)
    ids = np.arange(rows)
    pl.DataFrame({"row": ids, "x": x}).write_parquet(place / "many.parquet")
    pl.DataFrame({"row": ids, "no": (x < 0).astype(int), "yes": (x >= 0).astype(int)}).write_parquet(
        place / "labels.parquet"
    )
    line = f"fit many.parquet --bag row --proportions labels.parquet --out model {QUICK}"
    result = fit_to_json(f"{line} --dry-run")
    assert (result["rows"], result["bags"], result["largest_bag"]) == (rows, rows, 1)


# ---------------------------------------------------------------- where it goes


def test_new_folders_are_made_and_old_models_replaced(place):
    line = FIT.replace("--out model", "--out new/folders/model")
    assert run(line).exit_code == 0
    assert run(line).exit_code == 2
    assert run(f"{line} --overwrite --seed 1").exit_code == 0
    assert ProportionClassifier.load(place / "new/folders/model").random_state == 1
    assert [path.name for path in (place / "new/folders").iterdir()] == ["model"]


def test_an_empty_folder_will_do(place):
    (place / "model").mkdir()
    assert run(FIT).exit_code == 0


@pytest.mark.parametrize("error", [KeyboardInterrupt, MemoryError, OSError(28, "No space left on device", "weights")])
def test_a_fit_that_fails_late_leaves_all_as_it_was(place_with_model, monkeypatch, error):
    def fail(*_):
        raise error

    before = place_with_model.contents()
    monkeypatch.setattr(ProportionClassifier, "save", fail)
    done = run(f"{FIT} --overwrite")
    assert done.exit_code == {KeyboardInterrupt: 130, MemoryError: 1}.get(error, 2)
    assert place_with_model.contents() == before
    shutil.rmtree(place_with_model / "model")
    run(FIT.replace("--out model", "--out new/model"))
    assert not (place_with_model / "new").exists()


def test_numbers_that_json_does_not_have_are_null(capsys):
    show_json({"kl": float("inf"), "classes": [{"recall": float("nan")}], "rows": 3})
    assert json.loads(capsys.readouterr().out) == {"kl": None, "classes": [{"recall": None}], "rows": 3}
