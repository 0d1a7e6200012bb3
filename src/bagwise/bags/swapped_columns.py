"""A strong view of the rows of a table: some of their columns come from other rows."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from bagwise.bags.setting_checks import check_between
from bagwise.bags.validation import check_groups


@dataclass(frozen=True)
class SwappedColumns:
    """Replace a random share of the columns of each row by the values of a random other row of the batch.

    What comes in is a likely value of its column, which noise would not be, and nothing has to be known about the
    columns (Bahri, Jiang, Tay, Metzler: *SCARF*, 2022, where each value has a row of its own).

    Args:
        share: chance of each column to be replaced.
        groups: the column of the table that each input comes from, where several inputs encode one column; such
            inputs are replaced together. None: each input is a column.

    Example:
        >>> strong = SwappedColumns(share=0.5)
        >>> strong(torch.tensor([[1, 2, 3, 4], [5, 6, 7, 8]]), torch.Generator().manual_seed(0))
        tensor([[5, 2, 7, 8],
                [1, 6, 3, 8]])
    """

    share: float = 0.3
    groups: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        check_between("share", self.share, 0, 1)
        if self.groups is not None:
            object.__setattr__(self, "groups", tuple(int(group) for group in self.groups))

    def __call__(self, instances: Tensor, generator: torch.Generator) -> Tensor:
        """Return a random variant of each of `instances [n, inputs]`."""
        n, width = instances.shape
        device = instances.device
        chance = torch.rand(n, width, generator=generator, device=device)
        if self.groups is not None:
            check_groups(self.groups, width)
            chance = chance.index_select(1, _on_device(self.groups, device))  # one number for all inputs of a column
        # a row is never its own donor, unless it is alone
        steps = torch.randint(1, max(n, 2), (n,), generator=generator, device=device)
        donors = (torch.arange(n, device=device) + steps) % n
        return torch.where(chance < self.share, instances.index_select(0, donors), instances)

    def normalise(self, instances: Tensor) -> Tensor:
        """Return the instances as they are."""
        return instances


@lru_cache(maxsize=16)  # made anew in each step, it would make the GPU wait for the copy
def _on_device(groups: tuple[int, ...], device: torch.device) -> Tensor:
    return torch.tensor(groups, device=device)
