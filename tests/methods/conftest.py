"""A training step without a training loop."""

import pytest
import torch

from bagwise.bags import BagLayout, Batch
from bagwise.methods import KeepsState, Step


@pytest.fixture
def make_step():
    """A step of one process, of a method on these instances; the network is called as it is."""

    def make(method, network, instances, index, proportions, *, strong=None, progress=1.0, seed=0, state=None):
        layout = BagLayout.from_index(index, len(proportions))
        batch = Batch((instances,), layout, proportions, bag_numbers=None, strong=strong)
        if state is None:
            state = method.initial_state(proportions.shape[1]) if isinstance(method, KeepsState) else {}
        return Step(
            model=network,
            network=network,
            batch=batch,
            progress=progress,
            generator=torch.Generator().manual_seed(seed),
            state=state,
            total=lambda tensor: tensor,
        )

    return make
