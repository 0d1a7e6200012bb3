import sys

import pytest
from typer.testing import CliRunner

from bagwise.cli import app
from bagwise.experiments import sweep
from bagwise.experiments.leaderboard import running
from bagwise.experiments.leaderboard.presets import PRESETS, default_preset
from bagwise.experiments.leaderboard.running import read_benchmark
from bagwise.experiments.records import write_record
from fakes.benchmark_records import make_benchmark_record
from fakes.tiny_benchmark import TINY

SWEEP = ["benchmark", "digits", "--preset", "tiny", "--methods", "kl,dsq", "--bag-sizes", "64", "--jobs", "1"]


def run(*arguments):
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


@pytest.fixture(autouse=True)
def tiny_preset(monkeypatch):
    monkeypatch.setitem(PRESETS, "tiny", TINY)


def test_a_benchmark_prints_its_table_and_its_page(tmp_path):
    done = run(*SWEEP, "--out", tmp_path)
    assert done.exit_code == 0, done.output
    records = read_benchmark(tmp_path, "digits", "tiny")
    assert [record.cell.contender for record in records] == ["kl", "dsq"]
    assert f"[1/2] kl-uniform-64-seed0: {100 * records[0].final.accuracy:.1f} %" in done.stderr
    assert "uniform 64" in done.stdout
    assert "within the spread" in " ".join(done.stdout.split())
    page = tmp_path / "digits" / "benchmark" / "tiny" / "report.html"
    assert f"page: {page}" in done.stdout
    assert (page.parent / "digits-benchmark-tiny-seconds.png").is_file()

    again = run(*SWEEP, "--out", tmp_path)
    assert again.exit_code == 0
    assert "2 of 2 cells have a record" in again.stderr


def test_report_only_redraws_into_the_documentation(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name, accuracy in (("kl", 0.9), ("rot", 0.8)):
        write_record(tmp_path / "results", make_benchmark_record(name, accuracy))
    (tmp_path / "README.md").write_text("<!-- results:cifar10/benchmark/fast -->\n<!-- /results -->\n")
    done = run("benchmark", "cifar10", "--report-only")
    assert done.exit_code == 0, done.output
    assert (tmp_path / "docs" / "figures" / "cifar10-benchmark-fast-bag-sizes.png").is_file()
    assert (tmp_path / "results" / "cifar10" / "benchmark" / "fast" / "cifar10-benchmark-fast-bag-sizes.svg").is_file()
    assert "| KL | 90.0 * |" in (tmp_path / "README.md").read_text()
    assert "README.md" in done.stdout


def test_report_only_redraws_every_preset_that_has_records(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for preset in ("fast", "full"):
        write_record(tmp_path / "results", make_benchmark_record("kl", 0.9, preset=preset))
    assert run("benchmark", "cifar10", "--report-only").exit_code == 0
    drawn = {path.name for path in (tmp_path / "docs" / "figures").iterdir()}
    assert {"cifar10-benchmark-fast-bag-sizes.png", "cifar10-benchmark-full-bag-sizes.png"} <= drawn


def test_shards_run_a_part_over_all_data_sets(tmp_path, monkeypatch):
    ran = []
    monkeypatch.setattr(sweep, "run_cells", lambda cells, *_, **__: ran.extend(cells) or iter(()))
    done = run("benchmark", "digits", "digits", *SWEEP[2:], "--bags", "uniform,dirichlet", "--shard", "2/2")
    assert done.exit_code == 0, done.output
    assert [cell.name for cell in ran] == ["dsq-uniform-64-seed0", "dsq-dirichlet-64-seed0"]
    assert "2 of 2 cells are left" in done.stderr


@pytest.mark.parametrize(("datasets", "jobs"), [(["digits", "adult"], 8), (["digits", "cifar10"], 1)])
def test_without_a_preset_each_data_set_has_its_own(tmp_path, monkeypatch, datasets, jobs):
    swept = {}

    def run_sweep(cells, _, manner, **__):
        swept.update({cell.dataset: cell.preset for cell in cells}, jobs=manner.jobs)
        return []

    monkeypatch.setattr("os.cpu_count", lambda: 8)
    # by its module: the command has the same name
    monkeypatch.setattr(sys.modules["bagwise.cli.benchmark"], "run_sweep", run_sweep)
    for dataset in datasets:
        record = make_benchmark_record("kl", 0.9, dataset=dataset, preset=default_preset(dataset))
        write_record(tmp_path, record)
    done = run("benchmark", *datasets, "--methods", "kl", "--out", tmp_path)
    assert done.exit_code == 0, done.output
    assert swept == {**{dataset: default_preset(dataset) for dataset in datasets}, "jobs": jobs}
    for dataset in datasets:
        page = tmp_path / dataset / "benchmark" / default_preset(dataset) / "report.html"
        assert f"page: {page}" in done.stdout


def test_time_that_is_up_is_no_error(tmp_path):
    done = run(*SWEEP[:-2], "--out", tmp_path, "--max-seconds", 0)
    assert done.exit_code == 0, done.output
    assert "would not end within 0 seconds" in done.stderr
    assert "2 of 2 cells are left; run the same command again" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["cifar11"], "Did you mean 'cifar10'"),
        (["digits", "--preset", "damo"], "Did you mean 'demo'"),
        (["digits", "--methods", "kl,rott"], "Did you mean 'rot'"),
        (["digits", "--bags", "uniforn"], "Did you mean 'uniform'"),
        (["digits", "--bag-sizes", "1,two"], "--bag-sizes must be whole numbers"),
        (["digits", "--shard", "9/8"], "2/8"),
        (["digits", "--max-seconds", "9", "--jobs", "2"], "drop --ray and --jobs"),
        (["digits", "--bag-sizes", "2000", "--jobs", "1"], "training instances of digits, 1442, but got 2000"),
        (["adult", "--data", "."], "there is no adult.data"),
        (["cifar10", "--report-only"], "Run the benchmark first"),
        (["digits", "--report-only", "--methods", "kl"], "--report-only draws all records"),
    ],
)
def test_what_the_user_can_mend_is_a_message_and_code_2(tmp_path, monkeypatch, arguments, message):
    monkeypatch.chdir(tmp_path)
    done = run("benchmark", *arguments)
    assert done.exit_code == 2, done.output
    assert message in done.stderr
    assert "Traceback" not in done.output


