"""Tables to fit that go wrong: one line that names the file, column or bag and the fix, code 2, nothing written."""

import polars as pl
import pytest

from fakes.workplace import QUICK, fails_in_one_line, run

FIT = f"fit people.csv --bag precinct --proportions shares.csv --out model {QUICK}"

# ---------------------------------------------------------------- the table of rows, as a file


@pytest.mark.parametrize(
    ("name", "content", "fragments"),
    [
        ("people.xlsx", b"PK", ["'people.xlsx'", ".csv", ".parquet", "Convert it"]),
        ("people", b"precinct,age\n", ["'people'", "Convert it"]),
        ("empty.csv", b"", ["empty.csv is empty", "Write it again"]),
        ("header.csv", b"precinct,age\n", ["header.csv must have at least one row"]),
        (
            "ragged.csv",
            b"precinct,age\na,1\nb,2,3\n",
            ["ragged.csv cannot be read as CSV", "as many fields in every line"],
        ),
        ("binary.csv", bytes(range(256)) * 20, ["binary.csv"]),
        ("twice.csv", b"precinct,age,age\na,1,2\nb,3,4\n", ["'age' twice", "Rename one"]),
        ("text.parquet", b"precinct,age\na,1\n" * 10, ["text.parquet cannot be read as Parquet", "write it again"]),
        ("text.arrow", b"precinct,age\na,1\n" * 10, ["text.arrow cannot be read as Arrow", "write it again"]),
    ],
)
def test_files_that_are_no_tables(place, name, content, fragments):
    (place / name).write_bytes(content)
    fails_in_one_line(place, FIT.replace("people.csv", name), *fragments)
    fails_in_one_line(place, FIT.replace("shares.csv", name), *fragments[:1])


def test_a_missing_file(place):
    fails_in_one_line(place, FIT.replace("people.csv", "peeple.csv"), "there is no file peeple.csv")
    fails_in_one_line(place, FIT.replace("shares.csv", "share.csv"), "there is no file share.csv")


def test_a_folder_in_place_of_a_file(place):
    (place / "folder.csv").mkdir()
    fails_in_one_line(place, FIT.replace("people.csv", "folder.csv"), "folder.csv is a folder", "Name a file")


