"""Rows that can be compared, and the same averaged over their neighbours."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from bagwise.probe.features import comparable, mean_with_neighbours, principal_directions
from bagwise.probe.neighbours import Bank, arrange_bank, nearest_rows

# Neighbours are nearly the same in so many directions as in all, and far sooner found.
_DIRECTIONS_COMPARED = 128
# What a fitted probe stores at most.
MOST_ROWS_IN_BANK = 100_000
_ROWS_PER_PASS = 8192


@dataclass(frozen=True, eq=False)
class ComparedRows:
    """Training rows of length one, in few directions; as they are, or averaged with their neighbours.

    Attributes:
        centre: `[width]` mean of the features.
        directions: `[width, p]` in which rows are compared.
        rows: `[rows, p]`.
        in_bank: `[m]` the rows among which neighbours are looked for.
        neighbours: how many a row was averaged with in each round; 0 where there was none.
        bank: the rows in the bank, arranged for the search; None where there was no round.
        levels: what a row was averaged with in the first round, in the second, ...: `[m, p]`, in the order of the bank.
    """

    centre: Tensor
    directions: Tensor
    rows: Tensor
    in_bank: Tensor
    neighbours: int = 0
    bank: Bank | None = None
    levels: tuple[Tensor, ...] = ()


def compare(features: Tensor, generator: torch.Generator, device: torch.device | str) -> ComparedRows:
    """Centre `features [rows, width]`, scale every row to length one, and keep the leading directions."""
    # no second copy of all features: a million rows of 1,000 numbers are 4 GB
    parts = features.split(_ROWS_PER_PASS)
    total = torch.zeros(features.shape[1], dtype=torch.float64, device=device)
    for part in parts:
        total += part.to(device).double().sum(dim=0)
    centre = (total / len(features)).float()
    in_bank = torch.arange(len(features))
    if len(features) > MOST_ROWS_IN_BANK:
        in_bank = torch.randperm(len(features), generator=generator)[:MOST_ROWS_IN_BANK].sort().values
    sample = comparable(features[in_bank.to(features.device)].to(device).float(), centre)
    directions = principal_directions(sample, _DIRECTIONS_COMPARED, generator)
    rows = torch.cat([comparable(part.to(device).float(), centre) @ directions for part in parts])
    return ComparedRows(centre, directions, rows, in_bank.to(rows.device))


def smooth(compared: ComparedRows, neighbours: int, rounds: int, generator: torch.Generator) -> ComparedRows:
    """Replace each row by the mean of itself and its nearest rows in the bank, `rounds` times.

    They are found once, before the first round. No proportions are read.
    """
    rows = compared.rows
    bank, arranged = arrange_bank(rows[compared.in_bank], generator)
    in_bank = compared.in_bank[arranged]
    own_place = torch.full((len(rows),), -1, device=rows.device)
    own_place[in_bank] = torch.arange(len(in_bank), device=rows.device)
    count = min(neighbours, len(in_bank) - 1)
    found = nearest_rows(rows, bank, count, own_place=own_place)
    levels = []
    for _ in range(rounds):
        levels.append(rows[in_bank])
        rows = mean_with_neighbours(rows, levels[-1], found)
    return replace(compared, rows=rows, in_bank=in_bank, neighbours=count, bank=bank, levels=tuple(levels))
