"""What stops a training: a clear message, nothing lost, and the way on."""

import errno
import json
import os
import signal
import subprocess
import sys

import numpy as np
import pytest
import torch
from torch import nn

from bagwise.bags import Bags
from bagwise.functional import rot
from bagwise.losses import ROTLoss
from bagwise.training import NonFiniteLossError, Recipe, train
from bagwise.training import folder as folders
from bagwise.training.checkpoint import load_checkpoint

RECIPE = Recipe(epochs=4, batch_instances=10, learning_rate=0.05)


class Breaking(nn.Module):
    """A network that does something else after some number of training steps."""

    def __init__(self, network, steps, action):
        super().__init__()
        self.network, self.steps, self.action = network, steps, action

    def forward(self, instances):
        logits = self.network(instances)
        if self.training:
            self.steps -= 1
            if self.steps < 0:
                return self.action(logits)
        return logits


def interrupt(logits):
    signal.raise_signal(signal.SIGINT)
    return logits


def steps_in_epochs(bags, epochs):
    from bagwise.bags import BagLoader

    return sum(len(BagLoader(bags, 10, seed=0).plan(epoch).batches) for epoch in range(epochs))


@pytest.mark.parametrize("batch_norm", [False, True])
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_bad_instance_names_its_bag(make_bags, make_network, batch_norm, value):
    bags = make_bags()
    bags.instances[bags.rows_of(np.array([5]))[2], 1] = value
    with pytest.raises(NonFiniteLossError, match=r"in epoch 1 .*bag 'bag-5' has instances with NaN or inf"):
        train(make_network(batch_norm=batch_norm), bags=bags, recipe=RECIPE)


@pytest.mark.parametrize("batch_instances", [10, 1000])  # with one step in an epoch, no loss shows it
def test_a_bad_instance_of_a_bag_with_unknown_proportions_names_its_bag(make_bags, make_network, batch_instances):
    """Its bag has no loss that could show it, but the gradient reaches the weights all the same."""
    bags = make_bags()
    bags.proportions[5] = torch.nan
    bags.instances[bags.rows_of(np.array([5]))[2], 1] = torch.nan
    with pytest.raises(NonFiniteLossError, match=r"epoch 1 .*bag 'bag-5', whose proportions are unknown, has inst"):
        train(make_network(), bags=bags, recipe=Recipe(epochs=4, batch_instances=batch_instances))


def test_a_bad_instance_of_a_dataset_names_its_bag(make_bags, make_network):
    bags = make_bags()
    bags.instances[bags.rows_of(np.array([5]))[2], 1] = torch.nan
    dataset = Bags(list(bags.instances), bags.layout.bag_index, bags.proportions)
    with pytest.raises(NonFiniteLossError, match="bag 5 has instances"):
        train(make_network(), bags=dataset, recipe=RECIPE)


def test_divergence_is_told_from_bad_data(make_bags, make_network):
    with pytest.raises(NonFiniteLossError, match=r"weights have diverged.*Lower the learning rate"):
        train(make_network(), bags=make_bags(), recipe=Recipe(epochs=4, batch_instances=10, learning_rate=1e30))


def test_impossible_proportions_name_their_bags(make_network):
    instances = torch.zeros(4, 5)
    instances[:2, 0] = 1.0

    class Sure(nn.Module):
        """Gives class 1 no probability where the first feature is set."""

        def __init__(self):
            super().__init__()
            self.scale = nn.Parameter(torch.ones(()))

        def forward(self, inputs):
            column = torch.where(inputs[:, 0] > 0, -torch.inf, 0.0)
            return torch.stack([self.scale * inputs[:, 1], column], dim=1)

    bags = Bags(instances, ["a", "a", "b", "b"], [[0.5, 0.5], [0.5, 0.5]])
    with pytest.raises(NonFiniteLossError, match="not finite for bag 'a': the network gives no probability"):
        train(Sure(), bags=bags, recipe=RECIPE)


def test_a_network_that_makes_nan_is_told_from_impossible_proportions(make_bags):
    class Root(nn.Module):
        def __init__(self):
            super().__init__()
            self.scale = nn.Parameter(torch.ones(()))

        def forward(self, inputs):
            return self.scale * inputs[:, :3].sqrt()

    bags = make_bags()
    bags.instances.abs_()
    bags.instances[bags.rows_of(np.array([5]))[0], 0] = -1.0
    with pytest.raises(NonFiniteLossError, match=r"the loss is NaN for bag 'bag-5': the network gives NaN"):
        train(Root(), bags=bags, recipe=RECIPE)


