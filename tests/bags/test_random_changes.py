"""Strong views of images: each change against Pillow's, or against what it means, and all of them together."""

import math

import numpy as np
import pytest
import torch
from PIL import Image, ImageEnhance, ImageOps

from bagwise.bags import RandomChanges
from bagwise.bags.random_changes import CHANGES, change_colours, change_places

MEAN, STD = (0.1, 0.2, 0.3), (0.5, 0.6, 0.7)
PLAIN = {"mean": (0.0,) * 3, "std": (1 / 255,) * 3, "shift": 0, "flip": False}  # gives the pixels themselves
IMAGES = torch.randint(0, 256, (64, 3, 12, 10), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def strengths(n, **given):
    """`[n, changes]`, 0 but for the given changes."""
    values = torch.zeros(n, len(CHANGES))
    for name, strength in given.items():
        values[:, CHANGES.index(name)] = torch.as_tensor(strength)
    return values


def picture(seed=0):
    """A smooth picture with noise, so that contrast and blur have something to do."""
    rng = np.random.default_rng(seed)
    ramp = np.linspace(40, 180, 12)[:, None, None] + 20 * np.arange(3) + rng.normal(0, 15, (12, 10, 3))
    return ramp.clip(0, 255).astype(np.uint8)


def by_pillow(name, strength):
    image = Image.fromarray(picture())
    enhancers = {
        "brightness": ImageEnhance.Brightness,
        "contrast": ImageEnhance.Contrast,
        "saturation": ImageEnhance.Color,
        "sharpness": ImageEnhance.Sharpness,
    }
    if name in enhancers:
        return np.asarray(enhancers[name](image).enhance(1 + 0.9 * strength))
    if name == "stretch":
        return np.asarray(ImageOps.autocontrast(image))
    if name == "posterise":
        return np.asarray(ImageOps.posterize(image, 8 - min(4, math.floor(abs(strength) * 5))))
    return np.asarray(ImageOps.solarize(image, 255 * (1 - abs(strength)) + 1e-6))


@pytest.mark.parametrize("strength", [-1.0, -0.45, 0.3, 1.0])
@pytest.mark.parametrize("name", CHANGES[:7])
def test_colours_are_those_of_pillow(name, strength):
    image = torch.from_numpy(picture()).permute(2, 0, 1)[None].float()
    got = change_colours(image, strengths(1, **{name: strength}))[0].permute(1, 2, 0).numpy()
    expected = by_pillow(name, strength).astype(np.float32)
    if name == "sharpness":  # Pillow leaves the outermost pixels as they are
        got, expected = got[1:-1, 1:-1], expected[1:-1, 1:-1]
    assert np.abs(got - expected).max() <= 2  # Pillow rounds after each step


def test_strength_0_changes_nothing():
    images = IMAGES.float()
    assert torch.equal(change_colours(images, strengths(64)), images)
    torch.testing.assert_close(change_places(images, strengths(64)), images, rtol=0, atol=1e-3)


@pytest.mark.parametrize(("name", "axis"), [("move_x", 2), ("move_y", 1)])
def test_moves_are_by_whole_shares_and_fill_with_0(name, axis):
    image = IMAGES[:1, :, :10, :10].float() + 1
    moved = change_places(image, strengths(1, **{name: 1.0}))[0]  # three of ten pixels
    expected = torch.zeros_like(moved)
    kept = image[0].narrow(axis, 3, 7)
    expected.narrow(axis, 0, 7).copy_(kept)
    torch.testing.assert_close(moved, expected, rtol=0, atol=1e-3)


@pytest.mark.parametrize(
    ("change", "place"),
    [
        # where a bright spot 6 pixels right of and 3 below the middle goes; the arguments of the grid are the way back
        ({"rotate": 1.0}, lambda x, y: (x * math.cos(math.pi / 6) + y / 2, y * math.cos(math.pi / 6) - x / 2)),
        ({"shear_x": 1.0}, lambda x, y: (x - 0.3 * y, y)),
        ({"shear_y": -1.0}, lambda x, y: (x, y + 0.3 * x)),
        ({"zoom": 1.0}, lambda x, y: (x / 1.3, y / 1.3)),
    ],
)
@pytest.mark.parametrize(("height", "width"), [(41, 41), (31, 51)])
def test_geometry_is_that_of_pixels_also_where_sides_differ(change, place, height, width):
    image = torch.zeros(1, 1, height, width)
    x, y = width // 2 + 6, height // 2 + 3
    image[0, 0, y - 1 : y + 2, x - 1 : x + 2] = 1
    changed = change_places(image, strengths(1, **change))[0, 0]
    mass = changed.sum()
    rows, columns = torch.arange(height) - height // 2, torch.arange(width) - width // 2
    found = (changed.sum(0) @ columns.float() / mass, changed.sum(1) @ rows.float() / mass)
    torch.testing.assert_close(torch.stack(found), torch.tensor(place(6.0, 3.0)), rtol=0, atol=0.2)


def test_each_image_undergoes_as_many_changes_as_asked_for():
    strong = RandomChanges(**PLAIN, changes=2, cutout=0)
    grey = torch.full((2000, 3, 8, 8), 200, dtype=torch.uint8)
    # of a grey image only these can be seen; two of 13 changes: some see one, some two, some none
    visible = {"posterise", "solarise", "brightness", "rotate", "shear_x", "shear_y", "move_x", "move_y", "zoom"}
    changed = (strong(grey, generator()) - 200).abs().amax(dim=(1, 2, 3)) > 0.5
    unseen = len(CHANGES) - len(visible)
    most = 1 - unseen * (unseen - 1) / (len(CHANGES) * (len(CHANGES) - 1))  # at least one of two can be seen
    assert most - 0.2 < changed.float().mean() < most  # weak ones leave a grey image as it is
    none = RandomChanges(**PLAIN, changes=0, cutout=0)
    torch.testing.assert_close(none(IMAGES, generator()), IMAGES.float(), rtol=0, atol=1e-3)


def test_a_square_is_cut_out_and_filled_with_the_mean():
    cut = RandomChanges(MEAN, STD, shift=0, flip=False, changes=0, cutout=0.5)
    images = torch.full((500, 3, 12, 10), 255, dtype=torch.uint8)
    holes = cut(images, generator())
    assert torch.equal((holes == 0).all(dim=1), (holes == 0).any(dim=1))
    hole = holes[:, 0] == 0
    rows, columns = hole.any(dim=2).sum(dim=1), hole.any(dim=1).sum(dim=1)
    assert torch.equal(hole.sum(dim=(1, 2)), rows * columns)  # a rectangle
    assert (rows.max(), columns.max()) == (6, 5)
    assert rows.min() >= 3  # the centre lies within the image
    assert hole.float().mean(dim=0).min() > 0.02  # anywhere


def test_the_generator_decides_and_nothing_else():
    strong = RandomChanges(MEAN, STD)
    before = torch.get_rng_state()
    assert torch.equal(strong(IMAGES, generator(1)), strong(IMAGES, generator(1)))
    assert not torch.equal(strong(IMAGES, generator(1)), strong(IMAGES, generator(2)))
    assert torch.equal(before, torch.get_rng_state())


@pytest.mark.parametrize("channels", [1, 3, 4])
def test_any_number_of_channels_gives_finite_images_with_channels_last(channels):
    images = IMAGES[:, :1].repeat(1, channels, 1, 1)
    strong = RandomChanges((0.5,) * channels, (0.25,) * channels, changes=6)
    got = strong(images, generator())
    assert got.dtype == torch.float32
    assert got.shape == images.shape
    assert got.isfinite().all()
    assert got.abs().max() <= 2 + 1e-3  # nothing leaves the range of pixels
    assert got.is_contiguous(memory_format=torch.channels_last)


def test_normalise_is_that_of_the_weak_view():
    mean, std = (torch.tensor(v)[None, :, None, None] for v in (MEAN, STD))
    torch.testing.assert_close(RandomChanges(MEAN, STD).normalise(IMAGES), (IMAGES / 255 - mean) / std)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: RandomChanges(MEAN, STD)(IMAGES.float(), generator()), "images must be uint8 with shape"),
        (lambda: RandomChanges(MEAN, STD, changes=14), "changes must be at least 0 and less than 14"),
        (lambda: RandomChanges(MEAN, STD, cutout=1), "cutout must be at least 0 and less than 1"),
    ],
)
def test_what_is_wrong_is_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()
