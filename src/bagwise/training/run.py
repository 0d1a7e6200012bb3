"""What a run is, as JSON: two runs with equal descriptions can go on from each other's checkpoints."""

from __future__ import annotations

import dataclasses
import json
import zlib
from typing import Any

from torch import nn

from bagwise.bags import Augment, Bags
from bagwise.methods import Method, method_name
from bagwise.training.recipe import Recipe


def describe_run(
    network: nn.Module,
    method: Method,
    bags: Bags,
    recipe: Recipe,
    augment: Augment | None,
    strong_augment: Augment | None = None,
) -> dict[str, Any]:
    """Describe everything that decides which weights a training ends with."""
    description = {
        "network": {
            "class": type(network).__name__,
            "tensors": {name: list(tensor.shape) for name, tensor in network.state_dict().items()},
        },
        "method": {"name": method_name(method), **_fields(method)},
        "bags": {
            "bags": bags.num_bags,
            "instances": bags.num_instances,
            "classes": bags.num_classes,
            "digest": _digest(bags),
        },
        "recipe": _fields(recipe),
        "augment": _named(augment),
        "strong_augment": _named(strong_augment),
    }
    return json.loads(json.dumps(description, default=repr))  # as it will be read back: tuples become lists


def _named(augment: Augment | None) -> dict[str, Any] | None:
    return None if augment is None else {"name": type(augment).__name__, **_fields(augment)}


def _fields(thing: Any) -> dict[str, Any]:
    return dataclasses.asdict(thing) if dataclasses.is_dataclass(thing) else {}  # pyright: ignore[reportArgumentType]


def _digest(bags: Bags) -> str:
    digest = zlib.crc32(bags.proportions.contiguous().numpy().data)
    digest = zlib.crc32(bags.layout.bag_index.contiguous().numpy().data, digest)
    return f"{digest:08x}"
