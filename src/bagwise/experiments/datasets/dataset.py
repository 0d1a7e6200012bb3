"""What a loaded data set is."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class Dataset:
    """Labelled images in their official split.

    Labels live here because this is where experiments make bags and an evaluator; they never reach a trainer.

    Attributes:
        name: the name that `load_dataset` knows it by.
        train_images: `[n, channels, height, width]` uint8.
        train_labels: `[n]` int64, class numbers from 0.
        test_images: `[m, channels, height, width]` uint8.
        test_labels: `[m]` int64.
        class_names: the name of each class number.
        pixel_mean: `[channels]` float32, of the training pixels on the scale 0 to 1.
        pixel_std: `[channels]` float32, likewise.
    """

    name: str
    train_images: Tensor = field(repr=False)
    train_labels: Tensor = field(repr=False)
    test_images: Tensor = field(repr=False)
    test_labels: Tensor = field(repr=False)
    class_names: tuple[str, ...] = field(repr=False)
    pixel_mean: Tensor
    pixel_std: Tensor

    @staticmethod
    def from_arrays(
        name: str,
        train: tuple[np.ndarray, np.ndarray],
        test: tuple[np.ndarray, np.ndarray],
        class_names: tuple[str, ...],
    ) -> Dataset:
        """Assemble a data set from `(images, labels)` of each split and measure its pixels."""
        train_images, train_labels = (torch.from_numpy(array) for array in train)
        test_images, test_labels = (torch.from_numpy(array) for array in test)
        pixel_mean, pixel_std = _pixel_statistics(train_images)
        return Dataset(
            name=name,
            train_images=train_images,
            train_labels=train_labels,
            test_images=test_images,
            test_labels=test_labels,
            class_names=class_names,
            pixel_mean=pixel_mean,
            pixel_std=pixel_std,
        )

    @property
    def num_classes(self) -> int:
        """Number of classes."""
        return len(self.class_names)

    @property
    def input_shape(self) -> tuple[int, int, int]:
        """Shape `(channels, height, width)` of one image, as `build_network` takes it."""
        channels, height, width = self.train_images.shape[1:]
        return channels, height, width


def _pixel_statistics(images: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation per channel of `images [n, c, h, w]`, scaled to 0..1.

    A histogram of the 256 values holds all that is needed: exact, and no float copy of the images.
    """
    values = torch.arange(256, dtype=torch.float64) / 255
    means, stds = [], []
    for channel in range(images.shape[1]):
        share = torch.bincount(images[:, channel].flatten(), minlength=256).double()
        share /= share.sum()
        mean = (share * values).sum()
        means.append(mean)
        stds.append((share * (values - mean) ** 2).sum().sqrt())
    return torch.stack(means).float(), torch.stack(stds).float()
