"""Bags that overlap: an instance may lie in several."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bagwise.bags.data import Instances, MapDataset
from bagwise.bags.setting_checks import check_count
from bagwise.bags.validation import check_one_per_instance


class Memberships:
    """Which instances lie in which bags, as a long list of pairs.

    A loss knows one bag per instance, so an instance that lies in two bags goes through the network twice, once for
    each. Instances are pointed to, not copied. An instance in no pair is not learned from.

    Held-out bags that share instances with training bags are no longer quite unseen; where the overlap is large,
    trust their scores less.

    Args:
        rows: `[memberships]` the row of X (from 0) of each pair.
        bag_ids: `[memberships]` the bag of each pair.

    Example:
        >>> pairs = Memberships([0, 0, 1, 2], ["ward-1", "north", "ward-1", "north"])
        >>> pairs.repeated(torch.tensor([[10.0], [11.0], [12.0]])).__getitems__([0, 1, 2, 3]).flatten()
        tensor([10., 10., 11., 12.])

        In `ProportionClassifier(...).fit(X, bags=pairs, proportions=...)` they take the place of a bag id per row.
    """

    rows: np.ndarray
    bag_ids: list[Hashable]

    def __init__(self, rows: Any, bag_ids: Any) -> None:
        self.rows = np.asarray(rows)
        self.bag_ids = bag_ids.tolist() if hasattr(bag_ids, "tolist") else list(bag_ids)
        check_count("the number of memberships", len(self.bag_ids))
        if self.rows.shape != (len(self.bag_ids),) or not np.issubdtype(self.rows.dtype, np.integer):
            raise ValueError(
                f"rows must hold one row number per membership, [{len(self.bag_ids)}] integers, but has shape "
                f"{list(self.rows.shape)} and type {self.rows.dtype}. Ids in place of numbers go to Memberships.by_id."
            )
        self.rows = self.rows.astype(np.int64)  # torch reads uint8 as a mask, and takes few other types as an index
        seen: set[tuple[int, Hashable]] = set()
        for pair in zip(self.rows.tolist(), self.bag_ids, strict=True):
            if pair in seen:
                raise ValueError(f"an instance lies in a bag once, but row {pair[0]} is in bag {pair[1]!r} twice.")
            seen.add(pair)

    @staticmethod
    def by_id(instance_ids: Any, member_ids: Any, bag_ids: Any) -> Memberships:
        """Return the memberships of a long table of (instance id, bag id).

        Args:
            instance_ids: `[instances]` the id of each row of X, no two alike.
            member_ids: `[memberships]` the column of instance ids of the long table.
            bag_ids: `[memberships]` its column of bag ids.

        Example:
            >>> Memberships.by_id(["ann", "bob"], ["bob", "ann", "bob"], ["choir", "choir", "chess"]).rows
            array([1, 0, 1])
        """
        row_of = {name: row for row, name in enumerate(instance_ids)}
        check_one_per_instance("instance_ids (each counted once)", len(row_of), len(instance_ids))
        members = list(member_ids)
        if unknown := [name for name in members if name not in row_of]:
            raise ValueError(
                f"every member of a bag must be an instance, but {unknown[0]!r} is not among instance_ids. "
                "Give both columns the same type, or drop the members that have no row."
            )
        return Memberships([row_of[name] for name in members], bag_ids)

    def repeated(self, instances: Instances) -> RepeatedRows:
        """Return one item per membership, `[memberships, ...]`, that points into `instances`."""
        low, high = int(self.rows.min()), int(self.rows.max())
        if low < 0 or high >= len(instances):
            raise ValueError(
                f"memberships must name rows from 0 to {len(instances) - 1}, but name row {low if low < 0 else high}."
            )
        return RepeatedRows(instances, self.rows)


class RepeatedRows:
    """A map-style dataset of rows of another, in any order and number; it holds no copies."""

    def __init__(self, instances: Instances, rows: np.ndarray) -> None:
        self._instances, self._rows = instances, rows

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, place: int) -> Tensor:
        return self._instances[int(self._rows[place])]

    def __getitems__(self, places: list[int]) -> Tensor:
        """Return several at once, `[places, ...]`."""
        rows = self._rows[places]
        if isinstance(self._instances, Tensor):
            return self._instances[torch.from_numpy(rows)]
        return _many(self._instances, rows.tolist())


def _many(dataset: MapDataset, rows: list[int]) -> Tensor:
    at_once = getattr(dataset, "__getitems__", None)
    return at_once(rows) if at_once is not None else torch.stack([dataset[row] for row in rows])
