import math
from collections import Counter

import numpy as np
import polars as pl
import pyarrow as pa
import pytest

from bagwise.tables import ProportionTable, read_proportions
from bagwise.tables.proportions import shares_of

WARDS = {"ward-1": {"no": 30, "yes": 10}, "ward-2": {"no": 5, "yes": 20}}


def frame(**columns):
    return pa.table(columns)


@pytest.mark.parametrize(
    "proportions",
    [
        WARDS,
        {"ward-2": {"yes": 20, "no": 5}, "ward-1": {"no": 30, "yes": 10}},
        frame(bag=["ward-2", "ward-1"], yes=[20, 10], no=[5, 30]),
        frame(no=[30.0, 5.0], ward=["ward-1", "ward-2"], yes=[10, 20]),
    ],
)
def test_the_same_table_in_other_clothes(proportions):
    table = read_proportions(proportions)
    assert table.classes == ("no", "yes")
    rows = table.rows_of(["ward-1", "ward-2"], allow_others=False)
    np.testing.assert_array_equal(rows, [[30, 10], [5, 20]])


def test_counters_and_series_name_their_classes_and_are_not_read_by_position():
    pd = pytest.importorskip("pandas")
    votes = {"ward-1": ["yes", "no", "no"], "ward-2": ["yes", "yes", "no"]}
    right = [[2, 1], [1, 2]]
    series = {ward: pd.Series(labels).value_counts() for ward, labels in votes.items()}  # the most frequent class first
    categories = {ward: pd.Series(labels, dtype="category").value_counts() for ward, labels in votes.items()}
    for rows in (series, categories, {ward: Counter(labels) for ward, labels in votes.items()}):
        table = read_proportions(rows)
        assert table.classes == ("no", "yes")
        np.testing.assert_array_equal(table.values, right)
    np.testing.assert_array_equal(
        read_proportions({ward: pl.Series(row) for ward, row in enumerate(right)}).values, right
    )
    series["ward-3"] = pd.Series(["yes", "yes"]).value_counts()
    with pytest.raises(
        ValueError, match=r"bag 'ward-3' has \['yes'\]\. Write 0 .*pandas row\.reindex\(classes, fill_value=0\)"
    ):
        read_proportions(series)
    with pytest.raises(ValueError, match=r"name a class once, but bag 'a' has \['no', 'no'\]"):
        read_proportions({"a": pd.Series([1, 2], index=["no", "no"])})


def test_an_index_of_pandas_names_the_bags():
    pd = pytest.importorskip("pandas")
    values = {"no": [5, 30], "yes": [20, 10]}
    for index in (pd.Index(["ward-2", "ward-1"]), pd.Index(["ward-2", "ward-1"], name="ward")):
        table = read_proportions(pd.DataFrame(values, index=index))
        np.testing.assert_array_equal(table.rows_of(["ward-1"], allow_others=True), [[30, 10]])
    numbered = pd.DataFrame([[0.1, 0.9], [0.4, 0.6]], index=pd.Index([7, 8], name="ward"))
    table = read_proportions(numbered)
    assert (table.bags, table.classes) == ((7, 8), (0, 1))


def test_the_numbers_of_the_rows_of_a_pandas_frame_are_no_bags():
    pd = pytest.importorskip("pandas")
    wards = pd.DataFrame({"ward": [3, 1, 2], "no": [5, 30, 7], "yes": [20, 10, 30]})
    for rows in (wards, wards.sort_values("yes"), wards[wards["yes"] > 10], wards.set_axis([0.5, 1.5, 2.5])):
        with pytest.raises(ValueError, match=r"must have a column of bag ids.*Rename.*frame\.rename_axis\('bag'\)"):
            read_proportions(rows)
        assert read_proportions(rows, bag_column="ward").classes == ("no", "yes")
        assert read_proportions(rows.set_index("ward")).bags == tuple(rows["ward"])


def test_the_column_of_bags_is_found_or_asked_for():
    table = frame(ward=[1, 2], no=[30, 5], yes=[10, 20])
    assert read_proportions(table, bag_column="ward").bags == (1, 2)
    assert read_proportions(table, likely_column="ward").bags == (1, 2)
    assert read_proportions(frame(bag=[1, 2], no=[30, 5], yes=[10, 20]), likely_column="ward").bags == (1, 2)
    with pytest.raises(ValueError, match=r"\['ward', 'no', 'yes'\] is called 'bag'"):
        read_proportions(table)
    with pytest.raises(ValueError, match=r"Did you mean 'ward'\?"):
        read_proportions(table, bag_column="wards")
    with pytest.raises(ValueError, match=r"which of the columns \['ward', 'town'\]"):
        read_proportions(frame(ward=["a"], town=["b"], no=[1], yes=[2]))


