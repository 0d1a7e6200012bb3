"""The paper's two figures, drawn from records."""

from __future__ import annotations

import io
import math
import re
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from bagwise.experiments.records import write_file
from bagwise.report.summary import LOSS_LABELS, Summary

# Okabe and Ito's palette, safe for colour-blind readers; the markers tell the losses apart without colour.
# KL and ROT often coincide: dashes and an open marker let the one below show through.
_COLOURS = {"avg-kl": "#7f868f", "kl": "#0072b2", "rot": "#d55e00"}
_MARKS = {
    "avg-kl": {"marker": "s"},
    "kl": {"marker": "o"},
    "rot": {"marker": "D", "markersize": 6.5, "markerfacecolor": "none", "linestyle": (0, (4, 1.5))},
}
_INK = "#24272b"
_GRID = "#8b9098"
_DOTS_PER_INCH = 200
STYLE: dict[Any, Any] = {
    "font.family": "DejaVu Sans",  # comes with matplotlib: every machine draws the same
    "font.size": 10.5,
    "axes.titlesize": 11.5,
    "axes.titlepad": 8,
    "axes.edgecolor": _INK,
    "axes.labelcolor": _INK,
    "axes.linewidth": 0.8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "axes.axisbelow": True,
    "grid.color": _GRID,
    "grid.alpha": 0.25,
    "grid.linewidth": 0.7,
    "text.color": _INK,
    "xtick.color": _INK,
    "ytick.color": _INK,
    "xtick.major.size": 3,
    "ytick.major.size": 0,
    "legend.frameon": False,
    "lines.linewidth": 1.8,
    "lines.markersize": 5,
    "svg.hashsalt": "bagwise",  # the same records give the same file, so that git shows real changes only
}


def draw_figures(summary: Summary) -> dict[str, Figure]:
    """Return the paper's figures that the records give, by name, what people look for first."""
    figures = {}
    if len(summary.measured_sizes) > 1:  # one size is a point, not a figure
        figures["bag-sizes"] = draw_accuracy_by_bag_size(summary)
    figures["curves"] = draw_learning_curves(summary)
    return figures


def draw_learning_curves(summary: Summary) -> Figure:
    """Figure 1: test accuracy over epochs, a curve per bag size, a panel for KL and one for ROT, as far as planned."""
    losses = [loss for loss in ("kl", "rot") if loss in summary.losses] or summary.losses
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(3.8 + 2.4 * len(losses), 3.6), layout="constrained")
        panels = figure.subplots(1, len(losses), sharey=True, sharex=True, squeeze=False)[0]
        colours = _bag_size_colours(summary.bag_sizes)
        for panel, loss in zip(panels, losses, strict=True):
            curves = summary.curves.get(loss, {})
            for size, (epochs, accuracy) in curves.items():
                panel.plot(epochs, [100 * a for a in accuracy], color=colours[size], linewidth=1.5)
            if not curves:
                panel.text(0.5, 0.5, "no records yet", transform=panel.transAxes, ha="center")
            panel.set_title(f"{summary.title}, {LOSS_LABELS[loss]} loss", loc="left", fontweight="bold")
            panel.set_xlabel("epoch")
            mark_chance(panel, summary.chance, label=panel is panels[-1])
        panels[0].set(ylabel="test accuracy (%)", xlim=(0, None), **percent_axis())
        drawn = [size for size in summary.bag_sizes if any(size in summary.curves.get(loss, {}) for loss in losses)]
        lines = [Line2D([], [], color=colours[size], linewidth=2.6) for size in drawn]
        figure.legend(lines, map(str, drawn), loc="outside right center", title="bag size", handlelength=1.2)
    return figure


def draw_accuracy_by_bag_size(summary: Summary) -> Figure:
    """Figure 2: final test accuracy against bag size, a line per loss; the band is one standard deviation."""
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(6.8, 4.0), layout="constrained")
        axes = figure.subplots()
        for loss in summary.losses:
            points = summary.accuracy[loss]
            sizes = list(points)
            mean = [100 * point.mean for point in points.values()]
            low = [100 * (point.mean - (point.spread or 0)) for point in points.values()]
            high = [100 * (point.mean + (point.spread or 0)) for point in points.values()]
            axes.fill_between(sizes, low, high, color=_COLOURS[loss], alpha=0.2, linewidth=0)
            axes.plot(sizes, mean, color=_COLOURS[loss], label=LOSS_LABELS[loss], **_MARKS[loss])
        axes.set_xscale("log", base=2)
        axes.set_xticks(summary.bag_sizes, [str(size) for size in summary.bag_sizes])
        axes.minorticks_off()
        axes.set(xlabel="bag size", ylabel="final test accuracy (%)", **percent_axis())
        axes.set_title(f"{summary.title}: accuracy on instances, learned from bags", loc="left", fontweight="bold")
        mark_chance(axes, summary.chance, label=True)
        axes.legend(loc="lower left", bbox_to_anchor=(0, summary.chance), handlelength=2.6)
    return figure


def save_figure(figure: Figure, name: str, *, png: Path, svg: Path) -> list[Path]:
    """Write `name.png` and `name.svg`, each into its folder."""
    paths = [png / f"{name}.png", svg / f"{name}.svg"]
    for path in paths:
        write_file(path, _render(figure, path.suffix[1:]))
    return paths


def inline_svg(figure: Figure, label: str) -> str:
    """Return the figure as an `<svg>` element whose ink takes the colour of the page, light or dark."""
    svg = _render(figure, "svg", transparent=True).decode()
    svg = svg[svg.index("<svg") :]  # an XML declaration has no place inside HTML
    svg = re.sub(r'(width|height)="[\d.]+pt" ?', "", svg, count=2)  # the page decides
    svg = svg.replace(_INK, "currentColor")
    return svg.replace("<svg", f'<svg role="img" aria-label="{label}"', 1)


def _render(figure: Figure, suffix: str, transparent: bool = False) -> bytes:
    buffer = io.BytesIO()
    with matplotlib.rc_context(STYLE):
        # SVG files carry a date unless told not to
        metadata = {"Date": None} if suffix == "svg" else None
        figure.savefig(buffer, format=suffix, dpi=_DOTS_PER_INCH, metadata=metadata, transparent=transparent)
    return buffer.getvalue()


def _bag_size_colours(bag_sizes: tuple[int, ...]) -> dict[int, tuple[float, float, float, float]]:
    """Small bags dark, large ones bright; the ends of the map are left out, to be seen on black and white."""
    shades = matplotlib.colormaps["plasma"]
    step = 0.72 / max(len(bag_sizes) - 1, 1)
    return {size: shades(0.1 + step * position) for position, size in enumerate(bag_sizes)}


def percent_axis(least: float = 0.0) -> dict[str, Any]:
    """Return limits and ticks for shares of at least `least`, from 0 unless all of them are large."""
    start, step = (0, 20) if least < 0.5 else (10 * math.floor(10 * least), 5)
    return {"ylim": (start, 100 + step / 10), "yticks": range(start, 101, step)}  # with room for a marker at 100


def mark_chance(axes: Axes, chance: float, *, label: bool) -> None:
    """Draw the accuracy of a guess as a dotted line."""
    axes.axhline(100 * chance, color=_INK, linewidth=0.9, linestyle=(0, (1.5, 2)), zorder=1)
    if label:  # beside the panel, where no curve can cross it
        position = {"xy": (1, 100 * chance), "xycoords": ("axes fraction", "data")}
        axes.annotate("chance", **position, xytext=(4, 0), textcoords="offset points", va="center", fontsize=9)
