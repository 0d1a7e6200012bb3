"""Hypothesis strategies: ragged bags in any order with proportions that may hold exact zeros."""

import numpy as np
import torch
from hypothesis import strategies as st


@st.composite
def bag_problems(draw, max_bags=4, max_size=6, max_classes=5, integral=False):
    """(logits [instances, classes], bag_index [instances], proportions [bags, classes]) in float64."""
    num_classes = draw(st.integers(2, max_classes))
    sizes = draw(st.lists(st.integers(1, max_size), min_size=1, max_size=max_bags))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    scale = draw(st.sampled_from([0.1, 1.0, 5.0]))
    logits = rng.normal(scale=scale, size=(sum(sizes), num_classes))
    bag_index = np.repeat(np.arange(len(sizes)), sizes)
    order = rng.permutation(len(bag_index))
    proportions = np.empty((len(sizes), num_classes))
    for bag, size in enumerate(sizes):
        if integral or rng.random() < 0.5:
            counts = np.bincount(rng.integers(num_classes, size=size), minlength=num_classes)
            proportions[bag] = counts / size
        else:
            proportions[bag] = rng.dirichlet(np.ones(num_classes))
    return (
        torch.from_numpy(logits[order]),
        torch.from_numpy(bag_index[order]),
        torch.from_numpy(proportions),
    )
