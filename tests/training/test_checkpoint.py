import json
import os
import random
import stat
from dataclasses import replace

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from bagwise.bags import Bags
from bagwise.methods import get_method
from bagwise.training import CheckpointError, Recipe, train
from bagwise.training.checkpoint import Checkpoint, load_checkpoint, save_checkpoint, write_atomically
from fakes.jittered import Jittered

RECIPE = Recipe(epochs=4, batch_instances=10, learning_rate=0.05, ema=0.8)


class Stop(Exception):
    pass


def stop_after(epochs):
    """An evaluator that ends the training in the middle of an epoch's bookkeeping."""
    calls = 0

    def evaluator(_network):
        nonlocal calls
        calls += 1
        if calls > epochs:
            raise Stop
        return {"calls": calls}

    return evaluator


@pytest.mark.parametrize("every", [1, 3])
@pytest.mark.parametrize("fields", [{}, {"optimizer": "adam"}, {"momentum": 0.0}, {"chunk_instances": 6}])
def test_a_resumed_run_ends_with_the_same_weights(make_bags, make_network, weights, tmp_path, fields, every):
    recipe = replace(RECIPE, **fields)
    bags = make_bags()

    def run(folder, evaluator=None):
        network = make_network(dropout=0.3, batch_norm=True)
        kept = {"folder": folder, "checkpoint_every": every}
        return network, train(network, bags=bags, held_out=bags, recipe=recipe, evaluator=evaluator, **kept)

    uninterrupted, expected = run(tmp_path / "a")
    for epochs in (0, 1, 1):
        with pytest.raises(Stop):
            run(tmp_path / "b", stop_after(epochs))
    resumed, result = run(tmp_path / "b")
    assert torch.equal(weights(uninterrupted), weights(resumed))
    assert 0 <= result.resumed_from < 4
    assert (result.resumed_from > 0) == (every == 1)
    assert [entry["loss"] for entry in result.history] == [entry["loss"] for entry in expected.history]
    lines = (tmp_path / "b" / "log.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in lines] == result.history
    assert sorted(os.listdir(tmp_path / "b")) == ["checkpoint.safetensors", "log.jsonl"]


def test_a_finished_run_is_not_trained_again(make_bags, make_network, weights, tmp_path):
    first, second = make_network(), make_network(seed=1)
    result = train(first, bags=make_bags(), recipe=RECIPE, folder=tmp_path)
    again = train(second, bags=make_bags(), recipe=RECIPE, folder=tmp_path)
    assert again.resumed_from == 4
    assert again.history == result.history
    assert torch.equal(weights(first), weights(second))


class Shifted:
    """An augmentation that is no dataclass."""

    def __init__(self, by):
        self.by = by

    def __call__(self, instances, _generator):
        return instances + self.by

    def normalise(self, instances):
        return instances


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"recipe": replace(RECIPE, learning_rate=0.2)}, "recipe.learning_rate is 0.05 there and 0.2 here"),
        ({"recipe": replace(RECIPE, chunk_instances=9)}, "recipe.chunk_instances is absent there and 9 here"),
        ({"method": "rot"}, 'method.name is "kl" there and "rot" here'),
        ({"method": get_method("rot", alpha=0.3)}, "method.alpha is absent there and 0.3 here"),
        ({"network": nn.Linear(5, 3)}, 'network.class is "Sequential" there and "Linear" here.*more'),
        ({"sizes": (4, 4)}, "bags.bags is 8 there and 2 here"),
        ({"seed": 1}, "bags.digest"),
        ({"factor": 2}, "bags.contents"),
        ({"activation": nn.Tanh()}, "network.layers"),
        ({"augment": Shifted(1.0)}, "augment.by is 0.0 there and 1.0 here"),
    ],
)
def test_another_run_is_refused_and_the_difference_named(make_bags, make_network, tmp_path, change, message):
    train(make_network(), bags=make_bags(), recipe=RECIPE, augment=Shifted(0.0), folder=tmp_path)
    before = (tmp_path / "checkpoint.safetensors").read_bytes(), (tmp_path / "log.jsonl").read_bytes()
    bags = make_bags(**{key: change.pop(key) for key in ("sizes", "seed") if key in change})
    bags.instances *= change.pop("factor", 1)
    network = change.pop("network", make_network())
    if "activation" in change:
        network[2] = change.pop("activation")
    with pytest.raises(CheckpointError, match=message):
        train(network, bags=bags, folder=tmp_path, **{"recipe": RECIPE, "augment": Shifted(0.0), **change})
    assert before == ((tmp_path / "checkpoint.safetensors").read_bytes(), (tmp_path / "log.jsonl").read_bytes())


