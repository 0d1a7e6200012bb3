"""The network and the loss of contrastive learning."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

_HIDDEN, _WIDTH = 2048, 256


class ContrastiveNetwork(nn.Module):
    """A body with a projector, and a predictor on top of it that the teacher does without.

    Args:
        body: from instances to features `[n, num_features]`.
        num_features: how many.
        seed: of the weights of projector and predictor.
    """

    def __init__(self, body: nn.Module, num_features: int, seed: int) -> None:
        super().__init__()
        self.body = body
        with torch.random.fork_rng(devices=[]), torch.device("cpu"):  # the layers draw from the default generator
            torch.default_generator.manual_seed(seed)
            # the norm keeps the projections apart; predictions are free
            self.projector = nn.Sequential(*_mlp(num_features), nn.BatchNorm1d(_WIDTH, affine=False))
            self.predictor = nn.Sequential(*_mlp(_WIDTH))

    def forward(self, views: Tensor) -> Tensor:
        """Return what the student predicts of the teacher's projections, `[n, 256]`."""
        return self.predictor(self.project(views))

    def project(self, views: Tensor) -> Tensor:
        """Return the projections `[n, 256]`."""
        return self.projector(self.body(views))


def contrastive_loss(predictions: Tensor, projections: Tensor, temperature: float) -> Tensor:
    r"""InfoNCE of two views of each of n images: which projection is of the other view of the same image?

    .. math:: -\frac1{2n} \sum_i \log \frac{\exp(\cos(q_i, k_{i'}) / T)}{\sum_{j \ne i} \exp(\cos(q_i, k_j) / T)}

    where i' is the other view of i. The projection of the very same view is no candidate.

    Args:
        predictions: q `[2n, width]`, of the first views and then of the second views.
        projections: k `[2n, width]`, in the same order; no gradient flows into them.
        temperature: T, > 0.
    """
    similarity = F.normalize(predictions, dim=1) @ F.normalize(projections.detach(), dim=1).T / temperature
    views = torch.arange(len(similarity), device=similarity.device)
    similarity = similarity.masked_fill(views[:, None] == views, -torch.inf)
    return F.cross_entropy(similarity, views.roll(len(views) // 2))


def _mlp(num_features: int) -> list[nn.Module]:
    return [
        nn.Linear(num_features, _HIDDEN, bias=False),
        nn.BatchNorm1d(_HIDDEN),
        nn.ReLU(inplace=True),
        nn.Linear(_HIDDEN, _WIDTH, bias=False),
    ]
