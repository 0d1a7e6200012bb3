"""What the numbers of a fitted model say, in words for a reader who has never heard of label proportions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from bagwise.estimator import ProportionClassifier
from bagwise.fitting import FEWEST_BAGS_TO_HOLD_OUT_FROM
from bagwise.model_selection import AccuracyEstimate
from bagwise.report.model_bags import FEWEST_HELD_OUT_BAGS
from bagwise.report.model_statistics import ClassShare, Fit

# That of `fitting`.
_RULE_FOR_EPOCHS = (
    "the last that met the proportions of held-out bags as closely as the best one, to half a standard error"
)


def headline(num_rows: int, num_bags: int, num_classes: int, held_out: Fit | None, trained_on: Fit | None) -> str:
    """Return what was learned from what, and how well, in a few sentences."""
    if num_rows == num_bags:
        text = (
            f"This model gives single rows one of {num_classes} classes. It learned from {num_rows:,} rows whose class "
            "is known, since every group, called a bag, holds a single row."
        )
    else:
        text = (
            f"This model gives single rows one of {num_classes} classes, though nobody told it the class of any row. "
            f"It learned from {num_rows:,} rows in {num_bags:,} groups, called bags, of which only the class shares "
            "are known."
        )
    fit, which = (held_out, "kept from training") if held_out is not None else (trained_on, "it was trained on")
    if fit is None:
        return text
    return (
        f"{text} In the {_count(fit.num_bags, 'bag')} {which}, the predicted shares are off by {points(fit.missed)} "
        "points (so many rows of 100 would have to change class). Giving every bag the overall shares would be off by "
        f"{points(fit.blind_missed)} points."
    )


def training_in_words(classifier: ProportionClassifier) -> str:
    """Return what was done, what was kept of it, and by which rule."""
    history = classifier.history_
    if classifier.method == "probe":
        return _probe_in_words(history[0])
    has_held_out = bool(classifier.bag_report_["held_out"].any())
    if classifier.method == "self-training":
        return _self_training_in_words(history, classifier.best_epoch_, classifier.epochs, has_held_out=has_held_out)
    if not has_held_out:
        return f"The last of {_count(len(history), 'epoch')} was kept: no bags were held out to choose one."
    return f"Epoch {classifier.best_epoch_} of {len(history)} was kept: {_RULE_FOR_EPOCHS}."


def _probe_in_words(entry: dict[str, Any]) -> str:
    rounds, tried = entry["rounds"], len(entry["candidates"])
    rows = f"rows averaged with their nearest ones in {_count(rounds, 'round')}" if rounds else "the rows as they are"
    choice = f"Of {tried} such settings, this one met bags that were left out in turn most closely."
    if tried == 1:
        choice = "No other setting was tried."
    text = f"A probe, a linear head on {_count(entry['directions'], 'direction')} of {rows}. {choice}"
    if entry["self_taught"]:
        text += " Its labels of the rows then taught a head on the rows as they are, which is the one that is used."
    return text


def _self_training_in_words(
    history: Sequence[dict[str, Any]], best_epoch: int, num_taught: int, *, has_held_out: bool
) -> str:
    """`num_taught` epochs, the last ones of the history, are those of learning from labels."""
    by_kl = len(history) - num_taught
    text = (
        f"{_count(by_kl, 'epoch')} by KL, then {_count(num_taught, 'epoch')} of learning from labels that fit the bags"
    )
    if not has_held_out:
        return f"{text}. The last one was kept: no bags were held out to choose another."
    divergence = {candidate["start"]: candidate["kl"] for candidate in history[-1]["candidates"]}
    before, after = f"{divergence['network']:.3g}", f"{divergence['self-training']:.3g}"
    if best_epoch == len(history):
        return (
            f"{text}. The latter were kept: the divergence of held-out bags fell from {before} to {after}, by more "
            "than a standard error."
        )
    return (
        f"{text}. The latter were refused: the divergence of held-out bags went from {before} to {after}, and did not "
        f"fall by more than a standard error. Of the former, epoch {best_epoch} was kept: {_RULE_FOR_EPOCHS}."
    )


def accuracy_in_words(accuracy: AccuracyEstimate, *, has_labels: bool = False) -> str:
    """Return the estimate as a person would say it; `has_labels` where every bag is a single row."""
    right, low, high, level = (
        f"{100 * value:.0f}" for value in (accuracy.accuracy, accuracy.low, accuracy.high, accuracy.level)
    )
    if has_labels:
        judges = f"{_count(accuracy.num_bags, 'row')} whose class is known"
    else:
        judges = f"{_count(accuracy.num_bags, 'bag')} and without the label of any row"
    return f"About {right} of 100 rows get the right class ({level} % interval: {low} to {high}), judged by {judges}."


def accuracy_assumptions(accuracy: AccuracyEstimate, *, flatters: bool, has_labels: bool = False) -> list[str]:
    """Return what must hold for the estimate to be right.

    Args:
        accuracy: the estimate.
        flatters: whether its bags chose what was kept, too.
        has_labels: whether every bag is a single row, whose class is then known: nothing need be assumed.
    """
    is_random = accuracy.dispersion < 1.5
    ratio = "about the" if is_random else f"{accuracy.dispersion:.3g} times the"
    spread = f"The known shares vary from bag to bag with {ratio} variance of bags drawn at random"
    if has_labels:
        words = []
    elif accuracy.method == "residuals":
        words = [
            f"{spread}. The estimate assumes that a mistake in one row says "
            "nothing about mistakes in the other rows of its bag, as in such bags. Where bags are alike inside (a "
            "place, a profession), mistakes go together and the true accuracy is higher.",
        ]
    else:
        words = [
            f"{spread}, so mistakes may go together within a bag. The estimate "
            "therefore makes all probabilities sharper or flatter by one factor (temperature "
            f"{accuracy.temperature or 1:.2f}) until they agree best with the bags, and takes them at their word. That "
            "one factor puts all of them right is seldom quite true.",
        ]
    breach = "" if has_labels else " It does not cover a breach of the assumption above."
    words.append(f"The interval shows the luck of these {'rows' if has_labels else 'bags'}.{breach}")
    if flatters:
        words.append(
            "The same held-out bags chose what was kept of the training, which flatters a little. "
            "bagwise.model_selection.cross_validate(...).accuracy() rests on all bags and does not."
        )
    return words


def no_accuracy_in_words(num_held_out: int, *, has_noise: bool) -> str:
    """Say why there is no estimate, and how to get one."""
    if has_noise:
        return (
            "How many rows get the right class is not estimated: the counts were changed before they were published, "
            "and bags cannot tell that noise from mistakes of the model. Some rows with known labels can (bagwise "
            "evaluate)."
        )
    have = "No bag was held out" if num_held_out == 0 else f"Only {_count(num_held_out, 'bag')} could be held out"
    return (
        f"{have}; it takes {FEWEST_HELD_OUT_BAGS} or more to estimate how many rows get the right class. "
        "In Python, bagwise.model_selection.cross_validate(...).accuracy() uses every bag in turn."
    )


def fit_warnings(
    held_out: Fit | None, trained_on: Fit | None, classes: Sequence[ClassShare], *, has_noise: bool
) -> list[str]:
    """Return what a careful reader would notice in the numbers.

    Args:
        held_out: fit to held-out bags, where there are some.
        trained_on: fit to the others.
        classes: the balance of the classes.
        has_noise: whether noise was added to the proportions, so that bags stray further than chance allows.
    """
    if held_out is None:
        warnings = [
            "No bag was kept from training, so every number about the model comes from bags that it has seen, and "
            f"flatters it. Bags are held out from {FEWEST_BAGS_TO_HOLD_OUT_FROM} bags on, unless validation_fraction=0."
        ]
    else:
        warnings = _held_out_warnings(held_out, trained_on, has_noise=has_noise)
    is_fair = held_out is not None and held_out.num_bags >= FEWEST_HELD_OUT_BAGS
    judged = held_out if is_fair else trained_on
    if judged is not None and judged.kl > 0.9 * judged.blind_kl:
        which = "held out" if is_fair else "that it was trained on"
        better = "worse" if judged.kl > judged.blind_kl else "hardly better"
        warnings.append(
            f"For bags {which} the model is {better} than a guess that gives every bag the overall shares "
            f"(divergence {judged.kl:.3g} against {judged.blind_kl:.3g}): it may have learned next to nothing about "
            "single rows."
        )
    return warnings + [
        f"Class {share.label!r} is never the most likely class of a row, although {percent(share.known)} of the rows "
        "belong to it."
        for share in classes
        if share.chosen == 0 and share.known >= 0.01
    ]


def _held_out_warnings(held_out: Fit, trained_on: Fit | None, *, has_noise: bool) -> list[str]:
    if held_out.num_bags < FEWEST_HELD_OUT_BAGS:
        return [
            f"Only {_count(held_out.num_bags, 'bag')} could be held out. What is said of held-out bags is mostly luck; "
            "charts and importances of the report use all bags, of which most were trained on, and flatter."
        ]
    warnings = []
    # twice as many as expected, and more than the luck of so many bags; a single stray moves this little
    expected = 0.05
    limit = max(2 * expected, expected + 3 * math.sqrt(expected * (1 - expected) / held_out.num_bags))
    if held_out.beyond_two > limit and not has_noise:
        warnings.append(
            f"In held-out bags {percent(held_out.beyond_two)} of the shares lie beyond two standard errors of the "
            "predicted ones, where about 5 % should: the model is surer than it should be, or bags differ in ways that "
            "the columns do not show. Do not take its probabilities at face value."
        )
    if trained_on is not None and trained_on.kl < 0.4 * held_out.kl and held_out.kl > 0.5 * held_out.blind_kl:
        warnings.append(
            "The model fits the bags it was trained on far more closely than held-out ones (divergence "
            f"{trained_on.kl:.3g} against {held_out.kl:.3g}): much of what it learned is their noise. More "
            "weight_decay, a smaller network or more bags help."
        )
    return warnings


def points(value: float) -> str:
    """Write a difference of shares in points, hundredths.

    Example:
        >>> points(0.0312)
        '3.1'
    """
    return f"{100 * value:.{1 if value >= 0.001 else 2}f}"


def percent(value: float) -> str:
    """Write a share.

    Example:
        >>> percent(0.8125)
        '81.2 %'
    """
    return f"{100 * value:.1f} %"


def signed(value: float) -> str:
    """Write a number with its sign.

    Example:
        >>> signed(-1.25)
        '−1.2'
    """
    return f"{round(value, 1) + 0.0:+.1f}".replace("-", "−")  # + 0.0 turns a negative zero positive


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