def test_rows_and_arrays_number_the_classes():
    assert read_proportions({"a": [0.2, 0.8]}).classes == (0, 1)
    table = read_proportions(np.array([[0.2, 0.8], [0.5, 0.5]]))
    np.testing.assert_array_equal(table.rows_of(["a", "b"], allow_others=False)[0], [0.2, 0.8])
    with pytest.raises(ValueError, match="has 2 rows and there are 3 bags"):
        table.rows_of(["a", "b", "c"], allow_others=False)


def test_sklearn_cannot_slice_it():
    table = read_proportions(WARDS)
    assert isinstance(read_proportions(table), ProportionTable)
    assert not any(hasattr(table, name) for name in ("__len__", "shape", "__array__", "__getitem__"))


def shares(rows, counts):
    table = read_proportions(dict(enumerate(rows)))
    return shares_of(table, table.values, table.bags, counts)


def test_counts_become_shares_when_they_are_declared():
    np.testing.assert_array_equal(shares([[1, 3], [2, 2]], counts=True), [[0.25, 0.75], [0.5, 0.5]])
    with pytest.raises(ValueError, match=r"bag 0 sums to 4 \(0: 1, 1: 3\)\. If these are counts, pass counts=True"):
        shares([[1, 3], [2, 2]], counts=False)
    np.testing.assert_array_equal(shares([[1, 0], [0, 1]], counts=False), np.eye(2))


def test_a_row_without_values_is_unknown():
    got = shares([[None, None], [1, 3]], counts=True)
    assert np.isnan(got[0]).all()
    np.testing.assert_array_equal(got[1], [0.25, 0.75])
    with pytest.raises(ValueError, match="at least one bag must be known"):
        shares([[None, None]], counts=True)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ([-1, 3], r"not be negative, but bag 1 has \[-1, 3\]\. Clip"),
        ([0, 0], r"not be all zero, but bag 1 has \[0, 0\]\. .* empty"),
        ([math.inf, 1], r"be finite, and known .*, but bag 1 has \[inf, 1\]\. Fill"),
        ([None, 1], r"be finite, and known .*, but bag 1 has \[nan, 1\]\. Fill them in \(0 for a class that"),
    ],
)
def test_counts_that_are_none(row, message):
    with pytest.raises(ValueError, match=f"counts must {message}"):
        shares([[1, 1], row], counts=True)


@pytest.mark.parametrize(
    ("ids", "others", "message"),
    [
        ([7], ["7"], r"bag 7 is missing\. Ids are integers with the instances \(7\) but text in proportions \('7'\)"),
        (["7"], [7], r"Ids are text .* but integers in proportions \(7\)"),
        (["7", "8"], ["007", "008"], r"bag '7' is missing \(and 1 more\)\. .*'007', which differs by leading zeros"),
        (["Ulm"], ["ulm "], r"'ulm ', which differs by spaces or capital letters"),
        (["Ward 1"], ["Ward  1"], r"'Ward  1', which differs by spaces or capital letters"),
        ([True], ["True"], r"Ids are booleans with the instances \(True\) but text in proportions"),
        (["Z\u00fcrich"], ["Zu\u0308rich"], r"'Zu\u0308rich', which differs by how accents .* normalise both"),
        (["ward-one"], ["ward_one"], r"Did you mean 'ward_one'\?"),
        ([1], [2], r"bag 1 is missing\. Add its row"),
        (["10", "12"], ["10", "11"], r"bag '12' is missing\. Add its row"),
        (["1.5"], ["1.25"], r"bag '1\.5' is missing\. Add its row"),
        (["1.0"], ["10", "1"], r"decimal numbers with the instances \('1\.0'\) but whole ones in proportions \('1'\)"),
        (["1"], ["10.0", "1.0"], r"decimal numbers in proportions \('1\.0'\) but whole ones with the .* \('1'\)"),
        ([1.0], ["1"], r"decimal numbers with the instances \(1\.0\) but .* \('1'\).*\.astype\('Int64'\)"),
        ([1], ["1.0"], r"decimal numbers in proportions \('1\.0'\) but whole ones with the instances \(1\)"),
        (["Zürich"], ["x"], r"bag 'Zürich' is missing\. Add its row"),
    ],
)
def test_ids_without_partners_name_the_likely_cause(ids, others, message):
    table = read_proportions({other: [0.5, 0.5] for other in others})
    with pytest.raises(ValueError, match=message):
        table.rows_of(ids, allow_others=True)


