"""The data sets of the leaderboard, and the views of an instance that contenders may train on."""

from __future__ import annotations

import os
from dataclasses import dataclass, field

import torch
from torch import Tensor

from bagwise.bags import Augment, ImageAugment
from bagwise.bags.crops import RandomCrops
from bagwise.bags.random_changes import RandomChanges
from bagwise.bags.setting_checks import check_choice
from bagwise.bags.swapped_columns import SwappedColumns
from bagwise.experiments.datasets import DATASET_NAMES, MIRRORED_DATASETS, load_dataset
from bagwise.experiments.datasets.adult import load_adult

BENCHMARK_DATASETS = (*DATASET_NAMES, "adult")

# pixels; digits of 8x8 are centred, and a pixel is much of their width
_SHIFTS = {"digits": 0, "fashion-mnist": 2, "cifar10": 4, "cifar100": 4}


@dataclass(frozen=True)
class Views:
    """What contenders do to instances; the same for all of them.

    Attributes:
        weak: what every training sees; None leaves instances as they are.
        strong: the second view of methods that have one.
        contrastive: for pretraining without proportions; None where there is none (tables, and digits of 8x8 pixels,
            of which a crop leaves nothing to recognise).
    """

    weak: Augment | None
    strong: Augment
    contrastive: RandomCrops | None = None


@dataclass(frozen=True, eq=False)
class BenchmarkData:
    """A labelled data set. Labels make bags and score; they never reach a contender.

    Attributes:
        train: `[n, ...]` images as uint8, or the rows of a table as float32.
        train_labels: `[n]` class numbers.
        test: `[m, ...]`.
        test_labels: `[m]`.
    """

    name: str
    num_classes: int
    train: Tensor = field(repr=False)
    train_labels: Tensor = field(repr=False)
    test: Tensor = field(repr=False)
    test_labels: Tensor = field(repr=False)
    views: Views

    @property
    def is_table(self) -> bool:
        """Whether an instance is a row of a table, not an image."""
        return self.train.ndim == 2

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Shape of one instance, as `build_network` takes it."""
        return tuple(self.train.shape[1:])


def load_benchmark_data(name: str, folder: str | os.PathLike[str] | None = None) -> BenchmarkData:
    """Load a data set by name.

    Args:
        name: "digits", "fashion-mnist", "cifar10", "cifar100" (see `load_dataset`) or "adult" (see `load_adult`).
        folder: of its files.

    Example:
        >>> load_benchmark_data("digits").train.shape
        torch.Size([1442, 1, 8, 8])
    """
    check_choice("dataset", name, BENCHMARK_DATASETS)
    if name == "adult":
        train, test = load_adult(folder)
        tensors = [torch.from_numpy(array) for array in (*train, *test)]
        return BenchmarkData(name, 2, *tensors, views=Views(weak=None, strong=SwappedColumns()))
    dataset = load_dataset(name, folder)
    mean, std = tuple(dataset.pixel_mean.tolist()), tuple(dataset.pixel_std.tolist())
    shift, flip = _SHIFTS[name], name in MIRRORED_DATASETS
    return BenchmarkData(
        name,
        dataset.num_classes,
        dataset.train_images,
        dataset.train_labels,
        dataset.test_images,
        dataset.test_labels,
        Views(
            weak=ImageAugment(mean, std, shift=shift, flip=flip),
            strong=RandomChanges(mean, std, shift=shift, flip=flip),
            contrastive=None if name == "digits" else RandomCrops(mean, std, flip=flip),
        ),
    )
