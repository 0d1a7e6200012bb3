import inspect
import json
from dataclasses import replace
from typing import ClassVar

import numpy as np
import pytest
import torch
from torch import nn

from bagwise.bags import BagLoader, Bags, ImageAugment, bags_by_column
from bagwise.functional import bag_kl
from bagwise.self_training import improve, pretrain, self_train
from bagwise.training import Evaluator, Recipe, train
from bagwise.training.progress import Bar, progress_bar

RECIPE = Recipe(epochs=4, batch_instances=10, learning_rate=0.05)


def literal_training(network, bags, recipe):
    """The same training as a plain loop: mean loss over the bags of a batch, SGD with a cosine."""
    optimizer = torch.optim.SGD(
        network.parameters(), lr=1.0, momentum=0.9, nesterov=True, weight_decay=recipe.weight_decay
    )
    loader = BagLoader(bags, recipe.batch_instances, seed=recipe.seed)
    steps = [batch for epoch in range(recipe.epochs) for batch in loader.epoch(epoch)]
    per_epoch = len(steps) // recipe.epochs
    for number, batch in enumerate(steps):
        losses = []
        for bag in range(batch.layout.num_bags):
            prediction = network(batch.instances[batch.layout.bag_index == bag]).softmax(1).mean(0)
            losses.append(-(batch.proportions[bag] * prediction.log()).sum())
        optimizer.zero_grad()
        torch.stack(losses).mean().backward()
        progress = (number + 0.5) / (per_epoch * recipe.epochs)
        optimizer.param_groups[0]["lr"] = recipe.learning_rate * (1 + np.cos(np.pi * progress)) / 2
        optimizer.step()


def test_the_loop_is_what_it_says(make_bags, make_network, weights):
    bags = make_bags(sizes=[5] * 8)
    ours, literal = make_network(), make_network()
    train(ours, bags=bags, recipe=RECIPE)
    literal_training(literal, bags, RECIPE)
    torch.testing.assert_close(weights(ours), weights(literal), rtol=0, atol=1e-6)


@pytest.mark.parametrize("unknown", [(), (1, 4)])
def test_accumulated_batches_are_one_large_batch(make_bags, make_network, weights, unknown):
    bags = make_bags(sizes=[5] * 8, unknown=unknown)
    results = []
    for batch_instances, accumulate in [(20, 1), (10, 2), (5, 4)]:
        network = make_network()
        recipe = Recipe(epochs=2, batch_instances=batch_instances, accumulate=accumulate)
        train(network, bags=bags, recipe=recipe)
        results.append(weights(network))
    for other in results[1:]:
        torch.testing.assert_close(other, results[0], rtol=0, atol=1e-6)


def test_the_last_step_may_have_fewer_batches(make_bags, make_network, weights):
    results = []
    for batch_instances, accumulate in [(15, 1), (5, 3)]:
        network = make_network()
        train(
            network,
            bags=make_bags(sizes=[5] * 8),  # 3 + 3 + 2 bags
            recipe=Recipe(epochs=1, batch_instances=batch_instances, accumulate=accumulate, schedule="constant"),
        )
        results.append(weights(network))
    torch.testing.assert_close(*results, rtol=0, atol=1e-6)


def test_history(make_bags, make_network):
    bags = make_bags()
    seen = []

    def evaluator(network):
        assert not torch.is_inference_mode_enabled()
        seen.append(network)
        return {"score": float(len(seen))}

    network = make_network()
    result = train(
        network, bags=bags, held_out=bags, evaluator=evaluator, evaluate_every=3, recipe=RECIPE, progress=False
    )
    assert result.network is network
    assert not network.training
    assert result.resumed_from == 0
    assert [entry["epoch"] for entry in result.history] == [1, 2, 3, 4]
    assert [entry.get("evaluation") for entry in result.history] == [None, None, {"score": 1.0}, {"score": 2.0}]
    assert [set(entry.get("held_out", ())) for entry in result.history] == [set(), set(), {"kl", "l1"}, {"kl", "l1"}]
    for entry in result.history:
        assert entry["seconds"] > 0
        assert entry["instances_per_second"] == pytest.approx(bags.num_instances / entry["seconds"])
    assert result.history[-1]["learning_rate"] < result.history[0]["learning_rate"]
    json.dumps(result.history)


def test_the_reported_loss_is_the_mean_over_known_bags(make_bags, make_network):
    bags, network = make_bags(unknown=[0]), make_network()
    expected = bag_kl(network(bags.instances), bags.layout, bags.proportions)
    result = train(network, bags=bags, recipe=Recipe(epochs=1, learning_rate=0.0, batch_instances=9))
    assert result.history[0]["loss"] == pytest.approx(expected.item(), rel=1e-6)