def flip_last_byte(path):
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda path: path.write_bytes(b"rubbish"), "not a readable checkpoint"),
        (lambda path: path.write_bytes(b""), "not a readable checkpoint"),
        (lambda path: path.write_bytes(path.read_bytes()[:-100]), "not a readable checkpoint"),
        (flip_last_byte, "damaged"),
        (lambda path: save_file({"x": torch.zeros(1)}, path), "not a checkpoint of this version"),
        (lambda path: path.with_name("log.jsonl").write_text("{}\n"), "one line for each of the 4 epochs"),
        (lambda path: path.with_name("log.jsonl").write_text("{"), "one line for each of the 4 epochs"),
        (lambda path: path.with_name("log.jsonl").unlink(), "one line for each of the 4 epochs"),
    ],
)
def test_a_damaged_folder_is_refused_with_the_fix(make_bags, make_network, tmp_path, damage, message):
    train(make_network(), bags=make_bags(), recipe=RECIPE, folder=tmp_path)
    damage(tmp_path / "checkpoint.safetensors")
    with pytest.raises(CheckpointError, match=f"{message}.*choose another folder"):
        train(make_network(), bags=make_bags(), recipe=RECIPE, folder=tmp_path)


def test_files_of_somebody_else_are_left_alone(make_bags, make_network, tmp_path):
    (tmp_path / ".notes.tmp").write_text("mine")
    (tmp_path / "log.jsonl").write_text("a diary\n")
    with pytest.raises(CheckpointError, match=r"is not the log of a training.*Move it away"):
        train(make_network(), bags=make_bags(), recipe=RECIPE, folder=tmp_path)
    assert (tmp_path / ".notes.tmp").read_text() == "mine"
    assert (tmp_path / "log.jsonl").read_text() == "a diary\n"


def test_what_a_killed_process_left_half_written_goes_away(make_bags, make_network, tmp_path):
    for name in (".checkpoint.safetensors.7.tmp", ".log.jsonl.7.tmp", "..writable.7.tmp", ".writable"):
        (tmp_path / name).write_bytes(b"half")
    train(make_network(), bags=make_bags(), recipe=RECIPE, folder=tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["checkpoint.safetensors", "log.jsonl"]


@pytest.mark.parametrize("score", [np.float32(0.5), torch.tensor(0.5), np.int64(1)], ids=repr)
def test_scores_may_be_numbers_of_numpy_and_torch(make_bags, make_network, tmp_path, score):
    train(make_network(), bags=make_bags(), recipe=RECIPE, folder=tmp_path, evaluator=lambda _: {"auc": score})
    lines = (tmp_path / "log.jsonl").read_text().splitlines()
    assert [json.loads(line)["evaluation"]["auc"] for line in lines] == [float(score)] * 4


def test_scores_that_are_no_numbers_are_refused_by_name(make_bags, make_network, tmp_path):
    scores = {"per class": torch.ones(2)}
    with pytest.raises(TypeError, match=r"an evaluator returned Tensor.*float"):
        train(make_network(), bags=make_bags(), recipe=RECIPE, folder=tmp_path, evaluator=lambda _: scores)


def test_tensors_of_any_kind_survive(tmp_path):
    shared = torch.arange(6.0)
    tensors = {
        "a.one": shared,
        "a.tied": shared,
        "a.strided": torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last),
        "b.integer": torch.tensor(3),
        "b.half": torch.randn(3).bfloat16(),
        "b.empty": torch.zeros(0, 2),
    }
    path = tmp_path / "checkpoint"
    save_checkpoint(path, Checkpoint(run={"x": [1, None]}, epochs=2, updates=7, tensors=tensors))
    loaded = load_checkpoint(path)
    assert (loaded.run, loaded.epochs, loaded.updates) == ({"x": [1, None]}, 2, 7)
    assert all(torch.equal(loaded.tensors[name], tensor) for name, tensor in tensors.items())
    assert set(loaded.part("b")) == {"integer", "half", "empty"}


