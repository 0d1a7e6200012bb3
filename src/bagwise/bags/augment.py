"""Augmentation of whole batches of images on the device they live on."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Protocol

import torch
from torch import Tensor

from bagwise.bags.setting_checks import check_between
from bagwise.bags.validation import check_images


class Augment(Protocol):
    """What a loader does to a batch of raw instances before the network sees them."""

    def __call__(self, instances: Tensor, generator: torch.Generator) -> Tensor:
        """Return a random variant of each instance, drawn from `generator` alone; for training."""
        ...

    def normalise(self, instances: Tensor) -> Tensor:
        """Return the instances as they are, in the form the network expects; for evaluation."""
        ...


@dataclass(frozen=True)
class ImageAugment:
    """Shift each image by up to `shift` pixels (the edge is reflected), flip it at random, and normalise.

    Args:
        mean: of each channel, for pixels between 0 and 1 (a tensor or list will do).
        std: of each channel, for pixels between 0 and 1.
        shift: largest shift in either direction, in pixels.
        flip: whether to mirror half of the images left to right.

    Example:
        >>> augment = ImageAugment(mean=(0.5,), std=(0.25,), shift=1, flip=False)
        >>> images = torch.randint(0, 256, (16, 1, 8, 8), dtype=torch.uint8)
        >>> augment(images, torch.Generator().manual_seed(0)).shape
        torch.Size([16, 1, 8, 8])
    """

    mean: tuple[float, ...]
    std: tuple[float, ...]
    shift: int = 1
    flip: bool = True

    def __post_init__(self) -> None:
        check_between("shift", self.shift, 0, math.inf)
        set_mean_and_std(self)

    def __call__(self, instances: Tensor, generator: torch.Generator) -> Tensor:
        """Shift, flip and normalise `instances [n, C, H, W]` uint8; returns float32 of the same shape."""
        return self.normalise(shifted(instances, self.shift, self.flip, generator))

    def normalise(self, instances: Tensor) -> Tensor:
        """Return `(x / 255 - mean) / std` of uint8 images `[n, C, H, W]` as float32."""
        check_images(instances, num_channels=len(self.mean))
        scale, offset = scale_and_offset(self.mean, self.std, instances.device)
        return torch.addcmul(offset, instances.float(), scale)


def shifted(images: Tensor, shift: int, flip: bool, generator: torch.Generator) -> Tensor:
    """Shift each of `images [n, C, H, W]` by up to `shift` pixels, reflected at the edge, and `flip` half of them."""
    n, _, height, width = images.shape
    device = images.device

    def positions(length: int) -> Tensor:
        offset = torch.randint(-shift, shift + 1, (n, 1), generator=generator, device=device)  # [n, 1]
        place = torch.arange(length, device=device) + offset  # [n, length]
        return (length - 1) - ((length - 1) - place.abs()).abs()  # reflected at both edges

    rows, columns = positions(height), positions(width)
    if flip:
        mirrored = torch.rand(n, 1, generator=generator, device=device) < 0.5
        columns = torch.where(mirrored, width - 1 - columns, columns)
    numbers = torch.arange(n, device=device)
    # one gather does it all; indexing puts the channels last, which is also the layout that GPUs like
    return images[numbers[:, None, None], :, rows[:, :, None], columns[:, None, :]].permute(0, 3, 1, 2)


def set_mean_and_std(augment: Any) -> None:
    """Turn `mean` and `std` of a frozen augmentation, lists or tensors as people have them, into tuples of numbers."""
    for name in ("mean", "std"):
        object.__setattr__(augment, name, tuple(float(value) for value in getattr(augment, name)))
    if min(augment.std, default=1) <= 0:
        raise ValueError(f"std must be positive for every channel, but got {augment.std}. Use 1 for a constant one.")


@lru_cache(maxsize=16)  # a constant made anew in each step would make the GPU wait for the copy
def scale_and_offset(mean: tuple[float, ...], std: tuple[float, ...], device: torch.device) -> tuple[Tensor, Tensor]:
    """Return what a pixel from 0 to 255 is multiplied by and what is added, each `[1, C, 1, 1]`, to normalise it."""
    means, stds = (torch.tensor(values).view(1, -1, 1, 1) for values in (mean, std))
    return (1 / (255 * stds)).to(device), (-means / stds).to(device)
