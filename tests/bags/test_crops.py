import numpy as np
import pytest
import torch
from torch.nn import functional as F

from bagwise.bags.crops import RandomCrops

IMAGES = torch.randint(0, 256, (64, 3, 12, 12), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
PIXELS = {"mean": (0.0,) * 3, "std": (1 / 255,) * 3}  # gives the pixels themselves


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def test_nothing_random_is_just_normalising():
    views = RandomCrops((0.1, 0.2, 0.3), (0.5, 0.6, 0.7), colours=0.0, hue=0.0, grey=0.0)
    # the draws of a crop as large and as wide as the image
    whole = RandomCrops._grid(views, torch.tensor([[1.0, 0.5, 0.5, 0.5, 1.0]]), 12)
    image = F.grid_sample(IMAGES[:1].float(), whole, padding_mode="border", align_corners=False)
    torch.testing.assert_close(image, IMAGES[:1].float(), atol=1e-3, rtol=0)
    colours = RandomCrops._in_new_colours(views, IMAGES.float(), torch.rand(64, 6, generator=generator()))
    torch.testing.assert_close(colours, IMAGES.float(), atol=1e-3, rtol=0)
    torch.testing.assert_close(views.normalise(IMAGES)[0, 2], (IMAGES[0, 2] / 255 - 0.3) / 0.7, atol=1e-6, rtol=1e-5)


def test_a_crop_is_the_rectangle_of_the_image_at_its_place():
    ramp = torch.arange(12.0).expand(1, 3, 12, 12).mul(10).to(torch.uint8)  # columns 0, 10, ..., 110
    views = RandomCrops(**PIXELS, size=6, flip=False, colours=0.0, hue=0.0, grey=0.0)
    quarter = (0.25 - views.smallest) / (1 - views.smallest)  # the draw that gives a quarter of the area, a square
    for x, first in ((0.0, 0.0), (1.0, 60.0)):  # leftmost and rightmost
        grid = RandomCrops._grid(views, torch.tensor([[quarter, 0.5, x, 0.5, 1.0]]), 6)
        crop = F.grid_sample(ramp.float(), grid, padding_mode="border", align_corners=False)
        torch.testing.assert_close(crop[0, 0, 0], first + 10 * torch.arange(6.0), atol=1e-3, rtol=0)


def test_crops_have_the_size_asked_for_and_lie_channels_last():
    assert RandomCrops(**PIXELS)(IMAGES, generator()).shape == IMAGES.shape
    small = RandomCrops(**PIXELS, size=8)(IMAGES, generator())
    assert small.shape == (64, 3, 8, 8)
    assert small.is_contiguous(memory_format=torch.channels_last)


def test_areas_and_shapes_of_crops_are_those_of_the_paper():
    views = RandomCrops(**PIXELS, smallest=0.2, flip=False)
    grid = RandomCrops._grid(views, torch.rand(4000, 5, generator=generator()), 2)  # steps of half a crop
    width, height = (grid[:, 1, 1] - grid[:, 0, 0]).unbind(1)
    area, shape = (width * height).numpy(), (width / height).numpy()
    assert 0.19 < area.min() < 0.22
    assert area.max() <= 1 + 1e-5
    assert shape.min() >= 3 / 4 - 1e-4
    assert shape.max() <= 4 / 3 + 1e-4
    assert abs(np.mean(area) - 0.6) < 0.03
    assert grid.abs().max() <= 1  # nothing from outside the image


def test_half_of_the_views_are_mirrored():
    ramp = torch.arange(12, dtype=torch.uint8).mul(10).expand(200, 3, 12, 12)
    flipped = RandomCrops(**PIXELS)(ramp, generator())
    share = (flipped[:, 0, 6, 0] > flipped[:, 0, 6, -1]).float().mean()
    assert 0.35 < share < 0.65
    kept = RandomCrops(**PIXELS, flip=False)(ramp, generator())
    assert (kept[:, 0, 6, 0] <= kept[:, 0, 6, -1]).all()


def test_grey_views_have_three_equal_channels():
    views = RandomCrops(**PIXELS, colours=0.0, hue=0.0, grey=0.3)(IMAGES.repeat(8, 1, 1, 1), generator())
    is_grey = (views - views.mean(dim=1, keepdim=True)).abs().amax(dim=(1, 2, 3)) < 0.05
    assert 0.2 < is_grey.float().mean() < 0.4


def test_hue_keeps_how_light_colours_are_on_average_and_colours_change():
    views = RandomCrops(**PIXELS, colours=0.0, hue=0.3, grey=0.0)
    muted = (IMAGES[:8].float() - 128) / 4 + 128  # nothing is clipped
    draws = torch.tensor([0.0, 0.5, 0.5, 0.5, 1.0, 0.9]).expand(8, 6)
    turned = RandomCrops._in_new_colours(views, muted, draws)
    torch.testing.assert_close(turned.mean(dim=1), muted.mean(dim=1), atol=1e-2, rtol=0)  # the grey axis is kept
    assert (turned - muted).abs().amax() > 5


@pytest.mark.parametrize("channels", [1, 2, 3])
def test_brightness_and_contrast_are_affine_in_the_pixels(channels):
    views = RandomCrops((0.0,) * channels, (1 / 255,) * channels, colours=0.4, hue=0.0, grey=0.0)
    images = (torch.rand(4, channels, 5, 5, generator=generator()) * 20 + 100).clone()
    draws = torch.tensor([0.0, 1.0, 0.0, 0.5, 0.5, 0.9]).expand(4, 6)  # brightness 1.4, contrast 0.6
    got = RandomCrops._in_new_colours(views, images, draws)
    weights = torch.tensor([0.299, 0.587, 0.114])[None, :, None, None]
    level = (images * weights).sum(dim=1, keepdim=True) if channels == 3 else images
    middle = level.mean(dim=(2, 3), keepdim=True)
    torch.testing.assert_close(got, 1.4 * (0.6 * images + 0.4 * middle), atol=1e-2, rtol=0)


def test_the_generator_decides_and_nothing_else():
    views = RandomCrops(**PIXELS)
    before = torch.get_rng_state()
    assert torch.equal(views(IMAGES, generator(1)), views(IMAGES, generator(1)))
    assert not torch.equal(views(IMAGES, generator(1)), views(IMAGES, generator(2)))
    assert torch.equal(before, torch.get_rng_state())


def test_settings_out_of_range_and_other_images_are_refused():
    for field, value in (("size", 0), ("smallest", 1.0), ("colours", -0.1), ("hue", 0.5), ("grey", 2.0)):
        with pytest.raises(ValueError, match=field):
            RandomCrops(**PIXELS, **{field: value})
    with pytest.raises(ValueError, match="images must be uint8"):
        RandomCrops(**PIXELS)(IMAGES.float(), generator())
