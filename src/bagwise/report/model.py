"""The report of a fitted model: one self-contained page for somebody who has to decide whether to trust it."""

from __future__ import annotations

import inspect
import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from markupsafe import Markup

from bagwise.estimator import ProportionClassifier
from bagwise.experiments.provenance import collect_provenance
from bagwise.model_selection import (
    AccuracyEstimate,
    Importance,
    SearchResult,
    permutation_importance,
)
from bagwise.report import model_words as words
from bagwise.report.model_bags import (
    FEWEST_HELD_OUT_BAGS,
    BagComparison,
    DescribedRows,
    describe_rows,
)
from bagwise.report.model_charts import calibration_chart, confidence_histogram, learning_curve
from bagwise.report.model_findings import Findings, find
from bagwise.report.model_statistics import calibration, confidence
from bagwise.report.rendering import read_script, write_html
from bagwise.tables import ProportionTable

MOST_BAGS_DRAWN = 3000
WORST_BAGS_DRAWN = 500
WORST_BAGS_NAMED = 25
MOST_PANELS = 12  # classes with a scatter of their own
MOST_CLASSES = 50  # rows of the table of classes
MOST_TRIALS = 50
MOST_COLUMNS = 20  # of the importances and of the treatments that are shown at once
# Each row is predicted once per column and shuffle: this bounds the time, and with more columns than that single
# ones (pixels, words) mean little.
MOST_SHUFFLED_COLUMNS = 500
SHUFFLES = 5
MOST_SHUFFLED_ROWS = 500_000


def write_model_report(
    path: str | os.PathLike[str],
    classifier: ProportionClassifier,
    X: Any,
    bags: Any,
    proportions: Any,
    *,
    notes: Sequence[str] = (),
    accuracy: AccuracyEstimate | None = None,
    search: SearchResult | None = None,
    title: str = "A classifier learned from proportions",
) -> Findings:
    """Write a page (HTML, one file, no network needed) about a fitted model and the bags it was fitted on.

    Returns what it says of the model: fit to the bags, estimate of the accuracy, warnings.

    Args:
        path: of the page.
        classifier: after `fit`.
        X: the rows it was fitted on, or those of some of its bags.
        bags: as in `fit`.
        proportions: as in `fit`; as `read_proportions(...)` it may hold further bags.
        notes: what looked odd when the rows were read, in plain words; it comes first among the warnings.
        accuracy: an estimate of the accuracy on instances, from `cross_validate(...).accuracy()`. By default it is
            estimated from the bags that `fit` held out, where there are enough and no noise was declared.
        search: the search that chose the settings, for its table of trials.
        title: of the page.

    Example:
        >>> classifier.fit(X, bags=bags, proportions=table)  # doctest: +SKIP
        >>> write_model_report("report.html", classifier, X, bags, table)  # doctest: +SKIP
    """
    described = describe_rows(classifier, X, bags, proportions)
    found = find(classifier, described, notes=notes, accuracy=accuracy)
    compared, held_out, trained_on, classes = found.compared, found.held_out, found.trained_on, found.classes
    labels = [str(label) for label in classifier.classes_]
    # charts and importances are about held-out bags where they are enough to say something, else about all
    is_fair = held_out is not None and held_out.num_bags >= FEWEST_HELD_OUT_BAGS
    judged = compared.part(held_out=True) if is_fair else compared
    rows = described.held_out[described.bag_index] if is_fair else np.ones(len(described.bag_index), dtype=bool)
    bins = calibration(judged)
    sureness = confidence(described.probabilities[rows])
    flatters = accuracy is None and classifier.method != "probe"  # a probe chooses by other bags
    fitted_on = classifier.bag_report_
    sizes = fitted_on["size"]
    has_labels = described.all_rows == described.all_bags  # the proportions of a single row are its label
    script, script_hash = read_script("model.js")
    values = {
        "title": title,
        "headline": words.headline(described.all_rows, described.all_bags, len(labels), held_out, trained_on),
        "warnings": [text[:1].upper() + text[1:] for text in found.warnings],
        "described": described,
        "sizes": sizes,
        "median_size": int(np.median(sizes)),
        "has_noise": classifier.proportion_noise is not None,
        "num_unknown": int(np.isnan(fitted_on[f"known {labels[0]}"]).sum()),
        "labels": labels,
        "fits": [("held out", held_out), ("trained on", trained_on)],
        "has_held_out": held_out is not None,
        "is_fair": is_fair,
        "worst": _worst_bags(compared, labels),
        "num_bags": len(compared.names),
        "num_drawn": min(len(compared.names), MOST_BAGS_DRAWN),
        "worst_drawn": WORST_BAGS_DRAWN,
        "panels": [share.label for share in classes[:MOST_PANELS]],
        "scatter": _scatter(compared, labels, [share.label for share in classes[:MOST_PANELS]]),
        "accuracy": found.accuracy,
        "has_labels": has_labels,
        "accuracy_words": words.accuracy_in_words(found.accuracy, has_labels=has_labels) if found.accuracy else None,
        "assumptions": words.accuracy_assumptions(found.accuracy, flatters=flatters, has_labels=has_labels)
        if found.accuracy
        else [],
        "no_accuracy": found.no_accuracy,
        "confidence": sureness,
        "confidence_chart": confidence_histogram(sureness),
        "calibration_chart": calibration_chart(bins) if bins else None,
        "classes": classes,
        "most_classes": MOST_CLASSES,
        "importance": _importance(classifier, described, rows),
        "num_columns": classifier.n_features_in_,
        "most_columns": MOST_COLUMNS,
        "most_shuffled_columns": MOST_SHUFFLED_COLUMNS,
        "curves": _curves(classifier),
        "training": found.training,
        "search": search,
        "most_trials": MOST_TRIALS,
        "network": _network(classifier),
        "settings": _settings(classifier),
        "treatments": classifier.preprocessing_.treatments(),
        "provenance": collect_provenance(),
        "script": script,
        "script_hash": script_hash,
        "percent": words.percent,
        "points": words.points,
        "signed": words.signed,
    }
    write_html(Path(path), "model.html", values)
    return found