@pytest.mark.parametrize("name", ["people.parquet", "people.arrow"])
def test_a_truncated_file(place, name):
    place.write(name, place.people)
    whole = (place / name).read_bytes()
    (place / name).write_bytes(whole[: len(whole) // 2])
    fails_in_one_line(place, FIT.replace("people.csv", name), f"{name} cannot be read", "write it again")


# ---------------------------------------------------------------- the table of rows, its columns


def test_a_column_of_bags_that_is_not_there(place):
    line = FIT.replace("--bag precinct", "--bag precint")
    fails_in_one_line(place, line, "bag ids in people.csv", "'precint'", "Did you mean 'precinct'?")
    fails_in_one_line(place, f"{FIT} --ignore agee", "--ignore", "people.csv", "Did you mean 'age'?")


def test_names_that_differ_by_how_accents_are_encoded(place_with_model):
    place = place_with_model
    place.write("people.csv", place.people.rename({"precinct": "Bu\u0308ro", "age": "a\u030age"}))
    why = "differs by how accents are encoded (Unicode NFC against NFD): normalise both"
    fails_in_one_line(place, FIT.replace("--bag precinct", "--bag B\u00fcro").replace("model ", "new "), why)
    line = FIT.replace("--bag precinct", "--bag Bu\u0308ro").replace("shares.csv", "accents.csv")
    place.write("accents.csv", place.shares.rename({"precinct": "Bu\u0308ro"}))
    assert run(f"{line} --overwrite").exit_code == 0
    place.write("people.csv", place.people.rename({"age": "\u00e5ge"}))
    fails_in_one_line(place, "predict model people.csv --out predicted.csv", "'a\u030age' is missing", why)


def test_thousands_of_columns_are_not_listed(place):
    place.write("people.csv", pl.DataFrame({f"c{number}": [1.0, 2.0] for number in range(3000)}))
    assert len(fails_in_one_line(place, FIT, "and 2975 more")) < 500


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_text_among_numbers(place, suffix):
    words = place.people["income"].cast(pl.String).to_list()
    words[17] = "unknown"
    place.write(f"people.{suffix}", place.people.with_columns(income=pl.Series(words)))
    line = FIT.replace("people.csv", f"people.{suffix}")
    fails_in_one_line(place, line, "column 'income'", "'unknown'", "missing value")


@pytest.mark.parametrize("suffix", ["csv", "parquet", "arrow"])
def test_infinities(place, suffix):
    incomes = place.people["income"].to_list()
    incomes[17] = float("inf")
    place.write(f"people.{suffix}", place.people.with_columns(income=pl.Series(incomes)))
    line = FIT.replace("people.csv", f"people.{suffix}")
    fails_in_one_line(place, line, "column 'income' holds inf in row 17", "Replace it")


@pytest.mark.parametrize("empty", [None, "", "  "])
@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_rows_without_a_bag(place, suffix, empty):
    wards = place.people["precinct"].to_list()
    wards[3:5] = [empty, empty]
    place.write(f"people.{suffix}", place.people.with_columns(precinct=pl.Series(wards)))
    line = FIT.replace("people.csv", f"people.{suffix}")
    fails_in_one_line(place, line, "column 'precinct'", "2 of 360 rows have none", "Drop these rows")


def test_bags_that_are_lists(place):
    place.write("people.parquet", place.people.with_columns(precinct=pl.concat_list("age", "income")))
    fails_in_one_line(place, FIT.replace("people.csv", "people.parquet"), "'precinct'", "people.parquet", "List(")


def test_nothing_but_bags(place):
    place.write("people.csv", place.people.select("precinct"))
    fails_in_one_line(place, FIT, "people.csv must have a column beside 'precinct'")


def test_columns_that_tell_nothing(place):
    place.write("people.csv", place.people.select("precinct", age=pl.lit(5)))
    fails_in_one_line(place, FIT, "'age'", "constant", "Add a column")


def test_columns_of_an_odd_kind(place):
    place.write("people.parquet", place.people.with_columns(extra=pl.struct("age", "income")))
    fails_in_one_line(place, FIT.replace("people.csv", "people.parquet"), "column 'extra' holds Struct", "leave it out")


# ---------------------------------------------------------------- the table of proportions


def with_cell(frame, row, **values):
    """The frame with other values in one row; columns change their type where they must."""
    rows = frame.to_dicts()
    rows[row] |= values
    return pl.DataFrame(rows, schema_overrides=None, strict=False, infer_schema_length=None)


@pytest.mark.parametrize(
    ("change", "fragments"),
    [
        (lambda shares: shares[1:], ["bag 'ward-00' is missing", "Add its row"]),
        (lambda shares: shares[2:], ["bag 'ward-00' is missing (and 1 more)"]),
        (lambda shares: pl.concat([shares, shares[:1]]), ["bag 'ward-00' has several", "Keep the right one"]),
        (lambda shares: with_cell(shares, 0, precinct="Ward-00 "), ["'ward-00'", "'Ward-00 '", "capital letters"]),
        (lambda shares: with_cell(shares, 0, precinct="ward-xx"), ["bag 'ward-00' is missing", "Did you mean"]),
        (
            lambda shares: pl.concat([shares, with_cell(shares[:1], 0, precinct="moon")]),
            ["bag 'moon' has none", "Drop"],
        ),
        (lambda shares: with_cell(shares, 4, precinct=None), ["shares.csv", "row 4", "'precinct'", "Fill it in"]),
        (
            lambda shares: shares.with_columns(pl.col("A", "B") * 100),
            ["bag 'ward-00' sums to 100", "percent", "--counts"],
        ),
        (lambda shares: shares.with_columns(pl.col("A", "B") * 12), ["'ward-00' sums to 12", "counts", "--counts"]),
        (lambda shares: with_cell(shares, 3, A=0.7, B=0.5), ["bag 'ward-03' sums to 1.2", "Divide each row"]),
        (lambda shares: with_cell(shares, 3, A=0.33, B=0.66), ["sums to 0.99", "--counts", "rounded", "missing class"]),
        (lambda shares: with_cell(shares, 3, A=1.1, B=-0.1), ["bag 'ward-03'", "must not be negative", "Clip"]),
        (
            lambda shares: with_cell(shares, 3, A=None),
            ["bag 'ward-03' has NaN for some", "Fill them in (0 for a class that does not occur)"],
        ),
        (lambda shares: with_cell(shares, 3, A="NA"), ["bag 'ward-03' has NaN for some", "Fill them in"]),
        (lambda shares: with_cell(shares, 3, A=float("inf")), ["column 'A' holds inf in row 3", "Replace it"]),
        (
            lambda shares: with_cell(shares, 3, A="some"),
            ["shares.csv", "column 'A' holds 'some' for bag 'ward-03'", "Correct it"],
        ),
        (lambda shares: shares.with_columns(name=pl.lit("x")), ["column 'name' holds 'x'", "drop the column"]),
        (lambda shares: shares.drop("B"), ["shares.csv", "at least 2 classes", "['A']"]),
        (lambda shares: shares.drop("precinct"), ["shares.csv", "column of bag ids", "'precinct'", "Rename"]),
        (lambda shares: shares.with_columns(A=None, B=None), ["known", "all are missing"]),
        (
            lambda shares: shares.with_columns(pl.col("A", "B").replace_strict({}, default=None)).update(shares[:1]),
            ["at least 2 bags", "only 1"],
        ),
        (
            lambda shares: shares.with_columns(B=pl.col("B") / 2, C=pl.col("B") / 2, all=pl.lit(1.0)),
            ["column 'all' is the sum", "--classes A,B,C"],
        ),
        (
            lambda shares: shares.rename({"B": ">B"}).with_columns(all=pl.lit(1.0)),
            ["column 'all' is the sum", "--classes '>B,A'."],
        ),
        (
            lambda shares: shares.rename({"B": "B, C"}).with_columns(all=pl.lit(1.0)),
            ["column 'all' is the sum of the other columns in every bag, so it can hardly be a class. Drop it."],
        ),
    ],
)
def test_proportions_that_are_none(place, change, fragments):
    place.write("shares.csv", change(place.shares))
    fails_in_one_line(place, FIT, *fragments)
    fails_in_one_line(place, FIT.replace("people.csv", "people.parquet"), *fragments)


@pytest.mark.parametrize(
    ("values", "fragments"),
    [
        ({"A": 0, "B": 0}, ["'ward-03'", "not be all zero", "[0, 0]"]),
        ({"A": -1, "B": 13}, ["'ward-03'", "not be negative", "[-1, 13]"]),
        ({"A": None, "B": 3}, ["'ward-03'", "0 for a class that does not occur", "leave the whole row empty"]),
    ],
)
def test_counts_that_are_none(place, values, fragments):
    place.write("counts.csv", with_cell(place.counts, 3, **values))
    fails_in_one_line(place, FIT.replace("shares.csv", "counts.csv --counts"), *fragments)


def test_noisy_counts_with_a_gap(place):
    place.write("counts.csv", with_cell(place.counts, 3, A=None))
    line = FIT.replace("shares.csv", "counts.csv --counts --noise laplace:2")
    fails_in_one_line(place, line, "'ward-03'", "Write 0 for a class that does not occur", "leave the whole row empty")


def test_classes_that_are_not_there(place):
    fails_in_one_line(
        place, f"{FIT} --classes A,b", "shares.csv must have a column for each class", "Did you mean 'B'?"
    )


def test_a_single_bag(place):
    place.write("people.csv", place.people[:12])
    place.write("shares.csv", place.shares[:1])
    fails_in_one_line(place, FIT, "at least 2 bags", "only 1")


def test_ids_of_two_types(place):
    place.write("people.parquet", place.people.with_columns(precinct=pl.col("precinct").str.tail(2).cast(pl.Int64)))
    place.write("shares.parquet", place.shares.with_columns(precinct=pl.col("precinct").str.tail(2)))
    line = FIT.replace("people.csv", "people.parquet").replace("shares.csv", "shares.parquet")
    fails_in_one_line(place, line, "Ids are integers with the instances (0) but text in proportions ('00')", "convert")


def test_ids_that_pandas_made_decimal(place):
    numbers = pl.col("precinct").str.tail(2).cast(pl.Int64)
    place.write("people.csv", place.people.with_columns(precinct=numbers.cast(pl.Float64)))
    place.write("people.parquet", place.people.with_columns(precinct=numbers.cast(pl.Float64)))
    place.write("shares.csv", place.shares.with_columns(precinct=numbers))
    fix = ["whole ones in proportions ('0')", "astype('Int64')"]
    fails_in_one_line(place, FIT, "bag '0.0' is missing", "with the instances ('0.0')", *fix)
    fails_in_one_line(place, FIT.replace("people.csv", "people.parquet"), "with the instances (0.0)", *fix)


def test_leading_zeros_that_were_lost(place):
    place.write("people.csv", place.people.with_columns(precinct=pl.col("precinct").str.tail(2)))
    place.write("shares.csv", place.shares.with_columns(precinct=pl.col("precinct").str.tail(2).cast(pl.Int64)))
    fails_in_one_line(place, FIT, "bag '00' is missing", "'0'", "leading zeros")


# ---------------------------------------------------------------- options, and where the model goes


@pytest.mark.parametrize(
    ("options", "fragments"),
    [
        ("--method rott", ["--method", "Did you mean 'rot'?"]),
        ("--network mpl", ["--network", "Did you mean 'mlp'?"]),
        ("--device gpu", ["--device", "'cuda'"]),
        ("--noise laplace", ["--noise", "laplace:2"]),
        ("--noise lapalce:2", ["noise", "Did you mean 'laplace'?"]),
        ("--noise laplace:-1", ["scale of noise", "-1"]),
        ("--noise laplace:2 --method rot", ["noise", "'kl'"]),
        ("--noise laplace:2 --method rot --dry-run", ["noise", "'kl'"]),
    ],
)
def test_options_that_are_none(place, options, fragments):
    fails_in_one_line(place, FIT.replace("--epochs 2", options), *fragments)


def test_a_place_for_the_model_is_asked_for(place):
    fails_in_one_line(place, FIT.replace("--out model", ""), "--out MODEL_DIR", "--dry-run")


@pytest.fixture
def no_training(monkeypatch):
    """A place that cannot be written must be found before the training."""
    monkeypatch.setattr("bagwise.estimator.ProportionClassifier.fit", lambda *_, **__: pytest.fail("trained in vain"))


@pytest.mark.usefixtures("no_training")
def test_models_that_cannot_be_written(place_with_model):
    place = place_with_model
    (place / "taken").mkdir()
    (place / "taken" / "thesis.txt").write_text("years of work")
    out = "--out model"
    fails_in_one_line(place, FIT, "model holds a model already", "--overwrite")
    (place / "model" / "predictions.csv").write_text("a year of work")
    fails_in_one_line(place, f"{FIT} --overwrite", "model holds 'predictions.csv'", "move it away")
    fails_in_one_line(place, FIT.replace(out, "--out people.csv"), "people.csv exists and is not a folder")
    fails_in_one_line(place, FIT.replace(out, "--out taken --overwrite"), "taken holds 'thesis.txt', which is no part")
    fails_in_one_line(
        place, FIT.replace(out, "--out people.csv/model"), "people.csv/model cannot be written", "another"
    )
    fails_in_one_line(place, FIT.replace(out, "--out /proc/model"), "/proc/model cannot be written", "another place")
