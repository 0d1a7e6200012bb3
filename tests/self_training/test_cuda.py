"""Pretraining and self-training on a GPU, as the experiments run them: compiled, bfloat16, channels last."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from bagwise.bags import ImageAugment, RandomChanges, uniform_bags
from bagwise.bags.crops import RandomCrops
from bagwise.self_training import pretrain, self_train
from bagwise.training import Evaluator, Recipe

pytestmark = [pytest.mark.cuda, pytest.mark.filterwarnings("ignore")]  # of torch.compile itself

WEAK = ImageAugment(mean=(0.4,), std=(0.25,), flip=False)
STRONG = RandomChanges(mean=(0.4,), std=(0.25,), flip=False, changes=1, cutout=0.25)
FAST = {"precision": "bf16-mixed", "compile": True, "channels_last": True}


def bright_corners(n=1024):
    """Images of four classes: which corner is bright."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.randint(4, (n,), generator=generator)
    images = torch.randint(0, 60, (n, 1, 12, 12), generator=generator)
    for corner in range(4):
        rows, columns = slice(6 * (corner // 2), 6 * (corner // 2) + 6), slice(6 * (corner % 2), 6 * (corner % 2) + 6)
        images[labels == corner, :, rows, columns] += 120
    return images.to(torch.uint8), labels


def convnet():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.AdaptiveAvgPool2d(4), nn.Flatten(),
        nn.Linear(256, 4),
    )  # fmt: skip


def test_it_learns_and_goes_on_after_a_stop(tmp_path):
    images, labels = bright_corners()
    bags = uniform_bags(images, labels, num_classes=4, bag_size=32, seed=0)
    recipe = Recipe(epochs=8, batch_instances=128, learning_rate=0.05, ema=0.9, **FAST)
    arguments = {
        "bags": bags, "augment": WEAK, "strong_augment": STRONG, "checkpoint_every": 2,
        "evaluator": Evaluator(images, labels, normalise=WEAK.normalise),
    }  # fmt: skip
    whole = self_train(convnet(), recipe=recipe, folder=tmp_path / "whole", **arguments)
    assert whole.history[-1]["evaluation"]["accuracy"] > 0.9
    again = self_train(convnet(), recipe=recipe, folder=tmp_path / "whole", **arguments)
    assert again.resumed_from == recipe.epochs
    assert again.history == whole.history


def test_pretraining_ends_with_features():
    images, _ = bright_corners()
    views = RandomCrops(mean=(0.4,), std=(0.25,), smallest=0.5, flip=False)
    recipe = Recipe(epochs=4, batch_instances=128, learning_rate=0.05, ema=0.9, **FAST)
    result = pretrain(convnet(), images, augment=views, small_augment=replace(views, size=8), recipe=recipe)
    losses = [entry["loss"] for entry in result.history]
    assert losses[-1] < losses[0]
    assert all(tensor.isfinite().all() for tensor in result.network.state_dict().values())
