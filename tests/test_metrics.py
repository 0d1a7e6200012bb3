import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import accuracy_score, balanced_accuracy_score
from sklearn.metrics import log_loss as sklearn_log_loss

from bagwise import metrics


def random_case(seed, n=60, k=4, spread=3.0):
    generator = np.random.default_rng(seed)
    return torch.from_numpy(generator.normal(0, spread, (n, k))), torch.from_numpy(generator.integers(0, k, n))


@given(st.integers(0, 1000))
def test_instance_metrics_agree_with_sklearn(seed):
    logits, labels = random_case(seed)
    got = metrics.instance_metrics(logits, labels)
    predicted, probabilities = logits.argmax(1).numpy(), logits.softmax(1).numpy()
    assert got["accuracy"] == pytest.approx(accuracy_score(labels, predicted))
    assert got["balanced_accuracy"] == pytest.approx(balanced_accuracy_score(labels, predicted))
    assert got["log_loss"] == pytest.approx(sklearn_log_loss(labels, probabilities, labels=range(4)))


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int16, torch.int32])
def test_labels_may_be_integers_of_any_type(dtype):
    logits, labels = random_case(0)
    assert metrics.instance_metrics(logits, labels.to(dtype)) == metrics.instance_metrics(logits, labels)


def test_balanced_accuracy_counts_only_classes_that_occur():
    logits = torch.eye(3)[[0, 0, 1, 2]]
    assert metrics.balanced_accuracy(logits, torch.tensor([0, 0, 0, 1])).item() == pytest.approx(1 / 3)


@pytest.mark.parametrize("bins", [1, 5, 15])
@pytest.mark.parametrize("seed", range(3))
def test_calibration_error_is_its_definition(seed, bins):
    logits, labels = random_case(seed, spread=1.5)
    confidence, predicted = logits.softmax(1).max(1)
    # modest predictions right and bold ones as they fall: gaps of both signs, which one bin would cancel
    labels = torch.where(confidence < confidence.median(), predicted, labels)
    expected = 0.0
    for b in range(bins):
        inside = [i for i in range(len(labels)) if b / bins < confidence[i] <= (b + 1) / bins]
        if inside:
            accuracy = np.mean([(predicted[i] == labels[i]).item() for i in inside])
            expected += len(inside) / len(labels) * abs(accuracy - confidence[inside].mean().item())
    assert metrics.calibration_error(logits, labels, bins=bins).item() == pytest.approx(expected)


def test_a_sure_and_right_prediction_is_calibrated():
    logits = 1000 * torch.eye(3)
    assert metrics.calibration_error(logits, torch.arange(3)).item() == 0
    assert metrics.calibration_error(logits, torch.tensor([1, 2, 0])).item() == 1


def test_bag_metrics_are_their_definition():
    logits, _ = random_case(0, n=12)
    bag_index = torch.tensor([0, 1, 2, 0, 1, 2, 0, 1, 2, 2, 2, 2])
    z = np.array([[0.5, 0.5, 0, 0], [0.1, 0.2, 0.3, 0.4], [0, 0, 0, 1.0]])
    kl, l1 = [], []
    for bag in range(3):
        p = logits.softmax(1)[bag_index == bag].mean(0).numpy()
        kl.append(sum(zk * math.log(zk / pk) for zk, pk in zip(z[bag], p, strict=True) if zk > 0))
        l1.append(abs(z[bag] - p).sum())
    got = metrics.bag_metrics(logits, bag_index, torch.from_numpy(z))
    assert got["kl"] == pytest.approx(np.mean(kl))
    assert got["l1"] == pytest.approx(np.mean(l1))


def test_unknown_bags_are_left_out():
    logits, _ = random_case(0, n=6)
    bag_index = torch.tensor([0, 0, 0, 1, 1, 1])
    z = torch.tensor([[0.25] * 4, [math.nan] * 4]).double()
    assert metrics.bag_metrics(logits, bag_index, z) == pytest.approx(
        metrics.bag_metrics(logits[:3], bag_index[:3], z[:1])
    )


def test_met_proportions_score_zero():
    logits = 50 * torch.eye(2).double()
    got = metrics.bag_metrics(logits, torch.tensor([0, 0]), torch.tensor([[0.5, 0.5]]).double())
    assert got == pytest.approx({"kl": 0, "l1": 0}, abs=1e-12)


def test_an_empty_bag_has_no_part_in_the_divergence():
    logits, proportions = torch.tensor([[0.9, 0.1], [0.9, 0.1]]).log(), torch.tensor([[0.9, 0.1], [0.5, 0.5]])
    found = metrics.bag_metrics(logits, torch.tensor([0, 0]), proportions)
    assert found == pytest.approx({"kl": 0.0, "l1": 0.0}, abs=1e-6)
