import subprocess
import sys

import numpy as np
import pytest
import torch
from lightning_fabric import Fabric
from torch import nn

from bagwise.bags import BagLoader, Bags
from bagwise.methods import get_method
from bagwise.training import Recipe, train
from bagwise.training.two_pass import backward_in_pieces


def gradients(network, bags, method, chunk):
    """Gradients of the mean loss over all bags in one batch, through pieces of `chunk` (None: at once)."""
    fabric = Fabric(accelerator="cpu", devices=1)
    model = fabric.setup(network)
    network.zero_grad()
    loader = BagLoader(bags, bags.num_instances, seed=0, chunk_instances=chunk)
    (batch,) = loader.epoch(0)
    if chunk is None:
        method.loss(model(batch.instances), batch.layout, batch.proportions).mean().backward()
    else:
        assert batch.is_in_pieces
        backward_in_pieces(fabric, model, method, batch, 1 / bags.num_bags, True)
    return torch.cat([parameter.grad.flatten().clone() for parameter in network.parameters()])


@pytest.mark.parametrize("name", ["kl", "rot", "avg-kl", "l2", "dsq", "llpfc", "count-likelihood", "llp-mm"])
@pytest.mark.parametrize("chunk", [1, 7, 31])
def test_gradients_are_those_of_whole_bags(make_network, make_bags, name, chunk):
    network, bags, method = make_network().double(), make_bags(), get_method(name)
    bags.instances = bags.instances.double()
    torch.testing.assert_close(
        gradients(network, bags, method, chunk), gradients(network, bags, method, None), rtol=0, atol=1e-12
    )


@pytest.mark.parametrize("name", ["kl", "rot"])
def test_a_bag_of_200_000_instances(name):
    generator = torch.Generator().manual_seed(0)
    instances = torch.randn(200_000, 4, generator=generator)
    bags = Bags(instances, np.zeros(200_000, dtype=int), [[0.2, 0.3, 0.5]])
    bags.instances = bags.instances.double()  # in float32 the rounding of so long a sum hides what is compared
    network = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3)).double()
    largest = 0

    def look(_module, arguments):
        nonlocal largest
        largest = max(largest, len(arguments[0]))

    whole = gradients(network, bags, get_method(name), None)
    network.register_forward_pre_hook(look)
    pieces = gradients(network, bags, get_method(name), 8192)
    assert largest == 8192
    torch.testing.assert_close(pieces, whole, rtol=0, atol=1e-6)
    assert whole.abs().max() > 1e-3  # so that 1e-6 says something


MEMORY_SCRIPT = """
import resource, sys
import numpy as np, torch
from torch import nn
from bagwise.bags import Bags
from bagwise.training import Recipe, train

torch.set_num_threads(1)
network = nn.Sequential(nn.Linear(4, 512), nn.Tanh(), nn.Linear(512, 3))
recipe = Recipe(epochs=1, chunk_instances=2048, learning_rate=0.1)

def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024

def bags(n):
    return Bags(torch.randn(n, 4), np.zeros(n, dtype=int), [[0.2, 0.3, 0.5]])

train(network, bags=bags(8192), recipe=recipe)  # whatever the first training loads
large = bags(200_000)
before = peak()
train(network, bags=large, recipe=recipe)
print(peak() - before)
"""


def test_a_large_bag_trains_in_the_memory_of_a_chunk():
    done = subprocess.run([sys.executable, "-c", MEMORY_SCRIPT], capture_output=True, text=True, check=True)
    whole_bag = 200_000 * 512 * 4  # bytes of one hidden activation of the whole bag
    assert int(done.stdout) < whole_bag / 5  # measured: a tenth, most of it the allocator's


def test_dropout_draws_the_same_masks_in_both_passes(make_network, make_bags):
    """Otherwise the gradient would not be that of the loss: compare with one pass over the same masks."""
    network, bags, method = make_network(dropout=0.5), make_bags(), get_method("kl")
    torch.manual_seed(7)
    pieces = gradients(network, bags, method, 16)
    torch.manual_seed(7)
    (batch,) = BagLoader(bags, bags.num_instances, seed=0, chunk_instances=16).epoch(0)
    network.zero_grad()
    logits = torch.cat([network(piece) for piece in batch.pieces])
    method.loss(logits, batch.layout, batch.proportions).mean().backward()
    together = torch.cat([parameter.grad.flatten() for parameter in network.parameters()])
    torch.testing.assert_close(pieces, together)


def test_batch_norm_keeps_its_running_statistics(make_network, make_bags):
    network, bags = make_network(batch_norm=True), make_bags()
    before = {name: buffer.clone() for name, buffer in network.named_buffers()}
    whole_with_running = network.eval() and gradients(network, bags, get_method("kl"), None)
    network.train()
    pieces = gradients(network, bags, get_method("kl"), 16)
    torch.testing.assert_close(pieces, whole_with_running)
    assert all(torch.equal(before[name], buffer) for name, buffer in network.named_buffers())
    assert network[1].training


def test_batch_norm_without_running_statistics_is_refused(make_bags):
    network = nn.Sequential(nn.BatchNorm1d(5, track_running_stats=False), nn.Linear(5, 3))
    with pytest.raises(ValueError, match="track_running_stats"):
        train(network, bags=make_bags(), recipe=Recipe(epochs=1, chunk_instances=4))


def test_small_batches_are_not_cut(make_network, make_bags, weights):
    results = []
    for chunk in (None, 8):
        network = make_network()
        recipe = Recipe(epochs=2, batch_instances=8, chunk_instances=chunk)
        train(network, bags=make_bags(), recipe=recipe)
        results.append(weights(network))
    assert torch.equal(*results)
