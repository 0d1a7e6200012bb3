import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from bagwise.bags import BagLoader, Bags
from bagwise.bags.source import Resident, Stored, Streamed
from bagwise.bags.stored import StoredRows

SIZES = (3, 1, 4, 2, 5, 1)


@pytest.fixture
def stored(tmp_path):
    """Instances `[16, 2]` in a mapped file, and the same in memory."""
    mapped = np.memmap(tmp_path / "instances", dtype=np.float32, mode="w+", shape=(sum(SIZES), 2))
    mapped[:] = np.arange(mapped.size).reshape(mapped.shape)
    return StoredRows(torch.from_numpy(mapped)), torch.tensor(np.array(mapped))


def bags_of(instances):
    proportions = np.random.default_rng(0).dirichlet(np.ones(3), size=len(SIZES))
    return Bags.in_order(instances, SIZES, proportions, [f"ward {bag}" for bag in range(len(SIZES))])


def batches(bags, **options):
    loader = BagLoader(bags, 6, seed=3, **options)
    return [(batch.instances.tolist(), batch.bag_numbers.tolist()) for batch in loader.epoch(1)]


@given(st.lists(st.lists(st.integers(0, 10**6), min_size=1, max_size=20), max_size=4))
def test_rows_taken_from_rows_taken_are_those_of_the_tensor(choices):
    tensor = torch.arange(30.0).reshape(10, 3)
    rows, expected = StoredRows(tensor), tensor
    for choice in choices:
        picked = np.array(choice) % len(rows)
        rows, expected = rows.take(picked), expected[torch.from_numpy(picked)]
    assert len(rows) == len(expected)
    assert rows.nbytes == expected.nbytes
    assert torch.equal(rows.to(torch.device("cpu")), expected)
    assert torch.equal(rows.__getitems__(list(range(len(rows)))), expected)
    assert torch.equal(rows[len(rows) - 1], expected[-1])


def test_what_is_taken_shares_the_file(stored):
    rows, _ = stored
    some = bags_of(rows).subset([4, 1]).instances
    rows._tensor[3] = -1.0  # the only instance of bag 1
    assert some[5].tolist() == [-1.0, -1.0]


def test_batches_are_those_of_a_tensor(stored):
    rows, tensor = stored
    assert isinstance(BagLoader(bags_of(rows), 6, seed=3)._source, Stored)
    assert batches(bags_of(rows)) == batches(bags_of(tensor))
    assert batches(bags_of(rows), chunk_instances=2) == batches(bags_of(tensor), chunk_instances=2)
    chosen = np.array([5, 0, 2, 4])
    assert batches(bags_of(rows).subset(chosen)) == batches(bags_of(tensor).subset(chosen))


@pytest.mark.parametrize("workers", [0, 2])
def test_a_stream_to_a_device_that_is_too_small_gives_the_same(stored, workers):
    rows, tensor = stored
    some, picked = rows.take(np.array([7, 3, 5])), tensor[[7, 3, 5]]
    stream = Streamed(some, torch.device("cpu"), workers).batches([np.array([2, 0]), np.array([1])], seed=0)
    assert [batch.tolist() for batch in stream] == [picked[[2, 0]].tolist(), picked[[1]].tolist()]


def test_row_numbers_are_sent_in_stretches_without_a_change(stored, monkeypatch):
    _, tensor = stored
    expected = batches(bags_of(tensor))
    monkeypatch.setattr("bagwise.bags.source._ROWS_AT_ONCE", 7)
    assert batches(bags_of(tensor)) == expected


def test_bags_in_order_are_the_bags_of_their_ids(stored):
    _, tensor = stored
    bags = bags_of(tensor)
    ids = [name for name, size in zip(bags.bag_names, SIZES, strict=True) for _ in range(size)]
    same = Bags(tensor, ids, bags.proportions)
    assert bags.bag_names == same.bag_names
    assert torch.equal(bags.layout.bag_index, same.layout.bag_index)
    assert torch.equal(bags.proportions, same.proportions)


def test_bags_in_order_must_hold_every_instance_and_proportions(stored):
    rows, _ = stored
    with pytest.raises(ValueError, match="15 entries and 16 instances"):
        Bags.in_order(rows, [10, 5], [[1, 0], [0, 1]], ["a", "b"])
    with pytest.raises(ValueError, match="'b'"):
        Bags.in_order(rows, [10, 6], [[1, 0], [0.5, 1]], ["a", "b"])


@pytest.mark.cuda
@pytest.mark.parametrize("share", [0.5, 0.0])
def test_a_gpu_gets_the_same_batches_whether_the_rows_fit_there_or_not(stored, monkeypatch, share):
    rows, tensor = stored
    expected = batches(bags_of(tensor))
    monkeypatch.setattr("bagwise.bags.source._SHARE_OF_FREE_MEMORY", share)
    loader = BagLoader(bags_of(rows), 6, seed=3, device="cuda")
    assert isinstance(loader._source, Resident if share else Streamed)
    assert batches(bags_of(rows), device="cuda") == expected
    assert batches(bags_of(tensor), device="cuda") == expected
