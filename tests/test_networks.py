import pytest
import torch
from torch import nn

from bagwise.networks import NETWORK_NAMES, build_network, mlp, resnet18, small_convnet, split_head


def num_parameters(network: nn.Module) -> int:
    return sum(parameter.numel() for parameter in network.parameters())


@pytest.mark.parametrize("name", NETWORK_NAMES)
@pytest.mark.parametrize("shape", [(1, 8, 8), (1, 28, 28), (3, 32, 32)])
def test_every_network_gives_finite_logits_and_gradients(name, shape):
    network = build_network(name, shape, num_classes=7, seed=0)
    logits = network(torch.rand(4, *shape))
    assert logits.shape == (4, 7)
    nn.functional.cross_entropy(logits, torch.tensor([0, 1, 2, 6])).backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in network.parameters())


@pytest.mark.parametrize("name", NETWORK_NAMES)
def test_weights_depend_on_the_seed_alone(name):
    first, again, other = (build_network(name, (3, 8, 8), 10, seed).state_dict() for seed in (5, 5, 6))
    assert all(torch.equal(first[key], again[key]) for key in first)
    assert any(not torch.equal(first[key], other[key]) for key in first)


@pytest.mark.parametrize("name", NETWORK_NAMES)
def test_global_random_state_is_neither_read_nor_touched(name):
    torch.manual_seed(1)
    before = torch.get_rng_state()
    first = build_network(name, (3, 8, 8), 10, seed=5).state_dict()
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(2)
    again = build_network(name, (3, 8, 8), 10, seed=5).state_dict()
    assert all(torch.equal(first[key], again[key]) for key in first)


def test_weights_do_not_depend_on_the_default_device():
    expected = build_network("mlp", (4,), 3, seed=0).state_dict()
    with torch.device("meta"):
        found = build_network("mlp", (4,), 3, seed=0).state_dict()
    assert all(torch.equal(expected[key], found[key]) for key in expected)


def test_resnet18_has_the_architecture_of_the_paper():
    network = resnet18(10)
    assert num_parameters(network) == 11_173_962
    assert num_parameters(resnet18(100)) == 11_173_962 + 90 * 513
    convolutions = [module for module in network.modules() if isinstance(module, nn.Conv2d)]
    assert len(convolutions) == 1 + 8 * 2 + 3  # the stem, two a block, the shortcuts that change shape
    assert all(module.bias is None for module in convolutions)
    assert not any(isinstance(module, nn.MaxPool2d) for module in network.modules())
    shapes = []
    for block in network.stages:
        block.register_forward_hook(lambda _module, _input, output: shapes.append(tuple(output.shape[1:])))
    network(torch.zeros(1, 3, 32, 32))
    by_stage = [(64, 32, 32), (128, 16, 16), (256, 8, 8), (512, 4, 4)]
    assert shapes == [shape for shape in by_stage for _ in range(2)]


def test_resnet18_blocks_start_as_their_shortcuts():
    block = resnet18(10).stages[1]
    x = torch.rand(2, 64, 8, 8)
    assert torch.equal(block(x), x)


def test_a_learned_residual_changes_the_block():
    block = resnet18(10).stages[1]
    nn.init.ones_(block.residual[-1].weight)
    x = torch.rand(2, 64, 8, 8)
    assert not torch.allclose(block(x), x)


def test_small_convnet_sees_places():
    network = small_convnet(10, in_channels=1, image_size=8).eval()
    image = torch.rand(1, 1, 8, 8)
    assert not torch.allclose(network(image), network(image.flip(3)))


def test_mlp_has_the_hidden_layers_asked_for():
    widths = [module.out_features for module in mlp(5, 3, hidden=(7, 9)) if isinstance(module, nn.Linear)]
    assert widths == [7, 9, 3]
    assert mlp(5, 3, hidden=())(torch.zeros(2, 5)).shape == (2, 3)


def test_networks_for_tables():
    assert build_network("linear", (6,), 4, seed=0)(torch.zeros(2, 6)).shape == (2, 4)


def test_unknown_network_suggests_the_nearest():
    with pytest.raises(ValueError, match="Did you mean 'resnet18'"):
        build_network("resnet-18", (3, 32, 32), 10, seed=0)


@pytest.mark.parametrize("shape", [(12,), (3, 32, 16)])
def test_networks_for_images_say_what_they_take(shape):
    with pytest.raises(ValueError, match=r"square images .* Use 'mlp'"):
        build_network("resnet18", shape, 10, seed=0)


@pytest.mark.parametrize("name", NETWORK_NAMES)
def test_the_head_of_the_body_is_the_network(name):
    network = build_network(name, (3, 16, 16), num_classes=5, seed=0).eval()
    images = torch.rand(4, 3, 16, 16)
    body, head = split_head(network)
    assert isinstance(head, nn.Linear)
    assert body(images).shape == (4, head.in_features)
    torch.testing.assert_close(head(body(images)), network(images))
    torch.testing.assert_close(network(images), build_network(name, (3, 16, 16), 5, seed=0).eval()(images))


def test_a_body_shares_its_weights_and_nothing_of_the_head():
    network = nn.Sequential(
        nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4)), nn.Sequential(nn.ReLU(), nn.Linear(4, 2))
    )
    body, head = split_head(network)
    assert [id(p) for p in body.parameters()] == [id(p) for p in network[0].parameters()]
    assert head is network[1][1]
    before = network[0][1].running_mean.clone()
    body(torch.randn(8, 3)).sum().backward()
    assert not torch.equal(network[0][1].running_mean, before)  # buffers, too
    network.double()
    assert body(torch.randn(2, 3).double()).dtype == torch.float64


@pytest.mark.parametrize("network", [nn.Linear(3, 2), nn.Sequential(nn.Linear(3, 2), nn.Softmax(dim=1))])
def test_a_network_without_a_linear_head_is_refused(network):
    with pytest.raises(ValueError, match=r"the last layer of the network must be an nn\.Linear"):
        split_head(network)
