import xml.etree.ElementTree as ElementTree
from pathlib import Path

import matplotlib
import pytest
from matplotlib.font_manager import findfont
from matplotlib.image import imread
from matplotlib.text import Text

from bagwise.report.figures import (
    draw_accuracy_by_bag_size,
    draw_figures,
    draw_learning_curves,
    inline_svg,
    percent_axis,
    save_figure,
)
from bagwise.report.summary import summarise
from fakes.records import BAG_SIZES, LOSSES, make_grid, make_record

FULL = make_grid(seeds=2)
WITH_GAPS = [make_record("kl", 4), make_record("kl", 64), make_record("avg-kl", 1)]


@pytest.mark.parametrize("records", [FULL, WITH_GAPS, [make_record("rot", 1024)]], ids=["full", "gaps", "one"])
@pytest.mark.parametrize("draw", [draw_learning_curves, draw_accuracy_by_bag_size])
def test_figures_render_from_whatever_records_there_are(tmp_path, records, draw):
    figure = draw(summarise(records, BAG_SIZES, LOSSES))
    png, svg = save_figure(figure, "name", png=tmp_path / "pictures", svg=tmp_path / "drawings")
    assert (png, svg) == (tmp_path / "pictures" / "name.png", tmp_path / "drawings" / "name.svg")
    width = imread(png).shape[1]
    assert width >= 1200  # sharp at the width of a README
    assert ElementTree.fromstring(svg.read_text()).tag.endswith("svg")


def test_the_bag_size_figure_shows_the_summary():
    summary = summarise(FULL, BAG_SIZES, LOSSES)
    (axes,) = draw_accuracy_by_bag_size(summary).axes
    assert axes.get_xscale() == "log"
    lines = {line.get_label(): line for line in axes.get_lines()}
    for loss, label in (("avg-kl", "AvgKL"), ("kl", "KL"), ("rot", "ROT")):
        assert list(lines[label].get_xdata()) == list(BAG_SIZES)
        means = [100 * point.mean for point in summary.accuracy[loss].values()]
        assert list(lines[label].get_ydata()) == pytest.approx(means)
    assert len(axes.collections) == 3  # a band per loss


def test_the_curves_are_side_by_side_on_one_scale():
    figure = draw_learning_curves(summarise(FULL, BAG_SIZES, LOSSES))
    left, right = figure.axes
    assert ("KL loss" in left.get_title("left"), "ROT loss" in right.get_title("left")) == (True, True)
    assert left.get_ylim() == right.get_ylim()
    assert len(left.get_lines()) == len(BAG_SIZES) + 1  # and the line of chance
    assert [text.get_text() for text in figure.legends[0].get_texts()] == [str(size) for size in BAG_SIZES]


def test_losses_that_nobody_planned_have_no_panel():
    def titles(*losses):
        figure = draw_learning_curves(summarise([make_record(losses[0], 16)], [16], losses))
        return [panel.get_title("left") for panel in figure.axes]

    assert titles("kl") == ["CIFAR-10, KL loss"]
    assert titles("kl", "rot") == ["CIFAR-10, KL loss", "CIFAR-10, ROT loss"]
    assert titles("avg-kl", "rot") == ["CIFAR-10, ROT loss"]
    assert titles("avg-kl") == ["CIFAR-10, AvgKL loss"]


def test_the_same_records_give_the_same_files(tmp_path):
    for name in "ab":
        figure = draw_learning_curves(summarise(FULL, BAG_SIZES, LOSSES))
        save_figure(figure, "figure", png=tmp_path / name, svg=tmp_path / name)
    for suffix in ("png", "svg"):
        assert (tmp_path / "a" / f"figure.{suffix}").read_bytes() == (tmp_path / "b" / f"figure.{suffix}").read_bytes()


def test_the_font_comes_with_matplotlib():
    fonts = {text.get_fontfamily()[0] for text in _texts(draw_learning_curves(summarise(FULL, BAG_SIZES, LOSSES)))}
    assert fonts == {"DejaVu Sans"}
    assert Path(findfont(fonts.pop(), fallback_to_default=False)).is_relative_to(matplotlib.get_data_path())


def _texts(figure):
    return [text for text in figure.findobj(Text) if text.get_text()]


def test_one_bag_size_is_no_figure_of_bag_sizes():
    records = [make_record("kl", 16), make_record("rot", 16)]
    assert list(draw_figures(summarise(records, [1, 16], LOSSES))) == ["curves"]
    records.append(make_record("kl", 1))
    assert list(draw_figures(summarise(records, [1, 16], LOSSES))) == ["bag-sizes", "curves"]


def test_inline_svg_takes_the_colour_of_the_page():
    svg = inline_svg(draw_accuracy_by_bag_size(summarise(FULL, BAG_SIZES, LOSSES)), "label")
    assert svg.startswith('<svg role="img" aria-label="label"')
    assert "currentColor" in svg
    assert "#24272b" not in svg
    assert "<?xml" not in svg
    opening = svg[: svg.index(">")]
    assert "viewBox" in opening
    assert " width=" not in opening


def test_an_axis_of_percents_starts_at_zero_unless_all_is_far_above_it():
    assert percent_axis()["ylim"] == percent_axis(0.49)["ylim"] == (0, 102)
    axis = percent_axis(0.764)
    assert axis["ylim"][0] == axis["yticks"][0] == 70
    assert max(axis["yticks"]) == 100 < axis["ylim"][1]
