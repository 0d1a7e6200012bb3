"""A dry run: how the files are understood, before any time is spent."""

import polars as pl
import pytest

from fakes.workplace import FIT, fit_to_json, run, warnings_of


def test_a_dry_run_tells_what_it_understood_and_writes_nothing(place):
    before = place.contents()
    done = run("fit people.csv --bag precinct --proportions counts.csv --counts --dry-run")
    assert done.exit_code == 0, done.output
    assert "360 rows in 30 bags of 12, by column 'precinct'" in done.stdout
    share = place.counts["A"].sum() / 360
    assert f"2 classes: A {share:.1%}, B {1 - share:.1%}" in done.stdout
    for column in ("age     number", "income  number", "home    category"):
        assert column in done.stdout
    assert "missing values marked" in done.stdout
    assert place.contents() == before


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_a_dry_run_for_machines(place, suffix):
    result = fit_to_json(f"fit people.{suffix} --bag precinct --proportions shares.csv --ignore home --dry-run")
    assert [(column["name"], column["inputs"]) for column in result["columns"]] == [("age", 2), ("income", 1)]
    assert (result["rows"], result["bags"], result["smallest_bag"], result["largest_bag"]) == (360, 30, 12, 12)
    assert result["classes"]["A"] == pytest.approx(place.shares["A"].mean())
    assert result["warnings"] == []


def test_a_dry_run_warns(place):
    place.write("counts.csv", place.counts.with_columns(A=pl.lit(7), B=pl.lit(6)))
    result = fit_to_json("fit survey.csv --bag precinct --proportions counts.csv --counts --dry-run")
    labels, counts, distinct = result["warnings"]
    assert "column 'vote'" in labels
    assert "--ignore vote" in labels
    assert "counts of 30 of 30 bags" in counts
    assert "bag 'ward-00' has 12 rows and counts of 13" in counts
    assert "missing" not in counts
    assert "1 distinct rows of proportions" in distinct


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
@pytest.mark.parametrize(
    ("write", "kind"),
    [
        (lambda number: f"{number:,}", "numbers, such as '20,"),
        (lambda number: f"{number:,}.50".replace(",", " ").replace(".", ","), "numbers, such as '20 "),
        (lambda number: f"${number}", "numbers, such as '$20"),
        (lambda number: f"{number / 1000:.2f}%", "numbers, such as '20."),
        (lambda number: f"{1 + number % 12}/{1 + number % 28}/{1950 + number % 60}", "dates, such as '"),
        (lambda number: f"{number:06d}", None),
        (lambda number: f"{number % 60},000", None),  # few enough to have an input each
        (lambda number: f"street {number:,}", None),
    ],
)
def test_numbers_and_dates_that_are_read_as_text_are_named(place, suffix, write, kind):
    income = pl.Series("so called", [write(20_000 + 37 * row) for row in range(360)])
    place.write(f"marked.{suffix}", place.people.with_columns(income))
    line = f"fit marked.{suffix} --bag precinct --proportions shares.csv --dry-run"
    warnings = fit_to_json(line)["warnings"]
    assert len(warnings) == (kind is not None)
    if kind is not None:
        assert f"column 'so called' is text and taken for categories, but its values look like {kind}" in warnings[0]
        assert warnings[0].endswith("--ignore 'so called'.")


def test_a_dry_run_of_one_column_with_advice_that_a_shell_can_read(place):
    place.write("survey.csv", place.survey.select("precinct", pl.col("vote").alias("vote of 2024")))
    printed = run("fit survey.csv --bag precinct --proportions shares.csv --dry-run").output
    assert "\n1 column as input:\n" in printed
    assert "--ignore 'vote of 2024'." in printed


def test_a_large_count_is_said_in_full(place):
    place.write("counts.csv", place.counts.with_columns(A=pl.lit(1_234_560), B=pl.lit(7.5)))
    result = fit_to_json("fit people.csv --bag precinct --proportions counts.csv --counts --dry-run")
    assert "bag 'ward-00' has 12 rows and counts of 1,234,567.5. Only" in result["warnings"][0]


