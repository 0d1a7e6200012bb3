"""Random crops in random colours of whole batches of images: the views of contrastive learning."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor
from torch.nn.functional import grid_sample

from bagwise.bags.augment import ImageAugment, scale_and_offset, set_mean_and_std
from bagwise.bags.setting_checks import check_between, check_count
from bagwise.bags.validation import check_images

_MOST_ELONGATED = math.log(4 / 3)  # a crop is at most 4 wide to 3 high, or the other way round
_CHANCE_OF_NEW_COLOURS = 0.8


@dataclass(frozen=True)
class RandomCrops:
    """Cut a random rectangle out of each image, bring it to one size, flip it, change its colours, and normalise.

    The views of SimCLR (Chen, Kornblith, Norouzi, Hinton, 2020) without blur, which small pictures cannot spare. Every
    change of colours is affine in red, green and blue, so one product of matrices makes them all; hue is a rotation
    about the grey axis.

    Args:
        mean: of each channel, for pixels between 0 and 1 (a tensor or list will do).
        std: of each channel, for pixels between 0 and 1.
        size: side of the views in pixels; None is the height of the images. Smaller views make cheaper steps.
        smallest: smallest area of a crop, as a share of the image's.
        flip: whether to mirror half of the images left to right.
        colours: how far brightness, contrast and saturation change: by a factor between 1 - colours and 1 + colours.
        hue: how far the hue turns, at most, as a share of the circle.
        grey: share of the views that lose their colours.

    Example:
        >>> views = RandomCrops(mean=(0.5, 0.5, 0.5), std=(0.25, 0.25, 0.25), size=24)
        >>> images = torch.randint(0, 256, (16, 3, 32, 32), dtype=torch.uint8)
        >>> views(images, torch.Generator().manual_seed(0)).shape
        torch.Size([16, 3, 24, 24])
    """

    mean: tuple[float, ...]
    std: tuple[float, ...]
    size: int | None = None
    smallest: float = 0.2
    flip: bool = True
    colours: float = 0.4
    hue: float = 0.1
    grey: float = 0.2

    def __post_init__(self) -> None:
        set_mean_and_std(self)
        if self.size is not None:
            check_count("size", self.size)
        check_between("smallest", self.smallest, 0, 1)
        check_between("colours", self.colours, 0, 1)
        check_between("hue", self.hue, 0, 0.5)
        check_between("grey", self.grey, 0, 1)

    def __call__(self, instances: Tensor, generator: torch.Generator) -> Tensor:
        """Return a random view of each of `instances [n, C, H, W]` uint8, float32 `[n, C, size, size]`."""
        check_images(instances, num_channels=len(self.mean))
        draws = torch.rand(len(instances), 11, generator=generator, device=instances.device)
        place, colour = draws.split([5, 6], dim=1)
        size = self.size or instances.shape[2]
        views = grid_sample(
            instances.float(), self._grid(place, size), mode="bilinear", padding_mode="border", align_corners=False
        )
        views = self._in_new_colours(views, colour)
        scale, offset = scale_and_offset(self.mean, self.std, instances.device)
        return torch.addcmul(offset, views, scale).contiguous(memory_format=torch.channels_last)

    def normalise(self, instances: Tensor) -> Tensor:
        """Return `(x / 255 - mean) / std` of uint8 images `[n, C, H, W]` as float32."""
        return ImageAugment(self.mean, self.std).normalise(instances)

    def _grid(self, draws: Tensor, size: int) -> Tensor:
        """Where each pixel of the views lies in its image, `[n, size, size, 2]` from -1 to 1, from `draws [n, 5]`."""
        area, shape, x, y, mirror = draws.unbind(1)
        area = self.smallest + (1 - self.smallest) * area
        stretch = (_MOST_ELONGATED * (shape - 0.5)).exp()  # square root of width / height
        width, height = ((area.sqrt() * side).clamp(max=1) for side in (stretch, 1 / stretch))
        left, top = (1 - width) * (2 * x - 1), (1 - height) * (2 * y - 1)  # the middle of the crop
        across = torch.where(mirror < 0.5, -width, width) if self.flip else width
        steps = _pixel_middles(size, draws.device)
        columns = left[:, None] + across[:, None] * steps  # [n, size]
        rows = top[:, None] + height[:, None] * steps
        return torch.stack(torch.broadcast_tensors(columns[:, None, :], rows[:, :, None]), dim=3)

    def _in_new_colours(self, views: Tensor, draws: Tensor) -> Tensor:
        """Change the colours of `views [n, C, size, size]`, from 0 to 255, by `draws [n, 6]` from 0 to 1."""
        n, channels, height, width = views.shape
        which, *draw = (column[:, None, None] for column in draws.unbind(1))
        changed = which < _CHANCE_OF_NEW_COLOURS
        brightness, contrast, saturation = (
            torch.where(changed, 1 + self.colours * (2 * value - 1), 1) for value in draw[:3]
        )
        colour_of_mean = views.mean(dim=(2, 3))[:, :, None]  # [n, C, 1]
        if channels == 3:
            unit, grey, turn = _colour_axes(views.device)
            angle = torch.where(changed, 2 * math.pi * self.hue * (2 * draw[3] - 1), 0)
            # Rodrigues' rotation about the grey axis; what is left of colour then shrinks or grows around grey
            rotation = unit + angle.sin() * turn + (1 - angle.cos()) * (turn @ turn)
            saturation = torch.where(draw[4] < self.grey, 0, saturation)
            matrix = (saturation * unit + (1 - saturation) * grey) @ rotation  # [n, 3, 3]
            level = grey @ colour_of_mean
        else:
            matrix, level = torch.eye(channels, device=views.device), colour_of_mean
        # contrast moves pixels away from the mean grey, and brightness then moves all of them away from black
        pixels = (brightness * contrast * matrix) @ views.reshape(n, channels, -1)
        pixels = pixels + brightness * (1 - contrast) * level
        return pixels.clamp(0, 255).view(n, channels, height, width)


@lru_cache(maxsize=16)  # constants made anew in each step would make the GPU wait for the copy
def _pixel_middles(size: int, device: torch.device) -> Tensor:
    return ((torch.arange(size, dtype=torch.float32) + 0.5) * (2 / size) - 1).to(device)


@lru_cache(maxsize=16)
def _colour_axes(device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    """The unit matrix, the one that makes a colour grey, and the cross product with the grey axis, each `[3, 3]`."""
    grey = torch.tensor([0.299, 0.587, 0.114]).expand(3, 3)
    turn = torch.tensor([[0.0, -1.0, 1.0], [1.0, 0.0, -1.0], [-1.0, 1.0, 0.0]]) / math.sqrt(3)
    return torch.eye(3).to(device), grey.to(device), turn.to(device)
