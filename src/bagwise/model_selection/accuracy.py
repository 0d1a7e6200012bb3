"""How many instances are labelled rightly, told from bags alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from bagwise.bags.setting_checks import check_between, check_choice, check_count
from bagwise.model_selection.evidence import BagEvidence, whitened_residuals

ACCURACY_METHODS = ("auto", "residuals", "temperature")

# From predictions made ten times sharper to ten times flatter, in steps of 7 %.
_TEMPERATURES = np.geomspace(0.1, 10, 69)


@dataclass(frozen=True)
class AccuracyEstimate:
    """An estimate of instance accuracy.

    Attributes:
        accuracy: the estimate, between 0 and 1.
        low: lower end of the bootstrap interval over bags.
        high: upper end.
        level: confidence level of the interval.
        method: "residuals" or "temperature": which one was used.
        dispersion: how much the known proportions differ between bags, relative to bags drawn at random: about 1
            where they are, far more where bags are groups of their own kind.
        num_bags: how many bags it rests on.
        temperature: what the logits were divided by, for method "temperature"; None otherwise.
    """

    accuracy: float
    low: float
    high: float
    level: float
    method: str
    dispersion: float
    num_bags: int
    temperature: float | None = None

    def __str__(self) -> str:
        return (
            f"estimated accuracy {self.accuracy:.1%} ({self.level:.0%} interval {self.low:.1%} to {self.high:.1%}, "
            f"from {self.num_bags} bags)"
        )


def estimate_accuracy(
    proportions: Any,
    probabilities: Any,
    bag_index: Any,
    *,
    method: str = "auto",
    model_of_bag: Any = None,
    level: float = 0.95,
    resamples: int = 1000,
    seed: int = 0,
) -> AccuracyEstimate:
    r"""Estimate the accuracy of predicted classes on instances whose labels nobody knows.

    The predictions must come from bags that were not trained on: held-out bags, or `cross_validate`.

    **"residuals"**. Let e_j = y_j - h_j be the true minus the predicted one-hot label. A wrong prediction has
    |e_j|^2 = 2, a right one 0, so accuracy = 1 - E|e|^2 / 2. The labels are unknown, but the sum of the e_j over a bag
    is not: it is r = known counts - counts of predicted classes. Where instances of a bag err independently of each
    other, variances add up:

    .. math:: \mathrm{E}|e|^2 = \operatorname{tr} \mathrm{Cov}(e) + |\mathrm{E}\,e|^2
              = \frac{\operatorname{tr}\mathrm{Cov}(r)}{n} + \Big|\frac{\mathrm{E}\,r}{n}\Big|^2 .

    It assumes nothing of the probabilities, only of the bags: that an error in one instance tells nothing of the
    errors in the rest of its bag. That holds when bags are drawn at random. Where bags are alike inside (a place, an
    occupation) errors go together, residuals add up faster than n, and the estimate is far too low.

    **"temperature"**. Divides the log-probabilities by the temperature under which the counts are most likely, by
    their mean and covariance (`BagEvidence.count_distribution`; the score of Dawid and Sebastiani), and returns the
    mean top probability. It assumes that one temperature makes the probabilities right, which is seldom quite so.

    **"auto"** (the default) takes "residuals" where the proportions differ between bags about as they would at random
    (see `AccuracyEstimate.dispersion`), else "temperature". On nine labelled cells with random bags "residuals" was
    within 1.4 points of the truth, but for one of 11 bags that it missed by 7: it needs 20 bags or more. There
    "temperature" was worse; on bags by a real column, where "residuals" was useless, it was 2.6 points off
    (benchmarks/accuracy_estimate.py).

    The interval is a bootstrap over bags: it shows the luck of these bags, not a breach of the assumptions.

    Args:
        proportions: `[bags, classes]` known proportions; a row of NaN is an unknown bag.
        probabilities: `[instances, classes]` as predicted.
        bag_index: `[instances]` the bag (row of `proportions`) of each instance.
        method: "auto", "residuals" or "temperature".
        model_of_bag: `[bags]` which of several models (folds) predicted each bag; each may lean its own way.
        level: of the interval.
        resamples: number of bootstrap samples.
        seed: of the bootstrap.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> labels, wrong = rng.integers(3, size=6400), rng.random(6400) < 0.1
        >>> predicted = np.where(wrong, (labels + 1) % 3, labels)
        >>> counts = np.eye(3)[labels].reshape(200, 32, 3).sum(axis=1)
        >>> print(estimate_accuracy(counts / 32, np.eye(3)[predicted], np.arange(6400) // 32))
        estimated accuracy 89.0% (95% interval 87.4% to 90.4%, from 200 bags)
    """
    check_choice("method", method, ACCURACY_METHODS)
    check_between("level", level, 0, 1)
    check_count("resamples", resamples)
    evidence, used = BagEvidence.collect_used(proportions, probabilities, bag_index)
    num_bags = len(evidence.sizes)
    models = np.zeros(num_bags, dtype=np.int64) if model_of_bag is None else np.asarray(model_of_bag)[used]
    dispersion = _dispersion(evidence)
    if method == "auto":
        method = "residuals" if dispersion < _highest_random_dispersion(*evidence.counts.shape) else "temperature"
    temperature = None
    if method == "residuals":
        per_bag = np.stack([_square_errors(evidence, models), evidence.sizes], axis=1)
        sums = _resampled_sums(per_bag, resamples, seed)
        accuracies = np.clip(1 - 0.5 * sums[:, 0] / sums[:, 1], 0, 1)
    else:
        misfit, expected_right = _at_temperatures(evidence)
        sums = _resampled_sums(np.column_stack([evidence.sizes, misfit, expected_right]), resamples, seed)
        num_instances, misfit, expected_right = np.split(sums, [1, 1 + len(_TEMPERATURES)], axis=1)
        best = misfit.argmin(axis=1, keepdims=True)  # [samples, 1]
        accuracies = (np.take_along_axis(expected_right, best, axis=1) / num_instances)[:, 0]
        temperature = float(_TEMPERATURES[best[0, 0]])
    low, high = np.quantile(accuracies[1:], [(1 - level) / 2, (1 + level) / 2])
    return AccuracyEstimate(
        float(accuracies[0]), float(low), float(high), level, method, dispersion, num_bags, temperature
    )


def _dispersion(evidence: BagEvidence) -> float:
    """Pearson's chi-square of the counts against equal shares in all bags, per degree of freedom."""
    counts = evidence.counts[:, evidence.counts.sum(axis=0) > 0]
    num_bags, num_classes = counts.shape
    if num_bags == 1 or num_classes == 1:
        return 1.0  # nothing to compare
    expected = evidence.sizes[:, None] * counts.sum(axis=0) / counts.sum()
    return float((np.square(counts - expected) / expected).sum() / ((num_bags - 1) * (num_classes - 1)))


def _highest_random_dispersion(num_bags: int, num_classes: int) -> float:
    """A quarter more than random bags show does no harm; beyond that, four standard errors are not chance."""
    return 1.25 + 4 * np.sqrt(2 / max((num_bags - 1) * (num_classes - 1), 1))


def _resampled_sums(per_bag: np.ndarray, resamples: int, seed: int) -> np.ndarray:
    """Sums of `per_bag [bags, quantities]` over bootstrap samples, `[1 + resamples, quantities]`.

    The first sample is the data themselves.
    """
    num_bags = len(per_bag)
    generator, share = np.random.default_rng(seed), np.full(num_bags, 1 / num_bags)
    # few samples at a time: how often each bag is in each of them would fill the memory with many bags
    samples_at_once = max(1, 10_000_000 // num_bags)
    blocks = [samples_at_once] * (resamples // samples_at_once) + [resamples % samples_at_once]
    return np.concatenate(
        [per_bag.sum(axis=0)[None], *(generator.multinomial(num_bags, share, size=size) @ per_bag for size in blocks)]
    )


def _square_errors(evidence: BagEvidence, models: np.ndarray) -> np.ndarray:
    """Return each bag's part in E|e|^2 times the number of instances, `[bags]`."""
    num_classes = evidence.counts.shape[1]
    predicted = np.eye(num_classes)[evidence.probabilities.argmax(axis=1)]
    residuals = evidence.counts - evidence.bag_sums(predicted)
    sizes = evidence.sizes.astype(np.float64)
    _, model = np.unique(models, return_inverse=True)
    num_models = model.max() + 1
    spare = len(sizes) - num_models
    if spare < 1:
        raise ValueError(
            f"method 'residuals' needs more bags than models, but there are {len(sizes)} bags for {num_models} "
            "models. Use fewer folds or method 'temperature'."
        )
    instances = np.bincount(model, weights=sizes)  # [models]
    lean = np.stack([np.bincount(model, weights=column) for column in residuals.T], axis=1) / instances[:, None]
    deviations = residuals - sizes[:, None] * lean[model]
    # each model's lean is fitted to its bags, which takes one bag's worth of variance
    variance = np.square(deviations).sum(axis=1) * len(sizes) / spare
    # and adds its own sampling variance to its square
    lean_square = np.square(lean).sum(axis=1) - variance.sum() / sizes.sum() / instances
    return variance + sizes * lean_square[model]


def _at_temperatures(evidence: BagEvidence) -> tuple[np.ndarray, np.ndarray]:
    """Return how badly the counts fit, and how many instances are right, both `[bags, temperatures]`."""
    log_f = np.log(np.maximum(evidence.probabilities, 1e-12))
    misfit, expected_right = [], []
    for temperature in _TEMPERATURES:
        f = np.exp(log_f / temperature)  # at most 1, and the largest class keeps it from underflowing
        f /= f.sum(axis=1, keepdims=True)
        residuals, log_determinant = whitened_residuals(evidence.counts, *evidence.count_distribution(f))
        misfit.append(np.square(residuals).sum(axis=1) + log_determinant)
        expected_right.append(evidence.bag_sums(f.max(axis=1)))
    return np.stack(misfit, axis=1), np.stack(expected_right, axis=1)
