"""The figures of a leaderboard: accuracy against bag size, and against seconds."""

from __future__ import annotations

import math
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from bagwise.experiments.leaderboard.contenders import CONTENDERS
from bagwise.report.figures import STYLE, mark_chance, percent_axis
from bagwise.report.leaderboard_summary import Leaderboard, Setting
from bagwise.report.leaderboard_words import best_published, label

# Okabe and Ito's palette, safe for colour-blind readers, without the yellow that white paper swallows; each round
# of it has its own marker and dashes.
_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7f868f")
_MARKERS = ("o", "D", "s", "^")
_DASHES: tuple[Any, ...] = ("-", (0, (4, 1.5)), (0, (1.2, 1.2)), (0, (6, 1.5, 1.2, 1.5)))
_STAR: dict[str, Any] = {"color": "#8b9098", "marker": "*", "markersize": 9, "linestyle": "none"}
_DODGE = 0.24  # of a doubling of the bag size: over so much the contenders at one size are spread, side by side
_COLUMNS = {1: 1, 2: 2, 4: 2}  # panels in a row by how many there are; else 3


def draw_accuracy_by_bag_size(board: Leaderboard) -> Figure:
    """Final accuracy against bag size, a line per contender, a panel per kind of bags with several sizes."""
    kinds = [kind for kind in board.bag_kinds if len(board.sizes(kind)) > 1] or list(board.bag_kinds)
    with matplotlib.rc_context(STYLE):
        height = max(4.2, _legend_height(board))
        figure = Figure(figsize=(2.0 + 4.4 * len(kinds), height), layout="constrained")
        panels = figure.subplots(1, len(kinds), sharey=True, squeeze=False)[0]
        looks = _looks(board)
        for panel, kind in zip(panels, kinds, strict=True):
            sizes = board.sizes(kind)
            for place, contender in enumerate(board.contenders):
                scores = {s.bag_size: score for s, score in board.scores[contender].items() if s.bag_kind == kind}
                means = [100 * score.accuracy.mean for score in scores.values()]
                spreads = [100 * (score.accuracy.spread or 0) for score in scores.values()]
                aside = 2 ** (_DODGE * ((place + 0.5) / len(board.contenders) - 0.5))
                drawn = panel.errorbar(
                    [aside * size for size in scores],
                    means,
                    yerr=[  # no accuracy is below 0 or above 100 %
                        [min(spread, mean) for spread, mean in zip(spreads, means, strict=True)],
                        [min(spread, 100 - mean) for spread, mean in zip(spreads, means, strict=True)],
                    ],
                    elinewidth=1,
                    capsize=2,
                    **looks[contender],
                )
                drawn[2][0].set_alpha(0.4)  # the bars: one that spans the panel should not stand out
            best = {size: found for size in sizes if (found := best_published(board, Setting(kind, size)))}
            if best:
                accuracies = [100 * accuracy for accuracy, _ in best.values()]
                panel.plot(list(best), accuracies, **_STAR, zorder=1)
            panel.set_xscale("log", base=2)
            panel.set_xticks(sizes, [str(size) for size in sizes])
            panel.minorticks_off()
            panel.set_xlim(min(sizes) / 1.35, max(sizes) * 1.35)
            panel.set_title(f"{board.title}, {kind} bags", loc="left", fontweight="bold")
            panel.set_xlabel("bag size")
            mark_chance(panel, board.chance, label=panel is panels[-1])
        least = min(score.accuracy.mean for scores in board.scores.values() for score in scores.values())
        panels[0].set(ylabel="final test accuracy (%)", **percent_axis(min(least, board.chance)))
        _add_legend(figure, board, published=bool(board.published))
    return figure


def draw_accuracy_by_seconds(board: Leaderboard) -> Figure:
    """Accuracy along the final run against seconds since the search began, a panel per setting."""
    columns = _COLUMNS.get(len(board.settings), 3)
    rows = math.ceil(len(board.settings) / columns)
    with matplotlib.rc_context(STYLE):
        height = max(0.5 + 2.9 * rows, _legend_height(board))
        figure = Figure(figsize=(2.0 + 3.2 * columns, height), layout="constrained")
        panels = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False).flatten()
        for panel, setting in zip(panels, board.settings, strict=False):
            _draw_paths(panel, board, setting)
        for panel in panels[len(board.settings) :]:
            panel.set_visible(False)
        for place in range(len(board.settings)):
            is_lowest = place + columns >= len(board.settings)
            if is_lowest:
                panels[place].set_xlabel(f"{'GPU' if board.on_gpu else 'CPU'} seconds")
                panels[place].tick_params(labelbottom=True)
            if place % columns == 0:
                panels[place].set_ylabel("test accuracy (%)")
        longest = max(score.seconds for scores in board.scores.values() for score in scores.values())
        paths = [score.path for scores in board.scores.values() for score in scores.values()]
        least = min((accuracy for path in paths for stretch in path for _, accuracy in stretch), default=0.0)
        panels[0].set(xlim=(0, 1.04 * longest), **percent_axis(min(least, board.chance)))  # with room for a marker
        _add_legend(figure, board, published=False)
    return figure


def _draw_paths(panel: Axes, board: Leaderboard, setting: Setting) -> None:
    looks = _looks(board)
    for contender in board.contenders:
        score = board.scores[contender].get(setting)
        if score is None or not score.path:
            continue
        look = looks[contender]
        for stretch in score.path:
            seconds, accuracies = zip(*stretch, strict=True)
            percents = [100 * accuracy for accuracy in accuracies]
            panel.plot(seconds, percents, color=look["color"], linestyle=look["linestyle"], linewidth=1.3)
        seconds, accuracy = score.path[-1][-1]
        panel.plot([seconds], [100 * accuracy], color=look["color"], marker=look["marker"], linestyle="none")
    panel.set_title(str(setting), loc="left", fontsize=10.5)
    mark_chance(panel, board.chance, label=False)


def _looks(board: Leaderboard) -> dict[str, dict[str, Any]]:
    """Return the look of each contender, by its place in the registry: the order of the results is no matter."""
    known = list(CONTENDERS)
    names = sorted(board.contenders, key=lambda name: known.index(name) if name in known else len(known))
    looks = {}
    for place, name in enumerate(names):
        turn = place // len(_COLOURS)
        looks[name] = {
            "color": _COLOURS[place % len(_COLOURS)],
            "marker": _MARKERS[turn % len(_MARKERS)],
            "linestyle": _DASHES[turn % len(_DASHES)],
        }
    return looks


def _legend_height(board: Leaderboard) -> float:
    """In inches, with the two lines for published numbers."""
    return 0.3 + 0.22 * (len(board.contenders) + 2)


def _add_legend(figure: Figure, board: Leaderboard, *, published: bool) -> None:
    looks = _looks(board)
    lines = [Line2D([], [], **looks[contender]) for contender in board.contenders]
    names = [label(contender) for contender in board.contenders]
    if published:
        lines.append(Line2D([], [], **_STAR))
        names.append("best published\n(not ours)")
    figure.legend(lines, names, loc="outside right upper", handlelength=2.6)
