"""The README's examples run as printed and print what it says."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

README = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(r"```python\n(.*?)```\n```text\n(.*?)```", README, flags=re.DOTALL)


def test_every_example_shows_what_it_prints():
    assert len(EXAMPLES) == README.count("```python") >= 2


@pytest.mark.parametrize(("code", "printed"), EXAMPLES, ids=range(len(EXAMPLES)))
def test_example(code, printed):
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout == printed


def test_images_exist():
    for path in re.findall(r"!\[.*?\]\((.*?)\)", README):
        assert (Path(__file__).parents[1] / path).is_file(), path
