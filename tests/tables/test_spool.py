import datetime as dt
import os
import tempfile
import tracemalloc

import numpy as np
import polars as pl
import pytest

from bagwise.tables import spool
from bagwise.tables.preprocessing import fit_preprocessing
from bagwise.tables.reading import read_table
from bagwise.tables.spool import spool_parquet, survey_parquet

ROWS = 500
WARDS = np.random.default_rng(0).integers(0, 12, ROWS)
FRAME = pl.DataFrame(
    {
        "age": [None if row % 7 == 0 else row / 3 for row in range(ROWS)],
        "ward": [f"ward-{ward}" for ward in WARDS],
        "town": [None if row % 11 == 0 else ("Ulm", "Bonn", "Köln")[row % 3] for row in range(ROWS)],
        "seen": [dt.datetime(2020, 1, 1) + dt.timedelta(hours=31 * row) for row in range(ROWS)],
        "words": [[float(row % 5), float(row % 3)] for row in range(ROWS)],
        "size": pl.Series([("small", "large")[row * row % 7 % 2] for row in range(ROWS)], dtype=pl.Categorical),
        "late": [None] * (ROWS - 1) + [1.0],  # without a value in nearly every slice
    }
)
IDS = [
    pl.Series(WARDS),
    pl.Series(WARDS / 4),
    pl.Series(WARDS > 6),
    pl.Series([f"ward-{ward}" for ward in WARDS]),
    pl.Series([dt.date(2020, 1, 1 + ward) for ward in WARDS]),
]


@pytest.fixture
def small_slices(monkeypatch):
    monkeypatch.setattr(spool, "_MOST_ROWS_PER_SLICE", 37)


