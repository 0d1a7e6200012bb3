import datetime as dt
import json
import math
from contextlib import suppress

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import sparse
from sklearn.impute import MissingIndicator, SimpleImputer
from sklearn.preprocessing import OneHotEncoder, StandardScaler

from bagwise.tables.columns import MAX_CATEGORIES, MOST_DEVIATIONS, fit_categories, fit_numbers
from bagwise.tables.preprocessing import fit_array, fit_preprocessing, fit_sparse, preprocessing_from_json
from bagwise.tables.reading import read_table
from bagwise.tables.sparse import SparseRows

COLUMNS = {
    "age": [31.0, None, 45.0, 62.0],
    "children": [0, 2, 1, None],
    "member": [True, None, False, True],
    "town": ["Ulm", "Bonn", None, "Ulm"],
    "joined": [dt.date(2020, 1, 1), dt.date(2021, 7, 4), None, dt.date(1969, 12, 31)],
    "seen": [dt.datetime(2020, 1, 1, 6), None, dt.datetime(2021, 7, 4, 18, 30), dt.datetime(1969, 12, 31)],
    "text": [[0.1, 0.2], None, [0.5, 0.9], [0.3, -0.4]],
    "planet": ["Earth"] * 4,
    "version": [3, 3, 3, 3],
    "nothing": [None] * 4,
}


def arrow(columns):
    return pa.table(columns)


def polars(columns):
    return pytest.importorskip("polars").DataFrame(columns, strict=False)


def polars_lazy(columns):
    return polars(columns).lazy()


def pandas(columns):
    return pytest.importorskip("pandas").DataFrame(columns)


FRAMES = [arrow, polars, polars_lazy, pandas]


def read(columns, frame=arrow):
    return read_table(frame(columns))


@pytest.mark.parametrize("frame", FRAMES)
def test_every_frame_library_gives_the_same_inputs(frame):
    table, expected = read(COLUMNS, frame), read(COLUMNS)
    preprocessing = fit_preprocessing(table)
    assert preprocessing == fit_preprocessing(expected)
    np.testing.assert_array_equal(preprocessing.encode(table), preprocessing.encode(expected))
    assert np.isfinite(preprocessing.encode(table)).all()


def test_it_shows_what_is_done_to_each_column():
    shown = str(fit_preprocessing(read(COLUMNS))).splitlines()
    assert [line.split()[0] for line in shown] == ["column", *COLUMNS]
    assert shown[1].split(maxsplit=3)[1:] == ["number", "2", "mean 46, sd 12.68; missing values marked"]
    assert "one input each for 2 categories; missing values marked" in shown[4]
    assert "time of the day" in shown[6]
    assert "2 numbers, standardised; missing values marked" in shown[7]
    assert "left out: constant" in shown[9]
    assert "left out: no values" in shown[10]


def test_json_brings_it_back():
    preprocessing = fit_preprocessing(read(COLUMNS))
    assert preprocessing_from_json(json.loads(json.dumps(preprocessing.as_json()))) == preprocessing


def test_numbers_agree_with_sklearn():
    rng = np.random.default_rng(0)
    values = rng.normal(5, 3, (50, 3))
    values[rng.random((50, 3)) < 0.2] = np.nan
    values[:, 2] = rng.normal(size=50)
    filled = SimpleImputer().fit_transform(values)
    # sklearn scales after filling; here the scale is that of the known values
    expected = (filled - filled.mean(axis=0)) / np.nanstd(values, axis=0)
    marks = MissingIndicator(features="missing-only").fit_transform(values)
    np.testing.assert_allclose(fit_numbers("abc", values).encode(values), np.hstack([expected, marks]), atol=1e-5)
    complete = fit_numbers("abc", filled).encode(filled)
    np.testing.assert_allclose(complete, StandardScaler().fit_transform(filled), atol=1e-5)


