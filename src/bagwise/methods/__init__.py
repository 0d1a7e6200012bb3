"""Ways to learn from bags: one method per file, found by name in the registry."""

from bagwise.methods.base import KeepsState, LossMethod, Method, Step, StepMethod, compares_bags, fewest_instances
from bagwise.methods.noisy_kl import NoisyKL
from bagwise.methods.prior import NeedsPrior, class_prior, told_prior
from bagwise.methods.registry import METHODS, get_method, method_name

__all__ = [
    "METHODS",
    "KeepsState",
    "LossMethod",
    "Method",
    "NeedsPrior",
    "NoisyKL",
    "Step",
    "StepMethod",
    "class_prior",
    "compares_bags",
    "fewest_instances",
    "get_method",
    "method_name",
    "told_prior",
]