@pytest.mark.parametrize(("whole", "rounded"), [(1, 2), (100, 1), (100, 0)])
def test_shares_and_percentages_are_not_expected_to_add_up_to_rows(place, whole, rounded):
    place.write("counts.csv", place.shares.with_columns((pl.col("A", "B") * whole).round(rounded)))
    result = fit_to_json("fit people.csv --bag precinct --proportions counts.csv --counts --dry-run")
    assert result["warnings"] == []


@pytest.mark.parametrize(("lost", "said"), [(0.02, False), (-0.02, True)])
def test_shares_of_many_classes_may_add_up_to_a_little_more_or_less(place, lost, said):
    gained = pl.when(pl.int_range(pl.len()) % 2 == 0).then(0.02).otherwise(-lost)
    place.write("counts.csv", place.shares.with_columns(pl.col("A") + gained))
    result = fit_to_json("fit people.csv --bag precinct --proportions counts.csv --counts --dry-run")
    assert any("do not add up" in warning for warning in result["warnings"]) == said


@pytest.mark.parametrize(("full", "said"), [(0, True), (2, True), (5, False)])
def test_counts_that_fall_short_nearly_everywhere_may_lack_a_class(place, full, said):
    place.write("counts.csv", place.counts.with_columns(A=5, B=7 - (pl.int_range(pl.len()) >= full).cast(pl.Int64)))
    (note, *_) = fit_to_json("fit people.csv --bag precinct --proportions counts.csv --counts --dry-run")["warnings"]
    assert f"the counts of {30 - full} of 30 bags do not add up" in note
    assert ("a column of a class may be missing" in note) is said


def test_a_dry_run_warns_of_noise_as_a_fit_does(place):
    line = FIT.replace("shares.csv", "counts.csv --counts --noise laplace:10")
    of_the_dry_run = fit_to_json(f"{line} --dry-run")["warnings"]
    assert any("the declared noise (laplace" in warning for warning in of_the_dry_run)
    assert fit_to_json(line)["warnings"][: len(of_the_dry_run)] == of_the_dry_run


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_a_dry_run_shows_how_dates_were_read(place, suffix):
    day = pl.date(2020, 1 + pl.int_range(pl.len()) % 12, 1 + pl.int_range(pl.len()) % 5)
    people = place.people.with_columns(born=day, died=day, gone=pl.lit(None, dtype=pl.Date))
    place.write(f"people.{suffix}", people)
    if suffix == "csv":  # as Americans write them
        place.write("people.csv", people.with_columns(pl.col("born", "died").dt.strftime("%m/%d/%Y")))
    line = FIT.replace("people.csv", f"people.{suffix} --ignore died --ignore income")
    done = run(f"{line} --dry-run")
    assert done.exit_code == 0, done.output
    first, last = ("2020-01-01", "2020-05-12") if suffix == "csv" else ("2020-01-01", "2020-12-05")
    assert f"born  date       {first} to {last}: days, place in the year and the week" in done.stdout
    notes = [warning for warning in warnings_of(run(line)) if "day/month/year" in warning]
    assert len(notes) == (suffix == "csv")
    assert all("column 'born' is read as day/month/year" in note and "write it as YYYY-MM-DD" in note for note in notes)
    assert all(f"warning: {note}" in done.stdout for note in notes)


def test_a_dry_run_tells_of_columns_without_commas_between_them(place):
    for name in ("people", "shares"):
        text = (place / f"{name}.csv").read_text().replace(",", ";").replace(".", ",")
        (place / f"{name}.csv").write_text(text)
    result = fit_to_json(f"{FIT} --dry-run")
    assert result["reading"] == [
        f"{name}.csv is read with ';' between the columns and commas in decimal numbers"
        for name in ("people", "shares")
    ]
    assert result["classes"]["A"] == pytest.approx(place.shares["A"].mean())
    assert "\npeople.csv is read with ';'" in run(f"{FIT} --dry-run").stdout
    assert run(FIT).exit_code == 0
