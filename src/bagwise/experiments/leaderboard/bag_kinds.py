"""How instances come into bags: at random, by likeness, or with class mixes that vary."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from torch import Tensor

from bagwise.bags import Bags, clustered_bags, dirichlet_bags, uniform_bags

# from (instances, labels, number of classes, bag size, seed)
MakeBags = Callable[[Tensor, Tensor, int, int, int], Bags]


def _dirichlet(instances: Tensor, labels: Tensor, num_classes: int, bag_size: int, seed: int) -> Bags:
    # parameters of 1 on average: where classes are equally frequent, every mix is as likely as any other
    return dirichlet_bags(instances, labels, num_classes, bag_size, float(num_classes), seed)


BAG_KINDS: Mapping[str, MakeBags] = MappingProxyType(
    {
        "uniform": uniform_bags,
        "clustered": clustered_bags,  # by k-means of pixels or columns, as many clusters as classes
        "dirichlet": _dirichlet,
    }
)
