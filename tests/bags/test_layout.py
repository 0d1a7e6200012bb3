"""The ragged layout: sizes, order, dense blocks with bounded padding."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from bagwise.bags import BagLayout
from bagwise.bags.layout import as_layout

bag_indices = st.lists(st.integers(0, 6), max_size=40).map(lambda bags: torch.tensor(bags, dtype=torch.long))


@given(bag_index=bag_indices)
def test_from_index_counts_and_sorts(bag_index):
    layout = BagLayout.from_index(bag_index, num_bags=8)
    assert layout.num_bags == 8
    assert layout.num_instances == len(bag_index)
    assert layout.sizes.tolist() == [bag_index.tolist().count(bag) for bag in range(8)]
    assert layout.offsets.tolist() == [0, *layout.sizes.cumsum(0).tolist()]
    expected = sorted(range(len(bag_index)), key=lambda j: bag_index[j])
    assert layout.in_bag_order(torch.arange(len(bag_index))).tolist() == expected


@given(bag_index=bag_indices)
def test_blocks_hold_every_instance_once(bag_index):
    layout = BagLayout.from_index(bag_index, num_bags=8)
    seen = []
    for block in layout.blocks:
        for bag, rows, mask in zip(
            block.bags, block.rows, block.mask if block.mask is not None else [None] * len(block.bags), strict=True
        ):
            members = rows if mask is None else rows[mask]
            assert (bag_index[members] == bag).all()
            assert (bag_index[rows] == bag).all()  # the padding repeats an instance of the same bag
            seen += members.tolist()
    assert sorted(seen) == list(range(len(bag_index)))


def test_blocks_waste_little_on_a_heavy_tailed_law():
    rng = np.random.default_rng(0)
    sizes = np.minimum(1 + rng.pareto(1.0, size=5_000) * 8, 50_000).astype(int)
    layout = BagLayout.from_sizes(sizes)
    padded = sum(block.rows.numel() for block in layout.blocks)
    assert padded <= 1.4 * sizes.sum()
    assert len(layout.blocks) < 40


def test_equal_sizes_take_one_block_without_padding():
    layout = BagLayout.from_sizes([3, 3, 3])
    assert layout.common_size == 3
    assert layout.order is None
    (block,) = layout.blocks
    assert block.mask is None
    assert block.rows.tolist() == [[0, 1, 2], [3, 4, 5], [6, 7, 8]]


def test_empty_bags_are_in_no_block():
    layout = BagLayout.from_sizes([0, 2, 0])
    assert layout.common_size is None
    assert [block.bags.tolist() for block in layout.blocks] == [[1]]
    assert BagLayout.from_sizes([0, 0]).common_size is None
    assert BagLayout.from_sizes([]).blocks == ()


def test_without_a_number_of_bags_it_is_the_largest_index_plus_one():
    assert BagLayout.from_index(torch.tensor([0, 3])).num_bags == 4
    assert BagLayout.from_index(torch.zeros(0, dtype=torch.long)).num_bags == 0


def test_to_moves_every_tensor():
    layout = BagLayout.from_index(torch.tensor([1, 0, 1]))
    assert layout.to("cpu") is layout
    moved = layout.to("meta")
    assert moved.device.type == "meta"
    assert {moved.bag_index.device.type, moved.sizes.device.type, moved.order.device.type} == {"meta"}
    assert BagLayout.from_sizes([2]).to("meta").order is None


def test_as_layout_accepts_both_and_checks_the_number_of_bags():
    layout = BagLayout.from_sizes([2, 2])
    assert as_layout(layout, 2) is layout
    assert as_layout(torch.tensor([0, 1]), 2).num_bags == 2
    with pytest.raises(ValueError, match="layout holds 2 bags, but proportions has 3 rows"):
        as_layout(layout, 3)


def test_sizes_must_be_counts():
    with pytest.raises(ValueError, match="sizes must be a list of counts"):
        BagLayout.from_sizes([1, -1])


def test_a_layout_does_not_change_with_the_tensor_it_was_made_from():
    index, sizes = torch.tensor([0, 0, 0, 1]), np.array([3, 1])
    layouts = BagLayout.from_index(index), BagLayout.from_sizes(sizes)
    index.fill_(1)
    sizes.fill(2)
    for layout in layouts:
        assert layout.bag_index.tolist() == [0, 0, 0, 1]
        assert layout.host_sizes.tolist() == layout.sizes.tolist() == [3, 1]