def test_a_large_offset_costs_no_precision_and_is_no_constant():
    values = 1e9 + np.arange(10.0)[:, None]
    np.testing.assert_allclose(fit_numbers("a", values).encode(values).std(), 1, rtol=1e-6)
    assert not any(fit_numbers("a", np.full((10, 1), 0.1)).valued)  # whose deviation is rounding


def test_a_constant_with_gaps_keeps_its_mark():
    values = np.array([[3.0], [np.nan], [3.0]])
    numbers = fit_numbers("a", values)
    assert (numbers.valued, numbers.marked) == ((False,), (True,))
    np.testing.assert_array_equal(numbers.encode(values), [[0], [1], [0]])


def test_a_gap_where_there_was_none_is_the_mean():
    numbers = fit_numbers("a", np.array([[1.0], [3.0]]))
    np.testing.assert_array_equal(numbers.encode(np.array([[np.nan], [3.0]])), [[0], [1]])


FINITE = st.floats(allow_nan=False, allow_infinity=False)


@given(fitted=st.lists(FINITE, min_size=2, max_size=20), new=st.lists(FINITE, min_size=1, max_size=5))
def test_any_numbers_are_refused_or_become_inputs_that_float32_holds(fitted, new):
    column = np.array(fitted)[:, None]
    if np.abs(column).max() > 1e150:  # their squares may overflow
        with suppress(ValueError):
            assert np.isfinite(fit_numbers("a", column).scale).all()
        return
    numbers = fit_numbers("a", column)
    for values in (column, np.array(new)[:, None]):
        encoded = numbers.encode(values)
        assert encoded.dtype == np.float32
        assert (np.abs(encoded) <= MOST_DEVIATIONS).all()
        # larger numbers never become smaller inputs
        assert (np.diff(encoded[np.argsort(values[:, 0])], axis=0) >= 0).all()


def test_a_number_beyond_all_others_is_cut_off():
    numbers = fit_numbers("ab", np.array([[1.0, 0.0], [3.0, 5e-100]]))
    encoded = numbers.encode(np.array([[1e300, 1e300], [-1e300, np.nan], [3.0, 0.0]]))
    np.testing.assert_array_equal(encoded[:, 0], [MOST_DEVIATIONS, -MOST_DEVIATIONS, 1])
    np.testing.assert_array_equal(encoded[:, 1], [MOST_DEVIATIONS, 0, -1])


def test_a_code_for_missing_values_that_spoils_the_mean_is_named():
    values = np.array([[1.0, 2.0], [3.0, 1.797e308], [np.nan, 4.0]])
    with pytest.raises(ValueError, match=r"column 'b' holds 1\.797e\+308\. .* leave the cell empty"):
        fit_numbers("ab", values)
    with pytest.raises(ValueError, match=r"that of column 'x1' is inf\. .* leave the entry out"):
        fit_sparse(sparse.csr_matrix(np.nan_to_num(values)))


def test_categories_agree_with_sklearn():
    values = np.random.default_rng(0).choice(["a", "b", "c"], 30)
    expected = OneHotEncoder(sparse_output=False).fit_transform(values[:, None])
    categories = fit_categories("letter", values.tolist())
    order = np.argsort(categories.categories)
    np.testing.assert_array_equal(categories.encode(values.tolist())[:, order], expected)


def test_rare_and_new_categories_share_an_input():
    values = [f"town {i}" for i in range(MAX_CATEGORIES + 9) for _ in range(2)] + ["hamlet", "Ulm", "Ulm", "Ulm"]
    categories = fit_categories("town", values)
    assert categories.categories[0] == "Ulm"
    assert len(categories.categories) == MAX_CATEGORIES
    encoded = categories.encode(["Ulm", "hamlet", "never seen", None])
    np.testing.assert_array_equal(encoded.argmax(axis=1)[:3], [0, MAX_CATEGORIES, MAX_CATEGORIES])
    np.testing.assert_array_equal(encoded.sum(axis=1), [1, 1, 1, 0])


