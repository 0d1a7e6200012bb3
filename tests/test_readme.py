"""The README's examples run as printed, each for itself, and print what it says."""

import re
import runpy
from pathlib import Path

import pytest

from reference.pages import agree, blocks_of, run

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = blocks_of(README)


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
    for name in ("losses", "gpu", "adult", "accuracy_estimate"):
        table = drawn[name]()
        assert f"<!-- results:benchmarks/{name} -->\n{table}\n<!-- /results -->" in README, name