@pytest.mark.parametrize("method", [ROTLoss(), rot])
def test_a_loss_is_no_method(make_bags, make_network, method):
    with pytest.raises(TypeError, match=r"as get_method\('rot', alpha=0.3\) gives it"):
        train(make_network(), bags=make_bags(), method=method, recipe=RECIPE)


def test_bags_of_which_nothing_is_known_are_refused(make_bags, make_network):
    with pytest.raises(ValueError, match="nothing to learn from"):
        train(make_network(), bags=make_bags(unknown=range(8)), recipe=RECIPE)


@pytest.mark.parametrize("chunk", [None, 6])
def test_a_network_that_returns_a_tuple(make_bags, make_network, chunk):
    class Pair(nn.Sequential):
        def forward(self, inputs):
            return super().forward(inputs), inputs

    recipe = Recipe(epochs=1, batch_instances=10, chunk_instances=chunk)
    with pytest.raises(TypeError, match=r"logits must be a torch.Tensor .* but got tuple"):
        train(Pair(make_network()), bags=make_bags(), recipe=recipe)


def test_the_last_good_checkpoint_survives_a_bad_loss(make_bags, make_network, tmp_path):
    bags = make_bags()
    network = Breaking(make_network(), steps_in_epochs(bags, 2) + 1, lambda logits: logits * torch.nan)
    with pytest.raises(
        NonFiniteLossError, match=r"in epoch 3 .*diverged.*The last good state is in .*checkpoint.safetensors"
    ):
        train(network, bags=bags, recipe=RECIPE, folder=tmp_path)
    kept = load_checkpoint(tmp_path / "checkpoint.safetensors")
    assert kept.epochs == 2
    assert all(tensor.isfinite().all() for tensor in kept.tensors.values())
    lines = (tmp_path / "log.jsonl").read_text().splitlines()
    assert [json.loads(line)["epoch"] for line in lines] == [1, 2]


def test_weights_broken_by_the_last_step_are_not_saved(make_bags, make_network, tmp_path):
    """A finite loss with an infinite gradient."""
    bags = make_bags()
    explode = lambda logits: logits + (logits * 0).sign() * torch.sqrt((logits * 0).abs())  # noqa: E731
    network = Breaking(make_network(), steps_in_epochs(bags, 2) - 1, explode)
    with pytest.raises(NonFiniteLossError, match="after epoch 2 the weights are not finite"):
        train(network, bags=bags, recipe=RECIPE, folder=tmp_path)
    assert load_checkpoint(tmp_path / "checkpoint.safetensors").epochs == 1


def test_long_epochs_are_looked_at_on_the_way(make_bags, make_network, monkeypatch):
    monkeypatch.setattr("bagwise.training.loop._STEPS_PER_LOOK", 2)
    bags = make_bags()
    network = Breaking(make_network(), 1, lambda logits: logits * torch.nan)
    with pytest.raises(NonFiniteLossError):
        train(network, bags=bags, recipe=RECIPE)
    assert network.steps == -1  # stopped after the second batch, not at the end of the epoch


@pytest.mark.usefixtures("ctrl_c_is_heard")
def test_ctrl_c_says_how_to_resume(make_bags, make_network, weights, tmp_path):
    bags = make_bags()
    network = Breaking(make_network(), steps_in_epochs(bags, 2) + 1, interrupt)
    with pytest.raises(KeyboardInterrupt, match=r"interrupted.*the same training, run again, goes on from there"):
        train(network, bags=bags, recipe=RECIPE, folder=tmp_path / "a")
    resumed, straight = (Breaking(make_network(), 10**9, interrupt) for _ in range(2))
    assert train(resumed, bags=bags, recipe=RECIPE, folder=tmp_path / "a").resumed_from == 2
    train(straight, bags=bags, recipe=RECIPE)
    assert torch.equal(weights(resumed), weights(straight))


@pytest.mark.usefixtures("ctrl_c_is_heard")
def test_ctrl_c_without_anything_saved(make_bags, make_network, tmp_path):
    network = Breaking(make_network(), 0, interrupt)
    with pytest.raises(KeyboardInterrupt, match="Nothing was saved: no folder was given"):
        train(network, bags=make_bags(), recipe=RECIPE)
    with pytest.raises(KeyboardInterrupt, match="No epoch had been saved"):
        train(network, bags=make_bags(), recipe=RECIPE, folder=tmp_path)


