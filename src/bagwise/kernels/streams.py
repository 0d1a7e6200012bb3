"""Launches side by side: a few large bags take long and leave most of the GPU to the many small ones."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache

import torch

_SIDE_STREAMS = 3


def run_side_by_side(launches: Sequence[Callable[[], None]], device: torch.device) -> None:
    """Run `launches`, which do not depend on each other; those that take longest come first, each on its own stream.

    For the caller all of it happens on the current stream. What a launch allocates belongs to its stream, so it may be
    freed as soon as the launch is made.
    """
    if len(launches) == 1 or device.type != "cuda":
        for launch in launches:
            launch()
        return
    current = torch.cuda.current_stream(device)
    streams = _side_streams(device)[: len(launches) - 1]
    for stream, launch in zip(streams, launches, strict=False):
        stream.wait_stream(current)
        with torch.cuda.stream(stream):
            launch()
    for launch in launches[len(streams) :]:
        launch()
    for stream in streams:
        current.wait_stream(stream)


@cache
def _side_streams(device: torch.device) -> list[torch.cuda.Stream]:
    return [torch.cuda.Stream(device) for _ in range(_SIDE_STREAMS)]
