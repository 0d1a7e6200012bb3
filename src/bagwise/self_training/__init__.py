"""Self-training: features without proportions, then labels and network by turns."""

from bagwise.functional.labelling import Labelling
from bagwise.self_training.em import SelfTrainingResult, probabilities_by_probe, self_train
from bagwise.self_training.improvement import Improvement, improve
from bagwise.self_training.pretraining import Contrast, pretrain

__all__ = [
    "Contrast",
    "Improvement",
    "Labelling",
    "SelfTrainingResult",
    "improve",
    "pretrain",
    "probabilities_by_probe",
    "self_train",
]