def test_a_damaged_record_is_found_before_the_work_starts(tmp_path, monkeypatch):
    monkeypatch.setattr(running, "run_benchmark_cell", lambda *_, **__: pytest.fail("it must not come to this"))
    folder = tmp_path / "digits" / "benchmark" / "tiny"
    folder.mkdir(parents=True)
    (folder / "rot-uniform-1-seed0.json").write_text('{"schema": 1')
    done = run(*SWEEP, "--out", tmp_path)
    assert done.exit_code == 2
    assert "rot-uniform-1-seed0.json is not a valid record" in done.stderr


def test_a_bag_size_that_cannot_be_filled_is_found_before_the_work_starts(tmp_path, monkeypatch):
    monkeypatch.setattr(running, "run_benchmark_cell", lambda *_, **__: pytest.fail("it must not come to this"))
    done = run("benchmark", "digits", "--preset", "tiny", "--bag-sizes", "64,5000", "--jobs", 1, "--out", tmp_path)
    assert done.exit_code == 2, done.output
    assert "training instances of digits, 1442, but got 5000: no bag fits" in done.stderr


def test_bags_that_cannot_be_made_do_not_stop_the_other_cells(tmp_path):
    done = run(*SWEEP[:5], "kl", "--bags", "clustered,dirichlet", "--bag-sizes", 512, "--jobs", 1, "--out", tmp_path)
    assert done.exit_code == 2, done.output
    reason = "no cluster holds a full bag of 512; ask for smaller bags."
    assert f"[1/2] kl-clustered-512-seed0 failed: {reason}" in done.stderr
    assert done.stderr.endswith(f"error: 1 cell failed and left no record. digits/kl-clustered-512-seed0: {reason}\n")
    assert [record.cell.bag_kind for record in read_benchmark(tmp_path, "digits", "tiny")] == ["dirichlet"]
    assert f"page: {tmp_path / 'digits' / 'benchmark' / 'tiny' / 'report.html'}" in done.stdout


def test_interruption_says_how_to_go_on(tmp_path, monkeypatch):
    def interrupt(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(running, "run_benchmark_cell", interrupt)
    monkeypatch.setattr(sys, "argv", ["bagwise", "benchmark", "digits", "--out", "my results"])
    done = run(*SWEEP, "--out", tmp_path)
    assert done.exit_code == 130
    assert "bagwise benchmark digits --out 'my results'" in done.stderr
