import numpy as np
import pytest
import torch
from torch import nn

from bagwise.bags import Bags
from bagwise.metrics import bag_metrics, instance_metrics
from bagwise.training import BagEvaluator, Evaluator

INSTANCES = torch.randn(50, 5, generator=torch.Generator().manual_seed(0))
LABELS = torch.arange(50) % 3


@pytest.mark.parametrize("batch_instances", [7, 50, 1000])
def test_batches_do_not_matter(make_network, batch_instances):
    network = make_network(dropout=0.5, batch_norm=True)
    got = Evaluator(INSTANCES.numpy(), LABELS.tolist(), batch_instances=batch_instances)(network)
    network.eval()
    assert got == pytest.approx(instance_metrics(network(INSTANCES).detach(), LABELS), rel=1e-5)


def test_every_layer_gets_its_mode_back(make_network):
    network = make_network(dropout=0.5, batch_norm=True)
    network[1].eval()
    Evaluator(INSTANCES, LABELS)(network)
    assert network.training
    assert network[3].training
    assert not network[1].training


def test_normalise_is_applied():
    raw = torch.randint(0, 256, (10, 4), dtype=torch.uint8)
    network = nn.Linear(4, 2)
    got = Evaluator(raw, torch.zeros(10).long(), normalise=lambda x: x / 255)(network)
    assert got == pytest.approx(instance_metrics(network(raw / 255).detach(), torch.zeros(10).long()), rel=1e-5)


def test_bags_are_scored_by_their_mean_prediction(make_network, make_bags):
    network, bags = make_network(), make_bags(unknown=[2])
    expected = bag_metrics(network(bags.instances).detach(), bags.layout, bags.proportions)
    assert BagEvaluator(bags, batch_instances=8)(network) == pytest.approx(expected, rel=1e-5)


def test_a_dataset_can_be_evaluated(make_network):
    network = make_network()
    dataset = list(INSTANCES)
    assert Evaluator(dataset, LABELS, batch_instances=8)(network) == pytest.approx(
        Evaluator(INSTANCES, LABELS)(network), rel=1e-5
    )


def test_what_is_wrong_is_named():
    with pytest.raises(ValueError, match="one entry per instance"):
        Evaluator(INSTANCES, LABELS[:3])
    with pytest.raises(ValueError, match="batch_instances"):
        Evaluator(INSTANCES, LABELS, batch_instances=0)
    with pytest.raises(ValueError, match="all are unknown"):
        BagEvaluator(Bags(INSTANCES, np.zeros(50), [[np.nan, np.nan]]))
