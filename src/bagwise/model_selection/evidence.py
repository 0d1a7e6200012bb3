"""What a model expects of each bag's counts, beside what is known: the ground of scores and of accuracy estimates.

NumPy in float64: this is bookkeeping after training, on what `predict_proba` returned.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from bagwise.bags.layout import BagLayout
from bagwise.bags.validation import check_one_per_instance, check_proportions

# No instance is ever certain: a class gets at least this share, spread evenly, before variances are compared.
# Without it a single surprise under a probability of exactly 0 would outweigh all other bags together.
_SMOOTHING = 1e-3


@dataclass(frozen=True, eq=False)
class BagEvidence:
    """Known class counts and predicted probabilities of the same bags, bag after bag.

    Bags with unknown proportions (NaN) and bags without instances are left out.

    Attributes:
        layout: which row of `probabilities` lies in which bag.
        counts: `[bags, classes]` known proportions times the size of the bag; need not be whole.
        probabilities: `[instances, classes]` in bag order, on the simplex.
    """

    layout: BagLayout
    counts: np.ndarray
    probabilities: np.ndarray

    @staticmethod
    def collect(proportions: Any, probabilities: Any, bag_index: Any) -> BagEvidence:
        """Check and sort what is known and predicted; see `collect_used`."""
        return BagEvidence.collect_used(proportions, probabilities, bag_index)[0]

    @staticmethod
    def collect_used(proportions: Any, probabilities: Any, bag_index: Any) -> tuple[BagEvidence, np.ndarray]:
        """Check and sort what is known and predicted, and say which of the bags are used, `[bags]`.

        Args:
            proportions: `[bags, classes]` known proportions; a row of NaN is an unknown bag.
            probabilities: `[instances, classes]` predicted probabilities.
            bag_index: `[instances]` the bag (row of `proportions`) of each instance.
        """
        known = np.array(proportions, dtype=np.float64)
        predicted = np.array(probabilities, dtype=np.float64)
        if predicted.ndim != 2:
            raise ValueError(f"probabilities must have shape [instances, classes], but got {list(predicted.shape)}.")
        check_proportions(torch.from_numpy(known), num_classes=predicted.shape[1], device=torch.device("cpu"))
        if not np.allclose(predicted.sum(axis=1), 1, atol=1e-3) or (predicted < 0).any():
            raise ValueError(
                "probabilities must be nonnegative and sum to 1 in every row; pass what predict_proba returns, "
                "not logits."
            )
        index = torch.from_numpy(np.array(bag_index))
        check_one_per_instance("bag_index", len(index), len(predicted))
        layout = BagLayout.from_index(index, len(known))
        used = ~np.isnan(known[:, 0]) & (layout.host_sizes > 0)
        if not used.any():
            raise ValueError("there must be a bag with known proportions and with instances, but there is none.")
        order = np.argsort(index.numpy(), kind="stable")
        rows = order[used[index.numpy()[order]]]
        sizes = layout.host_sizes[used]
        return BagEvidence(BagLayout.from_sizes(sizes), known[used] * sizes[:, None], predicted[rows]), used

    @property
    def sizes(self) -> np.ndarray:
        """`[bags]` number of instances."""
        return self.layout.host_sizes

    def bag_sums(self, values: np.ndarray) -> np.ndarray:
        """Sum `values [instances, ...]` within each bag: `[bags, ...]`."""
        starts = np.cumsum(self.sizes) - self.sizes  # no bag is empty, so reduceat is safe
        return np.add.reduceat(values, starts, axis=0)

    def count_distribution(self, probabilities: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray]:
        r"""Mean `[bags, classes]` and covariance `[bags, classes, classes]` of the counts, if the model is right.

        With labels that are independent given the instances, :math:`y_j \sim f_j`, the counts of a bag have

        .. math:: \mathrm{E}\,c = \sum_j f_j, \qquad \mathrm{Cov}\,c = \sum_j \mathrm{diag} f_j - f_j f_j^\top .

        That is less than the multinomial covariance n (diag p - p p'), the more so the surer the model is.

        Args:
            probabilities: `[instances, classes]` in the order of `self.probabilities`, which are the default.
        """
        f = self.probabilities if probabilities is None else probabilities
        num_classes = f.shape[1]
        f = (1 - _SMOOTHING) * f + _SMOOTHING / num_classes
        mean = self.bag_sums(f)
        covariance = np.zeros((len(mean), num_classes, num_classes))
        covariance[:, np.arange(num_classes), np.arange(num_classes)] = mean
        for block in self.layout.blocks:
            members = f[block.rows.numpy()]  # [b, n, classes]
            if block.mask is not None:
                members = members * block.mask.numpy()[:, :, None]
            covariance[block.bags.numpy()] -= members.transpose(0, 2, 1) @ members
        return mean, covariance

    def count_variance(self) -> np.ndarray:
        """The diagonal of that covariance, `[bags, classes]`, where the whole would be large."""
        f = (1 - _SMOOTHING) * self.probabilities + _SMOOTHING / self.probabilities.shape[1]
        return self.bag_sums(f * (1 - f))


def whitened_residuals(counts: np.ndarray, mean: np.ndarray, covariance: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Residuals in units of their expected noise, and the log-determinant of that noise.

    Counts sum to the size of the bag, so the covariance is singular; the last class says nothing new and is left
    out, which changes neither result but for a constant in the log-determinant.

    Returns:
        `[bags, classes - 1]` residuals with unit covariance if the model is right, and `[bags]` log-determinants.
    """
    factor = np.linalg.cholesky(covariance[:, :-1, :-1])
    residuals = np.linalg.solve(factor, (counts - mean)[:, :-1, None])[:, :, 0]
    log_determinant = 2 * np.log(np.diagonal(factor, axis1=1, axis2=2)).sum(axis=1)
    return residuals, log_determinant
