"""The class prior that some methods are told before training."""

import math

import pytest
import torch
from torch import nn

from bagwise.bags import Bags
from bagwise.methods import class_prior, get_method, told_prior
from bagwise.methods.easy_llp import EasyLLP
from bagwise.training import Recipe, train


@pytest.fixture
def bags():
    """Bags of 1, 3 and 4 instances, the last with unknown proportions."""
    instances = torch.randn(8, 2, generator=torch.Generator().manual_seed(0))
    return Bags(instances, [0, 1, 1, 1, 2, 2, 2, 2], [[1.0, 0.0], [1 / 3, 2 / 3], [math.nan, math.nan]])


def test_large_bags_count_for_more_and_unknown_ones_for_nothing(bags):
    assert class_prior(bags) == pytest.approx((0.5, 0.5))


def test_only_who_needs_it_is_told_and_what_was_given_stays(bags):
    assert told_prior(get_method("kl"), bags) == get_method("kl")
    assert told_prior(EasyLLP("none"), bags) == EasyLLP("none", prior=class_prior(bags))
    given = EasyLLP(prior=(0.9, 0.1))
    assert told_prior(given, bags) == given


def test_the_loop_tells_the_prior_of_its_bags(bags):
    def weights(method):
        network = nn.Linear(2, 2)
        nn.init.zeros_(network.weight)
        nn.init.zeros_(network.bias)
        train(network, bags=bags, method=method, recipe=Recipe(epochs=2, batch_instances=4), progress=False)
        return network.weight

    told = EasyLLP(prior=class_prior(bags))
    other = EasyLLP(prior=(0.1, 0.9))
    torch.testing.assert_close(weights("easy-llp"), weights(told), rtol=0, atol=0)
    assert (weights("easy-llp") - weights(other)).abs().max() > 1e-3
