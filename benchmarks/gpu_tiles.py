"""Which tiles serve bags best: times of `rot` under other choices of the constants of its kernel.

    python benchmarks/gpu_tiles.py      # a minute or two on one H200, most of it for compilers

Every choice differs from the one in use by one constant. Times are microseconds on the GPU, as `benchmarks/gpu.py`
takes them. Run it after a change to the kernels, and set the constants by what it prints. Choices may be named; several
processes that share TRITON_CACHE_DIR can compile for one each, before one of them takes the times of all.
"""

from __future__ import annotations

import sys
from contextlib import ExitStack
from unittest.mock import patch

from gpu import RAGGED, as_graph, console, microseconds
from gpu_peers import LAWS, Problem
from rich.table import Table

import bagwise.kernels.operators  # noqa: F401 - registers the operators
from bagwise.kernels import rot, streams, tiles

EQUAL = [(3125, 16, 10), (8, 1024, 10), (4096, 256, 10), (128, 64, 100)]
few_warps = rot._num_warps
# name -> module, constant, value
CHOICES = {
    "in use": (),
    "one bag to a program": (tiles, "_SHARED_BAGS", 1),
    "two bags to a program": (tiles, "_SHARED_BAGS", 2),
    "grids of 512": (tiles, "_FULL_GRID", 512),
    "twice the warps": (rot, "_num_warps", lambda launch: few_warps(launch) * (1 if few_warps(launch) == 1 else 2)),
    "waves of 2^18": (tiles, "_WAVE_ENTRIES", 2**18),
    "one stream": (streams, "_SIDE_STREAMS", 0),
}


def time_of(problem: Problem, choice: tuple) -> float:
    with ExitStack() as stack:
        if choice:
            stack.enter_context(patch.object(*choice))
        for planned in (tiles.plan_launches, streams._side_streams):
            planned.cache_clear()
            stack.callback(planned.cache_clear)
        return microseconds(as_graph(problem.kernel))


def main() -> None:
    table = Table("choice", title="rot: microseconds (in brackets: ragged bags against equal ones)")
    problems = [Problem(*shape, law=law) for shape in RAGGED for law in LAWS] + [Problem(*shape) for shape in EQUAL]
    equal = {shape: time_of(Problem(*shape), ()) for shape in RAGGED}
    for problem in problems:
        table.add_column(problem.name, justify="right")
    for name in sys.argv[1:] or CHOICES:
        times = [time_of(problem, CHOICES[name]) for problem in problems]
        ratios = [f" ({t / equal[p.shape]:.2f})" if p.law else "" for p, t in zip(problems, times, strict=True)]
        table.add_row(name, *[f"{t:.1f}{ratio}" for t, ratio in zip(times, ratios, strict=True)])
    console.print(table)


if __name__ == "__main__":
    main()
