import dataclasses
import re
from html.parser import HTMLParser

import pytest

from bagwise.experiments.records import write_record
from bagwise.report.build import build_report
from bagwise.report.page import write_page
from bagwise.report.summary import summarise
from fakes.records import BAG_SIZES, LOSSES, make_grid, make_record


def render(tmp_path, records):
    write_page(tmp_path / "report.html", summarise(records, BAG_SIZES, LOSSES), records)
    return (tmp_path / "report.html").read_text()


class Elements(HTMLParser):
    """Collects tags and checks that they are closed in order."""

    void = frozenset({"meta", "link", "br", "img", "path", "use", "rect"})

    def __init__(self, page):
        super().__init__()
        self.tags, self.attributes, self._open = [], [], []
        self.feed(page)
        assert self._open == []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs
        if tag not in self.void:
            self._open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs

    def handle_endtag(self, tag):
        if tag not in self.void:
            assert self._open.pop() == tag


def test_the_page_refers_to_nothing_outside_itself(tmp_path):
    page = render(tmp_path, make_grid(seeds=2))
    elements = Elements(page)
    assert not {"script", "link", "img", "iframe", "object"} & set(elements.tags)
    links = [value for name, value in elements.attributes if name in ("href", "src", "xlink:href")]
    assert all(value.startswith("#") for value in links)
    assert not re.search(r"url\((?!#)|@import", page)


def test_the_page_is_light_and_dark_and_printable(tmp_path):
    page = render(tmp_path, make_grid(seeds=1))
    assert "prefers-color-scheme: dark" in page
    assert "@media print" in page
    assert page.count("<svg") == 2


def test_the_page_says_what_was_run_where_and_how(tmp_path):
    records = make_grid(seeds=2)
    page = render(tmp_path, records)
    assert "KL reaches" in page
    assert "NVIDIA H200, 16 cores" in page
    assert "0123456789ab" in page
    assert "torch\n    2.11.0" in page
    assert "one-cycle" in page
    assert "<dt>compile</dt><dd>yes</dd>" in page
    assert page.count("<tr>") >= len(records)
    assert "no record yet" not in page
    assert "<dt>time</dt><dd>88 minutes in all" in page


def test_the_page_is_honest_about_gaps_and_local_changes(tmp_path):
    record = make_record("kl", 16)
    dirty = dataclasses.replace(record.provenance, dirty=True)
    unknown = dataclasses.replace(record.provenance, commit=None, dirty=None)
    records = [
        dataclasses.replace(record, provenance=dirty),
        dataclasses.replace(make_record("kl", 32), provenance=unknown),
    ]
    page = render(tmp_path, records)
    assert "31 of 33 combinations have no record yet" in page
    assert "with local changes" in page
    assert "unknown" in page
    assert "not measured" in page


def test_recipes_that_differ_are_all_shown(tmp_path):
    record = make_record("kl", 16)
    other = dataclasses.replace(make_record("kl", 32), recipe={**record.recipe, "epochs": 99})
    assert "<dd>6, 99</dd>" in render(tmp_path, [record, other])


def test_a_value_that_is_not_finite_is_a_dash(tmp_path):
    record = make_record("kl", 16)
    broken = dataclasses.replace(record, final=dataclasses.replace(record.final, log_loss=None))
    assert "<td>–</td>" in render(tmp_path, [broken])


def test_a_report_is_page_figures_and_readme(tmp_path):
    for record in make_grid(seeds=1):
        write_record(tmp_path / "results", record)
    readme = tmp_path / "README.md"
    readme.write_text("before\n<!-- results:cifar10 -->\nold\n<!-- /results -->\nafter\n")
    report = build_report(tmp_path / "results", "cifar10", "fast", figures=tmp_path / "docs" / "figures", readme=readme)
    assert report.page == tmp_path / "results" / "cifar10" / "fast" / "report.html"
    assert report.page.is_file()
    assert {path.name for path in (tmp_path / "docs" / "figures").iterdir()} == {
        "cifar10-fast-curves.png",
        "cifar10-fast-bag-sizes.png",
    }
    assert {path.name for path in report.page.parent.glob("*.svg")} == {
        "cifar10-fast-curves.svg",
        "cifar10-fast-bag-sizes.svg",
    }
    assert report.readme == readme
    assert "| 16 | 40.7 | 92.8 | 93.2 |" in readme.read_text()


def test_a_report_of_nothing_says_what_to_do(tmp_path):
    with pytest.raises(FileNotFoundError, match="Run the sweep first"):
        build_report(tmp_path, "cifar10", "fast")
