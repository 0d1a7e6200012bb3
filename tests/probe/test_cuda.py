"""The probe on a GPU."""

import pytest
import torch

from bagwise.bags import BagLayout
from bagwise.probe import fit_probe

pytestmark = pytest.mark.cuda

DEVICE = "cuda"


@pytest.mark.parametrize("rows", [2000, 20_000], ids=["one cell", "many cells"])
def test_it_finds_what_it_finds_on_a_cpu(rows):
    generator = torch.Generator().manual_seed(0)
    labels = torch.randint(5, (rows,), generator=generator)
    features = torch.randn(5, 40, generator=generator)[labels] + torch.randn(rows, 40, generator=generator)
    layout = BagLayout.from_sizes([100] * (rows // 100))
    proportions = torch.eye(5)[labels].view(-1, 100, 5).mean(dim=1)
    expected = fit_probe(features, layout, proportions)
    found = fit_probe(features.to(DEVICE), layout, proportions, device=DEVICE)
    agree = (found.logits.argmax(dim=1) == expected.logits.argmax(dim=1)).float().mean()
    assert agree > 0.99  # of equally good directions either may be chosen
    assert not found.logits.is_cuda
    network = found.network.to(DEVICE)
    new = network(features[:500].to(DEVICE)).argmax(dim=1).cpu()
    assert (new == found.logits[:500].argmax(dim=1)).float().mean() > 0.95  # a new row is no neighbour of itself
