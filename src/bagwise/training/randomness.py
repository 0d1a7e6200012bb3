"""Networks that draw at random (dropout) use torch's global generators: lend them private ones."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def private_randomness(seed: int, device: torch.device) -> Iterator[None]:
    """Seed the global generators of the CPU and of `device` inside the block, and put them back after it."""
    with forked_randomness(device):
        torch.default_generator.manual_seed(seed)
        if device.type == "cuda":
            with torch.cuda.device(device):
                torch.cuda.manual_seed(seed)
        yield


@contextmanager
def forked_randomness(device: torch.device) -> Iterator[None]:
    """Put the global generators of the CPU and of `device` back to where they were when the block ends."""
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        yield
