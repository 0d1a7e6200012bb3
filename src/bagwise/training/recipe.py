"""`Recipe`: every choice of a training run that may change the weights it ends with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from bagwise.bags.setting_checks import check_between, check_choice, check_count

OPTIMIZERS = ("sgd", "adam")
SCHEDULES = ("constant", "step", "cosine", "one-cycle")
PRECISIONS = ("32-true", "bf16-mixed")


@dataclass(frozen=True)
class Recipe:
    """How to train. Two runs with equal recipes, bags, methods and initial weights learn the same.

    Attributes:
        epochs: passes over all bags; the most, where there is a `patience`.
        patience: stop once this many evaluations in a row have not lowered the KL of held-out bags; None trains for
            all epochs.
        batch_instances: most instances in a batch, over all processes; a larger bag is a batch of its own.
        optimizer: "sgd" or "adam".
        learning_rate: the highest learning rate; `schedule` says where it is reached.
        momentum: of sgd.
        nesterov: whether sgd's momentum is Nesterov's.
        weight_decay: strength of the L2 penalty.
        decay_all: whether biases and the parameters of normalisation layers decay too.
        schedule: "constant"; "step", a tenth after half of the training (the paper); "cosine", down to zero;
            "one-cycle", linearly up and linearly down to zero.
        warmup: share of the training over which the learning rate first rises from zero, linearly. None: 0.25 for
            "one-cycle", 0 otherwise.
        ema: decay per step of the exponential moving average of the weights, which is then what is evaluated and
            returned; None for none.
        accumulate: batches per optimizer step; the step follows the mean over all their bags.
        drop_last: leave out the last batch of an epoch when it is not full, so that all batches have one shape.
        chunk_instances: a batch with more instances than this goes through the network in chunks of this size,
            with exact gradients in the memory of one chunk. Batch norm then uses its running statistics.
        precision: "32-true" or "bf16-mixed".
        compile: whether to run the network through `torch.compile`.
        channels_last: whether images and convolutions use the channels-last memory format.
        seed: seed of the order of the bags, of augmentation and of dropout.
    """

    epochs: int = 50
    patience: int | None = None
    batch_instances: int = 512
    optimizer: Literal["sgd", "adam"] = "sgd"
    learning_rate: float = 0.1
    momentum: float = 0.9
    nesterov: bool = True
    weight_decay: float = 5e-4
    decay_all: bool = True
    schedule: Literal["constant", "step", "cosine", "one-cycle"] = "cosine"
    warmup: float | None = None
    ema: float | None = None
    accumulate: int = 1
    drop_last: bool = False
    chunk_instances: int | None = None
    precision: Literal["32-true", "bf16-mixed"] = "32-true"
    compile: bool = False
    channels_last: bool = False
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("epochs", "batch_instances", "accumulate"):
            check_count(name, getattr(self, name))
        for name in ("patience", "chunk_instances"):
            if getattr(self, name) is not None:
                check_count(name, getattr(self, name))
        check_between("seed", self.seed, 0, float("inf"))
        check_choice("optimizer", self.optimizer, OPTIMIZERS)
        check_choice("schedule", self.schedule, SCHEDULES)
        check_choice("precision", self.precision, PRECISIONS)
        check_between("learning_rate", self.learning_rate, 0, float("inf"))
        check_between("momentum", self.momentum, 0, 1)
        check_between("weight_decay", self.weight_decay, 0, float("inf"))
        if self.warmup is not None:
            check_between("warmup", self.warmup, 0, 1)
        if self.ema is not None:
            check_between("ema", self.ema, 0, 1)
