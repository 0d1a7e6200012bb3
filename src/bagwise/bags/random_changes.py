"""Strong random changes of whole batches of images, on the device they live on."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import affine_grid, avg_pool2d, grid_sample

from bagwise.bags.augment import ImageAugment, scale_and_offset, set_mean_and_std, shifted
from bagwise.bags.setting_checks import check_between
from bagwise.bags.validation import check_images

# In the order in which they are applied: colours first, then one change of place for all of the geometry.
CHANGES = (
    *("stretch", "posterise", "solarise", "brightness", "contrast", "saturation", "sharpness"),
    *("rotate", "shear_x", "shear_y", "move_x", "move_y", "zoom"),
)

# What a strength of 1 means; see `changed`.
_BLEND = 0.9
_MOST_BITS_LOST = 4
_TURN = math.radians(30)
_SHEAR, _MOVE, _ZOOM = 0.3, 0.3, 0.3


@dataclass(frozen=True)
class RandomChanges:
    """Shift and flip each image, change it in `changes` random ways, cut a square out, and normalise.

    The strong view of methods such as FixMatch, after RandAugment (Cubuk, Zoph, Shlens, Le, 2020) and Cutout (DeVries
    and Taylor, 2017). Each image draws its own changes out of `CHANGES`, each with a random strength. All images are
    changed at once: a change that an image did not draw has strength 0 there.

    Args:
        mean: of each channel, for pixels between 0 and 1 (a tensor or list will do).
        std: of each channel, for pixels between 0 and 1.
        shift: largest shift in either direction, in pixels, as in `ImageAugment`.
        flip: whether to mirror half of the images left to right.
        changes: how many different changes each image undergoes.
        cutout: side of the square that is cut out, as a share of the image's; 0 cuts nothing.

    Example:
        >>> strong = RandomChanges(mean=(0.5, 0.5, 0.5), std=(0.25, 0.25, 0.25), shift=4)
        >>> images = torch.randint(0, 256, (16, 3, 32, 32), dtype=torch.uint8)
        >>> strong(images, torch.Generator().manual_seed(0)).shape
        torch.Size([16, 3, 32, 32])
    """

    mean: tuple[float, ...]
    std: tuple[float, ...]
    shift: int = 1
    flip: bool = True
    changes: int = 2
    cutout: float = 0.5

    def __post_init__(self) -> None:
        set_mean_and_std(self)
        check_between("shift", self.shift, 0, math.inf)
        check_between("changes", self.changes, 0, len(CHANGES) + 1)
        check_between("cutout", self.cutout, 0, 1)

    def __call__(self, instances: Tensor, generator: torch.Generator) -> Tensor:
        """Return a random variant of `instances [n, C, H, W]` uint8 as normalised float32 of the same shape."""
        check_images(instances, num_channels=len(self.mean))
        n, _, height, width = instances.shape
        numbers = torch.rand(n, 2 * len(CHANGES) + 2, generator=generator, device=instances.device)
        order, amount, centre = numbers.split([len(CHANGES), len(CHANGES), 2], dim=1)
        drawn = order.argsort(dim=1).argsort(dim=1) < self.changes  # [n, len(CHANGES)]
        strengths = torch.where(drawn, 2 * amount - 1, 0)
        scale, offset = scale_and_offset(self.mean, self.std, instances.device)
        pixels = shifted(instances, self.shift, self.flip, generator).float()
        images = torch.addcmul(offset, change_colours(pixels, strengths), scale)
        images = change_places(images, strengths)  # what comes in from outside is 0, the mean of the channel
        rows, columns = _part(centre[:, 0], height, self.cutout), _part(centre[:, 1], width, self.cutout)
        hole = rows[:, None, :, None] & columns[:, None, None, :]  # [n, 1, H, W]
        return images.masked_fill(hole, 0).contiguous(memory_format=torch.channels_last)

    def normalise(self, instances: Tensor) -> Tensor:
        """Return `(x / 255 - mean) / std` of uint8 images `[n, C, H, W]` as float32."""
        return ImageAugment(self.mean, self.std).normalise(instances)


def change_colours(images: Tensor, strengths: Tensor) -> Tensor:
    """Change the colours of `images [n, C, H, W]`, floats from 0 to 255, by `strengths [n, len(CHANGES)]` from -1 to 1.

    - stretch: the darkest value of each channel becomes 0, the lightest 255.
    - posterise: up to 4 of 8 bits are dropped.
    - solarise: values above a threshold are inverted, all of them at full strength.
    - brightness, contrast, saturation, sharpness: 1 + 0.9 strength times the distance from black, from the mean grey,
      from grey, from a blurred image.
    """
    strength = {name: strengths[:, place, None, None, None] for place, name in enumerate(CHANGES)}
    # a value that all pixels share cannot be stretched
    low, high = images.amin(dim=(2, 3), keepdim=True), images.amax(dim=(2, 3), keepdim=True)
    stretched = torch.where(high > low, (images - low) * (255 / (high - low).clamp(min=1)), images)
    images = torch.where(strength["stretch"] != 0, stretched, images)
    bits_lost = (strength["posterise"].abs() * (_MOST_BITS_LOST + 1)).floor().clamp(max=_MOST_BITS_LOST)
    images = torch.where(bits_lost > 0, images - images.remainder(bits_lost.exp2()), images)
    images = torch.where(images > 255 * (1 - strength["solarise"].abs()), 255 - images, images)
    images = _blended(torch.zeros_like(images), images, strength["brightness"])
    images = _blended(_grey(images).mean(dim=(2, 3), keepdim=True), images, strength["contrast"])
    images = _blended(_grey(images), images, strength["saturation"])
    return _blended(_blurred(images), images, strength["sharpness"])


def change_places(images: Tensor, strengths: Tensor) -> Tensor:
    """Turn, shear, move and zoom `images [n, C, H, W]` by `strengths [n, len(CHANGES)]` from -1 to 1; outside is 0.

    At full strength: by 30 degrees, by 0.3 of a pixel each pixel, by 0.3 of the image's side, and by 0.3 of its size.
    """
    strength = {name: strengths[:, place] for place, name in enumerate(CHANGES)}
    height, width = images.shape[2:]
    cosine, sine = (strength["rotate"] * _TURN).cos(), (strength["rotate"] * _TURN).sin()
    shear_x, shear_y = strength["shear_x"] * _SHEAR, strength["shear_y"] * _SHEAR
    zoom = 1 + strength["zoom"] * _ZOOM
    # rotation times shear times zoom, in coordinates that run from -1 to 1 along both sides of the image
    rows = (
        zoom * (cosine - sine * shear_y),
        zoom * (cosine * shear_x - sine) * (height / width),
        2 * _MOVE * strength["move_x"],
        zoom * (sine + cosine * shear_y) * (width / height),
        zoom * (sine * shear_x + cosine),
        2 * _MOVE * strength["move_y"],
    )
    matrices = torch.stack(rows, dim=1).view(-1, 2, 3)
    grid = affine_grid(matrices, list(images.shape), align_corners=False)
    return grid_sample(images, grid, mode="bilinear", padding_mode="zeros", align_corners=False)


def _blended(end: Tensor, images: Tensor, strength: Tensor) -> Tensor:
    """Move `images` towards `end` (strength < 0) or away from it, within the range of pixels."""
    return torch.lerp(end.expand_as(images), images, (1 + _BLEND * strength).expand_as(images)).clamp(0, 255)


def _grey(images: Tensor) -> Tensor:
    """How light each pixel is, `[n, 1, H, W]`: of three channels by what the eye makes of red, green and blue."""
    if images.shape[1] != 3:
        return images.mean(dim=1, keepdim=True)
    red, green, blue = images.split(1, dim=1)
    return 0.299 * red + 0.587 * green + 0.114 * blue


def _blurred(images: Tensor) -> Tensor:
    """Each pixel with weight 5 and its neighbours with weight 1."""
    return (9 * avg_pool2d(images, 3, stride=1, padding=1, count_include_pad=False) + 4 * images) / 13


def _part(centre: Tensor, length: int, share: float) -> Tensor:
    """`[n, length]` true on a part of `share` of the length around `centre [n]`, cut off at the ends."""
    side = round(share * length)
    start = (centre * length).floor() - side // 2
    place = torch.arange(length, device=centre.device)
    return (place >= start[:, None]) & (place < start[:, None] + side)