def write(folder, frame=FRAME):
    frame.write_parquet(folder / "people.parquet", row_group_size=max(100, frame.height // 5))
    return folder / "people.parquet"


def inputs_of(survey):
    rows = spool_parquet(survey)
    return rows.__getitems__(np.arange(len(rows))).numpy()


@pytest.mark.parametrize("order", ["as it is", "by id", "by first row"])
@pytest.mark.parametrize("ids", IDS, ids=lambda ids: str(ids.dtype))
def test_the_inputs_are_those_of_the_whole_table_bag_after_bag(tmp_path, small_slices, order, ids):
    frame = FRAME.with_columns(ward=ids)
    if order == "by id":
        frame = frame.sort("ward", maintain_order=True)
    elif order == "by first row":
        frame = pl.concat(frame.partition_by("ward", maintain_order=True))
    survey = survey_parquet(write(tmp_path, frame), "ward")
    assert (survey.places is None) == (order == "by id")

    sorted_frame = frame.sort("ward", maintain_order=True)
    sizes = sorted_frame.group_by("ward", maintain_order=True).len()
    assert survey.bag_names == tuple(sizes["ward"].to_list())
    assert survey.sizes.tolist() == sizes["len"].to_list()
    # the mean of a column depends on the order of its rows, in the last digit
    table = read_table(frame.drop("ward"))
    assert survey.preprocessing == fit_preprocessing(table)
    expected = survey.preprocessing.encode(read_table(sorted_frame.drop("ward")))
    np.testing.assert_array_equal(inputs_of(survey), expected)


def test_a_large_file_is_fitted_on_rows_spread_over_all_of_it(tmp_path, small_slices, monkeypatch):
    monkeypatch.setattr(spool, "MOST_ROWS_TO_FIT", 101)
    survey = survey_parquet(write(tmp_path), "ward")
    assert survey.preprocessing == fit_preprocessing(read_table(FRAME.drop("ward").gather_every(5)))
    assert len(spool_parquet(survey)) == ROWS


def test_long_rows_are_read_fewer_at_a_time(tmp_path, monkeypatch):
    monkeypatch.setattr(spool, "_MOST_BYTES_PER_SLICE", 20_000)
    monkeypatch.setattr(spool, "_MOST_BYTES_TO_FIT", 60_000)
    frame = pl.DataFrame({"bag": range(100), "words": np.random.default_rng(0).normal(size=(100, 120))})
    survey = survey_parquet(write(tmp_path, frame), "bag")
    assert survey.rows_per_slice == 20
    assert survey.preprocessing == fit_preprocessing(read_table(frame.drop("bag").gather_every(2)))


def test_ids_that_are_categories_are_the_text_they_stand_for(tmp_path, small_slices):
    frame = FRAME.with_columns(pl.col("ward").cast(pl.Categorical))
    text, categories = survey_parquet(write(tmp_path), "ward"), survey_parquet(write(tmp_path, frame), "ward")
    assert categories.bag_names == text.bag_names
    np.testing.assert_array_equal(categories.places, text.places)


def test_lists_are_no_bag_ids(tmp_path):
    with pytest.raises(TypeError, match="column 'words' holds List"):
        survey_parquet(write(tmp_path), "words")


def test_only_the_columns_that_are_asked_for_are_inputs(tmp_path):
    survey = survey_parquet(write(tmp_path), "ward", ["town", "age"])
    assert survey.preprocessing.names == ("town", "age")
    expected = survey.preprocessing.encode(read_table(FRAME.sort("ward", maintain_order=True).select("age", "town")))
    np.testing.assert_array_equal(inputs_of(survey), expected)


@pytest.mark.parametrize(
    ("change", "options", "message"),
    [
        (FRAME, {"bag_column": "wart"}, "Did you mean 'ward'"),
        (FRAME, {"bag_column": "ward", "columns": ["agee"]}, "Did you mean 'age'"),
        (FRAME, {"bag_column": "ward", "columns": []}, "at least 2 rows and 1 column"),
        (FRAME.select("ward"), {"bag_column": "ward"}, "at least 2 rows and 1 column"),
        (FRAME.head(1), {"bag_column": "ward"}, "at least 2 rows"),
        (FRAME.with_columns(ward=pl.lit(None, pl.String)), {"bag_column": "ward"}, "must have a bag id"),
        (FRAME.with_columns(ward=pl.Series([1.5, None] * 250)), {"bag_column": "ward"}, "must have a bag id"),
        (FRAME.with_columns(ward=pl.Series([1.5, np.nan] * 250)), {"bag_column": "ward"}, "must have a bag id"),
    ],
)
def test_what_cannot_be_learned_from_is_refused(tmp_path, change, options, message):
    with pytest.raises(ValueError, match=message):
        survey_parquet(write(tmp_path, change), **options)


def test_a_number_that_is_not_finite_is_named_by_its_row_in_the_file(tmp_path, small_slices, monkeypatch):
    broken = write(tmp_path, FRAME.with_columns(late=pl.Series([np.inf if row == 250 else 1.0 for row in range(ROWS)])))
    with pytest.raises(ValueError, match="column 'late' holds inf in row 250"):
        survey_parquet(broken, "ward")
    monkeypatch.setattr(spool, "MOST_ROWS_TO_FIT", ROWS // 4)  # row 250 is not among those that are looked at first
    survey = survey_parquet(broken, "ward", ["age", "late"])
    with pytest.raises(ValueError, match="column 'late' holds inf in row 250"):
        spool_parquet(survey)


def test_a_full_disk_is_found_before_anything_is_written(tmp_path, monkeypatch, full_disk):
    frame = pl.DataFrame({"bag": np.arange(40_000) % 10, "x": np.random.default_rng(0).normal(size=40_000)})
    survey = survey_parquet(write(tmp_path, frame), "bag")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with full_disk(), pytest.raises(OSError, match=r"0\.00016 GB .* set TMPDIR") as raised:
        spool_parquet(survey)
    assert str(tmp_path) in str(raised.value)
    assert os.listdir(tmp_path) == ["people.parquet"]


def test_nothing_is_left_behind_by_an_interrupt(tmp_path, small_slices, monkeypatch):
    survey = survey_parquet(write(tmp_path), "ward")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    seen = []

    def interrupted(preprocessing, table):
        seen.append(os.listdir(tmp_path))
        raise KeyboardInterrupt

    monkeypatch.setattr(type(survey.preprocessing), "encode", interrupted)
    with pytest.raises(KeyboardInterrupt):
        spool_parquet(survey)
    assert seen == [["people.parquet"]]  # not even while it is written: a kill could not be answered


def test_no_copy_of_all_inputs_is_made(tmp_path, monkeypatch):
    monkeypatch.setattr(spool, "_MOST_ROWS_PER_SLICE", 2000)
    values = np.random.default_rng(0).normal(size=(100_000, 8))
    frame = pl.DataFrame({"bag": np.arange(100_000) // 50, **{f"x{place}": values[:, place] for place in range(8)}})
    survey = survey_parquet(write(tmp_path, frame), "bag")
    tracemalloc.start()
    rows = spool_parquet(survey)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 0.5 * rows.nbytes
