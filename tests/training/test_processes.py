"""Two real processes learn what one does."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

SCRIPT = """
import sys
import numpy as np, torch
from torch import nn
from bagwise.bags import Bags
from bagwise.methods import get_method
from bagwise.training import Recipe, train

torch.set_num_threads(1)
generator = np.random.default_rng(0)
# ragged, one bag unknown, one so large that the other process is left without a bag of its own
sizes = [3, 8, 2, 40, 5, 1, 4, 6, 2, 3]
proportions = generator.dirichlet(np.ones(3), size=len(sizes))
proportions[4] = np.nan
instances = generator.normal(size=(sum(sizes), 5))
bags = Bags(instances, np.repeat(np.arange(len(sizes)), sizes), proportions)


class Half:  # a strong view with nothing random in it, since each process draws its own
    def __call__(self, instances, generator):
        return instances / 2

    def normalise(self, instances):
        return instances


results, losses = [], []
for name, fields in [
    ("kl", {}),
    ("rot", {}),
    ("kl", {"accumulate": 2}),
    ("kl", {"chunk_instances": 5}),
    ("kl", {"ema": 0.5, "optimizer": "adam"}),
    (get_method("softmatch", momentum=0.5), {}),  # remembers the mean over all processes
    ("fixmatch", {"accumulate": 2}),
][: int(sys.argv[3])]:
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 3))
    recipe = Recipe(**{"epochs": 2, "batch_instances": 16, "learning_rate": 0.1, **fields})
    folder = sys.argv[2] + f"-{len(results)}"
    given = {"bags": bags, "held_out": bags, "method": name, "recipe": recipe, "accelerator": "cpu", "folder": folder}
    result = train(network, strong_augment=Half(), **given)
    results.append(torch.cat([p.detach().flatten() for p in network.parameters()]))
    losses.append(torch.tensor([[entry["loss"], entry["held_out"]["kl"]] for entry in result.history]))
    again = train(network, strong_augment=Half(), **given)
    assert again.resumed_from == 2
rank = torch.distributed.get_rank() if torch.distributed.is_initialized() else 0
size = torch.distributed.get_world_size() if torch.distributed.is_initialized() else 1
torch.save({"weights": torch.stack(results), "losses": torch.stack(losses), "size": size}, f"{sys.argv[1]}-{rank}")
"""


@pytest.fixture(scope="module")
def script(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("processes") / "script.py"
    path.write_text(SCRIPT)
    return path


def run(launcher, script, out, trainings):
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}
    command = [*launcher, str(script), str(out), f"{out}-run", str(trainings)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=120)
    assert done.returncode == 0, done.stderr[-3000:]


@pytest.fixture(scope="module")
def one_process(script):
    out = script.with_name("one")
    run([sys.executable], script, out, trainings=7)
    return torch.load(f"{out}-0")


TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
FABRIC_RUN = [sys.executable, "-m", "lightning_fabric.cli", "--accelerator", "cpu", "--devices", "2"]


@pytest.mark.parametrize(("launcher", "trainings"), [(TORCHRUN, 7), (FABRIC_RUN, 1)], ids=["torchrun", "fabric-run"])
def test_two_processes_learn_what_one_does(script, one_process, launcher, trainings):
    out = script.with_name(f"two-{trainings}")
    run(launcher, script, out, trainings)
    for rank in range(2):
        got = torch.load(f"{out}-{rank}")
        assert got["size"] == 2
        torch.testing.assert_close(got["weights"], one_process["weights"][:trainings], rtol=0, atol=1e-6)
        torch.testing.assert_close(got["losses"], one_process["losses"][:trainings], rtol=0, atol=1e-6)
    lines = (Path(f"{out}-run-0") / "log.jsonl").read_text().splitlines()
    assert len(lines) == 2  # one process writes


FAILING = """
import atexit, os, sys
import numpy as np, torch
from torch import nn
from bagwise.bags import Bags
from bagwise.training import NonFiniteLossError, Recipe, train

torch.set_num_threads(1)
instances = torch.from_numpy(np.random.default_rng(0).normal(size=(60, 5))).float()
instances[7, 0] = torch.nan  # in bag 1, which one of the two processes has
bags = Bags(instances, np.repeat(np.arange(12), 5), torch.full((12, 2), 0.5))
# what is registered first runs last
atexit.register(lambda: open(f"{sys.argv[1]}-left-{os.getpid()}", "w").write(str(torch.distributed.is_initialized())))
try:
    train(nn.Linear(5, 2), bags=bags, recipe=Recipe(epochs=2, batch_instances=10), accelerator="cpu")
except NonFiniteLossError as error:
    open(f"{sys.argv[1]}-{torch.distributed.get_rank()}", "w").write(str(error))
"""


def test_the_process_that_has_the_bad_bag_explains(tmp_path):
    script = tmp_path / "failing.py"
    script.write_text(FAILING)
    run(TORCHRUN, script, tmp_path / "said", trainings=1)
    said = sorted(path.read_text() for path in tmp_path.glob("said-[01]"))
    assert len(said) == 2
    assert "in another process; its message names the bag" in "".join(said)
    assert "bag 1 has instances with NaN" in "".join(said)
    assert "diverged" not in "".join(said)
    # a process that ends in its group is aborted now and then
    assert [path.read_text() for path in tmp_path.glob("said-left-*")] == ["False", "False"]
