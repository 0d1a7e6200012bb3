"""Labelled image data sets, from which experiments make bags and an evaluator.

This module imports nothing heavy, so that the command line can list the names at once.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bagwise.experiments.datasets.dataset import Dataset

__all__ = ["DATASET_NAMES", "MIRRORED_DATASETS", "load_dataset"]

DATASET_NAMES = ("digits", "fashion-mnist", "cifar10", "cifar100")

# Those whose pictures mean the same when mirrored left to right.
MIRRORED_DATASETS = frozenset({"fashion-mnist", "cifar10", "cifar100"})


def load_dataset(name: str, folder: str | os.PathLike[str] | None = None) -> Dataset:
    """Load a data set, checked against its official checksums; download it if it is nowhere to be found.

    Args:
        name: "digits" (inside scikit-learn), "fashion-mnist", "cifar10" or "cifar100".
        folder: the folder with the official files, archives included; else the one that the environment
            variable BAGWISE_DATA names, else `~/.cache/bagwise`.

    Raises:
        ValueError: the name is unknown, or a file is corrupt, truncated or altered.
        FileNotFoundError: the folder does not exist, or the data is neither there nor to be had.

    Example:
        >>> load_dataset("digits").train_images.shape
        torch.Size([1442, 1, 8, 8])
    """
    from bagwise.bags.setting_checks import check_choice

    check_choice("dataset", name, DATASET_NAMES)
    if name == "digits":
        from bagwise.experiments.datasets.digits import load_digits

        return load_digits()
    from bagwise.experiments.datasets.catalogue import CATALOGUE
    from bagwise.experiments.datasets.storage import load_official

    return load_official(CATALOGUE[name], folder)
