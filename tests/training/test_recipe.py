import math

import pytest
import torch
from torch import nn

from bagwise.training import Recipe
from bagwise.training.averaging import AveragedNetwork
from bagwise.training.optimizer import build_optimizer, load_optimizer_tensors, optimizer_tensors
from bagwise.training.schedule import learning_rate

CPU = torch.device("cpu")


@pytest.mark.parametrize(
    ("schedule", "warmup", "expected"),
    [
        ("constant", None, {0: 1, 0.5: 1, 0.99: 1}),
        ("constant", 0.1, {0: 0, 0.05: 0.5, 0.1: 1, 0.9: 1}),
        ("step", None, {0: 1, 0.49: 1, 0.5: 0.1, 0.99: 0.1}),
        ("step", 0.2, {0.1: 0.5, 0.3: 1, 0.5: 0.1}),
        ("cosine", None, {0: 1, 0.5: 0.5, 0.75: (1 + math.cos(0.75 * math.pi)) / 2, 1: 0}),
        ("cosine", 0.5, {0.25: 0.5, 0.5: 1, 0.75: 0.5, 1: 0}),
        ("one-cycle", None, {0: 0, 0.125: 0.5, 0.25: 1, 0.625: 0.5, 1: 0}),
        ("one-cycle", 0.5, {0.25: 0.5, 0.5: 1, 0.75: 0.5}),
    ],
)
def test_schedules(schedule, warmup, expected):
    recipe = Recipe(learning_rate=0.3, schedule=schedule, warmup=warmup)
    for progress, factor in expected.items():
        assert learning_rate(recipe, progress) == pytest.approx(0.3 * factor)


@pytest.mark.parametrize(
    ("fields", "error", "message"),
    [
        ({"epochs": 0}, ValueError, "epochs must be at least 1"),
        ({"epochs": 2.5}, TypeError, "epochs must be an integer"),
        ({"accumulate": 0}, ValueError, "accumulate"),
        ({"chunk_instances": 0}, ValueError, "chunk_instances"),
        ({"optimizer": "sdg"}, ValueError, "Did you mean 'sgd'"),
        ({"schedule": "cosin"}, ValueError, "Did you mean 'cosine'"),
        ({"precision": "16"}, ValueError, "precision must be one of"),
        ({"learning_rate": -1}, ValueError, "learning_rate"),
        ({"learning_rate": math.nan}, ValueError, "learning_rate"),
        ({"seed": -1}, ValueError, "seed must be at least 0"),
        ({"momentum": 1.0}, ValueError, "momentum"),
        ({"weight_decay": -1}, ValueError, "weight_decay"),
        ({"warmup": 1.0}, ValueError, "warmup"),
        ({"ema": 1.0}, ValueError, "ema"),
    ],
)
def test_what_is_wrong_is_named(fields, error, message):
    with pytest.raises(error, match=message):
        Recipe(**fields)


def test_biases_and_norms_do_not_decay_unless_asked():
    network = nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4), nn.Linear(4, 2, bias=False))
    (group,) = build_optimizer(network, Recipe(weight_decay=0.1), CPU).param_groups
    assert len(group["params"]) == 5
    decayed, rest = build_optimizer(network, Recipe(weight_decay=0.1, decay_all=False), CPU).param_groups
    assert [decayed["weight_decay"], rest["weight_decay"]] == [0.1, 0.0]
    assert {id(p) for p in decayed["params"]} == {id(network[0].weight), id(network[2].weight)}
    assert {id(p) for p in rest["params"]} == {id(network[0].bias), *map(id, network[1].parameters())}


def test_frozen_parameters_are_not_trained():
    network = nn.Linear(3, 2)
    network.bias.requires_grad_(False)
    (group,) = build_optimizer(network, Recipe(), CPU).param_groups
    assert group["params"] == [network.weight]


@pytest.mark.parametrize("fields", [{"optimizer": "adam"}, {"optimizer": "sgd"}, {"momentum": 0.0}])
def test_optimizer_state_survives_as_tensors(fields):
    def steps(optimizer, network, seeds):
        for seed in seeds:
            inputs = torch.randn(4, 1, 5, 5, generator=torch.Generator().manual_seed(seed))
            network(inputs).square().sum().backward()
            optimizer.step()
            optimizer.zero_grad()

    def make():
        network = nn.Conv2d(1, 2, 3)
        for parameter in network.parameters():
            nn.init.constant_(parameter, 0.1)
        return network, build_optimizer(network, Recipe(learning_rate=0.01, **fields), CPU)

    network, optimizer = make()
    steps(optimizer, network, [0, 1])
    resumed, fresh = make()
    resumed.load_state_dict(network.state_dict())
    load_optimizer_tensors(fresh, {name: t.clone() for name, t in optimizer_tensors(optimizer).items()})
    for each, its in ((network, optimizer), (resumed, fresh)):
        steps(its, each, [2, 3])
    assert all(torch.equal(a, b) for a, b in zip(network.parameters(), resumed.parameters(), strict=True))


def test_the_average_is_its_formula():
    network = nn.BatchNorm1d(2)
    average = AveragedNetwork(network, decay=0.5)
    assert not average.network.training
    expected = torch.ones(2)
    for step in range(12):
        with torch.no_grad():
            network.weight.fill_(float(step))
        network(torch.full((4, 2), float(step)))
        decay = min(0.5, (1 + step) / (10 + step))
        expected = decay * expected + (1 - decay) * step
        average.update()
    torch.testing.assert_close(average.network.weight, expected)
    assert average.network.num_batches_tracked == 12
    assert not torch.equal(average.network.running_mean, network.running_mean)
    assert not average.network.weight.requires_grad
