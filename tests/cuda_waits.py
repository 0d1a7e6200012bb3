"""Whether the host waits for the GPU."""

import warnings
from contextlib import contextmanager

import torch


@contextmanager
def waits_are(what):
    """Let torch raise ("error") or warn of ("warn") whatever makes the host wait for the GPU while the block runs."""
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Synchronization debug mode")  # a prototype feature, it says once
            torch.cuda.set_sync_debug_mode(what)
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")
