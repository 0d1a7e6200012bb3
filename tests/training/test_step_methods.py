"""Methods that run the network, in the loop: what they are handed, what they remember, and what they refuse."""

from dataclasses import dataclass, field, replace
from typing import ClassVar

import numpy as np
import pytest
import torch
from torch import nn

from bagwise.bags import BagLoader, ImageAugment, SwappedColumns, bags_by_column
from bagwise.methods import METHODS, StepMethod, get_method
from bagwise.training import CheckpointError, Evaluator, Recipe, train
from bagwise.training.checkpoint import load_checkpoint

RECIPE = Recipe(epochs=4, batch_instances=10, learning_rate=0.05, ema=0.8)
STRONG = SwappedColumns(share=0.5)
STEP_METHODS = [name for name in METHODS if isinstance(get_method(name), StepMethod)]
SOFTMATCH = get_method("softmatch", momentum=0.8)  # what it remembers matters from the first step


class Stop(Exception):
    pass


def stop_after(epochs):
    calls = 0

    def evaluator(_network):
        nonlocal calls
        calls += 1
        if calls > epochs:
            raise Stop
        return {}

    return evaluator


@pytest.mark.parametrize("method", [SOFTMATCH, "mixbag", "llp-vat"], ids=["softmatch", "mixbag", "llp-vat"])
def test_a_resumed_run_ends_with_the_same_weights(make_bags, make_network, weights, tmp_path, method):
    def run(folder, evaluator=None):
        network = make_network(dropout=0.3, batch_norm=True)
        arguments = {"bags": make_bags(sizes=[4] * 7), "recipe": RECIPE, "strong_augment": STRONG, "folder": folder}
        return network, train(network, method=method, evaluator=evaluator, **arguments)

    uninterrupted, expected = run(tmp_path / "a")
    for epochs in (0, 1, 1):
        with pytest.raises(Stop):
            run(tmp_path / "b", stop_after(epochs))
    resumed, result = run(tmp_path / "b")
    assert result.resumed_from == 2
    assert torch.equal(weights(uninterrupted), weights(resumed))
    assert [entry["loss"] for entry in result.history] == [entry["loss"] for entry in expected.history]
    saved = [load_checkpoint(tmp_path / name / "checkpoint.safetensors").part("method") for name in "ab"]
    assert set(saved[0]) == ({"mean", "variance"} if method is SOFTMATCH else set())
    assert all(torch.equal(saved[0][name], saved[1][name]) for name in saved[0])
    assert all(saved[0][name] != SOFTMATCH.initial_state(3)[name] for name in saved[0])


@dataclass(frozen=True)
class Spy:
    """A method that keeps what it was handed and counts its steps."""

    steps: list = field(default_factory=list)
    needs_strong_view: ClassVar[bool] = True

    def initial_state(self, num_classes):
        return {"steps": torch.zeros(num_classes)}

    def bag_losses(self, step):
        step.state["steps"].add_(1)
        drawn = torch.rand(1, generator=step.generator)
        self.steps.append((step.progress, step.state["steps"].clone(), step.batch, drawn))
        assert step.network.training
        logits = step.model(torch.cat([step.batch.instances, step.batch.strong]))
        return logits.new_zeros(step.batch.layout.num_bags) + logits.sum() * 0


def test_what_a_step_is_handed(make_bags, make_network):
    bags, spy = make_bags(sizes=[4] * 6), Spy()
    recipe = Recipe(epochs=2, batch_instances=8, seed=3)
    train(make_network(), bags=bags, method=spy, recipe=recipe, strong_augment=STRONG)
    assert [progress for progress, *_ in spy.steps] == pytest.approx(np.arange(6) / 6)
    assert [state.tolist() for _, state, *_ in spy.steps] == [[step + 1.0] * 3 for step in range(6)]
    assert len({float(drawn) for *_, drawn in spy.steps}) == 6
    loader = BagLoader(bags, 8, seed=3, strong_augment=STRONG)
    expected = [batch for epoch in range(2) for batch in loader.epoch(epoch)]
    for (_, _, batch, _), other in zip(spy.steps, expected, strict=True):
        assert torch.equal(batch.instances, other.instances)
        assert torch.equal(batch.strong, other.strong)
        assert not torch.equal(batch.strong, batch.instances)


class Twice:
    """A strong view with nothing random in it."""

    def __call__(self, instances, generator):
        return 2 * instances

    def normalise(self, instances):
        return instances


def test_several_batches_a_step_are_one_large_batch(make_bags, make_network, weights):
    results = []
    for batch_instances, accumulate in [(20, 1), (10, 2)]:
        network = make_network()
        recipe = Recipe(epochs=2, batch_instances=batch_instances, accumulate=accumulate)
        strong = Twice()
        train(network, bags=make_bags(sizes=[5] * 8), method="ahil", recipe=recipe, strong_augment=strong)
        results.append(weights(network))
    torch.testing.assert_close(*results, rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    ("name", "fields"),
    [
        ("fixmatch", {"ema": 0.9, "precision": "bf16-mixed"}),
        ("llp-vat", {"precision": "bf16-mixed", "channels_last": True}),
        ("mixbag", {"accumulate": 2}),
    ],
)
def test_it_learns_images(name, fields):
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
    result = train(
        network,
        bags=bags,
        method=name,
        recipe=recipe,
        augment=augment,
        strong_augment=replace(augment, shift=2),
        evaluator=Evaluator(images, labels, augment.normalise),
        evaluate_every=10,
    )
    assert result.history[-1]["evaluation"]["accuracy"] > 0.9


def test_a_strong_view_that_is_not_used_changes_nothing(make_bags, make_network, weights, tmp_path):
    plain, given = make_network(), make_network()
    train(plain, bags=make_bags(), recipe=RECIPE, folder=tmp_path)
    train(given, bags=make_bags(), recipe=RECIPE, strong_augment=STRONG)
    assert torch.equal(weights(plain), weights(given))
    again = train(make_network(), bags=make_bags(), recipe=RECIPE, folder=tmp_path, strong_augment=STRONG)
    assert again.resumed_from == 4


def test_another_strong_view_is_another_run(make_bags, make_network, tmp_path):
    arguments = {"bags": make_bags(), "method": "fixmatch", "recipe": RECIPE, "folder": tmp_path}
    train(make_network(), strong_augment=STRONG, **arguments)
    with pytest.raises(CheckpointError, match=r"strong_augment\.share is 0\.5 there and 0\.1 here"):
        train(make_network(), strong_augment=SwappedColumns(0.1), **arguments)


@pytest.mark.parametrize("name", STEP_METHODS)
def test_bags_in_pieces_are_refused(make_bags, make_network, name):
    with pytest.raises(ValueError, match=f"method '{name}' runs the network on whole bags. Leave chunk_instances out"):
        train(
            make_network(),
            bags=make_bags(),
            method=name,
            recipe=replace(RECIPE, chunk_instances=4),
            strong_augment=STRONG,
        )


@pytest.mark.parametrize("name", [name for name in STEP_METHODS if get_method(name).needs_strong_view])
def test_a_missing_strong_view_is_named_with_what_gives_one(make_bags, make_network, name):
    with pytest.raises(ValueError, match=f"method '{name}' compares .*RandomChanges for images, .*SwappedColumns for"):
        train(make_network(), bags=make_bags(), method=name, recipe=RECIPE)
