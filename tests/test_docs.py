"""The pages of the documentation run as printed and print what they say; their links lead somewhere."""

import json
import re
import tomllib
from pathlib import Path

import pytest

from reference.pages import Block, agree, blocks_of, rewrite, run

DOCS = Path(__file__).parents[1] / "docs"
PAGES = sorted(DOCS.glob("*.md"))
NAMES = [page.stem for page in PAGES]


@pytest.mark.parametrize("page", [page for page in PAGES if page.stem != "index"], ids=lambda page: page.stem)
def test_page(page, tmp_path):
    text = page.read_text(encoding="utf-8")
    blocks = blocks_of(text)
    assert len(blocks) == text.count("```python") + text.count("```bash") >= 2
    for block, printed in zip(blocks, run(blocks, tmp_path), strict=True):
        assert agree(block.printed, printed), f"{block.code}\nprints\n{printed}\nnot\n{block.printed}"


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_links_lead_somewhere(page):
    links = re.findall(r"\]\((?!https?:)([^)#]+)", page.read_text(encoding="utf-8"))
    assert links, "a page links back to the index, and the index to all pages"
    for link in links:
        assert (DOCS / link).exists(), link


def test_the_readme_draws_the_layers_that_are_enforced():
    contract = tomllib.loads((DOCS.parent / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"][0]
    inside = (
        (DOCS.parent / "README.md").read_text(encoding="utf-8").partition("## Inside\n```\n")[2].partition("```")[0]
    )
    drawn = [re.match(r"\w+(?:  \w+)*", line)[0].split() for line in inside.splitlines()]
    assert drawn == [layer.split(" : ") for layer in contract["layers"]]


def test_index_links_every_page_and_example():
    linked = set(re.findall(r"\]\(([^)]+)\)", (DOCS / "index.md").read_text(encoding="utf-8")))
    examples = {f"../examples/{path.name}" for path in (DOCS.parent / "examples").glob("*.py")}
    assert {page.name for page in PAGES if page.stem != "index"} | examples <= linked


@pytest.mark.parametrize(("page", "name"), [("table", "adult"), ("precincts", "precincts")])
def test_what_a_page_quotes_of_an_example_is_in_the_record(page, name):
    record = json.loads((DOCS.parent / "results" / "examples" / f"{name}.json").read_text(encoding="utf-8"))
    quoted = re.search(
        rf"^```\n\$ python examples/{name}\.py [^\n]*\n(.*?)^```", (DOCS / f"{page}.md").read_text(), re.M | re.S
    )
    assert quoted[1].splitlines() == record["printed"]


@pytest.mark.parametrize(
    ("said", "printed", "same"),
    [
        ("a 91% b\n", "a 91% b\n", True),
        ("a 91% b\n", "a 92% b\n", True),
        ("a 91% b\n", "a 93% b\n", False),
        ("a 91% b\n", "a 91% c\n", False),
        ("   9% b\n", "  10% b\n", True),
        ("best of 30 epochs: ...\n", "best of 30 epochs: 7\n", True),
        ("best of 30 epochs: ...\n", "best of 30 epochs: 7\nmore\n", False),
        ("7 bags (5%)\n", "8 bags (5%)\n", False),
        ("", "a\n", False),
    ],
)
def test_agreement(said, printed, same):
    assert agree(said, printed) is same


def test_a_page_is_one_session_in_one_folder(tmp_path):
    blocks = [
        Block("python", "from pathlib import Path\nPath('a.txt').write_text('one')\nx = 1", ""),
        Block("bash", "cat a.txt; echo; echo two >&2", ""),
        Block("python", "print(x)", ""),
    ]
    assert run(blocks, tmp_path) == ["", "one\ntwo\n", "1\n"]


@pytest.mark.parametrize("block", [Block("python", "1 / 0", ""), Block("bash", "false; true", "")])
def test_code_that_fails_is_seen(block, tmp_path):
    with pytest.raises(AssertionError):
        run([block], tmp_path)


def test_rewriting_a_page_changes_what_differs_and_nothing_else(tmp_path):
    page = tmp_path / "page.md"
    first = "# A\n```python\nprint('91%')\n```\n```text\n90%\n```\nwords\n"
    page.write_text(first + "```python\nprint(5)\n```\n")
    rewrite(page)
    assert page.read_text() == first + "```python\nprint(5)\n```\n```text\n5\n```\n"
