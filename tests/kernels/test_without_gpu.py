"""What can be said of the kernels on a machine without a GPU, beside their numbers (see test_interpreted.py)."""

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

HERE = Path(__file__).parent
KERNELS = {"_rot_kernel", "_large_rot_kernel", "_proportion_kernel", "_piece_kernel", "_reduce_kernel", "_scale_kernel"}


def run(*arguments, **environment):
    inherited = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    done = subprocess.run(
        [sys.executable, *arguments], env={**inherited, **environment}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


@pytest.mark.skipif(find_spec("triton") is None, reason="needs Triton")
def test_every_kernel_compiles_for_a_gpu_and_can_be_launched_again(tmp_path):
    built = run(HERE / "compile_for_sm90.py", TRITON_CACHE_DIR=str(tmp_path))
    assert {line.split()[0] for line in built.splitlines()} == KERNELS


def test_losses_on_a_cpu_do_not_import_triton():
    program = """
import sys
import torch
from bagwise import functional as BF, losses, train
logits = torch.randn(8, 3, requires_grad=True)
for loss in (BF.rot, BF.bag_kl, BF.avg_kl):
    loss(logits, torch.arange(8) // 4, torch.full((2, 3), 1 / 3)).backward()
print("triton" in sys.modules)
"""
    assert run("-c", program) == "False\n"
