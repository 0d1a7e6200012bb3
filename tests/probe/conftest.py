"""Embeddings of three kinds of things, in few large bags."""

import numpy as np
import pytest
import torch

from bagwise.bags import BagLayout


@pytest.fixture(scope="session")
def clusters():
    """A function that draws rows around one centre per class: features, layout, proportions, labels (to score)."""

    def draw(num_rows=600, num_bags=6, width=16, num_classes=3, seed=0, spread=0.5):
        rng = np.random.default_rng(seed)
        centres = np.random.default_rng(99).normal(size=(num_classes, width))
        shares = rng.dirichlet(np.ones(num_classes), num_bags)
        bag_of = np.arange(num_rows) % num_bags
        labels = np.array([rng.choice(num_classes, p=shares[bag]) for bag in bag_of])
        features = centres[labels] + spread * rng.normal(size=(num_rows, width)) + 3.0
        counts = np.stack([np.bincount(labels[bag_of == bag], minlength=num_classes) for bag in range(num_bags)])
        proportions = torch.tensor(counts / counts.sum(axis=1, keepdims=True), dtype=torch.float32)
        layout = BagLayout.from_index(torch.from_numpy(bag_of), num_bags)
        return torch.tensor(features, dtype=torch.float32), layout, proportions, torch.from_numpy(labels)

    return draw


@pytest.fixture
def generator():
    return torch.Generator().manual_seed(0)
