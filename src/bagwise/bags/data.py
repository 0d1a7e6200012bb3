"""`Bags`: instances, the bag of each, and the known label proportions of each bag."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Subset

from bagwise.bags.layout import BagLayout
from bagwise.bags.setting_checks import check_count
from bagwise.bags.stored import StoredRows
from bagwise.bags.validation import (
    check_bag_ids,
    check_bag_index,
    check_counts,
    check_one_per_instance,
    check_proportion_values,
    check_same_names,
)


@runtime_checkable
class MapDataset(Protocol):
    """A map-style dataset whose items are tensors of one shape: what a bag of files on disk looks like."""

    def __len__(self) -> int: ...
    def __getitem__(self, index: int, /) -> Tensor: ...


Instances = Tensor | MapDataset


class Bags:
    """A data set for learning from label proportions. There is no field for the labels of instances.

    Args:
        instances: `[instances, ...]` as a tensor or an array, or a map-style dataset of tensors. A float64
            NumPy array becomes torch's default type; everything else keeps its own.
        bag_ids: `[instances]` the bag of each instance: integers, strings or any hashable.
        proportions: `[bags, classes]` in the order of `bag_names`, or `{bag id: row}`. Rows sum to 1; a row of
            NaN is a bag with unknown proportions.
        counts: true when `proportions` holds class counts; each row is then divided by its sum.
        bag_names: the bag ids in the order of the rows; by default the sorted bag ids.

    Attributes:
        instances: a tensor, or the dataset.
        layout: which instance lies in which bag (a `BagLayout` on the CPU).
        proportions: `[bags, classes]` float32.
        bag_names: `[bags]` the id of each bag.

    Example:
        >>> bags = Bags(torch.randn(5, 3), ["a", "b", "a", "b", "b"], {"a": [1, 1], "b": [0, 3]}, counts=True)
        >>> bags
        Bags(5 instances in 2 bags of 2 to 3, 2 classes)
        >>> bags.proportions
        tensor([[0.5000, 0.5000],
                [0.0000, 1.0000]])
    """

    instances: Instances
    layout: BagLayout
    proportions: Tensor
    bag_names: tuple[Hashable, ...]

    def __init__(
        self,
        instances: Any,
        bag_ids: Any,
        proportions: Any,
        *,
        counts: bool = False,
        bag_names: Sequence[Hashable] | None = None,
    ) -> None:
        self.instances = as_instances(instances)
        index, self.bag_names = number_bags(bag_ids, bag_names)
        check_one_per_instance("bag_ids", len(index), len(self.instances))
        check_count("the number of bags", len(self.bag_names))
        self.layout = BagLayout.from_index(torch.from_numpy(index), len(self.bag_names))
        self.proportions = _proportion_matrix(proportions, self.bag_names, counts)

    @classmethod
    def in_order(cls, instances: Any, sizes: Any, proportions: Any, bag_names: Sequence[Hashable]) -> Bags:
        """Return bags whose instances come bag after bag: the quick way for many millions of instances.

        Args:
            instances: as for `Bags`.
            sizes: `[bags]` number of instances of each bag.
            proportions: `[bags, classes]`; rows sum to 1 or are NaN.
            bag_names: `[bags]` ids, no two of them equal.

        Example:
            >>> Bags.in_order(torch.randn(5, 3), [2, 3], [[0.5, 0.5], [0, 1]], ["a", "b"])
            Bags(5 instances in 2 bags of 2 to 3, 2 classes)
        """
        instances, layout = as_instances(instances), BagLayout.from_sizes(sizes)
        check_one_per_instance("sizes", layout.num_instances, len(instances))
        names = tuple(bag_names)
        return _from_parts(instances, layout, _proportion_matrix(proportions, names, counts=False), names)

    @property
    def num_instances(self) -> int:
        """Number of instances in all bags."""
        return self.layout.num_instances

    @property
    def num_bags(self) -> int:
        """Number of bags; none is empty."""
        return self.layout.num_bags

    @property
    def num_classes(self) -> int:
        """Number of classes."""
        return self.proportions.shape[1]

    def __len__(self) -> int:
        return self.num_bags

    def __repr__(self) -> str:
        low, high = self.layout.host_sizes.min(), self.layout.host_sizes.max()
        sizes = f"{low}" if low == high else f"{low} to {high}"
        bags = f"{self.num_bags} bags of {sizes}"
        return f"Bags({self.num_instances} instances in {bags}, {self.num_classes} classes)"

    def subset(self, bag_numbers: Iterable[int] | np.ndarray | Tensor) -> Bags:
        """Return the bags with these numbers (positions in `bag_names`), with their instances."""
        numbers = torch.as_tensor(bag_numbers if isinstance(bag_numbers, (np.ndarray, Tensor)) else list(bag_numbers))
        check_count("the number of bags in a subset", len(numbers))
        check_bag_index(numbers, self.num_bags)
        chosen = numbers.numpy().astype(np.int64)
        if len(np.unique(chosen)) != len(chosen):
            raise ValueError("a subset must not name a bag twice; two copies of a bag would share one name.")
        rows = self.rows_of(chosen)
        return _from_parts(
            take(self.instances, rows),
            BagLayout.from_sizes(self.layout.host_sizes[chosen]),
            self.proportions[torch.from_numpy(chosen)],
            tuple(self.bag_names[number] for number in chosen),
        )

    def hold_out(self, share: float, seed: int) -> tuple[Bags, Bags]:
        """Split whole bags at random into (training bags, held-out bags); at least one bag on either side."""
        if not 0 < share < 1:
            raise ValueError(f"share must lie strictly between 0 and 1, but got {share}.")
        if self.num_bags < 2:
            raise ValueError("to hold out a bag there must be at least 2 bags, but there is only 1.")
        held_out = min(max(1, round(share * self.num_bags)), self.num_bags - 1)
        order = np.random.default_rng(seed).permutation(self.num_bags)
        return self.subset(np.sort(order[held_out:])), self.subset(np.sort(order[:held_out]))

    def rows_of(self, bag_numbers: np.ndarray) -> np.ndarray:
        """Return the instances of these bags, bag after bag, as `[instances]` row numbers."""
        sizes = self.layout.host_sizes[bag_numbers]
        starts = self.layout.offsets.numpy()
        # positions start, start + 1, ... of every bag at once: a running count, shifted at each new bag
        jumps = starts[bag_numbers] - (np.cumsum(sizes) - sizes)
        positions = np.arange(sizes.sum()) + np.repeat(jumps, sizes)
        return positions if self.layout.order is None else self.layout.order.numpy()[positions]


def as_instances(instances: Any) -> Instances:
    """Return `instances` as a CPU or GPU tensor where it is an array, and as it is where it is a dataset."""
    if isinstance(instances, Tensor):
        return instances
    if isinstance(instances, np.ndarray):
        tensor = torch.from_numpy(np.ascontiguousarray(instances))
        return tensor.to(torch.get_default_dtype()) if tensor.dtype == torch.float64 else tensor
    if hasattr(instances, "columns"):
        raise TypeError(
            "instances must be numbers a network can take, but got a data frame. Pass its values as an array "
            "(frame.to_numpy()), or use ProportionClassifier, which encodes the columns."
        )
    if isinstance(instances, MapDataset) and not isinstance(instances, (str, bytes, Mapping)):
        return instances
    raise TypeError(
        "instances must be a tensor, a NumPy array or a map-style dataset (with len() and indexing), "
        f"but got {type(instances).__name__}."
    )


def take(instances: Instances, rows: np.ndarray) -> Instances:
    """Return the instances in these rows: a copy of a tensor, a view of a dataset."""
    if isinstance(instances, Tensor):
        return instances.index_select(0, torch.from_numpy(rows).to(instances.device))
    if isinstance(instances, StoredRows):
        return instances.take(rows)
    return Subset(instances, rows.tolist())  # pyright: ignore[reportArgumentType, reportReturnType]


def _from_parts(instances: Instances, layout: BagLayout, proportions: Tensor, bag_names: tuple[Hashable, ...]) -> Bags:
    """Assemble bags whose parts are known to fit, without numbering and checking them again."""
    bags = Bags.__new__(Bags)
    bags.instances, bags.layout, bags.proportions, bags.bag_names = instances, layout, proportions, bag_names
    return bags


def number_bags(bag_ids: Any, bag_names: Sequence[Hashable] | None = None) -> tuple[np.ndarray, tuple[Hashable, ...]]:
    """Return the bag number of each instance, `[instances]`, and the name of each bag."""
    check_bag_ids(bag_ids)
    ids = bag_ids.cpu().numpy() if isinstance(bag_ids, Tensor) else bag_ids
    if hasattr(ids, "__array__") and not isinstance(ids, np.ndarray):
        ids = np.asarray(ids)  # a column of a data frame
    if isinstance(ids, np.ndarray) and ids.dtype != object:
        unique, index = np.unique(ids, return_inverse=True)
        if unique.dtype == np.dtype("datetime64[ns]") and (unique == unique.astype("datetime64[us]")).all():
            unique = unique.astype("datetime64[us]")  # Python has no nanoseconds: these would become bare integers
        found: list[Hashable] = unique.tolist()
    else:  # a list stays as it is: as an array, [1, "1"] would become two equal strings
        numbers: dict[Hashable, int] = {}
        try:
            index = np.fromiter((numbers.setdefault(bag, len(numbers)) for bag in ids), dtype=np.int64)
        except TypeError as error:
            raise TypeError(f"a bag id must be a single value, text or a number, but one is not ({error}).") from None
        found = list(numbers)
    if any(_is_missing(bag) for bag in found):
        raise ValueError(
            "every instance must have a bag id, but some ids are missing (None or NaN). "
            "Drop those instances, or put them into a bag of their own with a row of NaN as proportions."
        )
    if bag_names is None:
        try:
            names = sorted(found)  # pyright: ignore[reportArgumentType, reportCallIssue]
        except TypeError:
            other = next((bag for bag in found if type(bag) is not type(found[0])), found[-1])
            raise TypeError(
                f"bag ids must be of one type, so that they can be sorted, but got {found[0]!r} and {other!r}. Convert "
                "them, e.g. all to text."
            ) from None
    else:
        names = list(bag_names)
        if len(set(names)) != len(names):
            raise ValueError("bag_names must not name a bag twice.")
        check_same_names("bag_names", names, found, "Add it, or drop its instances.")
    number_of = {name: number for number, name in enumerate(names)}
    renumber = np.array([number_of[bag] for bag in found], dtype=np.int64)
    return renumber[index], tuple(names)


def _is_missing(bag: Any) -> bool:
    try:
        return bag is None or bool(bag != bag)  # NaN differs from itself
    except TypeError:  # pandas.NA will not say
        return True


def _check_one_order(proportions: Mapping[Hashable, Any]) -> None:
    """Raise where rows that name their classes (a pandas Series) have them in different orders: they go by position."""
    first = None
    for bag, row in proportions.items():
        if hasattr(row, "index") and hasattr(row, "to_dict"):
            classes = list(row.index)
            first = first or (bag, classes)
            if classes != first[1]:
                raise ValueError(
                    f"every row of proportions must have the classes in the same order, but bag {first[0]!r} has "
                    f"{first[1]} and bag {bag!r} has {classes}. Reorder them: row.reindex(classes, fill_value=0)."
                )


def _proportion_matrix(proportions: Any, bag_names: Sequence[Hashable], counts: bool) -> Tensor:
    if isinstance(proportions, Mapping):
        check_same_names("proportions", proportions, bag_names, "Give it a row, of NaN if unknown.")
        widths = {len(row) for row in proportions.values()}
        if len(widths) > 1:
            raise ValueError(f"every row of proportions must have one entry per class, but rows have {widths}.")
        _check_one_order(proportions)
        proportions = np.array([np.asarray(proportions[name], dtype=np.float64) for name in bag_names])
    if hasattr(proportions, "columns"):
        raise TypeError(
            "the rows of a data frame need not be in the order of the bags; pass {bag id: row}, or its values "
            "with bag_names."
        )
    # float64 until the rows are divided: float32 counts above 2**24 would not add up
    if not isinstance(proportions, Tensor):
        proportions = torch.from_numpy(np.array(proportions, dtype=np.float64))
    matrix = proportions.detach().cpu().double()
    if matrix.ndim != 2 or matrix.shape[0] != len(bag_names) or matrix.shape[1] < 2:
        raise ValueError(
            f"proportions must have shape [bags, classes] = [{len(bag_names)}, 2 or more], "
            f"but got {list(matrix.shape)}."
        )
    if counts:
        check_counts(matrix, bag_names)
        matrix = matrix / matrix.sum(dim=1, keepdim=True)
    matrix = matrix.float()
    check_proportion_values(matrix, bag_names)
    return matrix
