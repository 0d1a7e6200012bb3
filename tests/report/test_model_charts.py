import xml.etree.ElementTree as ElementTree

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bagwise.report.model_charts import calibration_chart, confidence_histogram, learning_curve, ticks
from bagwise.report.model_statistics import CalibrationBin, confidence


@given(st.floats(-1e6, 1e6), st.floats(1e-6, 1e6))
def test_ticks_are_round_evenly_spaced_and_inside(low, span):
    found = ticks(low, low + span)
    slack = 1e-6 * (abs(low) + span)
    assert 2 <= len(found) <= 6
    assert low - slack <= found[0]
    assert found[-1] <= low + span + slack
    steps = np.diff(found)
    assert steps == pytest.approx(steps[0], rel=1e-3, abs=1e-9)
    if span > 1e-3 * abs(low):
        mantissa = float(f"{steps[0]:.3e}".split("e")[0])
        assert mantissa in (1, 2, 5)


def shapes(svg, name):
    root = ElementTree.fromstring(svg)
    for element in root.iter():
        for place in ("cx", "cy", "x1", "x2", "y1", "y2"):
            if place in element.attrib:
                assert -1 <= float(element.attrib[place]) <= 500
    return [element for element in root.iter() if name in element.attrib.get("class", "").split()]


def test_a_learning_curve_shows_every_epoch_and_marks_the_kept_one():
    svg = learning_curve([1, 2, 3, 4], [0.5, None, 0.2, 0.3], "loss <of> bags", chosen=3)
    dots = shapes(svg, "dot")
    assert len(dots) == 3
    (kept,) = shapes(svg, "kept")
    (line,) = shapes(svg, "chosen")
    assert kept.attrib["cx"] == line.attrib["x1"] == line.attrib["x2"]
    assert float(dots[0].attrib["cy"]) < float(dots[1].attrib["cy"])  # larger is higher
    assert "epoch 3: 0.2" in svg
    assert "loss &lt;of&gt; bags" in svg


@pytest.mark.parametrize("values", [[0.7], [0.7, 0.7], [0.0, 0.0]])
def test_a_flat_curve_is_drawn(values):
    assert len(shapes(learning_curve(list(range(1, len(values) + 1)), values, "loss", chosen=1), "dot")) == len(values)


def test_histogram_bars_have_the_area_of_the_shares():
    found = confidence(np.array([[0.5, 0.5], [0.99, 0.01], [0.98, 0.02], [0.7, 0.3]]))
    bars = shapes(confidence_histogram(found), "bar")
    heights = np.array([float(bar.attrib["height"]) for bar in bars])
    assert heights / heights.sum() == pytest.approx(found.shares, abs=0.01)


def test_calibration_marks_lie_on_the_diagonal_where_known_is_predicted():
    bins = [CalibrationBin(0.1, 0.1, 0.02, 9), CalibrationBin(0.5, 0.5, 0.3, 9), CalibrationBin(0.9, 0.8, 0.01, 9)]
    svg = calibration_chart(bins)
    dots = [(float(dot.attrib["cx"]), float(dot.attrib["cy"])) for dot in shapes(svg, "dot")]
    (diagonal,) = shapes(svg, "diagonal")
    x1, y1, x2, y2 = (float(diagonal.attrib[name]) for name in ("x1", "y1", "x2", "y2"))

    def above(x, y):
        return y1 + (x - x1) / (x2 - x1) * (y2 - y1) - y

    assert above(*dots[0]) == pytest.approx(0, abs=0.2)
    assert above(*dots[1]) == pytest.approx(0, abs=0.2)
    assert above(*dots[2]) < -5
    assert len(shapes(svg, "whisker")) == 3
