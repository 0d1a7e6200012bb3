"""Under a launcher of two real processes, which these stages do not share work among."""

import os
import subprocess
import sys

import pytest

SCRIPT = """
import os, sys
import numpy as np, torch
from bagwise import ProportionClassifier
from bagwise.bags import Bags
from bagwise.bags.crops import RandomCrops
from bagwise.networks import build_network
from bagwise.self_training import improve, pretrain, self_train
from bagwise.training import Recipe

torch.set_num_threads(1)
folder, rank = sys.argv[1], int(os.environ.get("RANK", os.environ.get("LOCAL_RANK", "0")))
recipe = Recipe(epochs=2, batch_instances=16, ema=0.9)
where = {"recipe": recipe, "accelerator": "cpu", "progress": False}
images = torch.randint(0, 256, (32, 1, 8, 8), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
bags = Bags(images.float().flatten(1), torch.arange(32) // 8, torch.full((4, 2), 0.5))
views = RandomCrops(mean=(0.5,), std=(0.25,))
table = build_network("mlp", (64,), 2, seed=0)
estimator = ProportionClassifier("self-training", epochs=1, device="cpu")
messages = []
for attempt in (
    lambda: self_train(table, bags=bags, folder=f"{folder}/self-training", **where),
    lambda: pretrain(
        build_network("small-convnet", (1, 8, 8), 2, seed=0), images, augment=views, folder=f"{folder}/pretraining",
        **where,
    ),
    lambda: improve(table, bags=bags, held_out=np.zeros(4, dtype=bool), **where),
    lambda: estimator.fit(bags.instances.numpy(), bags=np.arange(32) // 8, proportions=np.array([[0.4, 0.6]] * 4)),
):
    try:
        attempt()
    except ValueError as error:
        messages.append(str(error))
with open(f"{folder}/messages-{rank}", "w") as file:
    file.write("\\n".join(messages))
"""

TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
FABRIC_RUN = [sys.executable, "-m", "lightning_fabric.cli", "--accelerator", "cpu", "--devices", "2"]


@pytest.mark.parametrize("launcher", [TORCHRUN, FABRIC_RUN], ids=["torchrun", "fabric-run"])
def test_two_processes_are_refused_before_anything_is_written(launcher, tmp_path):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [*launcher, str(script), str(tmp_path)], capture_output=True, text=True, env=environment, timeout=120
    )
    assert done.returncode == 0, done.stderr[-3000:]
    for rank in range(2):
        messages = (tmp_path / f"messages-{rank}").read_text().splitlines()
        assert [message.split(" must run in one process, but 2 were launched")[0] for message in messages] == [
            "self-training",
            "pretraining",
            "self-training",
            "self-training",
        ]
        assert "`train` is what shares bags" in messages[0]
    assert not (tmp_path / "self-training").exists()
    assert not (tmp_path / "pretraining").exists()
