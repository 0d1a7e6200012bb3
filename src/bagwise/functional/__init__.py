"""Pure, differentiable losses for bags of any sizes: `logits [instances, classes]`, `bag_index`, `proportions`."""

from bagwise.functional.proportion import avg_kl, bag_kl, proportion_loss
from bagwise.functional.rot import rot

__all__ = ["avg_kl", "bag_kl", "proportion_loss", "rot"]
