import errno
import os
import sys
from dataclasses import replace

import pytest
from typer.testing import CliRunner

from bagwise.cli import app
from bagwise.experiments import cells, sweep
from bagwise.experiments.records import read_records, write_record
from bagwise.training import NonFiniteLossError
from fakes.records import make_grid

TINY_SWEEP = ["reproduce", "digits", "--preset", "demo", "--losses", "kl", "--bag-sizes", "256", "--seeds", "1"]


def run(*arguments):
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


@pytest.fixture
def results(tmp_path):
    """A folder with every record of CIFAR-10."""
    for record in make_grid(seeds=1):
        write_record(tmp_path / "results", record)
    return tmp_path / "results"


def test_a_sweep_prints_its_table_and_its_page(tmp_path):
    done = run(*TINY_SWEEP, "--jobs", 1, "--out", tmp_path)
    assert done.exit_code == 0, done.output
    (record,) = read_records(tmp_path, "digits", "demo")
    assert f"[1/1] kl-256-seed0: {100 * record.final.accuracy:.1f} %" in done.stderr
    assert "256" in done.stdout
    page = tmp_path / "digits" / "demo" / "report.html"
    assert f"page: {page}" in done.stdout
    assert page.is_file()
    assert (page.parent / "digits-demo-curves.png").is_file()

    again = run(*TINY_SWEEP, "--out", tmp_path)
    assert again.exit_code == 0
    assert "1 of 1 cells have a record" in again.stderr


def test_report_only_redraws_into_the_documentation(results, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "README.md").write_text("<!-- results:cifar10 -->\n<!-- /results -->\n")
    done = run("reproduce", "cifar10", "--report-only")
    assert done.exit_code == 0, done.output
    assert (tmp_path / "docs" / "figures" / "cifar10-fast-curves.png").is_file()
    assert (tmp_path / "results" / "cifar10" / "fast" / "cifar10-fast-curves.svg").is_file()
    assert (tmp_path / "results" / "cifar10" / "fast" / "report.html").is_file()
    assert "| bag size | AvgKL | KL | ROT |" in (tmp_path / "README.md").read_text()
    assert "README.md" in done.stdout


def test_report_only_redraws_every_preset_that_has_records(results, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for record in make_grid(seeds=1):
        write_record(results, replace(record, cell=replace(record.cell, preset="paper")))
    (tmp_path / "README.md").write_text("<!-- results:cifar10/paper -->\n<!-- /results -->\n")
    assert run("reproduce", "cifar10", "--report-only").exit_code == 0
    assert {path.name for path in (tmp_path / "docs" / "figures").iterdir()} == {
        f"cifar10-{preset}-{figure}.png" for preset in ("fast", "paper") for figure in ("bag-sizes", "curves")
    }
    assert "preset `paper`" in (tmp_path / "README.md").read_text()

    done = run("reproduce", "cifar10", "--report-only", "--preset", "fast", "--figures", "one")
    assert "page: results/cifar10/fast/report.html" in done.stdout
    assert not list((tmp_path / "one").glob("*paper*"))


def test_shards_run_a_part(tmp_path, monkeypatch):
    ran = []
    monkeypatch.setattr(sweep, "run_cells", lambda cells, *_, **__: ran.extend(cells) or iter(()))
    done = run("reproduce", "digits", "--jobs", 1, "--shard", "2/9", "--seeds", 1, "--out", tmp_path)
    assert done.exit_code == 0, done.output
    assert [cell.name for cell in ran] == ["kl-1-seed0", "kl-8-seed0", "kl-64-seed0"]
    assert "3 of 3 cells are left" in done.stderr


def test_time_that_is_up_is_no_error(tmp_path):
    done = run(*TINY_SWEEP, "--out", tmp_path, "--max-seconds", 0)
    assert done.exit_code == 0, done.output
    assert "would not end within 0 seconds" in done.stderr
    assert "1 of 1 cells are left; run the same command again" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["reproduce", "cifar11"], "Did you mean 'cifar10'"),
        (["reproduce", "digits", "--preset", "damo"], "Did you mean 'demo'"),
        (["reproduce", "digits", "--losses", "kl,rott"], "Did you mean 'rot'"),
        (["reproduce", "digits", "--bag-sizes", "1,two"], "--bag-sizes must be whole numbers"),
        (["reproduce", "digits", "--bag-sizes", "0"], "bag_sizes"),
        (["reproduce", "digits", "--shard", "9/8"], "2/8"),
        (["reproduce", "digits", "--max-seconds", "9", "--jobs", "2"], "drop --ray and --jobs"),
        (
            ["reproduce", "digits", "--bag-sizes", "2000", "--jobs", "1"],
            "training instances of digits, 1442, but got 2000",
        ),
        (["reproduce", "cifar10", "--report-only"], "Run the sweep first"),
    ],
)
def test_what_the_user_can_mend_is_a_message_and_code_2(tmp_path, monkeypatch, arguments, message):
    monkeypatch.chdir(tmp_path)
    done = run(*arguments)
    assert done.exit_code == 2, done.output
    assert message in done.stderr
    assert "Traceback" not in done.output


