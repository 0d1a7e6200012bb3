import datetime as dt

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from bagwise.bags import Bags

HALVES = [[0.5, 0.5], [0.25, 0.75]]


class Squares(torch.utils.data.Dataset):
    """A map-style dataset: instance i is [i, i * i]."""

    def __len__(self):
        return 6

    def __getitem__(self, index):
        return torch.tensor([float(index), float(index * index)])


def test_strings_are_sorted_and_numbered():
    bags = Bags(torch.arange(4.0)[:, None], ["b", "a", "b", "c"], [[1, 0], [0.5, 0.5], [0, 1]])
    assert bags.bag_names == ("a", "b", "c")
    assert bags.layout.bag_index.tolist() == [1, 0, 1, 2]
    assert bags.proportions.dtype == torch.float32
    assert (bags.num_bags, bags.num_classes, bags.num_instances, len(bags)) == (3, 2, 4, 3)


def test_bag_names_give_the_order_of_the_rows():
    bags = Bags(torch.zeros(2, 1), ["a", "b"], [[1, 0], [0, 1]], bag_names=["b", "a"])
    assert bags.layout.bag_index.tolist() == [1, 0]
    by_dict = Bags(torch.zeros(2, 1), ["a", "b"], {"b": [1, 0], "a": [0, 1]})
    assert by_dict.proportions.tolist() == [[0, 1], [1, 0]]


@pytest.mark.parametrize(
    "ids",
    [
        [3, 3, 7],
        np.array([3, 3, 7]),
        torch.tensor([3, 3, 7]),
        ("x", "x", "y"),
        np.array(["x", "x", "y"], dtype=object),
        [("x", 1), ("x", 1), ("y", 0)],
    ],
)
def test_any_hashable_is_a_bag_id(ids):
    bags = Bags(np.zeros((3, 2), dtype=np.float32), ids, HALVES)
    assert bags.layout.bag_index.tolist() == [0, 0, 1]


def test_a_list_of_mixed_ids_is_not_turned_into_strings():
    bags = Bags(torch.zeros(2, 1), [1, "1"], HALVES, bag_names=[1, "1"])
    assert bags.num_bags == 2
    with pytest.raises(TypeError, match="must be of one type"):
        Bags(torch.zeros(2, 1), [1, "1"], HALVES)


def test_counts_are_divided_in_double_precision():
    big = 2**24
    bags = Bags(torch.zeros(2, 1), [0, 1], [[big, 1], [1, 3]], counts=True)
    assert bags.proportions[1].tolist() == [0.25, 0.75]
    assert bags.proportions[0, 1].item() == pytest.approx(1 / (big + 1))


def test_rows_of_nan_are_unknown_bags():
    nan = float("nan")
    for counts in (False, True):
        bags = Bags(torch.zeros(2, 1), [0, 1], [[nan, nan], [0, 1]], counts=counts)
        assert bags.proportions.isnan().all(dim=1).tolist() == [True, False]


def test_numpy_doubles_become_the_default_type_and_tensors_stay():
    assert Bags(np.zeros((1, 1)), [0], [[0, 1]]).instances.dtype == torch.float32
    assert Bags(torch.zeros(1, 1).double(), [0], [[0, 1]]).instances.dtype == torch.float64
    assert Bags(np.zeros((1, 1), dtype=np.uint8), [0], [[0, 1]]).instances.dtype == torch.uint8


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"bag_ids": [0, 1]}, "one entry per instance.*2 entries and 3 instances"),
        ({"bag_ids": np.zeros((3, 1))}, r"one id per instance, a column .* but got a ndarray of shape \[3, 1\]"),
        ({"bag_ids": np.array("a")}, r"one id per instance.* but got a ndarray of shape \[\]"),
        ({"bag_ids": ["a", None, "a"]}, "missing"),
        ({"bag_ids": [0.0, float("nan"), 1.0]}, "missing"),
        ({"proportions": [[0.5, 0.5]]}, r"\[bags, classes\] = \[2, 2 or more\], but got \[1, 2\]"),
        ({"proportions": [[0.5, 0.4], [0, 1]]}, "bag 'a' sums to 0.9"),
        ({"proportions": [[1, 5], [0, 1]]}, "counts=True"),
        ({"proportions": [[1.5, -0.5], [0, 1]]}, "negative"),
        ({"proportions": {"a": [1, 0]}}, "bag 'b' is missing"),
        ({"proportions": {"a": [1, 0], "b": [1, 0], "c": [1, 0]}}, "bag 'c' has none"),
        ({"proportions": {"a": [1, 0], "b": [1, 0, 0]}}, "one entry per class"),
        ({"proportions": [[0, 0], [0, 1]], "counts": True}, "counts must not be all zero, but bag 'a'"),
        ({"proportions": [[-1, 2], [0, 1]], "counts": True}, "counts must not be negative, but bag 'a'"),
        ({"bag_names": ["a"]}, "bag 'b' is missing"),
        ({"bag_names": ["a", "b", "c"]}, "bag 'c' has none"),
        ({"bag_names": ["a", "b", "b"]}, "twice"),
    ],
)
def test_what_is_wrong_is_named(arguments, message):
    right = {"bag_ids": ["a", "b", "a"], "proportions": HALVES}
    with pytest.raises(ValueError, match=message):
        Bags(torch.zeros(3, 2), **{**right, **arguments})


