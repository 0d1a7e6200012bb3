"""What a leaderboard says, in words: who wins where, by how much, and what the seeds cannot tell apart."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from bagwise.experiments.leaderboard.by_features import KL_IS_KEPT, NONE_DECIDE
from bagwise.experiments.leaderboard.presets import BenchmarkCell
from bagwise.experiments.records import Record
from bagwise.report.leaderboard_summary import CONTENDER_LABELS, Leaderboard, Setting

_MOST_NAMED = 6
_NONE_DECIDED = (NONE_DECIDE, "by 0 others")  # the latter in old records


def headline(board: Leaderboard) -> str:
    """Return the result in a sentence or two."""
    if len(board.contenders) == 1:
        (name,) = board.contenders
        best, worst = _ends(board, name)
        return f"{label(name)} alone has run: {_percent(best)} at best, {_percent(worst)} at worst."
    wins = {name: sum(name in board.leaders(setting) for setting in board.settings) for name in board.contenders}
    most = max(wins.values())
    winners = [name for name in board.contenders if wins[name] == most]
    first = board.contenders[0]
    everywhere = "in every setting" if most == len(board.settings) else f"in {most} of {len(board.settings)} settings"
    if len(board.settings) == 1:
        everywhere = f"on {board.settings[0]}"
    names = [label(name) for name in winners]
    is_best = board.behind[first] == 0  # wherever it has a record
    if is_best and len(board.scores[first]) == len(board.settings):
        text = f"{names[0]} is best {everywhere}."
        return f"{text} {listed(names[1:])} {_are(names[1:])} within the spread of it." if names[1:] else text
    text = f"{listed(names)} {_are(names)} best, or within the spread of the best, {everywhere}."
    if is_best:
        return f"{text} {label(first)} is best wherever it has a record."
    return f"{text} On average {label(first)} is closest to the best, {_points(board.behind[first])} behind."


def read_setting(board: Leaderboard, setting: Setting) -> str:
    """Say who wins in a setting."""
    ranking = board.ranking(setting)
    (winner, best), rest = ranking[0], ranking[1:]
    text = f"{label(winner)} leads with {best} %"
    leaders = board.leaders(setting)[1:]
    if leaders:
        names = [label(name) for name in leaders]
        if len(names) > _MOST_NAMED:
            names = [*names[: _MOST_NAMED - 1], f"{len(names) - _MOST_NAMED + 1} more"]
        text += f"; {listed(names)} {_are(names)} within the spread"
    others = [(name, accuracy) for name, accuracy in rest if name not in leaders]
    if others:
        name, accuracy = others[0]
        text += f"; next is {label(name)}, {_points(best.mean - accuracy.mean)} behind"
        if len(others) > 1:
            name, accuracy = others[-1]
            text += f"; last is {label(name)} with {accuracy} %"
    if published := best_published(board, setting):
        gap = best.mean - published[0]
        side = "above" if gap >= 0 else "below"
        text += f". The best published, {published[1]}, has {_percent(published[0])}: ours is {_points(gap)} {side}"
    return f"{text}."


def read_spread(board: Leaderboard) -> str:
    """Say what "within the spread" means for these records."""
    sampling = f"the standard error of an accuracy on {board.num_test:,} test instances"
    if board.max_seeds == 1:
        return (
            f"A contender is within the spread of the best when it is behind by no more than {sampling}. One seed "
            "stands behind each number: another draw of bags may turn close ones round."
        )
    return (
        "A contender is within the spread of the best when it is behind by no more than the best's standard deviation "
        f"over seeds (up to {board.max_seeds}), or by no more than {sampling}."
    )


def read_self_training(records: Sequence[Record[BenchmarkCell]]) -> str | None:
    """Say how often self-training kept KL's network, and what decided; None where no record tells of such a choice."""
    criteria = [record.selection.criterion for record in records if record.cell.contender == "self-training"]
    decisions = [decision for criterion in criteria if (decision := criterion.partition("; then, ")[2])]
    if not decisions:
        return None
    kept = sum(decision.endswith(KL_IS_KEPT) for decision in decisions)
    unasked = sum(decision.startswith(_NONE_DECIDED) for decision in decisions)
    text = f"Self-training kept KL's network in {kept} of {len(decisions)} cells"
    if replaced := len(decisions) - kept - unasked:
        text += f"; in {replaced}, held-out bags preferred the copy that learned from labels"
    if unasked:
        text += f"; in {unasked}, no bags were held out to decide by, and the copy was taken"
    return f"{text}."


def read_missing(board: Leaderboard) -> str | None:
    """Say which combinations have no record yet, or None when all have one."""
    if not board.missing:
        return None
    parts = []
    for name, pairs in groupby(board.missing, key=lambda pair: pair[0]):
        parts.append(f"{label(name)} on {', '.join(str(setting) for _, setting in pairs)}")
    total = len(board.contenders) * len(board.settings)
    return f"{len(board.missing)} of {total} combinations have no record yet: {'; '.join(parts)}."


def best_published(board: Leaderboard, setting: Setting) -> tuple[float, str] | None:
    """Return the highest published accuracy for a setting and its method."""
    found = [(p.accuracy, p.method) for p in board.published if (p.bag_kind, p.bag_size) == setting]
    return max(found) if found else None


def label(contender: str) -> str:
    """Return a contender's name as people write it."""
    return CONTENDER_LABELS.get(contender, contender)


def listed(names: Sequence[str]) -> str:
    """Return names with commas and an "and"."""
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def _ends(board: Leaderboard, name: str) -> tuple[float, float]:
    means = [score.accuracy.mean for score in board.scores[name].values()]
    return max(means), min(means)


def _are(names: Sequence[str]) -> str:
    return "is" if len(names) == 1 else "are"


def _percent(value: float) -> str:
    return f"{100 * value:.1f} %"


def _points(value: float) -> str:
    amount = f"{abs(100 * value):.1f}"
    return f"{amount} point" if amount == "1.0" else f"{amount} points"
