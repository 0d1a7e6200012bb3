"""Training from bags: the one loop, its recipe, checkpoints and evaluation."""

from bagwise.training.checkpoint import CheckpointError
from bagwise.training.evaluation import BagEvaluator, Evaluator
from bagwise.training.loop import TrainingResult, train
from bagwise.training.recipe import Recipe
from bagwise.training.tally import NonFiniteLossError

__all__ = [
    "BagEvaluator",
    "CheckpointError",
    "Evaluator",
    "NonFiniteLossError",
    "Recipe",
    "TrainingResult",
    "train",
]
