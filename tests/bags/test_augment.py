import numpy as np
import pytest
import torch

from bagwise.bags import ImageAugment, RandomChanges
from bagwise.bags.crops import RandomCrops

MEAN, STD = (0.1, 0.2, 0.3), (0.5, 0.6, 0.7)
IMAGES = torch.randint(0, 256, (64, 3, 5, 6), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def test_normalise_is_the_formula():
    got = ImageAugment(MEAN, STD).normalise(IMAGES)
    mean, std = (torch.tensor(v)[None, :, None, None] for v in (MEAN, STD))
    torch.testing.assert_close(got, (IMAGES / 255 - mean) / std)
    assert got.dtype == torch.float32


def test_nothing_random_is_just_normalising():
    augment = ImageAugment(MEAN, STD, shift=0, flip=False)
    torch.testing.assert_close(augment(IMAGES, generator()), augment.normalise(IMAGES))


@pytest.mark.parametrize("shift", [1, 2])
def test_every_image_is_one_of_its_shifts_and_flips(shift):
    plain = ImageAugment((0.0,) * 3, (1 / 255,) * 3, shift=shift)  # gives the pixels themselves
    got = plain(IMAGES, generator()).numpy().round().astype(np.uint8)
    used = set()
    for image, result in zip(IMAGES.numpy(), got, strict=True):
        padded = np.pad(image, ((0, 0), (shift, shift), (shift, shift)), mode="reflect")
        matches = [
            (dy, dx, flip)
            for dy in range(2 * shift + 1)
            for dx in range(2 * shift + 1)
            for flip in (False, True)
            if np.array_equal(result, padded[:, dy : dy + 5, dx : dx + 6][:, :, :: -1 if flip else 1])
        ]
        assert len(matches) == 1
        used.add(matches[0])
    assert len({flip for _, _, flip in used}) == 2
    assert len(used) > 6 * shift  # images are shifted one by one, in all directions


def test_flip_can_be_turned_off():
    ramp = torch.arange(6, dtype=torch.uint8).expand(32, 3, 5, 6).contiguous()
    kept = ImageAugment(MEAN, STD, shift=0, flip=False)(ramp, generator())
    assert (kept[..., 0] < kept[..., -1]).all()
    flipped = ImageAugment(MEAN, STD, shift=0)(ramp, generator())
    assert 0 < (flipped[:, 0, 0, 0] > flipped[:, 0, 0, -1]).sum() < 32


def test_the_generator_decides_and_nothing_else():
    augment = ImageAugment(MEAN, STD)
    before = torch.get_rng_state()
    assert torch.equal(augment(IMAGES, generator(1)), augment(IMAGES, generator(1)))
    assert not torch.equal(augment(IMAGES, generator(1)), augment(IMAGES, generator(2)))
    assert torch.equal(before, torch.get_rng_state())


def test_the_result_lies_channels_last_in_memory():
    assert ImageAugment(MEAN, STD)(IMAGES, generator()).is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("images", [IMAGES.float(), IMAGES[:, :2], IMAGES[0]])
def test_images_must_be_raw(images):
    with pytest.raises(ValueError, match="images must be uint8 with shape"):
        ImageAugment(MEAN, STD).normalise(images)


def test_mean_and_std_may_be_tensors_or_lists():
    as_tuple = ImageAugment(mean=(0.5,), std=(0.25,))
    assert ImageAugment(mean=torch.tensor([0.5]), std=[0.25]) == as_tuple


@pytest.mark.parametrize("make", [ImageAugment, RandomChanges, RandomCrops])
def test_a_channel_that_does_not_vary_is_refused(make):
    with pytest.raises(ValueError, match=r"std must be positive for every channel, but got \(0\.0,\)"):
        make((0.5,), (0.0,))


@pytest.mark.parametrize("make", [ImageAugment, RandomChanges])
def test_a_negative_shift_is_refused(make):
    with pytest.raises(ValueError, match="shift must be at least 0"):
        make((0.5,), (0.5,), shift=-1)
