"""Small bags and networks for the tests of training."""

import numpy as np
import pytest
import torch
from torch import nn

from bagwise.bags import Bags


@pytest.fixture
def make_bags():
    """Bags of these sizes with random instances `[instances, 5]` and three classes."""

    def make(sizes=(4, 7, 1, 3, 5, 6, 2, 4), seed=0, unknown=()):
        generator = np.random.default_rng(seed)
        proportions = generator.dirichlet(np.ones(3), size=len(sizes))
        proportions[list(unknown)] = np.nan
        index = generator.permutation(np.repeat(np.arange(len(sizes)), sizes))
        names = [f"bag-{number}" for number in range(len(sizes))]
        instances = generator.normal(size=(len(index), 5))
        return Bags(instances, [names[bag] for bag in index], proportions, bag_names=names)

    return make


@pytest.fixture
def make_network():
    """A small network with weights that follow from the seed."""

    def make(seed=0, dropout=0.0, batch_norm=False):
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            return nn.Sequential(
                nn.Linear(5, 8),
                nn.BatchNorm1d(8) if batch_norm else nn.Identity(),
                nn.ReLU(),
                nn.Dropout(dropout),
                nn.Linear(8, 3),
            )

    return make


@pytest.fixture
def weights():
    """All weights and statistics of a network, in one vector."""

    def flatten(network):
        return torch.cat([tensor.detach().double().flatten().cpu() for tensor in network.state_dict().values()])

    return flatten
