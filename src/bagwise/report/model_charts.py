"""The still charts of a model's report, as SVG elements whose colours come from the style of the page.

Drawn here rather than by matplotlib, so that they follow the theme, stay small, and open with the page.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from bagwise.report.model_statistics import CalibrationBin, Confidence

WIDTH, HEIGHT = 440, 270
_LEFT, _RIGHT, _TOP, _BOTTOM = 66, 20, 14, 44


@dataclass(frozen=True)
class Axis:
    """A stretch of numbers, where it lies in the picture, and how its ticks read."""

    low: float
    high: float
    start: float
    end: float
    label: str
    text: Callable[[float], str]

    def __call__(self, value: float) -> float:
        """Return the place of a value."""
        return self.start + (value - self.low) / (self.high - self.low) * (self.end - self.start)


def horizontal(low: float, high: float, label: str, text: Callable[[float], str]) -> Axis:
    """An axis along the bottom."""
    return Axis(low, high, _LEFT, WIDTH - _RIGHT, label, text)


def vertical(low: float, high: float, label: str, text: Callable[[float], str]) -> Axis:
    """An axis along the left side."""
    return Axis(low, high, HEIGHT - _BOTTOM, _TOP, label, text)


def ticks(low: float, high: float, most: int = 5) -> list[float]:
    """Round numbers between `low` and `high`: steps of 1, 2 or 5 times a power of ten.

    Example:
        >>> ticks(0, 0.9)
        [0.0, 0.2, 0.4, 0.6, 0.8]
    """
    least = (high - low) / most
    power = 10 ** math.floor(math.log10(least))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= least * (1 - 1e-9))
    first = math.ceil(low / step - 1e-9)
    return [round(place * step, 12) for place in range(first, math.floor(high / step + 1e-9) + 1)]


def percent(value: float) -> str:
    """Write a share for an axis."""
    return f"{100 * value:.3g} %"


def number(value: float) -> str:
    """Write a number for an axis."""
    return f"{value:g}"


def learning_curve(epochs: Sequence[int], values: Sequence[float | None], label: str, chosen: int) -> Markup:
    """A value over epochs, with the chosen epoch marked; None where it is not known."""
    points = [(epoch, value) for epoch, value in zip(epochs, values, strict=True) if value is not None]
    low, high = _room([value for _, value in points])
    x = horizontal(min(epochs) - 0.5, max(epochs) + 0.5, "epoch", number)
    y = vertical(low, high, label, number)
    path = " ".join(f"{x(epoch):.1f},{y(value):.1f}" for epoch, value in points)
    drawn = Markup('<line class="chosen" x1="{0:.1f}" x2="{0:.1f}" y1="{1}" y2="{2}"/>').format(
        x(chosen), y.start, y.end
    )
    is_late = chosen > (x.low + x.high) / 2  # so the words go where there is room
    drawn += Markup('<text class="words" x="{:.1f}" y="{}" text-anchor="{}">kept: epoch {}</text>').format(
        x(chosen) + (-6 if is_late else 6), y.end + 10, "end" if is_late else "start", chosen
    )
    drawn += Markup('<polyline class="line" points="{}"/>').format(path)
    drawn += _join(
        Markup('<circle class="{}" cx="{:.1f}" cy="{:.1f}" r="{}"><title>epoch {}: {:.4g}</title></circle>').format(
            "dot kept" if epoch == chosen else "dot",
            x(epoch),
            y(value),
            4.5 if epoch == chosen else 2.2,
            epoch,
            value,
        )
        for epoch, value in points
    )
    return _picture(f"{label} after each epoch; epoch {chosen} was kept", x, y, drawn)


def confidence_histogram(confidence: Confidence) -> Markup:
    """Shares of the instances by their highest probability."""
    edges = confidence.edges.tolist()
    x = horizontal(edges[0], 1, "highest probability of an instance", percent)
    y = vertical(0, max(confidence.shares) * 1.08, "share of instances", percent)
    bars = _join(
        Markup(
            '<rect class="bar" x="{:.1f}" y="{:.1f}" width="{:.1f}" height="{:.1f}">'
            "<title>{} to {}: {:.1%} of the instances</title></rect>"
        ).format(x(low) + 0.75, y(share), x(high) - x(low) - 1.5, y(0) - y(share), percent(low), percent(high), share)
        for low, high, share in zip(edges[:-1], edges[1:], confidence.shares.tolist(), strict=True)
    )
    mean = Markup('<line class="chosen" x1="{0:.1f}" x2="{0:.1f}" y1="{1}" y2="{2}"/>').format(
        x(confidence.mean), y.start, y.end
    )
    return _picture("How sure the predictions are", x, y, bars + mean)


def calibration_chart(bins: Sequence[CalibrationBin]) -> Markup:
    """Known against predicted share of groups of bags, with two standard errors about the diagonal."""
    values = [value for bin in bins for value in (bin.predicted, bin.known, bin.known - 2 * bin.noise)]
    values += [bin.known + 2 * bin.noise for bin in bins]
    low, high = _room(values)
    low, high = max(low, 0), min(high, 1)
    x = horizontal(low, high, "predicted share", percent)
    y = vertical(low, high, "known share", percent)
    drawn = Markup('<line class="diagonal" x1="{:.1f}" y1="{:.1f}" x2="{:.1f}" y2="{:.1f}"/>').format(
        x(low), y(low), x(high), y(high)
    )
    drawn += _join(
        Markup(
            '<line class="whisker" x1="{0:.1f}" x2="{0:.1f}" y1="{1:.1f}" y2="{2:.1f}"/>'
            '<circle class="dot" cx="{0:.1f}" cy="{3:.1f}" r="4"><title>{4} shares of bags: predicted {5:.1%}, '
            "known {6:.1%} (standard error {7:.1%})</title></circle>"
        ).format(
            x(bin.predicted),
            y(max(bin.known - 2 * bin.noise, low)),
            y(min(bin.known + 2 * bin.noise, high)),
            y(bin.known),
            bin.count,
            bin.predicted,
            bin.known,
            bin.noise,
        )
        for bin in bins
    )
    return _picture("Known against predicted share of groups of bags", x, y, drawn)


def _room(values: Sequence[float]) -> tuple[float, float]:
    """Return an interval around the values with some air, never empty."""
    low, high = min(values), max(values)
    air = 0.08 * (high - low) or 0.1 * abs(high) or 1.0
    return low - air, high + air


def _picture(title: str, x: Axis, y: Axis, drawn: Markup) -> Markup:
    grid = _join(
        Markup('<line class="grid" x1="{}" x2="{}" y1="{:.1f}" y2="{:.1f}"/>').format(x.start, x.end, y(at), y(at))
        + Markup('<text class="tick" x="{}" y="{:.1f}" text-anchor="end">{}</text>').format(
            x.start - 7, y(at) + 4, y.text(at)
        )
        for at in ticks(y.low, y.high)
    )
    whole = x.text is number  # epochs
    grid += _join(
        Markup('<text class="tick" x="{:.1f}" y="{}" text-anchor="middle">{}</text>').format(
            x(at), y.start + 18, x.text(at)
        )
        for at in ticks(x.low, x.high, 6)
        if not whole or at == round(at)
    )
    frame = Markup(
        '<line class="axis" x1="{0}" x2="{1}" y1="{2}" y2="{2}"/>'
        '<text class="label" x="{3}" y="{4}" text-anchor="middle">{5}</text>'
        '<text class="label" x="{6}" y="13" text-anchor="middle" transform="rotate(-90)">{7}</text>'
    ).format(
        x.start,
        x.end,
        y.start,
        (x.start + x.end) / 2,
        HEIGHT - 6,
        x.label,
        -(y.start + y.end) / 2,
        y.label,
    )
    return Markup('<svg class="chart" viewBox="0 0 {} {}" role="img" aria-label="{}">{}{}{}</svg>').format(
        WIDTH, HEIGHT, title, grid, frame, drawn
    )


def _join(parts: object) -> Markup:
    return Markup("").join(parts)  # pyright: ignore[reportArgumentType]
