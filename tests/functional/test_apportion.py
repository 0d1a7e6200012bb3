"""The plan itself: one type for all three ways, hard or soft labels, unknown bags."""

import math

import pytest
import torch

from bagwise import functional as BF

LOGITS = torch.tensor([[2.0, 0.0], [1.0, 0.0], [0.0, 0.5], [3.0, 0.0]], dtype=torch.float64)
BAGS = torch.tensor([0, 0, 0, 1])
PROPORTIONS = torch.tensor([[1 / 3, 2 / 3], [math.nan, math.nan]], dtype=torch.float64)


@pytest.mark.parametrize("how", ["rot", "lp", "combinatorial"])
def test_every_way_gives_distributions_and_certificates(how):
    plan = BF.apportion(LOGITS, BAGS, PROPORTIONS, how=how)
    torch.testing.assert_close(plan.labels.sum(dim=1), torch.ones(4, dtype=torch.float64))
    assert plan.gap.shape == plan.iterations.shape == plan.converged.shape == (2,)
    assert plan.converged.all()
    assert (plan.gap < 1e-12).all()
    assert not plan.labels.requires_grad


@pytest.mark.parametrize("how", ["rot", "lp", "combinatorial"])
def test_an_unknown_bag_keeps_its_predictions(how):
    plan = BF.apportion(LOGITS, BAGS, PROPORTIONS, how=how)
    torch.testing.assert_close(plan.labels[3], LOGITS[3].softmax(dim=0))


def test_lp_meets_the_counts_with_hard_labels():
    plan = BF.apportion(LOGITS, BAGS, PROPORTIONS, how="lp")
    assert plan.labels[:3].tolist() == [[1, 0], [0, 1], [0, 1]]


def test_lp_may_share_an_instance_or_round():
    half = torch.tensor([[0.5, 0.5]], dtype=torch.float64)
    logits, bags = LOGITS[:3], BAGS[:3]
    shared = BF.apportion(logits, bags, half, how="lp")
    assert shared.labels.tolist() == [[1, 0], [0.5, 0.5], [0, 1]]
    rounded = BF.apportion(logits, bags, half, how="lp", marginals="rounded")
    assert set(rounded.labels.flatten().tolist()) == {0.0, 1.0}


def test_combinatorial_weighs_the_proportions_against_the_predictions():
    certain = torch.tensor([[9.0, 0.0], [9.0, 0.0], [9.0, 0.0]], dtype=torch.float64)
    z, bags = torch.tensor([[2 / 3, 1 / 3]], dtype=torch.float64), torch.zeros(3, dtype=torch.long)
    trusting_proportions = BF.apportion(certain, bags, z, how="combinatorial", alpha=0.01)
    trusting_predictions = BF.apportion(certain, bags, z, how="combinatorial", alpha=0.99)
    assert trusting_proportions.labels.sum(dim=0).tolist() == [2, 1]
    assert trusting_predictions.labels.sum(dim=0).tolist() == [3, 0]


def test_unknown_ways_suggest_the_nearest():
    with pytest.raises(ValueError, match=r"how must be one of 'rot', 'lp', 'combinatorial'.*Did you mean 'rot'"):
        BF.apportion(LOGITS, BAGS, PROPORTIONS, how="rott")
