"""Pure, differentiable losses for bags of any sizes: `logits [instances, classes]`, `bag_index`, `proportions`."""

from bagwise.functional.apportion import Plan, apportion
from bagwise.functional.combinatorial import combinatorial
from bagwise.functional.count_likelihood import count_likelihood
from bagwise.functional.forward_correction import forward_correction
from bagwise.functional.moments import moment_matching
from bagwise.functional.noise import ProportionNoise, noisy_bag_kl
from bagwise.functional.proportion import avg_kl, bag_kl, proportion_loss
from bagwise.functional.rot import rot
from bagwise.functional.transport import transport_lp
from bagwise.functional.unbiased import debiased_squares, easy_llp

__all__ = [
    "Plan",
    "ProportionNoise",
    "apportion",
    "avg_kl",
    "bag_kl",
    "combinatorial",
    "count_likelihood",
    "debiased_squares",
    "easy_llp",
    "forward_correction",
    "moment_matching",
    "noisy_bag_kl",
    "proportion_loss",
    "rot",
    "transport_lp",
]
