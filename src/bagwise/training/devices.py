"""Where a training runs: the device, the precision and the number of processes, through Lightning Fabric."""

from __future__ import annotations

import atexit
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from lightning_fabric import Fabric


def launch_fabric(accelerator: str, devices: int | None, precision: str) -> Fabric:
    """Return a Fabric that is ready to train on `devices` devices, or on those of the launcher.

    Under `torchrun` or `fabric run` the launcher has started the processes already and its numbers count.
    Without a launcher, `devices` above 1 starts copies of the running script.
    """
    from lightning_fabric import Fabric  # here, because it loads torch's compiler, which takes seconds

    num_nodes = 1
    count = 1 if devices is None else devices
    if torch.distributed.is_torchelastic_launched():
        count = int(os.environ["LOCAL_WORLD_SIZE"])
        num_nodes = int(os.environ["WORLD_SIZE"]) // count
    with _quiet_fabric():
        fabric = Fabric(accelerator=accelerator, devices=count, num_nodes=num_nodes, precision=precision)  # pyright: ignore[reportArgumentType]
        if os.environ.get("LT_CLI_USED") != "1":  # `fabric run` has launched it, and Fabric refuses to do it twice
            fabric.launch()
    if fabric.world_size > 1:
        _leave_group_at_exit()
    return fabric


@cache  # once in a process
def _leave_group_at_exit() -> None:
    """Have this process leave its group before it ends: gloo's threads abort a process that ends without (seldom)."""

    def leave() -> None:
        if torch.distributed.is_initialized():
            torch.distributed.destroy_process_group()

    atexit.register(leave)


@contextmanager
def _quiet_fabric() -> Iterator[None]:
    """Hold back what Fabric says about each start: a sweep starts hundreds of times."""
    logger = logging.getLogger("lightning_fabric")
    before = logger.level
    logger.setLevel(logging.WARNING)
    try:
        yield
    finally:
        logger.setLevel(before)


@contextmanager
def tuned_convolutions(few_shapes: bool) -> Iterator[None]:
    """Let cuDNN time its algorithms for each shape of a batch, where there are few."""
    before = torch.backends.cudnn.benchmark
    torch.backends.cudnn.benchmark = before or few_shapes
    try:
        yield
    finally:
        torch.backends.cudnn.benchmark = before
