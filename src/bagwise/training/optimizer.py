"""The optimizer that a recipe asks for, and its state as named tensors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from bagwise.training.recipe import Recipe


def build_optimizer(network: nn.Module, recipe: Recipe, device: torch.device) -> torch.optim.Optimizer:
    """Return the recipe's optimizer for `network`; on a GPU one kernel updates all parameters."""
    groups = _decay_groups(network, recipe)
    fused = device.type == "cuda"
    if recipe.optimizer == "adam":
        return torch.optim.Adam(groups, lr=recipe.learning_rate, fused=fused)
    return torch.optim.SGD(
        groups,
        lr=recipe.learning_rate,
        momentum=recipe.momentum,
        nesterov=recipe.nesterov and recipe.momentum > 0,
        fused=fused,
    )


def optimizer_tensors(optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """Return the optimizer's state as `{"parameter number.name": tensor}`."""
    state = optimizer.state_dict()["state"]
    return {
        f"{number}.{name}": torch.as_tensor(value)
        for number, entries in state.items()
        for name, value in entries.items()
        if value is not None
    }


def load_optimizer_tensors(optimizer: torch.optim.Optimizer, tensors: Mapping[str, Tensor]) -> None:
    """Put the state back that `optimizer_tensors` returned."""
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    state: dict[int, dict[str, Any]] = {}
    for key, value in tensors.items():
        number, name = key.split(".", 1)
        parameter = parameters[int(number)]
        if value.shape == parameter.shape:  # same strides as the parameter, or updates leave their fast path
            value = torch.empty_like(parameter, dtype=value.dtype).copy_(value)
        state.setdefault(int(number), {})[name] = value
    optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})


def _decay_groups(network: nn.Module, recipe: Recipe) -> list[dict[str, Any]]:
    trained = [parameter for parameter in network.parameters() if parameter.requires_grad]
    if recipe.decay_all:
        return [{"params": trained, "weight_decay": recipe.weight_decay}]
    # biases and the scales and shifts of normalisation layers are the parameters with one dimension
    weights = [parameter for parameter in trained if parameter.ndim > 1]
    others = [parameter for parameter in trained if parameter.ndim <= 1]
    groups = [(weights, recipe.weight_decay), (others, 0.0)]
    return [{"params": members, "weight_decay": decay} for members, decay in groups if members]
