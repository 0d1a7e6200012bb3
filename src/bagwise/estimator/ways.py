"""The three ways to fit a classifier, told apart in one place: the loss of a method, a probe, self-training."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields

import numpy as np
import torch
from torch import Tensor, nn

from bagwise.bags import Bags, SwappedColumns
from bagwise.bags.setting_checks import check_choice
from bagwise.fitting import FittedNetwork, fit_network, fit_probe_network, fit_self_training
from bagwise.functional.noise import ProportionNoise
from bagwise.methods import METHODS, Method, NoisyKL, get_method
from bagwise.probe import Probe, ProbeNetwork
from bagwise.self_training import Labelling
from bagwise.training import Recipe

Way = Method | Probe | Labelling

# What `ProportionClassifier(method=...)` knows.
_SETTINGS = {"probe": Probe, "self-training": Labelling}
METHOD_NAMES = (*METHODS, *_SETTINGS)


def way_to_fit(name: str, parameters: Mapping[str, float | str], noise: ProportionNoise | None) -> Way:
    """Return the way that `name` and its hyper-parameters stand for."""
    check_choice("method", name, METHOD_NAMES)
    if noise is not None:
        if not isinstance(noise, ProportionNoise):
            raise TypeError(
                f"proportion_noise must be None or a ProportionNoise, but got {noise!r}. "
                'Pass ProportionNoise("laplace", scale), with the scale in instances.'
            )
        if name != "kl":
            raise ValueError(
                f"proportion_noise is known to method 'kl' alone, but the method is {name!r}. Use 'kl', or clean the "
                "proportions beforehand and declare no noise."
            )
        return NoisyKL(noise)
    if name not in _SETTINGS:
        return get_method(name, **parameters)
    for given in parameters:
        check_choice(f"a hyper-parameter of method {name!r}", given, [field.name for field in fields(_SETTINGS[name])])
    return _SETTINGS[name](**parameters)  # pyright: ignore[reportArgumentType]  (they check the types themselves)


def fit_way(
    way: Way,
    bags: Bags,
    *,
    held_out: np.ndarray,
    recipe: Recipe,
    columns: tuple[int, ...],
    new_network: Callable[[], nn.Module],
    device: str,
    progress: bool,
) -> FittedNetwork:
    """Fit to the bags that are not held out.

    Args:
        way: of `way_to_fit`.
        bags: all of them.
        held_out: `[bags]` booleans.
        recipe: of the training; a probe takes its seed alone.
        columns: of each input, as `SwappedColumns` takes them; for methods that compare two views of a row.
        new_network: builds the network to train; a probe has one of its own.
        device: "auto", "cpu" or "cuda".
        progress: whether to show a progress bar.
    """
    if isinstance(way, Probe):
        return fit_probe_network(bags, way, held_out=held_out, seed=recipe.seed, device=device_of(device))
    fit = fit_self_training if isinstance(way, Labelling) else fit_network
    return fit(
        new_network(),
        bags,
        way,  # pyright: ignore[reportArgumentType]  (each is given its own)
        recipe,
        strong_augment=SwappedColumns(groups=columns),
        held_out=held_out,
        accelerator=device,
        progress=progress,
    )


def restored_network(name: str, tensors: Mapping[str, Tensor], new_network: Callable[[], nn.Module]) -> nn.Module:
    """Return the network of a fitted classifier with this method from its `state_dict`."""
    if name == "probe":
        return ProbeNetwork.from_state(tensors)
    network = new_network()
    network.load_state_dict(tensors)
    return network


def device_of(name: str) -> torch.device:
    """Return the device that "auto", "cpu" or "cuda" means on this machine."""
    return torch.device("cuda" if name != "cpu" and torch.cuda.is_available() else "cpu")
