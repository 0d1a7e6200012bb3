import os
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import pytest

from bagwise.experiments.leaderboard.bag_kinds import BAG_KINDS
from bagwise.experiments.leaderboard.presets import BenchmarkCell, plan_benchmark
from bagwise.experiments.leaderboard.running import (
    benchmark_folder,
    cell_passes,
    make_task,
    read_benchmark,
    run_benchmark_cell,
)
from bagwise.experiments.records import RecordError, read_record, write_record
from bagwise.experiments.sweep import Shard, missing_cells, run_cells
from bagwise.experiments.time_limit import OutOfTimeError, TimeLimit
from fakes.benchmark_records import make_benchmark_record

CONTENDERS = ["kl", "dsq", "self-training"]


@pytest.fixture
def run(few_digits):
    return partial(run_benchmark_cell, data={"digits": few_digits})


def outcome(record):
    """All of a record but times and places."""
    tried = [(c.learning_rate, c.criterion) for c in record.selection.candidates]
    return record.cell, record.recipe, tried, record.curve.train_loss, record.curve.test_accuracy, record.final


def test_a_record_comes_back_as_it_was_computed(tiny_preset, run, tmp_path):
    cells = plan_benchmark(["digits"], "tiny", contenders=["kl"], bag_sizes=[4])
    (record,) = run_cells(cells, run, tmp_path)
    path = benchmark_folder(tmp_path, "digits", "tiny") / "kl-uniform-4-seed0.json"
    assert read_record(path, BenchmarkCell) == record
    assert '"schema": 1' in path.read_text()
    assert missing_cells(cells, tmp_path) == []
    assert list(run_cells(cells, run, tmp_path)) == []


def test_records_are_read_in_the_order_of_the_sweep(tmp_path):
    cells = [
        (c, kind, size, seed) for seed in (0, 1) for kind in BAG_KINDS for size in (16, 128) for c in ("kl", "rot")
    ]
    records = [
        make_benchmark_record(contender, 0.5, bag_kind=kind, bag_size=size, seed=seed)
        for contender, kind, size, seed in cells
    ]
    gone = make_benchmark_record("a-method-of-old", 0.5, bag_size=16)
    for record in reversed([*records, gone]):
        write_record(tmp_path, record)
    assert read_benchmark(tmp_path, "cifar10", "fast") == [*records[:2], gone, *records[2:]]
    assert read_benchmark(tmp_path, "cifar10", "demo") == []


def test_a_damaged_record_is_named(tmp_path):
    path = write_record(tmp_path, make_benchmark_record("kl", 0.5))
    path.write_text(path.read_text().replace('"bag_kind"', '"kind"'))
    with pytest.raises(RecordError, match=r"kl-uniform-16-seed0\.json is not a valid record"):
        read_benchmark(tmp_path, "cifar10", "fast")


def test_shards_together_give_the_records_of_the_whole(tiny_preset, run, tmp_path):
    cells = plan_benchmark(["digits"], "tiny", contenders=CONTENDERS, bag_sizes=[16])
    whole = list(run_cells(cells, run, tmp_path / "whole"))
    for number in (2, 1):
        list(run_cells(Shard(number, 2).take(cells), run, tmp_path / "parts"))
    assert [outcome(r) for r in read_benchmark(tmp_path / "parts", "digits", "tiny")] == [outcome(r) for r in whole]


def test_no_run_starts_that_would_end_after_the_limit(tiny_preset, run, tmp_path):
    cells = plan_benchmark(["digits"], "tiny", contenders=CONTENDERS, bag_sizes=[16])
    with pytest.raises(OutOfTimeError):
        list(run_cells(cells, run, tmp_path, max_seconds=0))
    assert missing_cells(cells, tmp_path) == cells


def test_the_announced_passes_are_those_of_the_record(tiny_preset, run, tmp_path):
    for cell in plan_benchmark(["digits"], "tiny", contenders=["kl", "llp-vat", "fixmatch"], bag_sizes=[16]):
        heard = []
        record = run(cell, tmp_path, TimeLimit(), lambda _, passes, heard=heard: heard.append(passes))
        assert sum(heard) == pytest.approx(record.compute.passes)
        assert len(heard) == 1 + len(tiny_preset.images.learning_rates)
        assert record.compute.passes <= cell_passes(cell)