@pytest.mark.parametrize(
    ("bag_ids", "message"),
    [
        (7, "bags must be one id per instance, a column such as df.'ward'., but got 7"),
        ("ward", "one id per instance.* but got 'ward'"),
        ({0: "a"}, "one id per instance.* but got {0: 'a'}"),
        ([["a"], ["b"], ["a"]], "a bag id must be a single value, text or a number, but one is not .*list"),
        ([1, "b", 1], "bag ids must be of one type.* but got 1 and 'b'. Convert them"),
    ],
)
def test_bag_ids_that_are_none(bag_ids, message):
    with pytest.raises(TypeError, match=message):
        Bags(torch.zeros(3, 2), bag_ids, HALVES)


@pytest.mark.parametrize("kind", ["object", "string", "Int64", "datetime64[ns]"])
def test_a_missing_id_is_missing_however_pandas_writes_it(kind):
    value = {"Int64": 1, "datetime64[ns]": "2020-01-01"}.get(kind, "a")
    with pytest.raises(ValueError, match="some ids are missing"):
        Bags(torch.zeros(3, 2), pd.Series([value, None, value], dtype=kind), HALVES)


@pytest.mark.parametrize("unit", ["s", "us", "ns"])
def test_dates_are_dates_in_any_unit(unit):
    days = pd.to_datetime(["2020-01-02", "2020-01-01"])
    bags = Bags(torch.zeros(2, 1), days.to_series().astype(f"datetime64[{unit}]"), dict(zip(days, HALVES, strict=True)))
    assert bags.bag_names == (dt.datetime(2020, 1, 1), dt.datetime(2020, 1, 2))
    assert bags.layout.bag_index.tolist() == [1, 0]


def test_nanoseconds_that_differ_are_two_bags():
    moments = np.array(["2020-01-01T00:00:00.000000001", "2020-01-01T00:00:00.000000002"], dtype="datetime64[ns]")
    assert Bags(torch.zeros(2, 1), moments, HALVES).num_bags == 2


def test_instances_must_be_indexable():
    with pytest.raises(TypeError, match="but got int"):
        Bags(3, [0], [[0, 1]])
    with pytest.raises(TypeError, match="but got dict"):
        Bags({0: torch.zeros(1)}, [0], [[0, 1]])


def test_a_data_frame_is_not_taken_by_position():
    class Frame:
        columns = ("a", "b")

    with pytest.raises(TypeError, match="data frame"):
        Bags(torch.zeros(2, 1), [0, 1], Frame())


def test_a_series_that_names_its_classes_is_not_taken_by_position_either():
    pd = pytest.importorskip("pandas")
    labels = {"a": pd.Series(["no", "no", "yes"]), "b": pd.Series(["yes", "yes", "no"])}
    counts = {bag: column.value_counts() for bag, column in labels.items()}  # the most frequent class first
    with pytest.raises(
        ValueError, match=r"the same order, but bag 'a' has \['no', 'yes'\] and bag 'b' has \['yes', 'no'\]"
    ):
        Bags(torch.zeros(2, 1), ["a", "b"], counts, counts=True)
    ordered = {bag: row.reindex(["no", "yes"]) for bag, row in counts.items()}
    bags = Bags(torch.zeros(2, 1), ["a", "b"], ordered, counts=True)
    np.testing.assert_allclose(bags.proportions, [[2 / 3, 1 / 3], [1 / 3, 2 / 3]])


