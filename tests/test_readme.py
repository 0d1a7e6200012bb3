"""The README's examples run as printed, each for itself, and print what it says."""

import re
import runpy
import shutil
from pathlib import Path

import pytest

from bagwise.experiments.grid import LOSSES, PRESETS, default_preset
from bagwise.experiments.leaderboard.published import read_published
from bagwise.experiments.leaderboard.running import read_benchmark
from bagwise.experiments.records import read_records
from bagwise.report.leaderboard import build_leaderboard, leaderboard_region
from bagwise.report.leaderboard_summary import summarise_benchmark
from bagwise.report.markdown import results_region
from bagwise.report.summary import summarise
from reference.pages import agree, blocks_of, run

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = blocks_of(README)
BENCHMARKS = sorted({path.parent.relative_to(ROOT / "results") for path in ROOT.glob("results/*/benchmark/*/*.json")})
REGIONS = dict(re.findall(r"<!-- results:(\S+) -->\n(.*?)\n<!-- /results -->", README, re.DOTALL))


def test_every_example_shows_what_it_prints():
    assert len(BLOCKS) == README.count("```python") + README.count("```bash") >= 2
    assert all(block.printed for block in BLOCKS)


@pytest.mark.parametrize("block", BLOCKS, ids=range(len(BLOCKS)))
def test_example(block, tmp_path):
    [printed] = run([block], tmp_path)
    assert agree(block.printed, printed), printed


def test_images_exist():
    for path in re.findall(r"!\[.*?\]\((.*?)\)", README):
        assert (ROOT / path).is_file(), path


def test_benchmark_tables_show_the_records():
    drawn = runpy.run_path(str(ROOT / "benchmarks" / "readme.py"))
    names = [name.removeprefix("benchmarks/") for name in REGIONS if name.startswith("benchmarks/")]
    assert set(names) == {"losses", "gpu", "large_bags", "adult", "accuracy_estimate"}
    for name in names:
        assert REGIONS[f"benchmarks/{name}"] == drawn[name](), name


@pytest.mark.parametrize("region", [name for name in REGIONS if not name.startswith("benchmarks/")])
def test_tables_of_experiments_show_the_records(region):
    dataset, *rest = region.split("/")
    if rest[:1] == ["benchmark"]:
        records = read_benchmark(ROOT / "results", dataset, rest[1])
        content = leaderboard_region(summarise_benchmark(records, read_published(dataset)))
    else:
        preset = rest[0] if rest else default_preset(dataset)
        records = read_records(ROOT / "results", dataset, preset)
        content = results_region(summarise(records, PRESETS[preset].bag_sizes, LOSSES))
    assert REGIONS[region] == content, "bring it up to date with --report-only"


@pytest.mark.parametrize("folder", BENCHMARKS, ids=lambda folder: folder.as_posix())
def test_pages_of_benchmarks_show_the_records(folder, tmp_path):
    shutil.copytree(ROOT / "results" / folder, tmp_path / folder, ignore=shutil.ignore_patterns(".work"))
    dataset, _, preset = folder.parts
    page = build_leaderboard(tmp_path, dataset, preset).page
    committed = ROOT / "results" / folder / page.name
    assert without_figures(committed) == without_figures(page), "bring it up to date with --report-only"


def without_figures(page):
    return re.sub(r"<svg.*?</svg>", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)


def test_every_table_is_checked():
    assert len(REGIONS) == README.count("<!-- results:") == README.count("<!-- /results -->")
    assert {"cifar10", "digits/benchmark/demo", "adult/benchmark/demo"} <= set(REGIONS)
