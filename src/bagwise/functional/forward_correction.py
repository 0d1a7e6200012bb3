"""Telling from which bag an instance comes (LLPFC)."""

from __future__ import annotations

import torch
from torch import Tensor

from bagwise.bags.layout import BagLayout
from bagwise.functional.inputs import prepare, reduce_bags
from bagwise.functional.segments import expand, segment_sum


def forward_correction(
    logits: Tensor, bag_index: Tensor | BagLayout, proportions: Tensor, *, reduction: str = "mean"
) -> Tensor:
    r"""LLPFC: cross-entropy to the bag that an instance comes from, a noisy label, by forward correction.

    .. math:: -\frac1n \sum_j \log \sum_k T_{bk} f_{jk}, \qquad T_{bk} = \frac{z_{bk}}{\sum_c z_{ck}}

    for the n instances j of bag b; c runs over the bags of the batch. If each of these is as likely, T_bk is the chance
    that an instance of class k comes from bag b, so :math:`T f_j` is what the prediction says about its bag, and the
    right prediction minimises the loss: Zhang, Wang, Scott: *Learning from Label Proportions by Learning with Label
    Noise* (2022).

    There, bags are grouped at random, as many to a group as there are classes, and regrouped every 20 epochs. Here the
    group is the batch, which the loader draws anew in every epoch. So **a bag's value depends on its company**, the
    other bags of the batch (with several processes: of this process's share). A bag that is alone, or among bags with
    the same proportions, teaches nothing; give it about as many bags a batch as there are classes, or more.
    An instance whose prediction excludes every class of its bag (logits of -inf) makes the loss +inf; its gradient
    stays finite.

    Args:
        logits: `[instances, classes]`, unnormalised scores.
        bag_index: `[instances]` integers in any order, or a `BagLayout`.
        proportions: `[bags, classes]`, z; a row of NaN is a bag with unknown proportions and gives no loss.
        reduction: "mean" over the bags with known proportions, "sum", or "none" for `[bags]`.

    Example:
        >>> logits, bag_index = torch.tensor([[2.0, 0.0], [0.0, 2.0]]), torch.tensor([0, 1])
        >>> forward_correction(logits, bag_index, torch.eye(2))  # pure bags: the bag is the label
        tensor(0.1269)
    """
    inputs = prepare(logits, bag_index, proportions)
    z = torch.where(inputs.counted[:, None], inputs.proportions, 0)
    # a class that no bag holds says nothing; a bag without proportions must not make log 0 everywhere
    chances = torch.where(inputs.counted[:, None], z / z.sum(dim=0).clamp(min=torch.finfo(z.dtype).tiny), 1)  # T
    scores = inputs.logits.log_softmax(dim=1) + expand(chances.log(), inputs.layout)
    # the logarithm of nothing has no gradient but NaN
    hopeless = (scores == -torch.inf).all(dim=1, keepdim=True)
    per_instance = torch.where(hopeless, torch.inf, -torch.where(hopeless, 0, scores).logsumexp(dim=1, keepdim=True))
    values = (segment_sum(per_instance, inputs.layout) / inputs.layout.sizes.clamp(min=1)[:, None])[:, 0]
    return reduce_bags(values, inputs.counted, reduction)
