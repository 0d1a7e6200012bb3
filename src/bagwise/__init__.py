"""bagwise: learn classifiers for instances from the label proportions of bags."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from bagwise import functional, losses, model_selection
    from bagwise.bags import BagLayout, Bags, Memberships
    from bagwise.estimator import ProportionClassifier
    from bagwise.functional.noise import ProportionNoise
    from bagwise.model_selection import BagWarning
    from bagwise.training import Recipe, train

__all__ = [
    "BagLayout",
    "BagWarning",
    "Bags",
    "Memberships",
    "ProportionClassifier",
    "ProportionNoise",
    "Recipe",
    "functional",
    "losses",
    "model_selection",
    "train",
]

# Where each public name lives. Loaded on first use, so that the command line answers before torch is imported.
_HOMES = {
    "BagLayout": "bagwise.bags",
    "BagWarning": "bagwise.model_selection",
    "Bags": "bagwise.bags",
    "Memberships": "bagwise.bags",
    "ProportionClassifier": "bagwise.estimator",
    "ProportionNoise": "bagwise.functional.noise",
    "Recipe": "bagwise.training",
    "train": "bagwise.training",
}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    if name in __all__:
        return importlib.import_module(f"bagwise.{name}")
    raise AttributeError(f"module 'bagwise' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
