import dataclasses
import xml.etree.ElementTree as ElementTree

import pytest
from matplotlib.image import imread

from bagwise.experiments.records import write_record
from bagwise.report.figures import save_figure
from bagwise.report.leaderboard import build_leaderboard, markdown_leaderboard, published_rows
from bagwise.report.leaderboard_figures import draw_accuracy_by_bag_size, draw_accuracy_by_seconds
from bagwise.report.leaderboard_summary import summarise_benchmark
from fakes.benchmark_records import make_benchmark_record
from reference.chromium import Chromium, find_chromium

CELLS = [(kind, size) for kind in ("uniform", "clustered") for size in (16, 128)] + [("dirichlet", 16)]
LEVELS = {"kl": 0.8, "ahil": 0.9, "easy-llp": 0.3, "self-training": 0.93}


def grid(seeds=2, cells=CELLS, contenders=tuple(LEVELS)):
    return [
        make_benchmark_record(
            name, LEVELS.get(name, 0.5) - size / 1000 + 0.004 * seed, bag_kind=kind, bag_size=size, seed=seed
        )
        for seed in range(seeds)
        for kind, size in cells
        for name in contenders
    ]


def write(folder, records):
    for record in records:
        write_record(folder, record)
    return folder


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    folder = write(tmp_path_factory.mktemp("results"), grid())
    return build_leaderboard(folder, "cifar10", "fast")


def test_a_report_is_a_page_and_figures(report):
    assert report.page.relative_to(report.page.parents[3]).as_posix() == "cifar10/benchmark/fast/report.html"
    assert [path.name for path in report.figures] == [
        "cifar10-benchmark-fast-bag-sizes.png",
        "cifar10-benchmark-fast-bag-sizes.svg",
        "cifar10-benchmark-fast-seconds.png",
        "cifar10-benchmark-fast-seconds.svg",
    ]
    assert all(path.is_file() for path in report.figures)


def test_the_page_says_who_wins_and_what_it_cost(report):
    page = report.page.read_text()
    assert "Self-training is best in every setting." in page
    assert "Dirichlet bags of 16.</b> Self-training leads with 91.6 ± 0.3 %" in page
    assert "150 passes" in page
    assert "NVIDIA H200, 16 cores" in page
    assert "not ours" in page
    assert "WRN-28-2, 1024 epochs; Ma et al. 2025 arXiv:2411.10364" in page
    assert "no record yet" not in page
    assert "Self-training is an exception" in page
    assert "The probe is an exception" not in page  # it has not run
    assert "<dt>epochs</dt>" not in page  # they differ by contender, and stand in the table of cells
    assert page.count("<svg") == 2


def test_the_order_of_the_table_is_that_of_the_leaderboard(report):
    page = report.page.read_text()
    rows = [page.index(f"<tr><th>{name}</th>") for name in ("Self-training", "AHIL", "KL", "EasyLLP")]
    assert rows == sorted(rows)


def test_gaps_are_named(tmp_path):
    readme = tmp_path / "README.md"
    readme.write_text("no region")
    report = build_leaderboard(write(tmp_path, grid(seeds=1)[:-1]), "cifar10", "fast", readme=readme)
    page = report.page.read_text()
    assert "1 of 20 combinations have no record yet: Self-training on dirichlet bags of 16." in page
    assert "One seed stands behind each number" in page
    assert report.readme is None
    assert readme.read_text() == "no region"


def test_names_in_records_are_escaped(tmp_path):
    record = make_benchmark_record("kl", 0.9)
    hostile = dataclasses.replace(record, network="<script>alert(1)</script>")
    page = build_leaderboard(write(tmp_path, [hostile]), "cifar10", "fast").page.read_text()
    assert "<script>" not in page


def test_a_report_of_nothing_says_what_to_do(tmp_path):
    with pytest.raises(FileNotFoundError, match="Run the benchmark first"):
        build_leaderboard(tmp_path, "cifar10", "fast")


def test_published_rows_are_of_the_sizes_that_ran(report):
    rows = published_rows(report.board, "uniform")
    assert {size for row in rows for size in row.accuracy} == {16, 128}
    assert [row.method for row in rows].count("DLLP (KL)") == 2  # with two networks
    assert [row.method for row in published_rows(report.board, "clustered")] == ["DLLP (KL)", "LLP-MM"]
    assert published_rows(report.board, "dirichlet") == []


def test_the_table_for_a_readme(tmp_path):
    readme = tmp_path / "README.md"
    readme.write_text("before\n<!-- results:cifar10/benchmark/fast -->\nold\n<!-- /results -->\nafter\n")
    folder = write(tmp_path / "results", grid(cells=CELLS[:2]))
    report = build_leaderboard(folder, "cifar10", "fast", readme=readme)
    text = readme.read_text()
    assert report.readme == readme
    assert text.startswith("before\n<!-- results:cifar10/benchmark/fast -->\n| contender | uniform bags of 16 |")
    assert "| Self-training | 91.6 ± 0.3 * | 80.4 ± 0.3 * |" in text
    assert "| published, not ours: L2P-AHIL (WRN-28-2, 1024 epochs) | 95.0 | 93.6 |" in text
    assert "at most 150 network passes per training instance" in text
    assert text.endswith("<!-- /results -->\nafter\n")


