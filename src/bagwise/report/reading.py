"""What the numbers say, in words: each finding of the paper beside what was measured here."""

from __future__ import annotations

import math
from dataclasses import dataclass

from bagwise.report.summary import LOSS_LABELS, Accuracy, Summary

# Differences in accuracy up to this count as "little" or "close" in the verdicts; every finding shows its
# numbers, so a reader with another threshold can judge again.
SMALL = 0.03

# Easy data lose little up to bags of 64 or so: only bags from this size on can show that larger ones cost nothing.
_LARGE = 256

HOLDS = "holds"
IN_PART = "holds in part"
FAILS = "does not hold"
UNDECIDED = "undecided"
UNMEASURED = "not measured"


@dataclass(frozen=True)
class Finding:
    """One claim of the paper, whether it holds here, and the numbers that say so."""

    claim: str
    verdict: str
    evidence: str


def headline(summary: Summary) -> str:
    """Return the result in one or two sentences."""
    loss = next(name for name in ("kl", "rot", "avg-kl") if summary.accuracy.get(name))
    points = summary.accuracy[loss]
    sizes = list(points)
    label = LOSS_LABELS[loss]
    if len(sizes) == 1:
        return f"{label} reaches {_percent(points[sizes[0]])} from bags of {sizes[0]}."
    start, end = sizes[0], sizes[-1]
    text = f"{label} reaches {_percent(points[start])} from bags of {start}"
    middle = max((size for size in sizes if size <= 16), default=start)
    if start < middle < end:
        text += f", {_percent(points[middle])} from bags of {middle}"
    return f"{text} and {_percent(points[end])} from bags of {end} (chance: {_percent(summary.chance)})."


def missing_cells(summary: Summary) -> str | None:
    """Say which combinations have no record yet, or None when all have one."""
    if not summary.missing:
        return None
    total = len(summary.losses) * len(summary.bag_sizes)
    parts = []
    for loss in summary.losses:
        sizes = [str(size) for name, size in summary.missing if name == loss]
        if sizes:
            parts.append(f"{LOSS_LABELS[loss]} at {', '.join(sizes)}")
    return f"{len(summary.missing)} of {total} combinations have no record yet: {'; '.join(parts)}."


def read_findings(summary: Summary) -> list[Finding]:
    """Compare the records with each finding of the paper's section 4."""
    findings = [
        _single_instances(summary),
        _small_bags(summary),
        _decline(summary),
        _baseline(summary),
        _closeness(summary),
    ]
    if {512, 1024} & set(summary.bag_sizes):
        findings.append(_large_bags(summary))
    return findings


def _single_instances(summary: Summary) -> Finding:
    claim = "Bags of one instance are ordinary supervised learning"
    points = {loss: points[1] for loss, points in summary.accuracy.items() if 1 in points}
    if summary.dataset == "cifar10":
        claim += ", above 90 % on CIFAR-10"
    if not points:
        return Finding(claim, UNMEASURED, "There is no record at bag size 1.")
    listed = ", ".join(f"{LOSS_LABELS[loss]} {_percent(point)}" for loss, point in points.items())
    means = [point.mean for point in points.values()]
    if summary.dataset == "cifar10":
        verdict = HOLDS if min(means) > 0.9 else IN_PART if max(means) > 0.9 else FAILS
    else:
        # all losses are multiples of the cross-entropy here, so they should meet
        verdict = HOLDS if max(means) - min(means) <= SMALL else FAILS
    return Finding(claim, verdict, f"At bag size 1: {listed}.")


def _small_bags(summary: Summary) -> Finding:
    claim = "Little is lost up to bags of 8 to 16"
    verdicts, parts = [], []
    for loss in ("kl", "rot"):
        points = summary.accuracy.get(loss, {})
        if not {1, 8, 16} <= set(points):
            continue
        lost = {size: points[1].mean - points[size].mean for size in (8, 16)}
        verdicts.append(HOLDS if lost[16] <= SMALL else IN_PART if lost[8] <= SMALL else FAILS)
        parts.append(f"{LOSS_LABELS[loss]} {_change(-lost[8])} at 8 and {_change(-lost[16])} at 16")
    if not parts:
        return Finding(claim, UNMEASURED, "This needs records at bag sizes 1, 8 and 16.")
    return Finding(claim, _overall(verdicts), f"Points against bag size 1: {'; '.join(parts)}.")