def test_bags_without_instances_are_refused_unless_allowed():
    table = read_proportions(WARDS)
    with pytest.raises(ValueError, match=r"bag 'ward-2' has none\. Drop its row"):
        table.rows_of(["ward-1"], allow_others=False)
    assert len(table.rows_of(["ward-1"], allow_others=True)) == 1


@pytest.mark.parametrize(
    ("proportions", "error", "message"),
    [
        ({}, ValueError, "the dict is empty"),
        ({"a": [1.0]}, ValueError, "at least 2 classes"),
        ({"a": 0.5}, ValueError, "one value per class"),
        ({"a": [0.5, 0.5], "b": [1, 0, 0]}, ValueError, "one value per class"),
        ({"a": ["half", "half"]}, TypeError, "proportions must be numbers"),
        ({"a": {"no": 1, "yes": 0}, "b": {"no": 1, "yess": 0}}, ValueError, r"bag 'b' has \['no', 'yess'\]"),
        ({"a": {"no": 1, 1: 0}}, TypeError, "classes must be of one type"),
        ([0.5, 0.5], ValueError, r"shape \[bags, classes\], but has \[2\]"),
        (
            frame(bag=["a", "a", "b", "c"], party=["no", "yes", "no", "no"], seats=[1, 2, 3, 4], votes=[5, 6, 7, 8]),
            ValueError,
            "one row per bag .* bag 'a' has a row for each class in column 'party'. Make a pivot",
        ),
        (
            frame(bag=["a", "a", "b", "b"], digit=[0, 1, 1, 0], votes=[4, 5, 6, 7]),
            ValueError,
            "bag 'a' has a row for each class in column 'digit'. .*columns='digit', values='votes'",
        ),
        (frame(bag=["a", "a", "b", "b"], no=[0, 1, 2, 1], yes=[4, 5, 6, 7]), ValueError, "'a' has several. Add them"),
        (frame(bag=["a", "a", "b"], v=[[1], [2], [3]], no=[1, 2, 3]), TypeError, r"column 'v' holds .* for bag 'a'"),
        (frame(bag=["a", "a"], no=[1, 1], yes=[0, 0]), ValueError, "bag 'a' has several. Keep the right one"),
        (frame(bag=["a", "b", "a"], no=[0.33, 1, 0], yes=[0.66, 0, 1]), ValueError, r"several\. Keep .* weighted by"),
        (frame(bag=["a", "b", "a"], no=[33, 50, 10], yes=[66, 50, 90]), ValueError, r"several\. Keep .* weighted by"),
        (frame(bag=["a", "b", "a"], no=[4, None, 0], yes=[6, None, 3]), ValueError, r"several\. Add them up .* counts"),
        (frame(bag=["a", None], no=[1, 1], yes=[0, 0]), ValueError, "row 1 .* has none in column 'bag'"),
        (frame(bag=["a"], no=[1], yes=["all"]), TypeError, "column 'yes' holds 'all' for bag 'a'"),
        (frame(bag=["a"], yes=[1.0]), ValueError, r"only \['yes'\]"),
    ],
)
def test_tables_that_are_none(proportions, error, message):
    with pytest.raises(error, match=message):
        read_proportions(proportions)


def test_columns_of_several_levels_are_refused_with_the_way_out():
    pd = pytest.importorskip("pandas")
    votes = pd.DataFrame({"ward": ["a", "a", "b"], "vote": ["blue", "green", "blue"], "n": [7, 5, 9]})
    table = votes.pivot_table(index="ward", columns="vote", values=["n"], aggfunc="sum", fill_value=0)
    with pytest.raises(ValueError, match=r"several levels, e\.g\. \('n', 'blue'\)\. .*frame\.droplevel\(0, axis=1\)"):
        read_proportions(table)
    assert read_proportions(table.droplevel(0, axis=1)).classes == ("blue", "green")


def test_a_row_that_has_its_bag_is_no_slip_of_the_pen():
    table = read_proportions({"w37": [0.5, 0.5], "w3O": [0.5, 0.5]})
    with pytest.raises(ValueError, match=r"'w30' is missing\. Did you mean 'w3O'\?"):
        table.rows_of(["w30", "w37"], allow_others=True)
    with pytest.raises(ValueError, match=r"'w38' is missing\. Add its row"):
        read_proportions({"w37": [0.5, 0.5]}).rows_of(["w37", "w38"], allow_others=True)