def test_repr():
    assert repr(Bags(torch.zeros(3, 1), [0, 1, 1], HALVES)) == "Bags(3 instances in 2 bags of 1 to 2, 2 classes)"
    assert repr(Bags(torch.zeros(2, 1), [0, 1], HALVES)) == "Bags(2 instances in 2 bags of 1, 2 classes)"


def test_there_is_no_field_for_labels():
    bags = Bags(torch.zeros(2, 1), [0, 1], HALVES)
    assert set(vars(bags)) == {"instances", "layout", "proportions", "bag_names"}


@given(st.lists(st.integers(0, 6), min_size=1, max_size=40), st.randoms(use_true_random=False))
def test_a_subset_holds_exactly_its_bags(ids, random):
    ids = np.array(ids)
    names = np.unique(ids)
    proportions = np.random.default_rng(0).dirichlet(np.ones(3), size=len(names))
    bags = Bags(np.arange(len(ids), dtype=np.float32)[:, None], ids, proportions)
    chosen = random.sample(range(len(names)), random.randint(1, len(names)))
    subset = bags.subset(chosen)
    assert subset.bag_names == tuple(names[chosen].tolist())
    assert torch.equal(subset.proportions, bags.proportions[chosen])
    for number, name in enumerate(subset.bag_names):
        inside = subset.instances[subset.layout.bag_index == number].flatten().tolist()
        assert inside == np.flatnonzero(ids == name).tolist()


def test_a_subset_of_a_dataset_is_a_view():
    bags = Bags(Squares(), [0, 1, 2, 0, 1, 2], np.full((3, 2), 0.5))
    subset = bags.subset([2, 0])
    assert [subset.instances[i][0].item() for i in range(4)] == [2, 5, 0, 3]


def test_a_subset_names_bags_that_exist_once():
    bags = Bags(torch.zeros(2, 1), [0, 1], HALVES)
    for numbers, message in [([2], "only 2 bags"), ([0, 0], "twice"), ([], "at least 1")]:
        with pytest.raises(ValueError, match=message):
            bags.subset(numbers)


def test_hold_out_splits_whole_bags():
    ids = np.random.default_rng(0).integers(0, 20, 200)
    bags = Bags(torch.arange(200.0)[:, None], ids, np.full((20, 2), 0.5))
    training, held_out = bags.hold_out(0.2, seed=1)
    assert (training.num_bags, held_out.num_bags) == (16, 4)
    assert set(training.bag_names) | set(held_out.bag_names) == set(bags.bag_names)
    together = torch.cat([training.instances, held_out.instances]).flatten()
    assert sorted(together.tolist()) == list(range(200))
    again = bags.hold_out(0.2, seed=1)[1].bag_names
    assert again == held_out.bag_names
    assert bags.hold_out(0.2, seed=2)[1].bag_names != again


def test_hold_out_leaves_a_bag_on_either_side():
    bags = Bags(torch.zeros(3, 1), [0, 1, 2], np.full((3, 2), 0.5))
    assert [part.num_bags for part in bags.hold_out(0.01, seed=0)] == [2, 1]
    assert [part.num_bags for part in bags.hold_out(0.99, seed=0)] == [1, 2]
    with pytest.raises(ValueError, match="share"):
        bags.hold_out(1.0, seed=0)
    with pytest.raises(ValueError, match="at least 2 bags"):
        bags.subset([0]).hold_out(0.5, seed=0)


@pytest.mark.parametrize("row", [[np.nan, 7], [np.inf, 1]])
def test_counts_that_are_known_in_part_are_refused(row):
    with pytest.raises(ValueError, match=r"counts must be finite, and known for all classes or for none, but bag 'a'"):
        Bags(torch.zeros(4, 1), ["a", "a", "b", "b"], [row, [1, 3]], counts=True)


def test_a_data_frame_is_no_array():
    with pytest.raises(TypeError, match=r"got a data frame.*to_numpy"):
        Bags(pa.table({"x": [1.0, 2.0]}), [0, 1], [[1, 0], [0, 1]])


def test_no_bags_at_all_are_refused():
    with pytest.raises(ValueError, match="the number of bags must be at least 1"):
        Bags(torch.empty(0, 3), [], torch.empty(0, 2))