def test_a_failed_write_leaves_the_old_file_and_no_litter(tmp_path, monkeypatch):
    path = tmp_path / "file"
    write_atomically(path, b"old")

    def fail(*_):
        raise OSError(28, "No space left on device")

    for function in ("fsync", "replace"):
        with monkeypatch.context() as patched:
            patched.setattr(os, function, fail)
            with pytest.raises(OSError, match="No space left"):
                write_atomically(path, b"new")
        assert path.read_bytes() == b"old"
        assert os.listdir(tmp_path) == ["file"]
    write_atomically(path, b"new")
    assert path.read_bytes() == b"new"
    assert stat.S_IMODE(path.stat().st_mode) & 0o444  # readable as any other file


class Restless(nn.Module):
    """A network whose buffers training changes: one is replaced by a new tensor, one is not part of its state."""

    def __init__(self, network):
        super().__init__()
        self.network = network
        self.register_buffer("mean", torch.zeros(5))
        self.register_buffer("hidden", torch.zeros(5), persistent=False)

    def forward(self, instances):
        if self.training:
            self.mean = 0.9 * self.mean + 0.1 * instances.mean(dim=0)
            self.hidden.lerp_(instances.mean(dim=0), 0.1)
        return self.network(instances - self.mean - self.hidden)


def test_buffers_that_training_changes_are_averaged_and_resumed(make_bags, make_network, tmp_path):
    def run(folder, evaluator=None):
        network = Restless(make_network())
        train(network, bags=make_bags(), recipe=RECIPE, evaluator=evaluator, folder=folder)
        return torch.cat([*(p.detach().flatten() for p in network.parameters()), network.mean, network.hidden])

    expected = run(tmp_path / "a")
    assert (expected[-10:] != 0).all()
    with pytest.raises(Stop):
        run(tmp_path / "b", stop_after(2))
    assert torch.equal(run(tmp_path / "b"), expected)


def test_a_network_leaves_training_as_it_was_evaluated_last(make_bags, make_network):
    network, outputs = Restless(make_network()), []
    instances = make_bags().instances
    evaluator = lambda trained: outputs.append(trained(instances)) or {}  # noqa: E731
    train(network, bags=make_bags(), recipe=RECIPE, evaluator=evaluator)
    assert torch.equal(network(instances), outputs[-1])


class WithExtraState(nn.Linear):
    def get_extra_state(self):
        return {"seen": 3}

    def set_extra_state(self, state):
        pass


def test_a_state_that_cannot_be_saved_is_refused_before_training(make_bags, tmp_path):
    network = WithExtraState(5, 3)
    with pytest.raises(TypeError, match=r"'_extra_state' is dict .* train without a folder"):
        train(network, bags=make_bags(), recipe=RECIPE, folder=tmp_path)
    assert len(train(network, bags=make_bags(), recipe=RECIPE).history) == RECIPE.epochs


def test_the_log_is_json_whatever_a_score_is(make_bags, make_network, tmp_path):
    def scores(_network):
        return {"auc": float("nan"), "loss": np.float32(np.inf), "per class": [0.5, np.float64("nan")]}

    train(make_network(), bags=make_bags(), recipe=RECIPE, evaluator=scores, folder=tmp_path)

    def refuse(word):
        raise AssertionError(word)

    for line in (tmp_path / "log.jsonl").read_text().splitlines():
        entry = json.loads(line, parse_constant=refuse)
        assert entry["evaluation"] == {"auc": None, "loss": None, "per class": [0.5, None]}


@pytest.mark.parametrize("fields", [{}, {"chunk_instances": 6}])
def test_a_dataset_that_draws_resumes_too(make_bags, make_network, weights, tmp_path, fields):
    bags = make_bags()
    bags = Bags(Jittered(bags.instances.float()), bags.layout.bag_index, bags.proportions)
    before = np.random.get_state()[1].copy(), random.getstate()  # noqa: NPY002

    def run(folder, evaluator=None):
        network = make_network(dropout=0.3)
        train(network, bags=bags, recipe=replace(RECIPE, **fields), evaluator=evaluator, folder=folder)
        return weights(network)

    expected = run(tmp_path / "a")
    with pytest.raises(Stop):
        run(tmp_path / "b", stop_after(2))
    assert torch.equal(run(tmp_path / "b"), expected)
    assert np.array_equal(np.random.get_state()[1], before[0])  # noqa: NPY002
    assert random.getstate() == before[1]
