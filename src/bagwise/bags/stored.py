"""`StoredRows`: instances that stay in a file on disk, mapped into memory, also when some of them are chosen."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

_ROWS_PER_COPY = 2**16


class StoredRows:
    """A map-style dataset of the rows of a tensor that lives in a memory-mapped file.

    A tensor of instances is copied when some of its bags are held out. This is not: what is copied is row numbers,
    and rows are read when a batch needs them.

    Args:
        tensor: `[rows, ...]` on the CPU.
        rows: `[instances]` which of its rows are the instances; None for all, in their order.

    Example:
        >>> rows = StoredRows(torch.arange(10.0)[:, None])
        >>> some = rows.take(np.array([7, 3, 5]))
        >>> len(some), some[1]
        (3, tensor([3.]))
    """

    def __init__(self, tensor: Tensor, rows: np.ndarray | None = None) -> None:
        self._tensor, self._rows = tensor, rows

    def __len__(self) -> int:
        return len(self._tensor) if self._rows is None else len(self._rows)

    def __getitem__(self, instance: int) -> Tensor:
        return self._tensor[instance if self._rows is None else int(self._rows[instance])]

    def __getitems__(self, instances: list[int] | np.ndarray) -> Tensor:
        """Return a copy of several instances, `[instances, ...]`."""
        rows = np.asarray(instances)
        return self._tensor.index_select(0, torch.from_numpy(rows if self._rows is None else self._rows[rows]))

    @property
    def nbytes(self) -> int:
        """Bytes that a copy of all instances would take."""
        return len(self) * self._tensor[:1].nbytes

    def take(self, instances: np.ndarray) -> StoredRows:
        """Return some of the instances, in this order, in the same file."""
        return StoredRows(self._tensor, instances if self._rows is None else self._rows[instances])

    def to(self, device: torch.device) -> Tensor:
        """Return a copy of all instances on `device`; no other whole copy is made on the way."""
        copy = torch.empty(len(self), *self._tensor.shape[1:], dtype=self._tensor.dtype, device=device)
        for start in range(0, len(self), _ROWS_PER_COPY):
            stop = min(start + _ROWS_PER_COPY, len(self))
            copy[start:stop] = self.__getitems__(np.arange(start, stop))
        return copy
