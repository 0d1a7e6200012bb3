import inspect
from dataclasses import replace

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits
from torch import nn

from bagwise.bags import Bags, ImageAugment, RandomChanges, uniform_bags
from bagwise.networks import build_network
from bagwise.self_training import Labelling, self_train
from bagwise.training import CheckpointError, Evaluator, Recipe, train

RECIPE = Recipe(epochs=4, batch_instances=32, learning_rate=0.05, ema=0.9)


def two_clouds(n=120, seed=0):
    """Points whose first coordinate tells their class."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(2, (n,), generator=generator)
    points = torch.randn(n, 4, generator=generator)
    points[:, 0] += 4 * labels - 2
    return points, labels


def new_network():
    return build_network("mlp", (4,), num_classes=2, seed=0)


def guess(bags):
    """What somebody might think who has seen the points: better than nothing."""
    score = bags.instances[:, 0] / 2
    return torch.stack([-score, score], dim=1).softmax(dim=1)


def run(network, bags, recipe=RECIPE, **more):
    return self_train(network, bags=bags, recipe=recipe, accelerator="cpu", progress=False, **more)


def weights_of(network):
    return {name: tensor.clone() for name, tensor in network.state_dict().items()}


def same(first, second):
    return all(torch.equal(first[name], second[name]) for name in first)


def test_it_learns_from_bags_larger_than_a_batch():
    points, labels = two_clouds()
    order = (labels + torch.randn(120, generator=torch.Generator().manual_seed(1))).argsort()  # bags that differ
    points, labels = points[order], labels[order]
    shares = torch.stack([labels[first : first + 40].bincount(minlength=2) / 40 for first in (0, 40, 80)])
    bags = Bags(points, torch.arange(120) // 40, shares)
    network = new_network()
    recipe = replace(RECIPE, epochs=15, batch_instances=20)

    def score(found):
        return {"accuracy": float((found.argmax(dim=1) == labels).float().mean())}

    result = run(network, bags, recipe, start=guess(bags), label_evaluator=score, labelling=Labelling(memory=0.3))
    assert min(entry["labels"]["accuracy"] for entry in result.history) > 0.9  # in every epoch
    assert result.network is network
    assert not network.training
    assert (network(points).argmax(dim=1) == labels).float().mean() > 0.93
    assert (result.labels.argmax(dim=1) == labels).float().mean() > 0.93


def test_labels_meet_the_proportions_of_ragged_bags_in_any_order():
    points, labels = two_clouds()
    index = torch.from_numpy(np.random.default_rng(0).choice(5, size=120, p=[0.02, 0.08, 0.2, 0.3, 0.4]))
    proportions = torch.stack([labels[index == bag].bincount(minlength=2) / (index == bag).sum() for bag in range(5)])
    bags = Bags(points, index, proportions)
    result = run(new_network(), bags, start=guess(bags))
    for bag in range(5):
        torch.testing.assert_close(result.labels[index == bag].mean(dim=0), proportions[bag], atol=0.02, rtol=0)


def test_the_order_of_the_rows_does_not_decide_what_is_labelled_how():
    points, labels = two_clouds()
    bags = uniform_bags(points, labels, 2, 12, seed=0)
    start = guess(bags)
    order = torch.randperm(120, generator=torch.Generator().manual_seed(1))
    shuffled = Bags(bags.instances[order], bags.layout.bag_index[order], bags.proportions)
    # one batch of everything: the same step whatever the order
    whole = replace(RECIPE, batch_instances=120, epochs=3)
    first, second = new_network(), new_network()
    labels_first = run(first, bags, whole, start=start).labels
    labels_second = run(second, shuffled, whole, start=start[order]).labels
    torch.testing.assert_close(labels_second, labels_first[order], atol=1e-4, rtol=0)


def test_a_run_that_was_stopped_ends_with_the_same_weights(tmp_path):
    bags = uniform_bags(*two_clouds(), 2, 12, seed=0)
    whole = new_network()
    how = {"start": guess(bags)}
    expected = run(whole, bags, **how)
    for stop_after in range(1, 4):

        class Stop(Exception):
            pass

        calls = 0

        def stop(_network, stop_after=stop_after, error=Stop):
            nonlocal calls
            calls += 1
            if calls == stop_after + 1:
                raise error
            return {}

        folder = tmp_path / str(stop_after)
        with pytest.raises(Stop):
            run(new_network(), bags, **how, folder=folder, checkpoint_every=1, evaluator=stop)
        again = new_network()
        result = run(again, bags, **how, folder=folder, checkpoint_every=1)
        assert result.resumed_from == stop_after
        assert same(weights_of(whole), weights_of(again))
        assert torch.equal(result.labels, expected.labels)
    once_more = new_network()  # a run that is finished is handed out as it is
    assert run(once_more, bags, **how, folder=folder).resumed_from == 4
    assert same(weights_of(whole), weights_of(once_more))
    with pytest.raises(CheckpointError, match="labelling"):
        run(new_network(), bags, **how, folder=folder, labelling=Labelling(cut=0.5))
    with pytest.raises(CheckpointError, match="start is"):
        run(new_network(), bags, start=guess(bags).flip(1), folder=folder)
    with pytest.raises(CheckpointError, match=r'start is .* there and "probe" here'):
        run(new_network(), bags, folder=folder)


def test_the_bank_stays_as_it_is_while_a_student_warms_up():
    bags = uniform_bags(*two_clouds(), 2, 12, seed=0)
    start = torch.full((120, 2), 0.5)
    seen = []

    def look(labels):
        seen.append(labels.clone())
        return {}

    run(new_network(), bags, start=start, labelling=Labelling(warmup=0.5), label_evaluator=look)
    assert torch.equal(seen[0], seen[1])  # two of four epochs
    assert not torch.equal(seen[1], seen[2])


def test_instances_of_bags_without_proportions_help():
    points, labels = two_clouds(400)
    bags = uniform_bags(points, labels, 2, 20, seed=0)
    proportions = bags.proportions.clone()
    proportions[4:] = float("nan")
    some = Bags(bags.instances, bags.layout.bag_index, proportions)
    network = new_network()
    result = run(network, some, replace(RECIPE, epochs=10))
    assert result.labels.isfinite().all()
    assert (network(points).argmax(dim=1) == labels).float().mean() > 0.9


def test_there_is_no_place_for_labels_but_the_evaluators():
    assert not [
        name
        for name in inspect.signature(self_train).parameters
        if "label" in name and name not in ("labelling", "label_evaluator")
    ]
    bags = uniform_bags(*two_clouds(), 2, 12, seed=0)
    first, second = new_network(), new_network()
    run(first, bags, start=guess(bags), evaluator=lambda network: {"accuracy": float(next(network.parameters()).sum())})
    run(second, bags, start=guess(bags), label_evaluator=lambda labels: {"accuracy": float(labels.sum())})
    assert same(weights_of(first), weights_of(second))


def test_global_random_state_is_left_alone():
    bags = uniform_bags(*two_clouds(), 2, 12, seed=0)
    torch.manual_seed(3)
    before = torch.get_rng_state()
    run(new_network(), bags, replace(RECIPE, epochs=1))
    assert torch.equal(before, torch.get_rng_state())


def test_what_cannot_work_is_refused():
    bags = uniform_bags(*two_clouds(), 2, 12, seed=0)
    with pytest.raises(ValueError, match=r"must be an nn\.Linear"):
        run(nn.Sequential(nn.Linear(4, 2), nn.Softmax(dim=1)), bags)


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        (lambda start: 3 * start.log(), ValueError, r"row 0 is \[.*-.*\]\. If these are logits, call \.softmax"),
        (lambda start: 100 * start, ValueError, r"row 0 is \[.*\]\. Divide each row by its sum"),
        (lambda start: start.masked_fill(torch.arange(120)[:, None] == 7, torch.nan), ValueError, r"row 7 is \[nan"),
        (lambda start: start[:-1], ValueError, r"shape \[120, 2\], but got \[119, 2\]"),
        (lambda start: start[:, :1], ValueError, r"shape \[120, 2\], but got \[120, 1\]"),
        (lambda start: start[:, 0], ValueError, r"shape \[120, 2\], but got \[120\]"),
        (lambda start: start.round().long(), TypeError, r"be floating point, but got torch\.int64"),
        (lambda start: start.tolist(), TypeError, "be a torch.Tensor or an array .*, but got list"),
    ],
)
def test_a_start_that_is_not_probabilities_is_refused(change, error, message):
    bags = uniform_bags(*two_clouds(), 2, 12, seed=0)
    with pytest.raises(error, match=f"^start must .*{message}"):
        run(new_network(), bags, start=change(guess(bags)))


@pytest.mark.parametrize("change", [lambda start: start.numpy()[::-1][::-1], lambda start: start.double()])
def test_a_start_may_be_an_array_or_in_double_precision(change):
    bags = uniform_bags(*two_clouds(), 2, 12, seed=0)
    first, second = new_network(), new_network()
    run(first, bags, start=guess(bags))
    run(second, bags, start=change(guess(bags)))
    assert same(weights_of(first), weights_of(second))


def test_a_start_may_be_in_half_precision():
    bags = uniform_bags(*two_clouds(), 2, 12, seed=0)
    assert run(new_network(), bags, start=guess(bags).bfloat16()).labels.isfinite().all()


@pytest.mark.parametrize(("field", "value"), [("patience", 1), ("accumulate", 4), ("chunk_instances", 2)])
def test_a_recipe_that_would_not_be_followed_is_refused(field, value):
    bags = uniform_bags(*two_clouds(), 2, 12, seed=0)
    with pytest.raises(ValueError, match=rf"recipe\.{field} must be .* in self-training.* but is {value}\."):
        run(new_network(), bags, replace(RECIPE, **{field: value}))


@pytest.mark.parametrize("size", [16, 64])
def test_it_learns_digits_no_worse_than_kl(size):
    data = load_digits()
    images = torch.from_numpy((data.images * 255 / 16).astype(np.uint8))[:, None]
    labels = torch.from_numpy(data.target)
    weak = ImageAugment(mean=(0.3,), std=(0.38,), shift=0, flip=False)
    strong = RandomChanges(mean=(0.3,), std=(0.38,), shift=0, flip=False, cutout=0.25)
    evaluator = Evaluator(images[1400:], labels[1400:], weak.normalise)
    bags = uniform_bags(images[:1400], labels[:1400], 10, size, seed=0)
    recipe = Recipe(epochs=15, batch_instances=128, learning_rate=0.1, ema=0.98)
    networks = [build_network("small-convnet", (1, 8, 8), 10, seed=0) for _ in range(2)]
    by_kl = train(
        networks[0], bags=bags, recipe=recipe, augment=weak, evaluator=evaluator, evaluate_every=15, progress=False
    )
    by_us = run(networks[1], bags, recipe, augment=weak, strong_augment=strong, evaluator=evaluator, evaluate_every=15)
    ours, kl = (result.history[-1]["evaluation"]["accuracy"] for result in (by_us, by_kl))
    assert ours > 0.9
    assert ours > kl - 0.005