@pytest.mark.parametrize("kind", BAG_KINDS)
def test_bags_of_each_kind_have_one_size_and_honest_proportions(kind, tiny_preset, digits):
    bags = make_task(BenchmarkCell("digits", "tiny", "kl", kind, 16, 0), digits).bags
    assert bags.layout.common_size == 16
    assert bags.num_bags > 60
    again = make_task(BenchmarkCell("digits", "tiny", "rot", kind, 16, 0), digits).bags
    other = make_task(BenchmarkCell("digits", "tiny", "kl", kind, 16, 1), digits).bags
    assert bags.proportions.equal(again.proportions)
    assert not bags.proportions.equal(other.proportions)


def test_kinds_of_bags_differ_in_how_mixed_they_are(tiny_preset, digits):
    def largest_share(kind):
        task = make_task(BenchmarkCell("digits", "tiny", "kl", kind, 16, 0), digits)
        return float(task.bags.proportions.amax(dim=1).mean())

    assert largest_share("uniform") < largest_share("dirichlet") < largest_share("clustered")


# Imports take longer than the sweep: this process has them done, and forks a sweep for every line it reads.
SWEEP_SERVER = """
import os, sys
from functools import partial
from pathlib import Path
import lightning_fabric, torch._dynamo  # what the first training would import
from bagwise.experiments.leaderboard.data import load_benchmark_data
from bagwise.experiments.leaderboard.presets import PRESETS, plan_benchmark
from bagwise.experiments.leaderboard.running import run_benchmark_cell
from bagwise.experiments.sweep import run_cells
from fakes.tiny_benchmark import CHECKPOINTED
PRESETS["tiny"] = CHECKPOINTED
cells = plan_benchmark(["digits"], "tiny", contenders=["kl", "dsq", "self-training"], bag_sizes=[16])
run = partial(run_benchmark_cell, data={"digits": load_benchmark_data("digits")})
for line in sys.stdin:
    if (child := os.fork()) == 0:
        for record in run_cells(cells, run, Path(sys.argv[1])):
            pass
        os._exit(0)
    print(child, flush=True)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


def test_a_sweep_that_is_killed_ends_with_the_same_records(digits, tmp_path, monkeypatch):
    """kill -9 as soon as there is something new on disk; the sweep is started again until it is done."""
    from bagwise.experiments.leaderboard.presets import PRESETS
    from fakes.tiny_benchmark import CHECKPOINTED

    monkeypatch.setitem(PRESETS, "tiny", CHECKPOINTED)
    cells = plan_benchmark(["digits"], "tiny", contenders=CONTENDERS, bag_sizes=[16])
    run = partial(run_benchmark_cell, data={"digits": digits})
    expected = list(run_cells(cells, run, tmp_path / "whole"))
    out, killed = tmp_path / "cut", 0
    sources = os.pathsep.join([str(Path(__file__).parents[2]), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": sources}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True, "bufsize": 1}
    with subprocess.Popen([sys.executable, "-c", SWEEP_SERVER, str(out)], env=environment, **pipes) as server:
        while True:
            before = files_in(out)
            print("sweep", file=server.stdin)
            child = int(server.stdout.readline())
            deadline = time.monotonic() + 60
            while killed < 6 and time.monotonic() < deadline and not files_in(out) - before:
                time.sleep(0.001)
            if killed < 6:
                os.kill(child, signal.SIGKILL)
            status = int(server.stdout.readline())
            if status == 0:
                break
            assert status == -signal.SIGKILL
            killed += 1
        server.stdin.close()
    assert killed >= 3
    assert [outcome(r) for r in read_benchmark(out, "digits", "tiny")] == [outcome(r) for r in expected]
    assert [path.name for path in (benchmark_folder(out, "digits", "tiny") / ".work").iterdir()] == []


def files_in(folder):
    return (
        {path for path in folder.rglob("*") if not path.name.endswith((".lock", ".tmp"))} if folder.exists() else set()
    )
