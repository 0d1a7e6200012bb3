"""What can only be seen on a GPU."""

import pytest
import torch
from torch import nn

from bagwise.bags import BagLoader, ImageAugment, RandomChanges, uniform_bags
from bagwise.methods import KeepsState, Step, get_method
from bagwise.training import Evaluator, Recipe, train
from bagwise.training.devices import launch_fabric
from bagwise.training.loop import _backward
from bagwise.training.state import TrainingState
from cuda_waits import waits_are

pytestmark = pytest.mark.cuda

AUGMENT = ImageAugment(mean=(0.4,), std=(0.25,))
STRONG = RandomChanges(mean=(0.4,), std=(0.25,))


def light_and_dark():
    """Images of two classes that differ in brightness."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.randint(0, 2, (512,), generator=generator)
    noise = torch.randint(0, 100, (512, 1, 8, 8), generator=generator)
    return (noise + 100 * labels[:, None, None, None]).to(torch.uint8), labels


def convnet():
    return nn.Sequential(
        nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 2)
    )


@pytest.mark.parametrize(
    "name", ["kl", "rot", "avg-kl", "l1", "l2", "mixbag", "llp-vat", "fixmatch", "softmatch", "ahil"]
)
@pytest.mark.parametrize("fields", [{}, {"ema": 0.9, "optimizer": "adam", "precision": "bf16-mixed"}])
def test_a_step_never_waits_for_the_gpu(name, fields):
    images, labels = light_and_dark()
    bags = uniform_bags(images, labels, num_classes=2, bag_size=16, seed=0)
    recipe = Recipe(channels_last=True, **fields)
    fabric = launch_fabric("cuda", 1, recipe.precision)
    loader = BagLoader(bags, 64, seed=0, device=fabric.device, augment=AUGMENT, strong_augment=STRONG)
    method, network = get_method(name), convnet()
    remembered = method.initial_state(2) if isinstance(method, KeepsState) else {}
    state = TrainingState(network, recipe, fabric, equal_bags=True, method_state=remembered)
    generator = torch.Generator(fabric.device).manual_seed(0)

    def run(epoch):
        for batch in loader.epoch(epoch):
            given = {"generator": generator, "state": state.method_state, "total": fabric.all_reduce}
            step = Step(state.model, network, batch, progress=0.5, **given)
            _backward(fabric, method, step, scale=0.25, synchronise=True)
            state.step(0.01)

    run(0)  # layouts and constants are built, kernels are loaded
    torch.cuda.synchronize()
    with waits_are("error"):
        run(1)


@pytest.mark.filterwarnings("ignore")  # of torch.compile itself
@pytest.mark.parametrize(
    ("method", "fields"),
    [
        ("kl", {}),
        ("kl", {"precision": "bf16-mixed", "channels_last": True, "ema": 0.9}),
        ("kl", {"chunk_instances": 24}),
        ("fixmatch", {"precision": "bf16-mixed", "channels_last": True, "ema": 0.9, "compile": True}),
        ("llp-vat", {"precision": "bf16-mixed", "compile": True}),
    ],
)
def test_it_learns_and_resumes(tmp_path, method, fields):
    images, labels = light_and_dark()
    bags = uniform_bags(images, labels, num_classes=2, bag_size=16, seed=0)
    recipe = Recipe(epochs=10, batch_instances=64, **fields)
    arguments = {"bags": bags, "held_out": bags, "recipe": recipe, "augment": AUGMENT, "folder": tmp_path}
    arguments |= {"method": method, "strong_augment": ImageAugment(mean=(0.4,), std=(0.25,), shift=2)}
    evaluator = Evaluator(images, labels, AUGMENT.normalise)
    before = torch.cuda.get_rng_state()
    result = train(convnet(), evaluator=evaluator, accelerator="cuda", **arguments)
    assert torch.equal(before, torch.cuda.get_rng_state())
    assert result.history[-1]["evaluation"]["accuracy"] > 0.9
    again = train(convnet(), accelerator="cuda", **arguments)
    assert again.resumed_from == 10
    for name, tensor in result.network.state_dict().items():
        assert torch.equal(tensor, again.network.state_dict()[name])


def test_data_too_large_for_the_gpu_is_streamed(monkeypatch):
    images, labels = light_and_dark()
    bags = uniform_bags(images, labels, num_classes=2, bag_size=16, seed=0)
    resident = [batch.instances.cpu() for batch in BagLoader(bags, 64, seed=0, device="cuda:0").epoch(0)]
    monkeypatch.setattr("bagwise.bags.source._SHARE_OF_FREE_MEMORY", 0.0)
    streamed = [batch.instances.cpu() for batch in BagLoader(bags, 64, seed=0, device="cuda:0").epoch(0)]
    assert all(torch.equal(a, b) for a, b in zip(resident, streamed, strict=True))
