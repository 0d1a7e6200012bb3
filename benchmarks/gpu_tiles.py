"""Which tiles serve ragged bags best: times of `rot` under other choices of the constants in kernels/tiles.py.

    python benchmarks/gpu_tiles.py      # a minute or two on one H200, most of it for compilers

Every choice differs from the one in use by one constant or two. Times are microseconds on the GPU, as
`benchmarks/gpu.py` takes them. Run it after a change to the kernels, and set the constants by what it prints.
"""

from __future__ import annotations

from contextlib import ExitStack
from unittest.mock import patch

from gpu import RAGGED, as_graph, console, microseconds
from gpu_peers import LAWS, Problem
from rich.table import Table

import bagwise.kernels.operators  # noqa: F401 - registers the operators
from bagwise.kernels import streams, tiles

CHOICES = {
    "in use": {},
    **{f"waves of 2^{power}": {"_WAVE_ENTRIES": 2**power} for power in (16, 18, 19, 21, 22)},
    **{f"shared from {least}": {"_SHARED_ENTRIES": (least, 1024)} for least in (32, 64, 128)},
    "shared up to 2048": {"_SHARED_ENTRIES": (256, 2048)},
    "shared at once": {"_SHARED_ENTRIES": (32, 1024), "_FULL_GRID": 256},
    "one stream": {"_SIDE_STREAMS": 0},
}


def time_of(problem: Problem, constants: dict) -> float:
    with ExitStack() as stack:
        for name, value in constants.items():
            stack.enter_context(patch.object(streams if name == "_SIDE_STREAMS" else tiles, name, value))
        for planned in (tiles.plan_launches, streams._side_streams):
            planned.cache_clear()
            stack.callback(planned.cache_clear)
        return microseconds(as_graph(problem.kernel))


def main() -> None:
    table = Table("choice", title="rot, ragged bags: microseconds (in brackets: against equal bags)")
    problems = [Problem(*shape, law=law) for shape in RAGGED for law in LAWS]
    equal = {shape: time_of(Problem(*shape), {}) for shape in RAGGED}
    for problem in problems:
        table.add_column(problem.name, justify="right")
    for name, constants in CHOICES.items():
        times = [time_of(problem, constants) for problem in problems]
        cells = [f"{t:.1f} ({t / equal[p.shape]:.2f})" for p, t in zip(problems, times, strict=True)]
        table.add_row(name, *cells)
    console.print(table)


if __name__ == "__main__":
    main()
