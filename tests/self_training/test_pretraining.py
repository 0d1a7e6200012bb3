from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from bagwise.bags.crops import RandomCrops
from bagwise.networks import build_network, split_head
from bagwise.self_training import Contrast, pretrain
from bagwise.self_training.contrast import ContrastiveNetwork, contrastive_loss
from bagwise.training import Recipe

RECIPE = Recipe(epochs=4, batch_instances=32, learning_rate=0.05, ema=0.9)
VIEWS = RandomCrops(mean=(0.5,), std=(0.25,), smallest=0.5, flip=False)


def images(n=96, seed=0):
    return torch.randint(0, 256, (n, 1, 8, 8), dtype=torch.uint8, generator=torch.Generator().manual_seed(seed))


def run(network, recipe=RECIPE, **more):
    return pretrain(network, images(), augment=VIEWS, recipe=recipe, accelerator="cpu", progress=False, **more)


def new_network():
    return build_network("small-convnet", (1, 8, 8), num_classes=3, seed=0)


def test_the_loss_is_a_loop_over_views():
    generator = torch.Generator().manual_seed(0)
    q, k = (torch.randn(6, 4, generator=generator) for _ in range(2))  # three images, two views each
    total = 0.0
    for i in range(6):
        cosines = [float(q[i] @ k[j] / (q[i].norm() * k[j].norm())) / 0.3 for j in range(6)]
        others = [np.exp(cosines[j]) for j in range(6) if j != i]
        total -= np.log(np.exp(cosines[(i + 3) % 6]) / sum(others))
    assert float(contrastive_loss(q, k, temperature=0.3)) == pytest.approx(total / 6, rel=1e-5)


def test_no_gradient_flows_into_the_teacher():
    q, k = (torch.randn(4, 3, requires_grad=True) for _ in range(2))
    contrastive_loss(q, k, temperature=0.2).backward()
    assert q.grad is not None
    assert k.grad is None


def test_the_projector_depends_on_its_seed_alone():
    body, head = split_head(new_network())
    before = torch.get_rng_state()
    first, again, other = (ContrastiveNetwork(body, head.in_features, seed).state_dict() for seed in (1, 1, 2))
    assert torch.equal(before, torch.get_rng_state())
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert any(not torch.equal(first[name], other[name]) for name in first)


def test_it_trains_the_body_and_leaves_the_head():
    network, fresh = new_network(), new_network()
    result = run(network, replace(RECIPE, epochs=8))
    assert result.network is network
    assert not network.training
    assert [entry["epoch"] for entry in result.history] == list(range(1, 9))
    assert result.history[-1]["loss"] < result.history[0]["loss"] - 0.1
    (head, fresh_head), (body, fresh_body) = ([split_head(each)[part] for each in (network, fresh)] for part in (1, 0))
    assert torch.equal(head.weight, fresh_head.weight)
    assert not torch.equal(next(body.parameters()), next(fresh_body.parameters()))


class WithDropout(nn.Module):
    """Its forward asks its own mode, as many do, and notes it."""

    def __init__(self):
        super().__init__()
        self.first, self.last, self.modes = nn.Linear(64, 8), nn.Linear(8, 3), []

    def forward(self, images):
        self.modes.append(self.training)
        return self.last(nn.functional.dropout(self.first(images.flatten(1)), training=self.training))


def test_a_network_in_evaluation_mode_is_pretrained_in_training_mode():
    """As one is that was pretrained before: the first run has left it so."""
    network = WithDropout().eval()
    run(network)
    assert network.modes
    assert all(network.modes)
    assert not network.training


def test_a_run_that_was_stopped_ends_with_the_same_weights(tmp_path):
    whole, stopped = new_network(), new_network()
    run(whole)

    class Stop(Exception):
        pass

    def stop(entry):
        if entry["epoch"] == 3:
            raise Stop
        return {}

    with pytest.raises(Stop):
        run(stopped, folder=tmp_path, checkpoint_every=1, after_epoch=stop)
    again = new_network()
    result = run(again, folder=tmp_path, checkpoint_every=1)
    assert result.resumed_from == 2
    assert all(torch.equal(tensor, again.state_dict()[name]) for name, tensor in whole.state_dict().items())


def test_small_views_come_first():
    shapes = []

    class Spy(RandomCrops):
        def __call__(self, instances, generator):
            views = super().__call__(instances, generator)
            shapes.append(views.shape[2])
            return views

    network = nn.Sequential(
        nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 2)
    )
    large, small = (Spy(mean=(0.5,), std=(0.25,), size=size) for size in (8, 6))
    pretrain(
        network,
        images(64),
        augment=large,
        small_augment=small,
        contrast=Contrast(small_share=0.5),
        recipe=RECIPE,
        accelerator="cpu",
        progress=False,
    )
    assert shapes == [6] * 4 + [8] * 4  # two batches an epoch


def test_global_random_state_is_left_alone():
    torch.manual_seed(3)
    before = torch.get_rng_state()
    run(new_network(), replace(RECIPE, epochs=1))
    assert torch.equal(before, torch.get_rng_state())


def test_what_cannot_work_is_refused():
    with pytest.raises(ValueError, match=r"recipe\.ema is None"):
        run(new_network(), replace(RECIPE, ema=None))
    with pytest.raises(ValueError, match="at least 2"):
        pretrain(new_network(), images(1), augment=VIEWS, recipe=RECIPE, accelerator="cpu")
    with pytest.raises(ValueError, match="temperature"):
        Contrast(temperature=0.0)


@pytest.mark.parametrize(("field", "value"), [("patience", 1), ("accumulate", 4), ("chunk_instances", 2)])
def test_a_recipe_that_would_not_be_followed_is_refused(field, value):
    with pytest.raises(ValueError, match=rf"recipe\.{field} must be .* in pretraining.* but is {value}\."):
        run(new_network(), replace(RECIPE, **{field: value}))
