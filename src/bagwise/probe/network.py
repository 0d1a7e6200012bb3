"""A fitted probe as a module: features in, logits out, for rows it has never seen."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Self

from torch import Tensor, nn

from bagwise.probe.features import comparable
from bagwise.probe.neighbours import Bank, nearest_rows


class ProbeNetwork(nn.Module):
    r"""Logits of rows from those of the nearest training rows.

    Smoothing is linear, and so is the head. So the logits of a row that is averaged R times with its k neighbours are
    those of the row itself, weighted by :math:`(k + 1)^{-R}`, plus what each neighbour passes on to it, which does not
    depend on the row.

    Stored are m training rows, drawn at random where there are more than 100,000, in p directions (at most 128), and
    what each passes on to K classes: 4 m (p + K) bytes and little else, 55 MB at most for 10 classes. Without smoothing
    no row is stored.

    Args:
        centre: `[width]` mean of the training features.
        directions: `[width, p]` in which rows are compared.
        bank: `[m, p]` training rows, by cell.
        passed_on: `[m, classes]` what each adds to the logits of a row that it is a neighbour of.
        cells: `[cells, p]` centres of the cells.
        cell_sizes: `[cells]` how many rows of the bank each holds.
        head: `[p, classes]` of the row itself, times its weight.
        bias: `[classes]`.
        neighbours: how many are averaged; 0 for none.
    """

    centre: Tensor
    directions: Tensor
    bank: Tensor
    passed_on: Tensor
    cells: Tensor
    cell_sizes: Tensor
    head: Tensor
    bias: Tensor
    neighbours: Tensor

    def __init__(
        self,
        *,
        centre: Tensor,
        directions: Tensor,
        bank: Tensor,
        passed_on: Tensor,
        cells: Tensor,
        cell_sizes: Tensor,
        head: Tensor,
        bias: Tensor,
        neighbours: Tensor,
    ) -> None:
        super().__init__()
        self.register_buffer("centre", centre)
        self.register_buffer("directions", directions)
        self.register_buffer("bank", bank)
        self.register_buffer("passed_on", passed_on)
        self.register_buffer("cells", cells)
        self.register_buffer("cell_sizes", cell_sizes)
        self.register_buffer("head", head)
        self.register_buffer("bias", bias)
        self.register_buffer("neighbours", neighbours)
        self._count = int(neighbours)  # read once: forward never waits for a GPU to tell it

    @classmethod
    def from_state(cls, tensors: Mapping[str, Tensor]) -> Self:
        """Return the network that has this `state_dict`; raise RuntimeError where it is not one of a probe."""
        wanted = set(cls.__annotations__)
        if set(tensors) != wanted:
            raise RuntimeError(f"a probe has the tensors {sorted(wanted)}, but there are {sorted(tensors)}.")
        size, width = tensors["bank"].shape, len(tensors["centre"])
        classes = len(tensors["bias"])
        shapes = {
            "directions": (width, size[1]),
            "passed_on": (size[0], classes),
            "cells": (len(tensors["cell_sizes"]), size[1]),
            "head": (size[1], classes),
        }
        for name, shape in shapes.items():
            if tuple(tensors[name].shape) != shape:
                raise RuntimeError(f"{name} must have shape {list(shape)}, but has {list(tensors[name].shape)}.")
        if int(tensors["cell_sizes"].sum()) != size[0] or not 0 <= int(tensors["neighbours"]) < max(1, size[0]):
            raise RuntimeError("the cells of the bank do not add up to its rows.")
        return cls(**tensors)

    def forward(self, features: Tensor) -> Tensor:
        """Return the logits `[rows, classes]` of `features [rows, width]`."""
        rows = comparable(features.to(self.centre.dtype), self.centre) @ self.directions
        logits = rows @ self.head + self.bias
        if self._count == 0:
            return logits
        found = nearest_rows(rows, Bank(self.bank, self.cells, self.cell_sizes), self._count)
        return logits + self.passed_on[found].sum(dim=1)
