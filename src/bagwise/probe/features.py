"""From features of any scale to rows that can be compared, and to means over their neighbours."""

from __future__ import annotations

import torch
from torch import Tensor

_ROWS_PER_PASS = 8192
# Up to this width all directions are computed at once; beyond it, only the leading ones, by iteration.
_WIDEST_SCATTER = 1024
_ITERATIONS = 4
_SPARE_DIRECTIONS = 16


def comparable(features: Tensor, centre: Tensor) -> Tensor:
    """Return `features [rows, ...]` as rows of length one around `centre [width]`; what is at the centre stays zero."""
    return torch.nn.functional.normalize(features.flatten(1) - centre, dim=1)


def principal_directions(rows: Tensor, most: int, generator: torch.Generator) -> Tensor:
    """Return the principal directions of `rows [rows, width]`, `[width, at most most]`, the largest variance first.

    Args:
        rows: centred or not.
        most: how many directions.
        generator: where the iteration for wide rows starts; on the CPU.
    """
    centre, width = rows.mean(dim=0), rows.shape[1]
    if width <= _WIDEST_SCATTER:
        directions = _eigenvectors(_scatter(rows, centre))[:, :most]
    else:
        # Subspace iteration (Halko et al. 2011), with a few directions more than are asked for, then exactly within it.
        start = torch.randn(width, min(most + _SPARE_DIRECTIONS, width), generator=generator).to(rows)
        basis = torch.linalg.qr(start).Q
        for _ in range(_ITERATIONS):
            image = torch.zeros_like(basis)
            for part in rows.split(_ROWS_PER_PASS):
                centred = part - centre
                image += centred.T @ (centred @ basis)
            basis = torch.linalg.qr(image).Q
        within = torch.cat([(part - centre) @ basis for part in rows.split(_ROWS_PER_PASS)])
        directions = basis.double() @ _eigenvectors(_scatter(within, within.mean(dim=0)))[:, :most]
    # a direction and its opposite are as good: fix the sign, so that all machines choose the same
    largest = directions.abs().argmax(dim=0, keepdim=True)
    return (directions * directions.gather(0, largest).sign()).to(rows.dtype)


def mean_with_neighbours(rows: Tensor, bank: Tensor, neighbours: Tensor) -> Tensor:
    """Return the mean of each row and its neighbours, `[rows, count]` places in the bank."""
    sums = [bank[places].sum(dim=1) for places in neighbours.split(_ROWS_PER_PASS)]
    return (rows + torch.cat(sums)) / (neighbours.shape[1] + 1)


def _scatter(rows: Tensor, centre: Tensor) -> Tensor:
    scatter = torch.zeros(rows.shape[1], rows.shape[1], dtype=torch.float64, device=rows.device)
    for part in rows.split(_ROWS_PER_PASS):
        centred = part - centre
        scatter += centred.T @ centred
    return scatter


def _eigenvectors(scatter: Tensor) -> Tensor:
    """`[width, width]`, of the largest eigenvalue first."""
    return torch.linalg.eigh(scatter).eigenvectors.flip(1)
