from dataclasses import replace

import numpy as np
import pytest
import torch

from bagwise.bags import Bags, ImageAugment, SwappedColumns, uniform_bags
from bagwise.metrics import bag_kl_divergence
from bagwise.networks import build_network
from bagwise.self_training import improve
from bagwise.training import Recipe, train

RECIPE = Recipe(epochs=12, batch_instances=32, optimizer="adam", learning_rate=1e-3, weight_decay=0.0, ema=0.9)


def three_clouds(n=600, seed=0):
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(3, (n,), generator=generator)
    centres = 3 * torch.randn(3, 6, generator=torch.Generator().manual_seed(9))
    return centres[labels] + torch.randn(n, 6, generator=generator), labels


def some_held_out(num_bags, share=0.25):
    return np.arange(num_bags) < share * num_bags


def run(network, bags, held_out, **more):
    return improve(
        network, bags=bags, held_out=held_out, recipe=RECIPE, strong_augment=SwappedColumns(), accelerator="cpu",
        progress=False, **more,
    )  # fmt: skip


def accuracy(network, points, labels):
    with torch.no_grad():
        return float((network(points).argmax(dim=1) == labels).float().mean())


@pytest.mark.parametrize("with_held_out", [True, False])
def test_a_poor_network_is_improved_and_left_as_it_was(with_held_out):
    points, labels = three_clouds()
    bags = uniform_bags(points, labels, 3, 20, seed=0)
    network = build_network("mlp", (6,), 3, seed=0)  # has learned nothing
    before = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    held_out = some_held_out(bags.num_bags, 0.25 if with_held_out else 0.0)
    result = run(network, bags, held_out)
    assert result.improved
    assert result.start == "probe"
    assert result.network is not network
    assert not result.network.training
    assert accuracy(result.network, points, labels) > 0.95
    assert all(torch.equal(before[name], tensor) for name, tensor in network.state_dict().items())
    assert set(result.criterion) == ({"network", "probe", "self-training"} if with_held_out else set())
    assert len(result.history) == RECIPE.epochs


def test_images_are_seen_as_their_views_have_them():
    """The network, the student and the comparison all see normalised images."""
    points, labels = three_clouds(240)
    scaled = (20 * points + 128).clamp(0, 255).to(torch.uint8)[:, None, None, :].expand(-1, 1, 6, 6).contiguous()
    bags = uniform_bags(scaled, labels, 3, 12, seed=0)
    held_out = some_held_out(bags.num_bags)
    network = build_network("mlp", (36,), 3, seed=0)
    weak = ImageAugment(mean=(0.5,), std=(0.25,), shift=0, flip=False)
    result = improve(
        network, bags=bags, held_out=held_out, recipe=RECIPE, augment=weak, accelerator="cpu", progress=False
    )
    assert result.improved
    assert accuracy(result.network, weak.normalise(scaled), labels) > 0.9
    known = bags.proportions.masked_fill(torch.from_numpy(~held_out)[:, None], torch.nan)
    logits = network.eval()(weak.normalise(bags.instances)).detach()
    assert result.criterion["network"] == pytest.approx(float(bag_kl_divergence(logits, bags.layout, known)), rel=1e-4)


def test_a_network_that_held_out_bags_prefer_is_kept():
    points, labels = three_clouds(240)
    bags = uniform_bags(points, labels, 3, 1, seed=0)  # labels: nothing is left to improve
    held_out = some_held_out(bags.num_bags)
    network = build_network("mlp", (6,), 3, seed=0)
    train(network, bags=bags.subset(np.flatnonzero(~held_out)), recipe=RECIPE, accelerator="cpu", progress=False)
    wrong = SwappedWorld()
    result = improve(
        network, bags=bags, held_out=held_out, recipe=RECIPE, strong_augment=wrong, accelerator="cpu", progress=False
    )
    assert not result.improved
    assert result.network is network
    assert result.criterion["self-training"] > result.criterion["network"]


class SwappedWorld:
    """Views that teach nonsense."""

    def __call__(self, instances, generator):
        return torch.randn(instances.shape, generator=generator)

    def normalise(self, instances):
        return instances


def test_the_proportions_of_held_out_bags_are_not_learned_from():
    points, labels = three_clouds(240)
    bags = uniform_bags(points, labels, 3, 12, seed=0)
    held_out = some_held_out(bags.num_bags)
    hidden = torch.from_numpy(held_out)
    other = bags.proportions.clone()
    other[hidden] = 0.9 * other[hidden] + 0.1 / 3
    told_otherwise = Bags(bags.instances, bags.layout.bag_index, other)
    first, second = (run(build_network("mlp", (6,), 3, seed=0), each, held_out) for each in (bags, told_otherwise))
    assert first.criterion != second.criterion  # they are looked at to choose, between two starts and two networks,
    assert first.start == second.start
    assert [entry["loss"] for entry in first.history] == [entry["loss"] for entry in second.history]  # and that is all


def test_criterion_is_the_divergence_of_held_out_bags():
    points, labels = three_clouds(240)
    bags = uniform_bags(points, labels, 3, 12, seed=0)
    held_out = some_held_out(bags.num_bags)
    network = build_network("mlp", (6,), 3, seed=1).eval()
    result = run(network, bags, held_out)
    predicted = network(bags.instances).softmax(dim=1).detach().double().numpy()
    known = bags.proportions.double().numpy()
    divergences = []
    for bag in np.flatnonzero(held_out):
        mean = predicted[bags.layout.bag_index.numpy() == bag].mean(axis=0)
        divergences.append(sum(z * np.log(z / p) for z, p in zip(known[bag], mean, strict=True) if z > 0))
    assert result.criterion["network"] == pytest.approx(np.mean(divergences), rel=1e-4)


def test_held_out_bags_with_unknown_proportions_decide_nothing():
    points, labels = three_clouds(240)
    bags = uniform_bags(points, labels, 3, 12, seed=0)
    proportions = bags.proportions.clone()
    proportions[:2] = torch.nan
    bags = Bags(bags.instances, bags.layout.bag_index, proportions)
    held_out = some_held_out(bags.num_bags)
    network = build_network("mlp", (6,), 3, seed=0)
    result = run(network, bags, held_out)
    without = held_out.copy()
    without[:2] = False
    assert result.criterion == run(network, bags, without).criterion
    assert np.isfinite(list(result.criterion.values())).all()
    assert result.improved


def test_a_recipe_that_would_not_be_followed_is_refused_before_the_probe():
    """One row is too few for a probe: its own message must not come first."""
    bags = Bags(torch.zeros(1, 6), torch.zeros(1, dtype=torch.long), torch.tensor([[1.0, 0.0, 0.0]]))
    recipe = replace(RECIPE, chunk_instances=2)
    with pytest.raises(ValueError, match=r"recipe\.chunk_instances must be None"):
        improve(build_network("mlp", (6,), 3, seed=0), bags=bags, held_out=np.zeros(1, dtype=bool), recipe=recipe)