@pytest.mark.parametrize("file", ["checkpoint.safetensors", "log.jsonl"])
def test_a_full_disk_loses_nothing(make_bags, make_network, weights, tmp_path, monkeypatch, file):
    """The disk is full from the moment that epoch 3 is saved until somebody makes room."""
    fsync = os.fsync

    def full_disk(descriptor):
        path = os.readlink(f"/proc/self/fd/{descriptor}")
        log = tmp_path / "log.jsonl"
        if file in path and log.exists() and len(log.read_text().splitlines()) >= 3:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        fsync(descriptor)

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", full_disk)
        with pytest.raises(OSError, match=r"epoch 3 could not be saved.*previous checkpoint is intact") as caught:
            train(make_network(), bags=make_bags(), recipe=RECIPE, folder=tmp_path)
    assert caught.value.errno == errno.ENOSPC
    assert caught.value.filename == str(tmp_path / file)
    assert load_checkpoint(tmp_path / "checkpoint.safetensors").epochs == 2
    resumed, straight = make_network(), make_network()
    assert train(resumed, bags=make_bags(), recipe=RECIPE, folder=tmp_path).resumed_from == 2
    train(straight, bags=make_bags(), recipe=RECIPE)
    assert torch.equal(weights(resumed), weights(straight))
    assert len((tmp_path / "log.jsonl").read_text().splitlines()) == 4


def test_a_folder_that_cannot_be_written_to_is_named_before_training(make_bags, make_network, tmp_path):
    (tmp_path / "file").write_text("")
    calls = []
    for folder in (tmp_path / "file", tmp_path / "file" / "below", "/proc/no-such-place"):
        with pytest.raises(OSError, match=r"cannot be used.*choose another folder") as caught:
            train(make_network(), bags=make_bags(), folder=folder, evaluator=lambda n: calls.append(n) or {})
        assert caught.value.filename == str(folder)
    assert not calls
    train(make_network(), bags=make_bags(), recipe=RECIPE, folder=tmp_path / "new" / "below")  # is made


KILL_SCRIPT = """
import json, os, random, signal, sys, time
import lightning_fabric  # loaded once, so that kills fall into the training and not into imports
import numpy as np, torch
from torch import nn
from bagwise.bags import Bags
from bagwise.training import Recipe, train

torch.set_num_threads(1)
generator = np.random.default_rng(0)
bags = Bags(generator.normal(size=(160, 6)), np.arange(160) // 8, generator.dirichlet(np.ones(3), size=20))
recipe = Recipe(epochs=20, batch_instances=16, ema=0.9, optimizer="adam", learning_rate=0.01)

def run(folder):
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(6, 256), nn.BatchNorm1d(256), nn.Dropout(0.2), nn.Linear(256, 3))
    result = train(network, bags=bags, held_out=bags, recipe=recipe, folder=folder)
    vector = torch.cat([t.double().flatten() for t in network.state_dict().values()])
    return result.resumed_from, [[e["loss"], e["held_out"]] for e in result.history], vector.tolist()

def in_child(folder, killed_after=None):
    child = os.fork()  # before any training in this process: nothing but memory is inherited
    if child == 0:
        with open(folder + ".result", "w") as file:
            json.dump(run(folder), file)
        os._exit(0)
    if killed_after is not None:
        time.sleep(killed_after)
        os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    return os.WIFSIGNALED(status)

started = time.time()
assert not in_child(sys.argv[1] + "/straight")
duration = time.time() - started
moments = random.Random(0)
kills = sum(in_child(sys.argv[1] + "/killed", moments.uniform(0, 0.25 * duration)) for _ in range(8))
assert not in_child(sys.argv[1] + "/killed")
print(kills)
"""


def test_kill_minus_nine_at_random_moments(tmp_path):
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, "-c", KILL_SCRIPT, str(tmp_path)], capture_output=True, text=True, env=environment
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert int(done.stdout.split()[-1]) >= 4
    (_, *straight), (resumed_from, *killed) = (
        json.loads((tmp_path / f"{name}.result").read_text()) for name in ("straight", "killed")
    )
    assert resumed_from > 0
    assert killed == straight  # every loss, every score, every weight, bit for bit
    lines = (tmp_path / "killed" / "log.jsonl").read_text().splitlines()
    assert [json.loads(line)["epoch"] for line in lines] == list(range(1, 21))
    assert sorted(os.listdir(tmp_path / "killed")) == ["checkpoint.safetensors", "log.jsonl"]


def test_a_folder_on_a_full_disk_is_named_before_training(make_bags, make_network, tmp_path, monkeypatch):
    """A file of no bytes can still be written there, a log cannot."""
    train(make_network(), bags=make_bags(), recipe=RECIPE, folder=tmp_path)
    real = folders.write_atomically

    def full_disk(path, data):
        if data:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        real(path, data)

    monkeypatch.setattr(folders, "write_atomically", full_disk)
    with pytest.raises(OSError, match="Make room") as caught:
        train(make_network(), bags=make_bags(), recipe=RECIPE, folder=tmp_path)
    assert (caught.value.errno, caught.value.filename) == (errno.ENOSPC, str(tmp_path))
