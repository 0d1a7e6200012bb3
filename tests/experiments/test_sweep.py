import contextlib
import dataclasses
import os
import random
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import pytest

from bagwise.experiments.cells import run_cell
from bagwise.experiments.grid import plan_cells
from bagwise.experiments.records import read_records, record_path
from bagwise.experiments.sweep import FailedCell, missing_cells, run_cells, run_cells_in_processes, run_cells_on_ray
from bagwise.experiments.time_limit import OutOfTimeError
from bagwise.training import NonFiniteLossError


def outcome(record):
    """All of a record but times and places."""
    untimed = [dataclasses.replace(c, seconds=0) for c in record.selection.candidates]
    return (
        record.cell,
        dataclasses.replace(record.chosen, seconds=0),
        record.recipe,
        untimed,
        record.selection.criterion,
        dataclasses.replace(record.curve, seconds=()),
        record.final,
    )


@pytest.fixture
def run(digits):
    return partial(run_cell, dataset=digits)


@pytest.fixture
def computed():
    return []


@pytest.fixture
def spy(run, computed):
    """Runs a cell and notes in `computed` the name of each that is really computed."""

    def spy(cell, *arguments):
        computed.append(cell.name)
        return run(cell, *arguments)

    return spy


def test_cells_with_a_record_are_skipped(tiny_preset, spy, tmp_path, computed):
    cells = plan_cells("digits", "tiny", losses=["kl"])
    first = list(run_cells(cells[:1], spy, tmp_path))
    assert [record.cell for record in first] == cells[:1]
    assert missing_cells(cells, tmp_path) == cells[1:]
    rest = list(run_cells(cells, spy, tmp_path))
    assert [record.cell for record in rest] == cells[1:]
    assert computed == ["kl-4-seed0", "kl-64-seed0"]
    assert [*first, *rest] == read_records(tmp_path, "digits", "tiny")


def test_a_finished_sweep_leaves_records_alone(tiny_preset, run, tmp_path):
    list(run_cells(plan_cells("digits", "tiny", losses=["kl"]), run, tmp_path))
    folder = tmp_path / "digits" / "tiny"
    assert {path.name for path in folder.iterdir()} == {"kl-4-seed0.json", "kl-64-seed0.json", ".work"}
    assert list((folder / ".work").iterdir()) == []


