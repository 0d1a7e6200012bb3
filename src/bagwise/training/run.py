"""What a run is, as JSON: two runs with equal descriptions can go on from each other's checkpoints."""

from __future__ import annotations

import dataclasses
import json
import re
import zlib
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from bagwise.bags import Augment, Bags
from bagwise.bags.data import Instances
from bagwise.bags.setting_checks import check_type
from bagwise.methods import Method, method_name
from bagwise.training.recipe import Recipe

_ROWS_COMPARED = 1000


def check_parts(network: object, recipe: object, *bags: object) -> None:
    """Raise where a part of a run is not of its type."""
    check_type("network", network, nn.Module, "a torch.nn.Module, from instances to logits")
    check_type("recipe", recipe, Recipe, "bagwise.Recipe(epochs=10)")
    for each in bags:
        check_type("bags", each, Bags, "bagwise.Bags(instances, bag_ids, proportions)")


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
        "network": describe_network(network),
        "method": {"name": method_name(method), **_fields(method)},
        "bags": {
            "bags": bags.num_bags,
            "instances": bags.num_instances,
            "classes": bags.num_classes,
            "digest": digest(bags.proportions, bags.layout.bag_index),
            "contents": contents_digest(bags.instances),
        },
        "recipe": _fields(recipe),
        "augment": describe_part(augment),
        "strong_augment": describe_part(strong_augment),
    }
    return as_json(description)


def describe_network(network: nn.Module) -> dict[str, Any]:
    """Describe a network by its layers and the shapes of its tensors."""
    state = network.state_dict()
    return {
        "class": type(network).__name__,
        "layers": zlib.crc32(_repr(network).encode()),
        "tensors": {name: list(value.shape) for name, value in state.items() if isinstance(value, Tensor)},
    }


def as_json(description: dict[str, Any]) -> dict[str, Any]:
    """Return a description as it will be read back: tuples become lists, what JSON has no word for its repr."""
    return json.loads(json.dumps(description, default=_repr))


def digest(*tensors: Tensor) -> str:
    """Return a checksum of tensors that live on the CPU or on a GPU."""
    total = 0
    for tensor in tensors:
        total = zlib.crc32(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data, total)
    return f"{total:08x}"


def contents_digest(instances: Instances) -> str | None:
    """Return a checksum of some rows, spread over all, to tell other data; None for a dataset, which may be random."""
    if not isinstance(instances, Tensor):
        return None
    rows = np.linspace(0, len(instances) - 1, _ROWS_COMPARED).astype(np.int64)
    return digest(instances[torch.from_numpy(rows)])


def describe_part(part: Any) -> Any:
    """Describe an object by the name of its class and its fields; what JSON has a word for is left as it is."""
    if part is None or isinstance(part, (bool, int, float, str, list, tuple)):
        return part
    return {"name": type(part).__name__, **_fields(part)}


def _fields(thing: Any) -> dict[str, Any]:
    if dataclasses.is_dataclass(thing):
        return dataclasses.asdict(thing)  # pyright: ignore[reportArgumentType]
    return dict(getattr(thing, "__dict__", {}))


def _repr(thing: object) -> str:
    return re.sub(r" at 0x[0-9a-f]+", "", repr(thing))  # addresses differ from process to process
