"""Rows of a sparse matrix that become dense only when they are needed, a batch at a time."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from bagwise.tables.columns import Numbers


class SparseRows:
    """A map-style dataset of the inputs made of a SciPy CSR matrix."""

    def __init__(self, matrix: Any, numbers: Numbers) -> None:
        self._matrix, self._numbers = matrix, numbers

    def __len__(self) -> int:
        return self._matrix.shape[0]

    def __getitem__(self, row: int) -> Tensor:
        return self.__getitems__([row])[0]

    def __getitems__(self, rows: list[int]) -> Tensor:
        """Return several rows at once, `[rows, width]` float32."""
        dense = self._matrix[rows].toarray().astype(float, copy=False)
        return torch.from_numpy(self._numbers.encode(dense))
