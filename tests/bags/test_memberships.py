import numpy as np
import pytest
import torch

from bagwise.bags import Bags, Memberships
from bagwise.training import Recipe, train


def test_instances_are_pointed_to_in_the_order_of_the_pairs():
    instances = torch.arange(12.0).reshape(4, 3)
    pairs = Memberships(np.array([3, 0, 3]), np.array(["a", "a", "b"]))
    repeated = pairs.repeated(instances)
    assert len(repeated) == 3
    torch.testing.assert_close(repeated.__getitems__([0, 1, 2]), instances[[3, 0, 3]])
    torch.testing.assert_close(repeated[1], instances[0])
    instances[3] = 0  # no copy was made
    assert (repeated[0] == 0).all()


@pytest.mark.parametrize("dtype", ["uint8", "int16", "uint32"])  # the last is what polars numbers rows with
def test_rows_may_be_integers_of_any_type(dtype):
    instances = torch.arange(3.0)[:, None]
    repeated = Memberships(np.array([2, 0, 1], dtype=dtype), ["a", "b", "a"]).repeated(instances)
    torch.testing.assert_close(repeated.__getitems__([0, 1, 2]), instances[[2, 0, 1]])


def test_datasets_are_pointed_to_as_well():
    class Squares:
        def __len__(self):
            return 4

        def __getitem__(self, row):
            return torch.tensor([float(row**2)])

    repeated = Memberships([3, 1, 3], [0, 0, 1]).repeated(Squares())
    torch.testing.assert_close(repeated.__getitems__([0, 1, 2]), torch.tensor([[9.0], [1.0], [9.0]]))


def test_ids_are_matched_to_rows():
    pairs = Memberships.by_id(np.array([30, 10, 20]), [10, 30, 10], ["x", "x", "y"])
    assert pairs.rows.tolist() == [1, 0, 1]
    assert pairs.bag_ids == ["x", "x", "y"]


def test_a_network_learns_from_overlapping_bags_as_from_copies():
    generator = torch.Generator().manual_seed(0)
    instances = torch.randn(6, 3, generator=generator)
    rows, bag_ids = [0, 1, 2, 2, 3, 4, 5, 0], [0, 0, 0, 1, 1, 2, 2, 2]
    proportions = np.array([[0.2, 0.8], [0.5, 0.5], [1.0, 0.0]])
    copies = Bags(instances[rows], bag_ids, proportions)
    pointed = Bags(Memberships(rows, bag_ids).repeated(instances), bag_ids, proportions)
    weights = []
    for bags in (copies, pointed):
        network = torch.nn.Linear(3, 2)
        torch.nn.init.zeros_(network.weight)
        torch.nn.init.zeros_(network.bias)
        train(network, bags=bags, recipe=Recipe(epochs=2, batch_instances=3), accelerator="cpu", progress=False)
        weights.append(network.weight.detach().clone())
    torch.testing.assert_close(*weights)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Memberships([], []), "the number of memberships must be at least 1"),
        (lambda: Memberships([0, 1], ["a"]), r"one row number per membership, \[1\] integers, but has shape \[2\]"),
        (lambda: Memberships(["ann"], ["a"]), r"integers, but .* Ids in place of numbers go to Memberships\.by_id"),
        (lambda: Memberships([0, 1, 0], ["a", "a", "a"]), "row 0 is in bag 'a' twice"),
        (lambda: Memberships([0, 4], ["a", "a"]).repeated(torch.zeros(4, 1)), "from 0 to 3, but name row 4"),
        (lambda: Memberships([-1], ["a"]).repeated(torch.zeros(4, 1)), "from 0 to 3, but name row -1"),
        (lambda: Memberships.by_id(["ann"], ["bob"], ["a"]), "'bob' is not among instance_ids"),
        (lambda: Memberships.by_id(["ann", "ann"], ["ann"], ["a"]), r"instance_ids .* 1 entries and 2 instances"),
    ],
)
def test_what_is_wrong_is_named(make, message):
    with pytest.raises(ValueError, match=message):
        make()
