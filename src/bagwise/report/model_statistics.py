"""The numbers of a model's report that need no label: fit to the bags, calibration, confidence, class balance."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.special import rel_entr

from bagwise.report.model_bags import BagComparison


@dataclass(frozen=True)
class Fit:
    """How closely the known shares of some bags are met.

    Attributes:
        num_bags: number of bags.
        num_rows: number of their instances.
        missed: share of a bag that would have to change class for its predicted shares to be the known ones, half the
            sum of their absolute differences; mean over bags. Whatever the number of classes, it lies between 0 and 1.
        blind_missed: the same for a guess that gives every bag the overall shares.
        kl: mean KL(known | predicted), in nats.
        blind_kl: the same for that guess.
        dispersion: mean square of the deviations in standard errors. 1 is expected where the probabilities are right
            and the bags were not trained on.
        beyond_two: share of the deviations beyond two standard errors; about 5 % are expected then.
    """

    num_bags: int
    num_rows: int
    missed: float
    blind_missed: float
    kl: float
    blind_kl: float
    dispersion: float
    beyond_two: float


def fit_to_bags(bags: BagComparison, overall: np.ndarray) -> Fit | None:
    """Judge the predictions for some bags; `overall [classes]` is the guess of one who knows only those shares."""
    if len(bags.names) == 0:
        return None
    deviations = bags.deviations
    return Fit(
        num_bags=len(bags.names),
        num_rows=int(bags.sizes.sum()),
        missed=float(np.abs(bags.known - bags.predicted).sum(axis=1).mean() / 2),
        blind_missed=float(np.abs(bags.known - overall).sum(axis=1).mean() / 2),
        kl=float(rel_entr(bags.known, bags.predicted).sum(axis=1).mean()),
        blind_kl=float(rel_entr(bags.known, overall).sum(axis=1).mean()),
        dispersion=float(np.square(deviations).mean()),
        beyond_two=float((np.abs(deviations) > 2).mean()),
    )


@dataclass(frozen=True)
class CalibrationBin:
    """Bags of similar predicted share, taken together.

    Attributes:
        predicted: mean predicted share, every instance counting once.
        known: mean known share.
        noise: standard error of `known` about `predicted`, if the probabilities are right.
        count: how many shares of bags are in it.
    """

    predicted: float
    known: float
    noise: float
    count: int


def calibration(bags: BagComparison, most_bins: int = 10, fewest: int = 5) -> list[CalibrationBin]:
    """Group the shares of all classes by their predicted size, into bins of about equal numbers.

    With two classes one of them is used: the other says the same.
    """
    first = 1 if bags.known.shape[1] == 2 else 0
    predicted, known, noise = (column[:, first:].ravel("F") for column in (bags.predicted, bags.known, bags.noise))
    sizes = np.tile(bags.sizes, bags.known.shape[1] - first)
    num_bins = min(most_bins, len(predicted) // fewest)
    if num_bins == 0:
        return []
    bins = []
    for members in np.array_split(np.argsort(predicted, kind="stable"), num_bins):
        weights = sizes[members] / sizes[members].sum()
        bins.append(
            CalibrationBin(
                float(weights @ predicted[members]),
                float(weights @ known[members]),
                float(np.sqrt(np.square(weights * noise[members]).sum())),
                len(members),
            )
        )
    return bins


@dataclass(frozen=True)
class Confidence:
    """How sure the predictions are, whether right or not.

    Attributes:
        edges: `[bins + 1]` of the top probability, from 1 / classes to 1.
        shares: `[bins]` of the instances.
        mean: mean top probability.
        sure: share of the instances with a top probability of at least 0.9.
        num_rows: number of instances.
    """

    edges: np.ndarray
    shares: np.ndarray
    mean: float
    sure: float
    num_rows: int


def confidence(probabilities: np.ndarray, bins: int = 20) -> Confidence:
    """Sort the instances by their highest probability."""
    top = probabilities.max(axis=1)
    counts, edges = np.histogram(top, bins=bins, range=(1 / probabilities.shape[1], 1))
    return Confidence(edges, counts / len(top), float(top.mean()), float((top >= 0.9).mean()), len(top))


@dataclass(frozen=True)
class ClassShare:
    """One class over all described bags with known proportions.

    Attributes:
        label: of the class.
        known: its share by the known proportions.
        predicted: mean of its predicted probabilities.
        chosen: share of the instances for which it is the most likely class.
        error: mean absolute difference between known and predicted share of bags.
    """

    label: str
    known: float
    predicted: float
    chosen: float
    error: float


def class_balance(bags: BagComparison, probabilities: np.ndarray, labels: list[str]) -> list[ClassShare]:
    """Compare the classes, the most frequent first; `probabilities` of the instances of these bags, in any order."""
    weights = bags.sizes / bags.sizes.sum()
    chosen = np.bincount(probabilities.argmax(axis=1), minlength=len(labels)) / len(probabilities)
    columns = zip(
        labels,
        (weights @ bags.known).tolist(),
        (weights @ bags.predicted).tolist(),
        chosen.tolist(),
        np.abs(bags.known - bags.predicted).mean(axis=0).tolist(),
        strict=True,
    )
    return sorted((ClassShare(*values) for values in columns), key=lambda share: -share.known)