def test_a_dash_stands_for_what_is_missing():
    records = [*grid(1, CELLS[:1], ["kl"]), *grid(1, CELLS[1:2], ["rot"])]
    table = markdown_leaderboard(summarise_benchmark(records))
    assert "| KL | 78.4 * | – |" in table


@pytest.mark.parametrize(
    "records",
    [
        grid(),
        grid(1, CELLS[:1], ["kl"]),
        grid(1, [("uniform", 16), ("clustered", 16), ("dirichlet", 16)], ["kl", "rot"]),
        grid(1, CELLS, [f"method-{number}" for number in range(24)]),
    ],
    ids=["full", "one", "single sizes", "many"],
)
@pytest.mark.parametrize("draw", [draw_accuracy_by_bag_size, draw_accuracy_by_seconds])
def test_figures_render_from_whatever_records_there_are(tmp_path, records, draw):
    png, svg = save_figure(draw(summarise_benchmark(records)), "name", png=tmp_path, svg=tmp_path)
    assert imread(png).shape[1] >= 1000
    assert ElementTree.fromstring(svg.read_text()).tag.endswith("svg")


def test_the_bag_size_figure_shows_the_leaderboard(report):
    board = report.board
    uniform, clustered = draw_accuracy_by_bag_size(board).axes  # dirichlet bags have one size only
    assert "uniform" in uniform.get_title("left")
    assert "clustered" in clustered.get_title("left")
    drawn = [list(container[0].get_ydata()) for container in uniform.containers]
    expected = [
        [100 * score.accuracy.mean for setting, score in board.scores[name].items() if setting.bag_kind == "uniform"]
        for name in board.contenders
    ]
    assert drawn == [pytest.approx(values) for values in expected]
    positions = [list(container[0].get_xdata()) for container in uniform.containers]
    assert [x[0] for x in positions] == sorted({x[0] for x in positions})  # side by side
    assert all(x == pytest.approx([16, 128], rel=0.09) for x in positions)
    stars = next(line for line in uniform.get_lines() if line.get_marker() == "*")
    assert list(stars.get_ydata()) == pytest.approx([95.24, 94.53])


def test_bars_end_at_zero_and_at_a_hundred():
    records = [make_benchmark_record("ahil", accuracy, seed=seed) for seed, accuracy in enumerate((0.1, 0.99))]
    records += [make_benchmark_record("kl", accuracy, seed=seed) for seed, accuracy in enumerate((0.9, 1.0))]
    (panel,) = draw_accuracy_by_bag_size(summarise_benchmark(records)).axes
    bars = [segment for container in panel.containers for segment in container[2][0].get_segments()]
    ends = [y for segment in bars for _, y in segment]
    assert ends == pytest.approx([95 - 50**0.5, 100, 0, 100])


def test_a_path_has_a_gap_where_nothing_was_evaluated():
    record = make_benchmark_record("self-training", 0.9)
    curve = dataclasses.replace(record.curve, test_accuracy=(0.5, 0.6, None, 0.9))
    (panel,) = draw_accuracy_by_seconds(summarise_benchmark([dataclasses.replace(record, curve=curve)])).axes
    first, second, end = panel.get_lines()[:3]
    assert list(first.get_xdata()) == [12, 13]
    assert list(second.get_xdata()) == list(end.get_xdata()) == [15]
    assert (second.get_marker(), end.get_marker()) == ("None", "o")


def test_the_seconds_figure_has_a_panel_per_setting(report):
    panels = [axes for axes in draw_accuracy_by_seconds(report.board).axes if axes.get_visible()]
    assert [panel.get_title("left") for panel in panels] == [str(setting) for setting in report.board.settings]
    path, end = panels[0].get_lines()[:2]
    assert list(path.get_xdata()) == [13, 15]
    assert list(end.get_xdata()) == [15]
    assert "GPU seconds" in panels[-1].get_xlabel()


@pytest.fixture(scope="module")
def browser():
    program = find_chromium()
    if program is None:
        pytest.skip("there is no Chromium on this machine; Debian: apt-get install chromium")
    with Chromium(program) as browser:
        yield browser


@pytest.mark.parametrize("width", [1100, 390])
@pytest.mark.parametrize("dark", [False, True])
def test_it_renders_without_a_complaint_and_fits_the_window(browser, report, width, dark):
    browser.open(report.page, width=width, dark=dark)
    assert browser.complaints == []
    assert browser.run("document.documentElement.scrollWidth") == width
    assert browser.run("getComputedStyle(document.body).backgroundColor") == (
        "rgb(20, 22, 26)" if dark else "rgb(255, 255, 255)"
    )
    assert browser.run("document.scripts.length") == 0
    assert browser.run("document.querySelectorAll('td.leads').length") == len(report.board.settings)
    if width == 1100:  # no number is out of sight
        assert browser.run(
            "[...document.querySelectorAll('table.result')].every(t => t.offsetWidth <= t.parentElement.clientWidth)"
        )
    assert browser.pdf().startswith(b"%PDF")
