"""How good predictions are: against the labels of instances, and against the proportions of bags.

Every function takes `logits [instances, classes]` (log-probabilities are logits too) and returns a scalar tensor
on their device, so that several can be computed before the host asks for any.
"""

from __future__ import annotations

import torch
from torch import Tensor

from bagwise import functional as BF
from bagwise.bags.layout import BagLayout
from bagwise.functional.inputs import prepare, reduce_bags


def accuracy(logits: Tensor, labels: Tensor) -> Tensor:
    """Share of the instances whose most likely class is their label."""
    return (logits.argmax(dim=1) == labels).double().mean()


def balanced_accuracy(logits: Tensor, labels: Tensor) -> Tensor:
    """Mean over the classes that occur in `labels` of the share of their instances that are found (recall)."""
    num_classes, labels = logits.shape[1], labels.long()  # torch takes no other type of integer everywhere
    right = (logits.argmax(dim=1) == labels).double()
    found = right.new_zeros(num_classes).index_add(0, labels, right)
    total = right.new_zeros(num_classes).index_add(0, labels, torch.ones_like(right))
    return (found / total.clamp(min=1)).sum() / (total > 0).sum()


def log_loss(logits: Tensor, labels: Tensor) -> Tensor:
    """Mean cross-entropy, in nats, between the labels and the predicted probabilities."""
    return torch.nn.functional.cross_entropy(logits.double(), labels.long())


def calibration_error(logits: Tensor, labels: Tensor, bins: int = 15) -> Tensor:
    r"""Expected calibration error: how far confidence is from accuracy, over bins of equal width.

    .. math:: \sum_b \frac{n_b}{n} \, | \mathrm{accuracy}_b - \mathrm{confidence}_b |

    Bin b holds the instances whose highest probability lies in (b / bins, (b + 1) / bins]. Guo et al.,
    *On calibration of modern neural networks* (2017).
    """
    confidence, predicted = logits.double().softmax(dim=1).max(dim=1)
    bin_of = (confidence * bins).ceil().long().clamp(1, bins) - 1
    # n_b |accuracy_b - confidence_b| is the absolute sum over the bin of (right - confidence)
    gaps = confidence.new_zeros(bins).index_add(0, bin_of, (predicted == labels).double() - confidence)
    return gaps.abs().sum() / len(labels)


def instance_metrics(logits: Tensor, labels: Tensor) -> dict[str, float]:
    """Return all metrics of instances by name.

    Example:
        >>> instance_metrics(torch.tensor([[2.0, 0.0], [1.0, 0.0]]), torch.tensor([0, 1]))["accuracy"]
        0.5
    """
    metrics = {
        "accuracy": accuracy(logits, labels),
        "balanced_accuracy": balanced_accuracy(logits, labels),
        "log_loss": log_loss(logits, labels),
        "calibration_error": calibration_error(logits, labels),
    }
    return _read(metrics)


def bag_kl_divergence(logits: Tensor, bag_index: Tensor | BagLayout, proportions: Tensor) -> Tensor:
    r"""Mean over bags of KL(z | p) between the known proportions z and the mean prediction p, in nats.

    .. math:: \sum_k z_k \log \frac{z_k}{p_k}, \qquad 0 \log 0 = 0

    Unlike `functional.bag_kl` it is zero where the proportions are met, so it compares across bags.
    Bags with unknown proportions (NaN) and empty ones are left out.
    """
    inputs = prepare(logits, bag_index, proportions)
    cross_entropy = BF.bag_kl(logits, inputs.layout, proportions, reduction="none").double()
    negative_entropy = torch.xlogy(proportions, proportions).sum(dim=1).double()
    return reduce_bags(cross_entropy + negative_entropy, inputs.counted, "mean")


def bag_l1(logits: Tensor, bag_index: Tensor | BagLayout, proportions: Tensor) -> Tensor:
    """Mean over bags of the sum of absolute differences between known and predicted proportions."""
    return BF.proportion_loss(logits, bag_index, proportions, divergence="l1").double()


def bag_metrics(logits: Tensor, bag_index: Tensor | BagLayout, proportions: Tensor) -> dict[str, float]:
    """Return all metrics of bags by name: "kl" (KL(z | p)) and "l1". No label of an instance is needed.

    Example:
        >>> logits, bag_index = torch.zeros(2, 2), torch.tensor([0, 0])
        >>> bag_metrics(logits, bag_index, torch.tensor([[0.5, 0.5]]))
        {'kl': 0.0, 'l1': 0.0}
    """
    return _read(
        {
            "kl": bag_kl_divergence(logits, bag_index, proportions),
            "l1": bag_l1(logits, bag_index, proportions),
        }
    )


def _read(metrics: dict[str, Tensor]) -> dict[str, float]:
    values = torch.stack(list(metrics.values())).tolist()  # one wait for the GPU, not one per metric
    return dict(zip(metrics, values, strict=True))
