"""Seeds that follow from a seed and a place, so that nothing random has a state that must be saved."""

from __future__ import annotations

import zlib

import numpy as np


def derived_seed(seed: int, purpose: str, *place: int) -> int:
    """Return a seed for one purpose at one place (an epoch, a process, a batch) of a run, well mixed.

    Example:
        >>> derived_seed(0, "order", 3) == derived_seed(0, "order", 3)
        True
        >>> derived_seed(0, "order", 3) == derived_seed(0, "order", 4)
        False
    """
    entropy = [seed, zlib.crc32(purpose.encode()), *place]
    state = np.random.SeedSequence(entropy).generate_state(1, dtype=np.uint64)
    # 63 bits: torch.Generator takes signed 64-bit seeds
    return int(state[0] >> np.uint64(1))