def test_a_new_category_is_no_category_where_none_was_rare():
    categories = fit_categories("town", ["Ulm", "Bonn", None])
    np.testing.assert_array_equal(categories.encode(["Bonn", "Ulm", "Rome", None]), np.eye(4)[[0, 1, 3, 2]][:, :3])


def test_text_that_never_repeats_is_left_out():
    columns = {"name": [f"person {i}" for i in range(100)], "x": list(range(100))}
    preprocessing = fit_preprocessing(read(columns))
    assert preprocessing.width == 1
    assert "no value occurs twice" in str(preprocessing)


@pytest.mark.parametrize("clock", [dt.time(), dt.time(9, 30)])
def test_dates_on_one_weekday_at_one_time_give_no_input_for_the_week_and_the_day(clock):
    mondays = [dt.datetime.combine(dt.date(2020, 1, 6), clock) + dt.timedelta(weeks=week) for week in range(100)]
    dates = fit_preprocessing(read({"seen": mondays})).others[0]
    valued = dict(zip(dates.numbers.names, dates.numbers.valued, strict=True))
    assert [name for name, is_valued in valued.items() if is_valued] == ["seen days", "seen year sin", "seen year cos"]
    later = read({"seen": [mondays[0] + dt.timedelta(days=1, hours=5)]})  # as standardised rounding it was a million
    assert np.abs(dates.encode(later.dates("seen"))).max() < 4


def test_dates_are_places_on_a_line_and_on_circles():
    table = read({"day": [dt.date(1970, 1, 1), dt.date(1970, 7, 2), dt.date(1971, 1, 1)]})
    dates = fit_preprocessing(table).others[0]
    values = dates.encode(table.dates("day")) * np.array(dates.numbers.scale) + np.array(dates.numbers.center)
    np.testing.assert_allclose(values[:, 0], [0, 182, 365], atol=1e-3)
    np.testing.assert_allclose(values[:, 2], [1, -1, 1], atol=1e-3)  # new year against the middle of the year
    np.testing.assert_allclose(values[1, 3], math.sin(2 * math.pi * 182 / 7), atol=1e-3)


def test_time_zones_mean_the_same_moment():
    moment = dt.datetime(2020, 1, 1, 12, tzinfo=dt.UTC)
    east = moment.astimezone(dt.timezone(dt.timedelta(hours=5)))
    table = pa.table(
        {"utc": pa.array([moment], pa.timestamp("s", "UTC")), "east": pa.array([east], pa.timestamp("s", "+05:00"))}
    )
    assert read_table(table).dates("utc") == read_table(table).dates("east")


def test_lists_are_inputs():
    vectors = np.random.default_rng(0).normal(size=(20, 8)).astype(np.float32)
    fixed = pa.FixedSizeListArray.from_arrays(pa.array(vectors.ravel()), 8)
    table = read_table(pa.table({"vector": fixed}))
    expected = StandardScaler().fit_transform(vectors)
    np.testing.assert_allclose(fit_preprocessing(table).encode(table), expected, atol=1e-5)


def test_sparse_and_dense_inputs_are_the_same():
    matrix = sparse.random(30, 5, density=0.3, format="csr", random_state=0)
    preprocessing = fit_sparse(matrix)
    rows = SparseRows(matrix, preprocessing.numbers)
    dense = preprocessing.numbers.encode(matrix.toarray())
    np.testing.assert_array_equal(rows.__getitems__([3, 4]).numpy(), dense[3:5])
    np.testing.assert_array_equal(rows[7].numpy(), dense[7])
    assert ((dense == 0) == (matrix.toarray() == 0)).all()


def test_columns_are_found_by_name_in_any_order():
    preprocessing = fit_preprocessing(read(COLUMNS))
    turned = read({name: COLUMNS[name] for name in reversed(COLUMNS)})
    np.testing.assert_array_equal(preprocessing.encode(turned), preprocessing.encode(read(COLUMNS)))