@pytest.mark.parametrize(
    "fields",
    [
        {"precision": "bf16-mixed"},
        {"channels_last": True},
        {"optimizer": "adam", "learning_rate": 0.01},
        {"ema": 0.9, "schedule": "one-cycle", "decay_all": False},
        {"drop_last": True},
        {"chunk_instances": 12},
    ],
)
def test_options_learn_images(fields):
    """Light images and dark images; bags of 8 with known shares."""
    generator = np.random.default_rng(0)
    labels = generator.integers(0, 2, 256)
    images = (generator.integers(0, 100, (256, 1, 6, 6)) + 100 * labels[:, None, None, None]).astype(np.uint8)
    bags = bags_by_column(images, labels, np.arange(256) // 8, num_classes=2)
    augment = ImageAugment(mean=(0.4,), std=(0.25,))
    with torch.random.fork_rng():
        torch.manual_seed(0)
        network = nn.Sequential(
            nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 2)
        )
    recipe = Recipe(**{"epochs": 10, "batch_instances": 32, "learning_rate": 0.1, **fields})
    evaluator = Evaluator(images, labels, augment.normalise)
    result = train(network, bags=bags, held_out=bags, augment=augment, evaluator=evaluator, recipe=recipe)
    assert result.history[-1]["evaluation"]["accuracy"] > 0.9
    assert result.history[-1]["held_out"]["kl"] < result.history[0]["held_out"]["kl"]
    assert all(parameter.dtype == torch.float32 for parameter in network.parameters())


@pytest.mark.parametrize(
    ("sizes", "fields", "options"),
    [
        ([5] * 8, {}, {"dynamic": False, "mode": "reduce-overhead"}),
        # a CUDA graph would overwrite gradients that are still being added up
        ([5] * 8, {"accumulate": 2}, {"dynamic": False, "mode": "default"}),
        ([5] * 8, {"chunk_instances": 6}, {"dynamic": False, "mode": "default"}),
        ([5, 3, 4], {}, {}),
    ],
)
def test_compile_is_used_and_changes_nothing(make_bags, make_network, weights, monkeypatch, sizes, fields, options):
    import lightning_fabric  # noqa: F401  (it wraps torch.compile when it is first loaded)

    calls = []
    compiler = torch.compile

    def eager(network, **given):  # the real one needs a C++ compiler and a minute
        calls.append(dict(given))
        given.pop("mode", None)
        return compiler(network, **{**given, "backend": "eager"})

    monkeypatch.setattr(torch, "compile", eager)
    recipe = replace(RECIPE, **fields)
    plain, compiled = make_network(), make_network()
    train(plain, bags=make_bags(sizes), recipe=recipe)
    train(compiled, bags=make_bags(sizes), recipe=replace(recipe, compile=True))
    assert calls[0] == options
    torch.testing.assert_close(weights(plain), weights(compiled))


def test_averaged_weights_are_evaluated_and_returned(make_bags, make_network, weights):
    evaluated = []
    recipe = replace(RECIPE, ema=0.9)
    averaged, plain = make_network(), make_network()
    train(averaged, bags=make_bags(), recipe=recipe, evaluator=lambda n: evaluated.append(weights(n)) or {})
    train(plain, bags=make_bags(), recipe=RECIPE)
    assert torch.equal(evaluated[-1], weights(averaged))
    assert not torch.allclose(weights(averaged), weights(plain))


def test_the_seed_decides_all_randomness_and_none_escapes(make_bags, make_network, weights):
    class Noise:
        def __call__(self, instances, generator):
            return instances + torch.randn(instances.shape, generator=generator)

        def normalise(self, instances):
            return instances

    results = []
    for seed in (0, 0, 1):
        network = make_network(dropout=0.5)
        torch.manual_seed(len(results))  # the caller's generator must not matter
        before = torch.get_rng_state(), np.random.get_state()[1].copy()  # noqa: NPY002
        train(network, bags=make_bags(), augment=Noise(), recipe=Recipe(epochs=2, batch_instances=10, seed=seed))
        assert torch.equal(before[0], torch.get_rng_state())
        assert (before[1] == np.random.get_state()[1]).all()  # noqa: NPY002
        results.append(weights(network))
    assert torch.equal(results[0], results[1])
    assert not torch.equal(results[0], results[2])


