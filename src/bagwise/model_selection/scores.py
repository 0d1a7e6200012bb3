"""How well predictions fit the known proportions of bags. No label of an instance is needed.

A score is a function of (proportions `[bags, classes]`, probabilities `[instances, classes]`, bag_index
`[instances]`), arrays of NumPy, that returns one number, lower is better. Bags with unknown proportions (NaN) are
left out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import numpy as np
from scipy.special import rel_entr

from bagwise.model_selection.evidence import BagEvidence, whitened_residuals

Score = Callable[[Any, Any, Any], float]


def kl_score(proportions: Any, probabilities: Any, bag_index: Any) -> float:
    """Mean over bags of KL(z | p) between known proportions z and mean prediction p, in nats.

    Infinite where a class that occurs is predicted to be impossible.

    Example:
        >>> kl_score([[0.5, 0.5]], [[0.9, 0.1], [0.1, 0.9]], [0, 0])
        0.0
    """
    evidence = BagEvidence.collect(proportions, probabilities, bag_index)
    n = evidence.sizes[:, None]
    known, predicted = evidence.counts / n, evidence.bag_sums(evidence.probabilities) / n
    return float(rel_entr(known, predicted).sum(axis=1).mean())


def l1_score(proportions: Any, probabilities: Any, bag_index: Any) -> float:
    """Mean over bags of the sum of absolute differences between known and predicted proportions, from 0 to 2."""
    evidence = BagEvidence.collect(proportions, probabilities, bag_index)
    difference = evidence.counts - evidence.bag_sums(evidence.probabilities)
    return float((np.abs(difference).sum(axis=1) / evidence.sizes).mean())


def chi_square_score(proportions: Any, probabilities: Any, bag_index: Any) -> float:
    r"""Squared residuals of the counts over the noise expected for each bag's size, per degree of freedom.

    .. math:: \frac{1}{B (K - 1)} \sum_b (c_b - m_b)^\top V_b^{+} (c_b - m_b)

    with the counts' mean m and covariance V under the model (`BagEvidence.count_distribution`). Its expectation is
    1 when the probabilities are right, whatever the sizes of the bags; far above 1 the model is wrong or too sure,
    far below 1 it is less sure than it could be. On bags that were trained on it is too low.

    A check, not a criterion: a model that predicts the overall class shares for everybody scores 1 on random bags
    too. Choose by `kl_score` or `l1_score`.
    """
    evidence = BagEvidence.collect(proportions, probabilities, bag_index)
    residuals, _ = whitened_residuals(evidence.counts, *evidence.count_distribution())
    return float(np.square(residuals).mean())


SCORES: Mapping[str, Score] = MappingProxyType({"kl": kl_score, "l1": l1_score, "chi-square": chi_square_score})
