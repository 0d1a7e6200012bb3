"""Bags cut into chunks of one length, against plain loops."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from bagwise.bags.chunks import chunk_length
from bagwise.bags.layout import BagLayout


@st.composite
def layouts(draw):
    sizes = draw(st.lists(st.integers(0, 9), min_size=0, max_size=6))
    if draw(st.booleans()):
        sizes = [4] * len(sizes)
    index = torch.repeat_interleave(torch.arange(len(sizes)), torch.tensor(sizes, dtype=torch.long))
    order = draw(st.permutations(range(len(index))))
    return BagLayout.from_index(index[list(order)].long(), len(sizes))


def filled(layout):
    return [bag for bag, size in enumerate(layout.host_sizes) if size]


def members(layout, bag):
    return (layout.bag_index == bag).nonzero()[:, 0].tolist()


@given(layouts())
def test_every_instance_has_one_place_among_those_of_its_bag(layout):
    cut = layout.cut(3)
    number = torch.arange(layout.num_instances)[:, None]
    placed = cut.split(number)  # [c, n, 1]
    assert placed.shape[1] == cut.length
    torch.testing.assert_close(cut.join(placed), number)
    inside = torch.ones(placed.shape[:2]) if cut.chunks.inside is None else cut.chunks.inside
    bags = filled(layout)
    for own, chunk_bag in enumerate(bags):
        mine = torch.arange(len(placed)) == own if cut.chunks.bag is None else cut.chunks.bag == own
        assert placed[mine][inside[mine] > 0].flatten().tolist() == members(layout, chunk_bag)
        assert set(placed[mine].flatten().tolist()) <= set(members(layout, chunk_bag))  # padding stays in the bag


@given(layouts())
def test_sums_and_maxima_over_the_chunks_of_a_bag(layout):
    cut = layout.cut(3)
    chunks = cut.chunks
    values = torch.arange(2.0 * layout.num_instances).view(-1, 2)
    inside = 1.0 if chunks.inside is None else chunks.inside[:, :, None]
    bags = filled(layout)
    total = chunks.total((cut.split(values) * inside).sum(dim=1))
    largest = chunks.largest(cut.split(values).amax(dim=1)) if bags else torch.zeros(0, 2)
    assert total.shape == (len(bags), 2)
    for own, bag in enumerate(bags):
        torch.testing.assert_close(total[own], values[members(layout, bag)].sum(dim=0))
        torch.testing.assert_close(largest[own], values[members(layout, bag)].amax(dim=0))
    per_bag = torch.arange(len(bags))
    torch.testing.assert_close(chunks.total(torch.ones_like(chunks.spread(per_bag))) > 0, per_bag >= 0)


@given(layouts(), st.data())
def test_chunks_of_some_bags(layout, data):
    cut = layout.cut(3)
    bags = filled(layout)
    some = data.draw(st.lists(st.sampled_from(range(len(bags))), unique=True) if bags else st.just([]))
    part, chosen = cut.chunks.select(torch.tensor(sorted(some), dtype=torch.long))
    ones = torch.ones(cut.split(torch.zeros(layout.num_instances, 1)).shape[:2])
    inside = ones if cut.chunks.inside is None else cut.chunks.inside
    sizes = part.total(inside[chosen].sum(dim=1))
    assert sizes.tolist() == [layout.host_sizes[bags[i]] for i in sorted(some)]
    if part.inside is not None:
        torch.testing.assert_close(part.inside, inside[chosen])


def test_sorted_bags_of_one_size_are_not_copied():
    layout = BagLayout.from_sizes([3, 3, 3])
    values = torch.arange(18.0).view(9, 2)
    cut = layout.cut(2)
    assert cut.split(values).data_ptr() == values.data_ptr()
    assert (cut.length, cut.chunks.bag, cut.chunks.inside) == (3, None, None)
    assert layout.cut(2) is cut


@pytest.mark.parametrize("num_classes", [2, 10, 100])
def test_little_is_padded(num_classes):
    rng = np.random.default_rng(0)
    sizes = 1 + rng.multinomial(128 * 63, rng.dirichlet(np.ones(128)))
    length = chunk_length(sizes, num_classes)
    assert (-(-sizes // length) * length).sum() < 1.4 * sizes.sum()
