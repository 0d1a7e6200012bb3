import math

import numpy as np
import pytest
import torch

from bagwise import metrics
from bagwise.model_selection import SCORES, chi_square_score, kl_score, l1_score
from bagwise.model_selection.evidence import BagEvidence


def random_case(rng, num_bags=6, num_classes=4):
    sizes = rng.integers(1, 9, size=num_bags)
    index = rng.permutation(np.repeat(np.arange(num_bags), sizes))
    probabilities = rng.dirichlet(np.ones(num_classes), size=len(index))
    return rng.dirichlet(np.ones(num_classes), size=num_bags), probabilities, index


def test_kl_and_l1_agree_with_the_metrics_of_training():
    proportions, probabilities, index = random_case(np.random.default_rng(0))
    tensors = torch.from_numpy(probabilities).log(), torch.from_numpy(index), torch.from_numpy(proportions)
    assert kl_score(proportions, probabilities, index) == pytest.approx(float(metrics.bag_kl_divergence(*tensors)))
    assert l1_score(proportions, probabilities, index) == pytest.approx(float(metrics.bag_l1(*tensors)))


def test_the_count_distribution_is_that_of_simulated_labels():
    rng = np.random.default_rng(1)
    proportions, probabilities, index = random_case(rng, num_bags=3, num_classes=3)
    evidence = BagEvidence.collect(proportions, probabilities, index)
    mean, covariance = evidence.count_distribution()
    for bag in range(3):
        members = probabilities[index == bag]
        draws = np.stack([rng.multinomial(1, f, size=40_000) for f in members]).sum(axis=0)
        np.testing.assert_allclose(draws.mean(axis=0), mean[bag], atol=0.03)
        np.testing.assert_allclose(np.cov(draws.T), covariance[bag], atol=0.04)


@pytest.mark.parametrize("sharpness", [0.5, 3.0])
@pytest.mark.parametrize("sizes", [[5], [40], [1, 3, 90]])
def test_chi_square_is_one_for_a_right_model_and_grows_for_one_too_sure(sharpness, sizes):
    rng = np.random.default_rng(2)
    sizes = np.tile(sizes, 900 // len(sizes))
    index = np.repeat(np.arange(len(sizes)), sizes)
    logits = sharpness * rng.normal(size=(len(index), 3))
    f = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    labels = (f.cumsum(axis=1) > rng.random((len(f), 1))).argmax(axis=1)
    counts = np.zeros((len(sizes), 3))
    np.add.at(counts, (index, labels), 1)
    proportions = counts / sizes[:, None]
    assert chi_square_score(proportions, f, index) == pytest.approx(1, abs=0.15)
    too_sure = f**3 / (f**3).sum(axis=1, keepdims=True)
    assert chi_square_score(proportions, too_sure, index) > 1.3


@pytest.mark.parametrize("name", SCORES)
def test_unknown_and_empty_bags_and_the_order_of_instances_change_nothing(name):
    rng = np.random.default_rng(3)
    proportions, probabilities, index = random_case(rng)
    expected = SCORES[name](proportions, probabilities, index)
    order = rng.permutation(len(index))
    with_unknown = np.concatenate([proportions, np.full((1, 4), np.nan), [[1, 0, 0, 0]]])  # bag 6 unknown, 7 empty
    more = np.concatenate([probabilities[order], np.full((2, 4), 0.25)])
    assert SCORES[name](with_unknown, more, [*index[order], 6, 6]) == pytest.approx(expected)


def test_an_impossible_class_is_infinite_in_kl_but_not_in_chi_square():
    case = [[0.5, 0.5]], [[1.0, 0.0], [1.0, 0.0]], [0, 0]
    assert kl_score(*case) == math.inf
    assert 1 < chi_square_score(*case) < math.inf


@pytest.mark.parametrize(
    ("proportions", "probabilities", "index", "message"),
    [
        ([[0.5, 0.5]], [[3.0, -1.0]], [0], "not logits"),
        ([[0.5, 0.5]], [0.5, 0.5], [0, 0], "shape"),
        ([[2, 2]], [[0.5, 0.5]], [0], "sum to 1"),
        ([[0.5, 0.5]], [[0.5, 0.5]], [0, 0], "one entry per instance"),
        ([[np.nan, np.nan]], [[0.5, 0.5]], [0], "known proportions"),
    ],
)
def test_wrong_input_is_named(proportions, probabilities, index, message):
    with pytest.raises(ValueError, match=message):
        kl_score(proportions, probabilities, index)