def _importance(classifier: ProportionClassifier, described: DescribedRows, rows: np.ndarray) -> Importance | None:
    """Shuffle the columns for the rows that the model is judged by; None where there are too many columns."""
    num_columns = classifier.n_features_in_
    if num_columns > MOST_SHUFFLED_COLUMNS:
        return None
    shares = np.where(
        np.isin(np.arange(len(described.shares)), described.bag_index[rows])[:, None], described.shares, np.nan
    )
    table = ProportionTable(tuple(range(len(shares))), tuple(classifier.classes_.tolist()), shares)
    return permutation_importance(
        classifier,
        described.X,
        described.bag_index,
        table,
        repeats=SHUFFLES,
        most_rows=min(10_000, max(500, MOST_SHUFFLED_ROWS // (SHUFFLES * num_columns))),
    )


def _worst_bags(compared: BagComparison, labels: list[str]) -> list[dict[str, Any]]:
    """One row of the table for each of the worst bags, about the class that strays furthest."""
    deviations = compared.deviations
    rows = []
    for bag in compared.worst(WORST_BAGS_NAMED).tolist():
        furthest = int(np.abs(deviations[bag]).argmax())
        rows.append(
            {
                "bag": str(compared.names[bag]),
                "size": int(compared.sizes[bag]),
                "held_out": bool(compared.held_out[bag]),
                "label": labels[furthest],
                "known": float(compared.known[bag, furthest]),
                "predicted": float(compared.predicted[bag, furthest]),
                "deviation": float(deviations[bag, furthest]),
            }
        )
    return rows


def _scatter(compared: BagComparison, labels: list[str], panels: list[str]) -> dict[str, Any]:
    """What the script draws: column by column, shares in hundredths of a percent."""
    drawn = compared.drawn(MOST_BAGS_DRAWN, WORST_BAGS_DRAWN)
    places = [labels.index(label) for label in panels]
    return {
        "bags": [str(compared.names[bag]) for bag in drawn],
        "sizes": compared.sizes[drawn].tolist(),
        "heldOut": compared.held_out[drawn].astype(int).tolist(),
        "classes": [
            {
                "label": labels[place],
                "known": np.rint(1e4 * compared.known[drawn, place]).astype(int).tolist(),
                "predicted": np.rint(1e4 * compared.predicted[drawn, place]).astype(int).tolist(),
            }
            for place in places
        ],
    }


def _curves(classifier: ProportionClassifier) -> list[Markup]:
    """The training loss, and the divergence of held-out bags where there are some; a probe has no epochs."""
    if classifier.method == "probe":
        return []
    history, chosen = classifier.history_, classifier.best_epoch_
    epochs = [entry["epoch"] for entry in history]
    series = {
        "training loss": [entry["loss"] for entry in history],
        "divergence of held-out bags (KL)": [entry.get("held_out", {}).get("kl") for entry in history],
    }
    finite = {
        label: [value if value is not None and math.isfinite(value) else None for value in values]
        for label, values in series.items()
    }
    return [
        learning_curve(epochs, values, label, chosen)
        for label, values in finite.items()
        if any(value is not None for value in values)
    ]


def _network(classifier: ProportionClassifier) -> str:
    """The network in words; a function of one's own by its name."""
    name = getattr(classifier.network, "__qualname__", str(classifier.network))
    weights = sum(parameter.numel() for parameter in classifier.network_.parameters())
    if classifier.method == "probe":
        name = "nearest rows and a linear head" if classifier.history_[0]["rounds"] else "a linear head"
        weights = sum(buffer.numel() for buffer in classifier.network_.buffers())
    return f"{name}, {classifier.preprocessing_.width:,} inputs, {weights:,} weights"


def _settings(classifier: ProportionClassifier) -> dict[str, str]:
    """The other parameters that are set and used, as text, in the order of their documentation."""
    plain = {"True": "yes", "False": "no"}
    unused = {"network", "verbose"}
    if classifier.method == "probe":
        unused |= {"epochs", "patience", "learning_rate", "batch_size", "weight_decay"}
    settings = {}
    for name in inspect.signature(ProportionClassifier).parameters:
        value = getattr(classifier, name)
        if value is not None and name not in unused:
            settings[name.replace("_", " ")] = plain.get(str(value), str(value))
    return settings