def test_dropout_differs_from_step_to_step_and_epoch_to_epoch(make_bags):
    class Drawing(nn.Linear):
        drawn: ClassVar = []

        def forward(self, inputs):
            self.drawn.append(torch.rand(()).item())
            return super().forward(inputs)

    train(Drawing(5, 3), bags=make_bags(), recipe=RECIPE)
    assert len(Drawing.drawn) > RECIPE.epochs
    assert len(set(Drawing.drawn)) == len(Drawing.drawn)


def test_labels_cannot_reach_training(make_network, weights):
    """Labels permuted inside bags leave every proportion, and every trained weight, bit for bit the same."""
    generator = np.random.default_rng(0)
    instances = generator.normal(size=(60, 5))
    column = generator.integers(0, 9, 60)
    labels = generator.integers(0, 3, 60)
    permuted = labels.copy()
    for value in np.unique(column):
        permuted[column == value] = generator.permutation(labels[column == value])
    assert (labels != permuted).any()
    results = []
    for each, evaluator in [(labels, None), (permuted, None), (labels, Evaluator(instances, labels))]:
        network = make_network(dropout=0.2)
        bags = bags_by_column(instances, each, column, num_classes=3)
        train(network, bags=bags, held_out=bags, recipe=RECIPE, evaluator=evaluator)
        results.append(weights(network))
    assert torch.equal(results[0], results[1])
    assert torch.equal(results[0], results[2])  # nor does an evaluator change anything
    assert not any("label" in name for name in inspect.signature(train).parameters)
    assert not any("label" in name for name in inspect.signature(Bags).parameters)


def test_a_dataset_trains_like_a_tensor(make_bags, make_network, weights):
    bags = make_bags()
    dataset = Bags(list(bags.instances), bags.layout.bag_index, bags.proportions)
    results = []
    for each in (bags, dataset):
        network = make_network()
        train(network, bags=each, held_out=each, recipe=RECIPE)
        results.append(weights(network))
    assert torch.equal(*results)


def test_arguments_are_checked_before_anything_is_trained(make_bags, make_network):
    for arguments, message in [
        ({"method": "rott"}, "Did you mean 'rot'"),
        ({"evaluate_every": 0}, "evaluate_every"),
        ({"checkpoint_every": 0}, "checkpoint_every"),
    ]:
        with pytest.raises(ValueError, match=message):
            train(make_network(), bags=make_bags(), **arguments)


@pytest.mark.parametrize("run", [train, self_train, improve, pretrain])
def test_the_parts_of_a_run_are_of_their_types(run, make_bags, make_network):
    if run is pretrain:
        given = {"instances": make_bags().instances, "augment": None}
    else:
        given = {"bags": make_bags()} | ({"held_out": np.zeros(0, dtype=bool)} if run is improve else {})
        with pytest.raises(TypeError, match=r"bags must be a Bags, but got tuple\. Pass bagwise\.Bags\("):
            run(make_network(), **given | {"bags": ()}, recipe=Recipe())
    with pytest.raises(TypeError, match=r"network must be a Module, but got function\."):
        run(lambda x: x, **given, recipe=Recipe())
    with pytest.raises(TypeError, match=r"recipe must be a Recipe, but got dict\. Pass bagwise\.Recipe\("):
        run(make_network(), **given, recipe={"epochs": 3})


def test_the_bar_shows_loss_throughput_and_time_left(monkeypatch, capsys):
    with progress_bar(10, wanted=True) as bar:  # pytest's stderr is not a terminal
        assert not isinstance(bar, Bar)
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    with progress_bar(10, wanted=False) as bar:
        assert not isinstance(bar, Bar)
    with progress_bar(10, wanted=True) as bar:
        bar.show(2.5, loss=0.123456, instances_per_second=12345.6)
        bar.show(10, loss=0.1, instances_per_second=12345.6)
    shown = capsys.readouterr().err
    assert "0.1000" in shown
    assert "12,346 instances/s" in shown


class MeanLoss:
    """A method that takes the mean by itself."""

    def loss(self, logits, layout, proportions):
        return bag_kl(logits, layout, proportions)


@pytest.mark.parametrize("fields", [{}, {"chunk_instances": 3}])
def test_a_method_must_give_a_loss_for_each_bag(make_bags, make_network, fields):
    with pytest.raises(ValueError, match=r"one loss for each of the \d bags .* gave a tensor of shape \[\]"):
        train(make_network(), bags=make_bags(), method=MeanLoss(), recipe=Recipe(batch_instances=16, **fields))
