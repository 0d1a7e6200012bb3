"""Methods that need the class prior of the whole data set, which no single batch knows."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from bagwise.bags.data import Bags
from bagwise.methods.base import Method


@runtime_checkable
class NeedsPrior(Protocol):
    """A method that is told the class prior once, before training."""

    def with_prior(self, prior: tuple[float, ...]) -> Method:
        """Return the method with this prior."""
        ...


def told_prior(method: Method, bags: Bags) -> Method:
    """Return `method`, with the class prior of `bags` where it needs one."""
    return method.with_prior(class_prior(bags)) if isinstance(method, NeedsPrior) else method


def class_prior(bags: Bags) -> tuple[float, ...]:
    """Share of each class among the instances of the bags with known proportions.

    Example:
        >>> import torch
        >>> class_prior(Bags(torch.zeros(4, 1), [0, 0, 0, 1], [[1.0, 0.0], [0.0, 1.0]]))
        (0.75, 0.25)
    """
    known = ~bags.proportions[:, 0].isnan()
    counts = bags.proportions[known].double() * bags.layout.sizes[known, None]
    total = counts.sum(dim=0)
    return tuple((total / total.sum()).tolist())
