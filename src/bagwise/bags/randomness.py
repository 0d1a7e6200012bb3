"""Networks and data sets draw from global generators (dropout, augmentation): lend them private ones."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch


@contextmanager
def private_randomness(seed: int, device: torch.device) -> Iterator[None]:
    """Seed the global generators of torch, of `device`, of NumPy and of Python inside the block, and put them back."""
    with forked_randomness(device):
        torch.default_generator.manual_seed(seed)
        if device.type == "cuda":
            with torch.cuda.device(device):
                torch.cuda.manual_seed(seed)
        np.random.seed(seed % 2**32)  # noqa: NPY002  (the global one is what other people's code draws from)
        random.seed(seed)
        yield


@contextmanager
def forked_randomness(device: torch.device) -> Iterator[None]:
    """Put the global generators back to where they were when the block ends."""
    of_numpy, of_python = np.random.get_state(), random.getstate()  # noqa: NPY002
    try:
        with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
            yield
    finally:
        np.random.set_state(of_numpy)  # noqa: NPY002
        random.setstate(of_python)
