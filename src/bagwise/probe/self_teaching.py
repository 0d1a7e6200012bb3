"""The head learns from labels: its own, apportioned among the rows of each bag, by turns."""

from __future__ import annotations

import numpy as np
import torch
from scipy.optimize import minimize
from torch import Tensor

from bagwise.bags.layout import BagLayout
from bagwise.functional.labelling import Labelling, apportioned, is_sure, mixed, sharpened
from bagwise.probe.head import blas_of_scipy

_TURNS = 20
_LABELLING = Labelling(memory=0.3)
# Few steps of a turn, from where the last one ended: a head that follows every label confirms their mistakes.
_STEPS = 5
_RIDGE = 1e-4


def self_taught_head(rows: Tensor, layout: BagLayout, proportions: Tensor, start: Tensor) -> Tensor:
    """Return a head `[width + 1, classes]` float64, biases last, that learned from labels of single rows.

    In each turn the proportions of every bag are apportioned among its rows by what is thought of each, as `self_train`
    does it; what gets a sure label is learned from, and the head then says what it thinks of each row. So it can use
    more columns than bags could teach, and a start from smoothed rows sees what single rows tell.

    Args:
        rows: `[rows, width]`, of mean square length 16 as for `head.fit_head`.
        layout: which row lies in which bag.
        proportions: `[bags, classes]`; rows of bags with unknown ones keep what is thought of them as their labels.
        start: `[rows, classes]` the probabilities of the first turn.
    """
    bank = start.float()
    head = start.new_zeros(rows.shape[1] + 1, start.shape[1], dtype=torch.float64)
    for _ in range(_TURNS):
        labels = sharpened(apportioned(bank, layout, proportions.float()), _LABELLING.temperature)
        weights = is_sure(labels, _LABELLING.cut, _LABELLING.least).float()
        head = _followed(head, rows, labels, weights)
        predictions = torch.addmm(head[-1].float(), rows, head[:-1].float()).softmax(dim=1)
        bank = mixed(bank, predictions, _LABELLING.memory)
    return head * _LABELLING.temperature  # as sure as the plans were before they were sharpened


def _followed(head: Tensor, rows: Tensor, labels: Tensor, weights: Tensor) -> Tensor:
    """Return `head` after a few steps of L-BFGS towards `labels [rows, classes]`, by cross-entropy and a ridge."""
    targets, share = labels.T.contiguous(), weights / len(rows)

    def value_and_gradient(flat: np.ndarray) -> tuple[float, np.ndarray]:
        now = torch.from_numpy(flat.reshape(head.shape)).to(rows)
        # classes before rows in memory, as in `head.fit_head`
        log_f = torch.addmm(now[-1][:, None], now[:-1].T, rows.T).log_softmax(dim=0)
        value = -(targets * log_f).sum(dim=0) @ share + 0.5 * _RIDGE * now[:-1].square().sum()
        by_logits = (log_f.exp() - targets) * share
        gradient = torch.cat([by_logits @ rows, by_logits.sum(dim=1, keepdim=True)], dim=1).T
        gradient[:-1] += _RIDGE * now[:-1]
        return float(value), gradient.double().flatten().cpu().numpy()

    with blas_of_scipy().limit(limits=1):
        begin = head.flatten().cpu().numpy()
        found = minimize(value_and_gradient, begin, jac=True, method="L-BFGS-B", options={"maxiter": _STEPS})
    return torch.from_numpy(found.x.reshape(head.shape)).to(head.device)
