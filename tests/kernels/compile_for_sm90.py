"""Compiles every kernel for an H100 or H200 (sm_90) on any machine; a program of its own that prints what it built.

Launches go through the code that makes them on a GPU, each of them twice, but compile and do not run. Triton asks its
driver which GPU there is; the driver here says that there is one.
"""

import os

os.environ.pop("TRITON_INTERPRET", None)

import torch
from triton.backends.compiler import GPUTarget
from triton.runtime import driver
from triton.runtime.jit import JITFunction

from bagwise.bags import BagLayout
from bagwise.functional.fused import fused_proportion_loss, fused_rot
from bagwise.kernels import rot_large


class Driver:
    """An H100 that nothing is ever run on."""

    def get_current_target(self):
        return GPUTarget("cuda", 90, 32)

    def get_current_device(self):
        return 0

    def get_current_stream(self, device):
        return 0


def compile_only(self, *arguments, grid, warmup, **options):
    kernel = run(self, *arguments, grid=grid, warmup=True, **options)
    print(self.fn.__name__, len(kernel.asm["cubin"]))  # noqa: T201  (a program)


driver.set_active(Driver())
run, JITFunction.run = JITFunction.run, compile_only
rot_large._num_processors = lambda device: 132
for sizes, num_classes, dtype in (
    ([16] * 32, 10, torch.float32),
    ([16] * 5000, 10, torch.bfloat16),  # several bags to a program
    ([9, 300, 3000], 10, torch.float16),  # ragged, and one that does not fit on chip
    ([64] * 4, 100, torch.float32),
):
    layout = BagLayout.from_sizes(sizes)
    logits = torch.zeros(sum(sizes), num_classes, dtype=dtype, requires_grad=True)
    proportions = torch.full((len(sizes), num_classes), 1 / num_classes)
    for _ in range(2):  # Triton also looks whether anything has changed since it compiled a kernel
        fused_rot(logits, layout, proportions, 0.5, 1.0, "mean").backward()
        for divergence in ("kl", "l1", "l2", "avg_kl"):
            fused_proportion_loss(logits, layout, proportions, divergence, "mean").backward()