def test_a_missing_data_folder_is_named(tmp_path):
    done = run("reproduce", "cifar10", "--data", tmp_path / "nowhere", "--out", tmp_path / "out")
    assert done.exit_code == 2
    assert f"{tmp_path / 'nowhere'}, which does not exist" in done.stderr
    assert "Traceback" not in done.output
    assert not (tmp_path / "out").exists()


def test_a_damaged_record_is_found_before_the_work_starts(tmp_path, monkeypatch):
    monkeypatch.setattr(cells, "run_cell", lambda *_, **__: pytest.fail("it must not come to this"))
    folder = tmp_path / "digits" / "demo"
    folder.mkdir(parents=True)
    (folder / "rot-1-seed0.json").write_text('{"schema": 1')
    done = run(*TINY_SWEEP, "--out", tmp_path)
    assert done.exit_code == 2
    assert "rot-1-seed0.json is not a valid record" in done.stderr


def test_a_bag_size_that_cannot_be_filled_is_found_before_the_work_starts(tmp_path, monkeypatch):
    monkeypatch.setattr(cells, "run_cell", lambda *_, **__: pytest.fail("it must not come to this"))
    done = run("reproduce", "digits", "--losses", "kl", "--bag-sizes", "64,5000", "--jobs", 1, "--out", tmp_path)
    assert done.exit_code == 2, done.output
    assert done.stderr == (
        "error: bag_size must not exceed the number of training instances of digits, 1442, but got 5000: "
        "no bag fits. Ask for smaller bags.\n"
    )


def diverge_on(monkeypatch, *names):
    """Let the training of some cells diverge."""
    original = cells.run_cell

    def run_cell(cell, *arguments, **options):
        if cell.name in names:
            raise NonFiniteLossError("training diverged.")
        return original(cell, *arguments, **options)

    monkeypatch.setattr(cells, "run_cell", run_cell)


def test_a_cell_that_fails_does_not_stop_the_others(tmp_path, monkeypatch):
    diverge_on(monkeypatch, "kl-256-seed0", "kl-512-seed1")
    sweep_of_four = [*TINY_SWEEP[:-3], "256,512", "--seeds", 2, "--jobs", 1, "--out", tmp_path]
    done = run(*sweep_of_four)
    assert done.exit_code == 2, done.output
    lines = done.stderr.splitlines()
    assert lines[0] == "[1/4] kl-256-seed0 failed: training diverged."
    assert lines[3] == "[4/4] kl-512-seed1 failed: training diverged."
    assert lines[4:] == [
        "error: 2 cells failed and left no record. digits/kl-256-seed0, digits/kl-512-seed1: training diverged."
    ]
    assert f"page: {tmp_path / 'digits' / 'demo' / 'report.html'}" in done.stdout
    assert [record.cell.name for record in read_records(tmp_path, "digits", "demo")] == ["kl-512-seed0", "kl-256-seed1"]

    monkeypatch.undo()  # what failed is run again
    again = run(*sweep_of_four)
    assert again.exit_code == 0, again.output
    assert len(read_records(tmp_path, "digits", "demo")) == 4


def test_when_all_cells_fail_there_is_no_page(tmp_path, monkeypatch):
    diverge_on(monkeypatch, "kl-256-seed0")
    done = run(*TINY_SWEEP, "--jobs", 1, "--out", tmp_path)
    assert done.exit_code == 2, done.output
    assert "error: 1 cell failed and left no record. digits/kl-256-seed0: training diverged." in done.stderr
    assert "cells are left" not in done.stderr
    assert done.stdout == ""


def test_interruption_says_how_to_go_on(tmp_path, monkeypatch):
    def interrupt(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(cells, "run_cell", interrupt)
    monkeypatch.setattr(sys, "argv", ["bagwise", "reproduce", "digits", "--out", "my results"])
    done = run(*TINY_SWEEP, "--jobs", 1, "--out", tmp_path)
    assert done.exit_code == 130
    assert "bagwise reproduce digits --out 'my results'" in done.stderr
    assert "Traceback" not in done.output


def test_a_full_disk_is_a_message_and_keeps_what_was_there(tmp_path, monkeypatch):
    assert run(*TINY_SWEEP, "--jobs", 1, "--out", tmp_path).exit_code == 0
    path = tmp_path / "digits" / "demo" / "kl-256-seed0.json"
    before = path.read_bytes()

    def no_space(_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", no_space)
    done = run(*TINY_SWEEP[:-1], 2, "--jobs", 1, "--out", tmp_path)
    assert done.exit_code == 2
    assert "could not be written (No space left on device)" in done.stderr
    assert "Traceback" not in done.output
    assert path.read_bytes() == before