def test_a_cell_in_another_process_is_passed_over(tiny_preset, spy, tmp_path, computed):
    cells = plan_cells("digits", "tiny", losses=["kl"])
    work = record_path(tmp_path, cells[0]).parent / ".work"
    work.mkdir(parents=True)
    hold = (
        "import fcntl, sys; file = open(sys.argv[1], 'w'); fcntl.flock(file, fcntl.LOCK_EX); print('held', flush=True)"
    )
    hold += "; input()"
    command = [sys.executable, "-c", hold, str(work / "kl-4-seed0.lock")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout.readline() == "held\n"
        list(run_cells(cells, spy, tmp_path))
        assert computed == ["kl-64-seed0"]
        other.kill()  # a kill ends the claim
    list(run_cells(cells, spy, tmp_path))
    assert computed == ["kl-64-seed0", "kl-4-seed0"]


def test_the_time_limit_ends_a_sweep_between_runs(tiny_preset, run, tmp_path):
    cells = plan_cells("digits", "tiny", losses=["kl"])
    with pytest.raises(OutOfTimeError):
        list(run_cells(cells, run, tmp_path, max_seconds=0))
    assert missing_cells(cells, tmp_path) == cells


@pytest.mark.parametrize("error", [NonFiniteLossError("training\ndiverged"), ValueError("training diverged")])
def test_a_cell_that_fails_does_not_stop_the_others(tiny_preset, run, tmp_path, error):
    cells = plan_cells("digits", "tiny", losses=["kl"], seeds=2)

    def fail_first(cell, *arguments):
        if cell == cells[0]:
            raise error
        return run(cell, *arguments)

    ended = list(run_cells(cells, fail_first, tmp_path))
    assert ended[0] == FailedCell(cells[0], "training diverged")
    assert ended[1:] == read_records(tmp_path, "digits", "tiny")
    assert missing_cells(cells, tmp_path) == cells[:1]
    (record,) = run_cells(cells, run, tmp_path)  # once it is mended
    assert record.cell == cells[0]


@pytest.mark.parametrize("error", [TypeError, RuntimeError, KeyError, FloatingPointError, OSError])
def test_an_error_that_is_not_the_cells_own_ends_the_sweep(tiny_preset, tmp_path, error):
    def break_down(*_):
        raise error("a bug")

    with pytest.raises(error, match="a bug"):
        list(run_cells(plan_cells("digits", "tiny", losses=["kl"]), break_down, tmp_path))


def test_a_record_that_cannot_be_written_is_not_the_cells_failure(tiny_preset, run, tmp_path):
    def not_a_number(*arguments):
        return dataclasses.replace(run(*arguments), seconds=float("nan"))

    with pytest.raises(ValueError, match="JSON"):
        list(run_cells(plan_cells("digits", "tiny", losses=["kl"]), not_a_number, tmp_path))


def test_processes_give_the_records_of_one_process(run, tmp_path):
    # a preset of its own would be unknown in the processes; bags of 256 digits are only five
    cells = plan_cells("digits", "demo", losses=["kl"], bag_sizes=[256], seeds=2)
    side_by_side = list(run_cells_in_processes(cells, run, tmp_path / "two", processes=2))
    one_by_one = list(run_cells(cells, run, tmp_path / "one"))
    side_by_side.sort(key=lambda record: record.cell.seed)  # they come in the order in which they end
    assert [outcome(record) for record in side_by_side] == [outcome(record) for record in one_by_one]
    assert missing_cells(cells, tmp_path / "two") == []


def test_in_processes_a_cell_that_fails_does_not_stop_the_others(run, tmp_path):
    small, too_large = plan_cells("digits", "demo", losses=["kl"], bag_sizes=[256, 5000], seeds=1)
    ended = {one.cell: one for one in run_cells_in_processes([too_large, small], run, tmp_path, processes=2)}
    assert "no bag fits" in ended[too_large].reason
    assert [ended[small]] == read_records(tmp_path, "digits", "demo")


def test_ray_gives_the_records_of_one_process_and_goes_on_after_a_cell_that_fails(run, tmp_path, monkeypatch):
    ray = pytest.importorskip("ray")
    monkeypatch.setenv("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # what a future version of ray will do
    ray.init(num_cpus=1, log_to_driver=False, include_dashboard=False, configure_logging=False)
    try:
        small, too_large = plan_cells("digits", "demo", losses=["kl"], bag_sizes=[256, 5000], seeds=1)
        failed, record = run_cells_on_ray([too_large, small], run, tmp_path / "ray")  # one core: in this order
    finally:
        ray.shutdown()
    (expected,) = run_cells([small], run, tmp_path / "one")
    assert failed.cell == too_large
    assert "no bag fits" in failed.reason
    assert outcome(record) == outcome(expected)
    assert [outcome(r) for r in read_records(tmp_path / "ray", "digits", "demo")] == [outcome(expected)]


# Imports take longer than the sweep: this process has them done, and forks a sweep for every line it reads.
SWEEP_SERVER = """
import os, sys
from functools import partial
from pathlib import Path
sys.path.insert(0, sys.argv[2])
import lightning_fabric, torch._dynamo  # what the first training would import
from conftest import TINY
from bagwise.experiments.cells import run_cell
from bagwise.experiments.datasets import load_dataset
from bagwise.experiments.grid import PRESETS, plan_cells
from bagwise.experiments.sweep import run_cells
PRESETS["tiny"] = TINY
run = partial(run_cell, dataset=load_dataset("digits"))
for line in sys.stdin:
    if (child := os.fork()) == 0:
        for record in run_cells(plan_cells("digits", "tiny", seeds=2), run, Path(sys.argv[1])):
            pass
        os._exit(0)
    print(child, flush=True)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


def wait_for_new_file(folder, seconds):
    """Wait for the first moment at which a record is being written."""
    before = set(os.listdir(folder)) if folder.exists() else set()
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if folder.exists() and set(os.listdir(folder)) - before - {".work"}:
            return


def test_a_sweep_killed_at_random_moments_ends_with_the_same_records(tiny_preset, run, tmp_path):
    """kill -9 in the middle of runs and of writing; the sweep is started again until it is done."""
    started = time.monotonic()
    expected = list(run_cells(plan_cells("digits", "tiny", seeds=2), run, tmp_path / "whole"))
    whole = time.monotonic() - started
    out, moments, killed = tmp_path / "cut", random.Random(0), 0
    command = [sys.executable, "-c", SWEEP_SERVER, str(out), str(Path(__file__).parent)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True, "bufsize": 1}
    one_thread = {**os.environ, "OMP_NUM_THREADS": "1"}  # a fork has none of its parent's threads, and would wait
    with subprocess.Popen(command, env=one_thread, **pipes) as server:
        while True:
            print("sweep", file=server.stdin)
            child = int(server.stdout.readline())
            if killed < 8:
                if killed % 2:
                    wait_for_new_file(out / "digits" / "tiny", seconds=whole)
                else:
                    time.sleep(moments.uniform(0, whole / 4))
                with contextlib.suppress(ProcessLookupError):  # the sweep may be done
                    os.kill(child, signal.SIGKILL)
            status = int(server.stdout.readline())
            if status == 0:
                break
            assert status == -signal.SIGKILL
            killed += 1
        server.stdin.close()
    assert killed >= 3
    assert [outcome(r) for r in read_records(out, "digits", "tiny")] == [outcome(r) for r in expected]
    assert list((out / "digits" / "tiny" / ".work").glob("*.json")) == []


def test_a_kill_between_a_record_and_its_clean_up_is_cleaned_up_by_the_next_sweep(tiny_preset, run, tmp_path):
    cells = plan_cells("digits", "tiny", seeds=1)[:1]
    list(run_cells(cells, run, tmp_path))
    work = tmp_path / "digits" / "tiny" / ".work"
    leftover = work / f"{cells[0].name}.0123.json"
    leftover.write_text("{}")
    list(run_cells(cells, run, tmp_path))
    assert not leftover.exists()
