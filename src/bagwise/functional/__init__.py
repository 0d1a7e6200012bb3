"""Pure, differentiable losses for bags of any sizes: `logits [instances, classes]`, `bag_index`, `proportions`."""

from bagwise.functional.apportion import Plan, apportion
from bagwise.functional.combinatorial import combinatorial
from bagwise.functional.noise import ProportionNoise, noisy_bag_kl
from bagwise.functional.proportion import avg_kl, bag_kl, proportion_loss
from bagwise.functional.rot import rot
from bagwise.functional.transport import transport_lp

__all__ = [
    "Plan",
    "ProportionNoise",
    "apportion",
    "avg_kl",
    "bag_kl",
    "combinatorial",
    "noisy_bag_kl",
    "proportion_loss",
    "rot",
    "transport_lp",
]
