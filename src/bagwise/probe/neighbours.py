"""The nearest rows of a bank: exact among few, within the cells around a row among many."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

# Below this the bank is one cell and the search is exact.
_MOST_ROWS_IN_ONE_CELL = 8192
# A cell holds about so many rows, and a row is looked for in so many cells: 4096 candidates.
_ROWS_PER_CELL = 256
_CELLS_PER_SEARCH = 16
_LARGEST_CELL = 1024
_K_MEANS_ROUNDS = 8
_ROWS_PER_PASS = 1024


@dataclass(frozen=True)
class Bank:
    """Rows to look for neighbours in, cell after cell; a cell holds rows that lie near each other.

    Attributes:
        rows: `[rows, width]`.
        centres: `[cells, width]`.
        sizes: `[cells]` number of rows of each cell.
    """

    rows: Tensor
    centres: Tensor
    sizes: Tensor


def arrange_bank(rows: Tensor, generator: torch.Generator) -> tuple[Bank, Tensor]:
    """Cut `rows [rows, width]` into cells by k-means.

    Args:
        rows: of the bank, in any order.
        generator: draws the rows that the centres start from; on the CPU.

    Returns:
        The bank, and `[rows]` which of the rows is at each place of it.
    """
    if len(rows) <= _MOST_ROWS_IN_ONE_CELL:
        size = torch.tensor([len(rows)], device=rows.device)
        return Bank(rows, rows.mean(dim=0, keepdim=True), size), torch.arange(len(rows), device=rows.device)
    num_cells = len(rows) // _ROWS_PER_CELL
    drawn = torch.randperm(len(rows), generator=generator)[:num_cells]
    centres = rows[drawn.to(rows.device)]
    cell_of = _nearest(rows, centres)
    for _ in range(_K_MEANS_ROUNDS):
        sums = torch.zeros_like(centres).index_add_(0, cell_of, rows)
        sizes = torch.bincount(cell_of, minlength=num_cells)[:, None]
        centres = torch.where(sizes > 0, sums / sizes.clamp(min=1), centres)
        cell_of = _nearest(rows, centres)
    order = torch.argsort(cell_of, stable=True)
    sizes = torch.bincount(cell_of, minlength=num_cells)
    pieces = ((sizes + _LARGEST_CELL - 1) // _LARGEST_CELL).clamp(min=1)
    cut = [size for whole in sizes.tolist() for size in _cut(whole)]
    return Bank(rows[order], centres.repeat_interleave(pieces, dim=0), torch.tensor(cut, device=rows.device)), order


def _cut(size: int) -> list[int]:
    """Return the sizes of the pieces of a cell: rows that are all alike lie in one, however many, and to compare each
    of them with each other would take the square of their number."""
    return [min(_LARGEST_CELL, size - start) for start in range(0, max(size, 1), _LARGEST_CELL)]


def nearest_rows(rows: Tensor, bank: Bank, count: int, *, own_place: Tensor | None = None) -> Tensor:
    """Return `[rows, count]` the places in the bank of the nearest rows, in no order that means anything.

    The rows whose nearest centre is c are compared with the rows of the 16 cells around c. That is exact where there
    are no more cells, and else finds most of the true neighbours.

    Args:
        rows: `[rows, width]` to look for.
        bank: to look in.
        count: how many; the bank must hold more.
        own_place: `[rows]` the place in the bank of each row itself, which is not its neighbour; -1 for none.
    """
    if torch.compiler.is_exporting():  # a graph that takes any number of rows can neither loop over them nor group them
        return _closeness(rows, bank.rows).topk(count, dim=1).indices
    if len(bank.centres) == 1:
        everything = torch.arange(len(bank.rows), device=rows.device)
        return _nearest_among(rows, bank.rows, everything, count, own_place)
    found = torch.empty(len(rows), count, dtype=torch.long, device=rows.device)
    members = torch.arange(len(bank.rows), device=rows.device).split(bank.sizes.tolist())
    around = _closeness(bank.centres, bank.centres).topk(min(_CELLS_PER_SEARCH, len(bank.centres)), dim=1)
    nearest = _nearest(rows, bank.centres)
    asking = torch.argsort(nearest, stable=True).split(torch.bincount(nearest, minlength=len(bank.centres)).tolist())
    for mine, others in zip(asking, around.indices.tolist(), strict=True):
        if len(mine) == 0:
            continue
        places = torch.cat([members[other] for other in others])
        if len(places) <= count:  # a bank of very uneven cells
            places = torch.arange(len(bank.rows), device=rows.device)
        own = None if own_place is None else own_place[mine]
        found[mine] = _nearest_among(rows[mine], bank.rows[places], places, count, own)
    return found


def _nearest_among(rows: Tensor, candidates: Tensor, places: Tensor, count: int, own_place: Tensor | None) -> Tensor:
    """Return the `places [candidates]` of the nearest candidates, `[rows, count]`."""
    found = []
    for start in range(0, len(rows), _ROWS_PER_PASS):
        closeness = _closeness(rows[start : start + _ROWS_PER_PASS], candidates)
        if own_place is not None:
            own = own_place[start : start + _ROWS_PER_PASS, None]
            closeness.masked_fill_(own == places[None, :], -torch.inf)
        found.append(places[closeness.topk(count, dim=1, sorted=False).indices])
    return torch.cat(found)


def _nearest(rows: Tensor, centres: Tensor) -> Tensor:
    """Return `[rows]` the number of the nearest centre."""
    return torch.cat([_closeness(part, centres).argmax(dim=1) for part in rows.split(8 * _ROWS_PER_PASS)])


def _closeness(rows: Tensor, others: Tensor) -> Tensor:
    """`[rows, others]`: minus half the squared distance, up to a constant for each row."""
    return torch.addmm(others.square().sum(dim=1).div(-2), rows, others.T)
