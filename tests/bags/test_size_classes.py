"""Bags sorted into classes of similar size."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from bagwise.bags import BagLayout
from bagwise.bags.size_classes import sort_by_size


def test_an_example():
    classes = BagLayout.from_sizes([3, 0, 16, 1, 17, 4]).size_classes
    assert classes.bags.tolist() == [4, 2, 0, 5, 1, 3]
    assert classes.widths == [32, 16, 4, 1]
    assert classes.counts == [1, 1, 2, 2]


@given(st.lists(st.integers(0, 5000), max_size=40))
def test_every_bag_lies_in_the_narrowest_class_that_holds_it(sizes):
    classes = sort_by_size(np.array(sizes, dtype=np.int64), torch.device("cpu"))
    assert sorted(classes.bags.tolist()) == list(range(len(sizes)))
    widths = np.repeat(classes.widths, classes.counts)
    for bag, width in zip(classes.bags.tolist(), widths, strict=True):
        assert sizes[bag] <= width
        assert width == 1 or 2 * sizes[bag] > width


@pytest.mark.parametrize("power", [1, 2, 1024, 2**20])
def test_powers_of_two_are_exact(power):
    classes = sort_by_size(np.array([power]), torch.device("cpu"))
    assert classes.widths == [power]
