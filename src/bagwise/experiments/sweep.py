"""Run many cells: skip what exists, keep what is done, share the work with other processes and machines."""

from __future__ import annotations

import multiprocessing
import multiprocessing.connection
import os
import shutil
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from pathlib import Path
from typing import Generic

from bagwise.experiments.locking import locked
from bagwise.experiments.records import AnyCell, CellType, Record, record_path, write_record
from bagwise.experiments.time_limit import TimeLimit
from bagwise.training import NonFiniteLossError

# called when a training starts with what it is and its amount of work, in epochs or in passes
Announce = Callable[[str, float], None]
AnnounceInCell = Callable[[CellType, str, float], None]

# Computes the record of a cell, given a folder for what must survive a kill. Other processes are sent it by pickle.
RunCell = Callable[[CellType, Path, TimeLimit, Announce], Record[CellType]]


@dataclass(frozen=True)
class FailedCell(Generic[CellType]):
    """A cell that cannot be computed from its data and settings; the others are none the worse for it.

    Attributes:
        reason: why, in one line.
    """

    cell: CellType
    reason: str


# what comes of a cell that was computed
Ended = Record[CellType] | FailedCell[CellType]


@dataclass(frozen=True)
class Shard:
    """Part `number` (from 1) of `count` equal parts of a sweep."""

    number: int
    count: int

    @staticmethod
    def parse(text: str) -> Shard:
        """Read "2/8".

        Example:
            >>> Shard.parse("2/8")
            Shard(number=2, count=8)
        """
        number, slash, count = text.partition("/")
        if slash and number.isdecimal() and count.isdecimal() and 1 <= int(number) <= int(count):
            return Shard(int(number), int(count))
        raise ValueError(f"a shard must look like 2/8 (part 2 of 8, counted from 1), but got {text!r}.")

    def take(self, cells: Sequence[CellType]) -> list[CellType]:
        """Return every `count`-th cell: each part has small and large bags, early and late seeds."""
        return list(cells[self.number - 1 :: self.count])


def missing_cells(cells: Sequence[CellType], out: Path) -> list[CellType]:
    """Return the cells that have no record yet."""
    return [cell for cell in cells if not record_path(out, cell).exists()]


def clear_work(cell: AnyCell, work: Path) -> None:
    """Remove what a cell kept while it was computed; its record holds all of it."""
    for path in work.glob(f"{cell.name}.*"):
        # another process may be clearing the same
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)


def _left_to_do(cells: Sequence[CellType], out: Path) -> list[CellType]:
    """Return the missing cells, after clearing what a kill between a record and its clean-up left of the others."""
    missing = missing_cells(cells, out)
    for cell in set(cells) - set(missing):
        clear_work(cell, work_folder(out, cell))
    return missing


def work_folder(out: Path, cell: AnyCell) -> Path:
    """Return where a cell keeps what must survive a kill."""
    return record_path(out, cell).parent / ".work"


def run_cells(
    cells: Sequence[CellType],
    run: RunCell[CellType],
    out: Path,
    *,
    max_seconds: float | None = None,
    announce: AnnounceInCell[CellType] = lambda _cell, _what, _work: None,
) -> Iterator[Ended[CellType]]:
    """Compute the cells that have no record, one after the other; yield each record once it is written.

    A cell that another process is computing in the same folder is passed over. One whose training diverges or whose
    data or settings are refused (a `ValueError`) is yielded as a `FailedCell` and leaves no record; any other error
    is not the cell's own and ends the sweep.

    Args:
        cells: in the order in which to run them.
        run: computes the record of one cell.
        out: the folder of the records.
        max_seconds: stop with an `OutOfTimeError` before a run that would end later than this.
        announce: called whenever a training starts.
    """
    limit = TimeLimit(max_seconds)
    for cell in _left_to_do(cells, out):
        if (ended := _compute(cell, run, out, limit, announce)) is not None:
            yield ended


def run_cells_in_processes(
    cells: Sequence[CellType], run: RunCell[CellType], out: Path, processes: int
) -> Iterator[Ended[CellType]]:
    """Like `run_cells`, several cells at a time, each in a process of its own on this machine."""
    context = multiprocessing.get_context("spawn")  # a fork of a process with threads may hang
    others = set(multiprocessing.active_children())
    with ProcessPoolExecutor(processes, context, initializer=_start_worker) as pool:
        running = [pool.submit(_compute, cell, run, out) for cell in _left_to_do(cells, out)]
        try:
            for future in as_completed(running):
                if (ended := future.result()) is not None:
                    yield ended
        except BrokenProcessPool:
            raise ChildProcessError(
                "a process of the sweep was killed, perhaps for want of memory. What is done is kept: run the same "
                "command again, with fewer --jobs if it happens again."
            ) from None
        except BaseException:
            # whoever stops the sweep does not wait for hours until the cells in hand have ended; they resume
            for worker in set(multiprocessing.active_children()) - others:
                worker.terminate()
            raise
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


def run_cells_on_ray(cells: Sequence[CellType], run: RunCell[CellType], out: Path) -> Iterator[Ended[CellType]]:
    """Like `run_cells`, each cell as a task of a Ray cluster: the one `RAY_ADDRESS` names, else a local one.

    A task takes one GPU where the cluster has any, and one core otherwise. Records travel back to this process;
    the candidates of an unfinished cell stay on the machine that ran them, so a shared `out` resumes best.
    """
    import ray

    was_running = ray.is_initialized()
    if not was_running:
        ray.init(log_to_driver=False, include_dashboard=False)
    try:
        num_gpus = 1 if ray.cluster_resources().get("GPU", 0) else 0
        task = ray.remote(num_cpus=1, num_gpus=num_gpus)(_compute)
        shared = ray.put(run)  # with its data set: sent to each machine once
        running = [task.remote(cell, shared, out.resolve()) for cell in _left_to_do(cells, out)]
        while running:
            (done,), running = ray.wait(running)
            if (ended := ray.get(done)) is not None:
                if isinstance(ended, Record):
                    write_record(out, ended)  # again, for a machine that does not share the folder
                yield ended
    finally:
        if not was_running:
            ray.shutdown()


def _compute(
    cell: CellType,
    run: RunCell[CellType],
    out: Path,
    limit: TimeLimit | None = None,
    announce: AnnounceInCell[CellType] = lambda _cell, _what, _work: None,
) -> Ended[CellType] | None:
    """Compute and write one cell, or say why it failed; None where another process has it in hand, or has done it."""
    work = work_folder(out, cell)
    with locked(work / f"{cell.name}.lock", wait=False) as is_ours:
        if not is_ours or record_path(out, cell).exists():
            return None
        try:
            record = run(cell, work, limit or TimeLimit(), lambda what, amount: announce(cell, what, amount))
        except (NonFiniteLossError, ValueError) as error:
            return FailedCell(cell, " ".join(str(error).split()))
        write_record(out, record)
        clear_work(cell, work)
    return record


def _start_worker() -> None:
    """Let a worker end silently with Ctrl-C, and together with the process that started it, whatever ends that."""
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    parent = multiprocessing.parent_process()
    if parent is None:
        return

    def end_with_parent() -> None:
        multiprocessing.connection.wait([parent.sentinel])
        os._exit(1)

    threading.Thread(target=end_with_parent, daemon=True).start()