def test_a_column_may_be_empty_later():
    preprocessing = fit_preprocessing(read(COLUMNS))
    encoded = preprocessing.encode(read({name: [None] for name in COLUMNS}))
    assert encoded.shape == (1, preprocessing.width)
    assert sorted(set(encoded.ravel())) == [0, 1]


NUMBERS = {"x": [1.0, 2.0], "y": [0.0, 3.0]}


@pytest.mark.parametrize(
    ("columns", "error", "message"),
    [
        ({"x": [1.0]}, ValueError, r"fitted on, but 'y' is missing\. It has 'x'"),
        ({**NUMBERS, "z": [1, 2]}, ValueError, r"also has 'z'\. Leave them out"),
        ({"x": [1.0], "y": ["3"]}, TypeError, r"column 'y' held numbers .* but holds text now"),
        ({"x": [1.0], "y": [math.inf]}, ValueError, r"column 'y' holds inf in row 0"),
    ],
)
def test_new_tables_that_do_not_fit(columns, error, message):
    with pytest.raises(error, match=message):
        fit_preprocessing(read(NUMBERS)).encode(read(columns))


@pytest.mark.parametrize(
    ("columns", "error", "message"),
    [
        ({"x": [str(i) for i in range(99)] + ["n/a"]}, ValueError, r"column 'x' is text, .* Replace 'n/a' by a number"),
        ({"x": [1, 1], "y": [None, None]}, ValueError, r"at least one column must tell .*'x', 'y'"),
        ({"x": [{"a": 1}, {"a": 2}]}, TypeError, r"column 'x' holds Struct.* Convert it"),
        ({"x": [[1.0], [1.0, 2.0]]}, ValueError, r"lists in column 'x' must be equally long, .*\[1, 2\]"),
        ({"x": [["a"], ["b"]]}, TypeError, r"lists in column 'x' must hold numbers"),
        ({"x": [[1.0], [math.inf]]}, ValueError, r"lists in column 'x' hold infinities"),
    ],
)
def test_tables_that_cannot_be_fitted(columns, error, message):
    with pytest.raises(error, match=message):
        fit_preprocessing(read(columns))


def test_lists_of_another_length_do_not_fit():
    preprocessing = fit_preprocessing(read({"x": [[1.0, 2.0], [3.0, 5.0]]}))
    with pytest.raises(ValueError, match=r"column 'x' must have length 2, .* have length 1"):
        preprocessing.encode(read({"x": [[1.0]]}))


def test_infinities_in_new_lists_are_refused():
    preprocessing = fit_preprocessing(read({"x": [[1.0, 2.0], [3.0, 5.0]]}))
    with pytest.raises(ValueError, match="lists in column 'x' hold infinities"):
        preprocessing.encode(read({"x": [[1.0, -math.inf]]}))


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        ([1, None, 2.5], "number"),
        ([True, None, False], "boolean"),
        (["a", None], "category"),
        ([None, None], "empty"),
        ([np.zeros(2), np.ones(2)], "embedding"),
        ([dt.date(2020, 1, 1), None], "date"),
    ],
)
def test_columns_of_python_objects(values, kind):
    pd = pytest.importorskip("pandas")
    column = np.empty(len(values), dtype=object)
    column[:] = values
    table = read_table(pd.DataFrame({"x": pd.Series(column, dtype=object)}))
    assert table.kind("x") == kind
    with pytest.raises(TypeError, match=r"column 'x' (mixes kinds|holds complex)"):
        read_table(pd.DataFrame({"x": pd.Series([*column, "text", 1, 1j], dtype=object)})).kind("x")


def test_arrays_have_numbered_columns():
    values = np.array([[1.0, 5.0], [2.0, 5.0]])
    assert fit_array(values).treatments() == [
        ("x0", "number", 1, "mean 1.5, sd 0.5"),
        ("x1", "number", 0, "left out: constant"),
    ]