def _decline(summary: Summary) -> Finding:
    largest = summary.bag_sizes[-1]
    claim = "Larger bags cost accuracy"
    if largest >= 1000:
        claim += ", down to near chance at about a thousand"
    verdicts, parts = [], []
    for loss in ("kl", "rot"):
        points = summary.accuracy.get(loss, {})
        if largest <= 16 or not {16, largest} <= set(points):
            continue
        start, end = points[16].mean, points[largest].mean
        is_near_chance = largest < 1000 or end <= 2 * summary.chance
        if start - end <= SMALL:
            verdicts.append(FAILS if largest >= _LARGE else UNMEASURED)
        else:
            verdicts.append(HOLDS if is_near_chance else IN_PART)
        parts.append(f"{LOSS_LABELS[loss]} {_percent(start)} to {_percent(end)}")
    if not parts:
        return Finding(claim, UNMEASURED, "This needs records at bag size 16 and at the largest size.")
    evidence = f"From bags of 16 to bags of {largest}: {'; '.join(parts)} (chance {_percent(summary.chance)})."
    if UNMEASURED in verdicts:
        evidence += f" To tell, it needs records at bag size {_LARGE} or more."
    return Finding(claim, _overall(verdicts), evidence)


def _baseline(summary: Summary) -> Finding:
    claim = "The baseline AvgKL is poor"
    # at bag size 1 the losses are one, and where KL is at chance there is nothing to be behind of
    gaps = {
        size: gap
        for size, gap in _differences(summary, "kl", "avg-kl").items()
        if size > 1 and max(summary.accuracy[loss][size].mean for loss in ("kl", "avg-kl")) > 2 * summary.chance
    }
    if not gaps:
        return Finding(claim, UNMEASURED, "This needs records of AvgKL and KL above bag size 1 and above chance.")
    behind = [size for size, gap in gaps.items() if gap > SMALL]
    verdict = HOLDS if len(behind) == len(gaps) else IN_PART if behind else FAILS
    widest = max(gaps, key=lambda size: abs(gaps[size]))
    where = f"at bag sizes {_listed(behind)}" if behind else "at no bag size"
    return Finding(
        claim,
        verdict,
        f"AvgKL is more than {100 * SMALL:.0f} points behind KL {where}; "
        f"the largest difference is {_change(-gaps[widest])} points, at {widest}.",
    )


def _closeness(summary: Summary) -> Finding:
    claim = "KL and ROT perform alike"
    gaps = _differences(summary, "rot", "kl")
    if not gaps:
        return Finding(claim, UNMEASURED, "This needs records of KL and ROT at one bag size.")
    apart = [size for size, gap in gaps.items() if abs(gap) > SMALL]
    verdict = HOLDS if not apart else IN_PART if len(apart) <= len(gaps) / 3 else FAILS
    widest = max(gaps, key=lambda size: abs(gaps[size]))
    close = f"within {100 * SMALL:.0f} points at {len(gaps) - len(apart)} of {len(gaps)} bag sizes"
    return Finding(
        claim, verdict, f"They are {close}; the largest difference is ROT {_change(gaps[widest])}, at {widest}."
    )


def _large_bags(summary: Summary) -> Finding:
    claim = "ROT is ahead for bags of 512 and 1024"
    gaps = {size: gap for size, gap in _differences(summary, "rot", "kl").items() if size in (512, 1024)}
    if not gaps:
        return Finding(claim, UNMEASURED, "This needs records of KL and ROT at 512 or 1024.")
    parts, clear = [], []
    for size, gap in gaps.items():
        noise = _standard_error(summary.accuracy["rot"][size], summary.accuracy["kl"][size])
        clear.append(noise is not None and abs(gap) > 2 * noise)
        parts.append(f"{_change(gap)}{'' if noise is None else f' (standard error {100 * noise:.1f})'} at {size}")
    evidence = f"ROT against KL, in points: {'; '.join(parts)}."
    if not all(clear):
        evidence += " The seeds cannot tell all of this from noise."
        return Finding(claim, UNDECIDED, evidence)
    ahead = [gap > 0 for gap in gaps.values()]
    return Finding(claim, HOLDS if all(ahead) else IN_PART if any(ahead) else FAILS, evidence)


def _differences(summary: Summary, loss: str, other: str) -> dict[int, float]:
    first, second = summary.accuracy.get(loss, {}), summary.accuracy.get(other, {})
    return {size: first[size].mean - second[size].mean for size in first if size in second}


def _standard_error(first: Accuracy, second: Accuracy) -> float | None:
    """Of the difference of two means, or None when a single seed stands behind one of them."""
    if first.spread is None or second.spread is None:
        return None
    return math.sqrt(first.spread**2 / first.seeds + second.spread**2 / second.seeds)


def _overall(verdicts: list[str]) -> str:
    return verdicts[0] if len(set(verdicts)) == 1 else IN_PART


def _percent(value: Accuracy | float) -> str:
    return f"{100 * (value.mean if isinstance(value, Accuracy) else value):.1f} %"


def _change(value: float) -> str:
    return f"{round(100 * value, 1) + 0.0:+.1f}".replace("-", "−")  # + 0.0 turns a negative zero positive


def _listed(sizes: list[int]) -> str:
    if len(sizes) > 1:
        return f"{', '.join(map(str, sizes[:-1]))} and {sizes[-1]}"
    return str(sizes[0])
