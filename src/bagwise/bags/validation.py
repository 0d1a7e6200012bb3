"""Every check of the data that a caller hands in, in one place; `setting_checks` has those of settings.

A message states the rule, the offending value and the fix. Checks that read values (rather than shapes and
types) would make a GPU wait, so they run only on tensors that live on the CPU; the data layer runs them once
for everything that later travels to a GPU.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from numbers import Real

import numpy as np
import torch
from torch import Tensor

PROPORTION_TOLERANCE = 1e-4
_PROBABILITY_TOLERANCE = 1e-2  # what half precision makes of a softmax; no one measured them, as proportions are


def check_logits(logits: Tensor) -> None:
    """Raise unless `logits` is a floating-point matrix `[instances, classes]`."""
    if not isinstance(logits, Tensor):
        raise TypeError(f"logits must be a torch.Tensor [instances, classes], but got {type(logits).__name__}.")
    if logits.ndim != 2:
        raise ValueError(f"logits must have shape [instances, classes], but got {list(logits.shape)}.")
    if not logits.is_floating_point():
        raise TypeError(f"logits must be floating point, but got {logits.dtype}; call .float() on them.")
    if logits.shape[1] < 2:
        raise ValueError(
            f"logits must have at least 2 classes, but got {logits.shape[1]}. "
            "For a binary model with one output s, pass torch.stack([zeros, s], 1)."
        )


def check_losses(losses: Tensor, num_bags: int) -> None:
    """Raise unless a method gave one loss per bag: a mean or a sum would be followed with a step of another size."""
    if losses.shape != (num_bags,):
        raise ValueError(
            f"a method must give one loss for each of the {num_bags} bags of a batch, but gave a tensor of shape "
            f"{list(losses.shape)}. Leave the mean to the training."
        )


def check_bag_index(bag_index: Tensor, num_bags: int | None = None) -> None:
    """Raise unless `bag_index` holds one bag number per instance, each from 0 to `num_bags - 1`."""
    if not isinstance(bag_index, Tensor):
        raise TypeError(
            f"bag_index must be a torch.Tensor of integers or a BagLayout, but got {type(bag_index).__name__}."
        )
    if bag_index.ndim != 1:
        raise ValueError(f"bag_index must have shape [instances], but got {list(bag_index.shape)}.")
    if bag_index.is_floating_point() or bag_index.is_complex() or bag_index.dtype == torch.bool:
        raise TypeError(f"bag_index must hold integers, but got {bag_index.dtype}; call .long() on it.")
    if bag_index.numel() == 0:
        return
    low, high = (int(v) for v in torch.aminmax(bag_index.long()))  # of uint32, say, torch cannot tell
    if low < 0:
        raise ValueError(f"bag_index must not be negative, but holds {low}; bags are numbered from 0.")
    if num_bags is not None and high >= num_bags:
        raise ValueError(
            f"bag_index holds bag {high}, but there are only {num_bags} bags (rows of proportions), "
            f"numbered 0 to {num_bags - 1}."
        )


def check_bag_ids(bag_ids: object) -> None:
    """Raise unless `bag_ids` is a column with one entry per instance; what the entries are is not looked at."""
    shape = getattr(bag_ids, "shape", None)
    rule = "bags must be one id per instance, a column such as df['ward']"
    if shape is not None and len(shape) != 1:
        raise ValueError(f"{rule}, but got a {type(bag_ids).__name__} of shape {list(shape)}. Take one of its columns.")
    if not isinstance(bag_ids, Iterable) or isinstance(bag_ids, (str, bytes, Mapping)):
        raise TypeError(f"{rule}, but got {bag_ids!r}. Pass a list, an array or a column.")


def check_instances(logits: Tensor, num_instances: int, device: torch.device) -> None:
    """Raise unless the logits and the bag index speak of the same instances on the same device."""
    if logits.shape[0] != num_instances:
        raise ValueError(
            f"logits has {logits.shape[0]} instances (rows), but bag_index has {num_instances}; "
            "there must be one bag number per instance."
        )
    _check_same_device("bag_index", device, logits.device)


def check_proportions(
    proportions: Tensor,
    *,
    num_classes: int,
    device: torch.device,
    bag_names: Sequence[object] | None = None,
) -> None:
    """Raise unless each row of `proportions [bags, classes]` lies on the simplex or is all NaN (unknown)."""
    if not isinstance(proportions, Tensor):
        raise TypeError(f"proportions must be a torch.Tensor [bags, classes], but got {type(proportions).__name__}.")
    if proportions.ndim != 2:
        raise ValueError(f"proportions must have shape [bags, classes], but got {list(proportions.shape)}.")
    if proportions.dtype not in (torch.float32, torch.float64):
        raise TypeError(
            f"proportions must be float32 or float64, but got {proportions.dtype}; call .float() on them "
            "(half precision cannot hold proportions that sum to 1)."
        )
    if proportions.shape[1] != num_classes:
        raise ValueError(
            f"proportions has {proportions.shape[1]} classes (columns), but logits has {num_classes}; "
            "they must have the same classes in the same order."
        )
    _check_same_device("proportions", proportions.device, device)
    if proportions.device.type == "cpu":
        check_proportion_values(proportions, bag_names)


def check_proportion_values(proportions: Tensor, bag_names: Sequence[object] | None = None) -> None:
    """Raise unless each row is nonnegative and sums to 1, or is all NaN (unknown)."""
    values = proportions.detach()
    sums = values.sum(dim=1)
    if bool(((sums - 1).abs() <= PROPORTION_TOLERANCE).all()) and bool((values >= 0).all()):
        return  # the common case, in two cheap passes
    missing = values.isnan()
    unknown = missing.all(dim=1)

    def first(bad: Tensor) -> tuple[int, str] | None:
        rows = torch.nonzero(bad & ~unknown)
        if rows.numel() == 0:
            return None
        bag = int(rows[0])
        return bag, repr(bag if bag_names is None else bag_names[bag])

    if found := first(missing.any(dim=1)):
        raise ValueError(
            f"proportions must be known for all classes or for none, but bag {found[1]} has NaN for some: "
            f"{_row(values, found[0])}. Fill them in (0 for a class that does not occur), or "
            "make the whole row NaN (unknown)."
        )
    if found := first((values < 0).any(dim=1)):
        raise ValueError(
            f"proportions must not be negative, but bag {found[1]} has {_row(values, found[0])}. "
            "Clip noisy proportions at 0 and divide each row by its sum."
        )
    if found := first(~((sums - 1).abs() <= PROPORTION_TOLERANCE)):
        bag, name = found
        total = f"{sums[bag].item():.6g}"
        row = values[bag]
        if bool((row == row.round()).all()) and total not in ("0", "inf"):
            fix = "If these are counts, pass counts=True (--counts on the command line), or divide each row by its sum."
        elif total == "100":
            fix = "If these are percentages, divide by 100."
        elif total == "0":
            fix = "For a bag with unknown proportions, make the whole row NaN."
        else:
            wrong = "a missing class" if sums[bag] < 1 else "a column that is no class"
            fix = (
                "Divide each row by its sum, as counts=True (--counts on the command line) does, if these are rounded "
                f"shares; otherwise look for {wrong}."
            )
        raise ValueError(f"proportions must sum to 1 in every bag, but bag {name} sums to {total}. {fix}")


def _row(values: Tensor, bag: int) -> str:
    shown = [f"{v:.4g}" for v in values[bag, :6].tolist()]
    return "[" + ", ".join(shown) + (", ...]" if values.shape[1] > 6 else "]")


def _check_same_device(name: str, device: torch.device, expected: torch.device) -> None:
    if device != expected:
        raise ValueError(f"{name} is on {device}, but logits is on {expected}; move one of them with .to().")


def check_images(images: Tensor, *, num_channels: int) -> None:
    """Raise unless `images` are raw pixels `[n, channels, H, W]`, uint8."""
    if images.dtype != torch.uint8 or images.ndim != 4 or images.shape[1] != num_channels:
        raise ValueError(
            f"images must be uint8 with shape [n, {num_channels}, H, W], "
            f"but got {images.dtype} with shape {list(images.shape)}."
        )


def check_groups(groups: Sequence[int], num_inputs: int) -> None:
    """Raise unless `groups` names the column that each of `num_inputs` inputs comes from."""
    if len(groups) != num_inputs:
        raise ValueError(
            f"groups must name the column of every input, but names {len(groups)} and there are {num_inputs} inputs."
        )
    if min(groups) < 0 or max(groups) >= num_inputs:
        raise ValueError(f"groups must number the columns from 0, but holds {min(groups)} to {max(groups)}.")


def check_bag_fits(bag_size: int, num_instances: int, instances: str = "instances") -> None:
    """Raise unless a bag of `bag_size` can be filled; `instances` says which ones there are."""
    if bag_size > num_instances:
        raise ValueError(
            f"bag_size must not exceed the number of {instances}, {num_instances}, but got {bag_size}: no bag fits. "
            "Ask for smaller bags."
        )


def check_one_per_instance(argument: str, count: int, num_instances: int) -> None:
    """Raise unless `argument` has one entry per instance."""
    if count != num_instances:
        raise ValueError(
            f"{argument} must have one entry per instance, but there are {count} entries and {num_instances} instances."
        )


def check_labels(labels: Tensor, *, num_instances: int, num_classes: int) -> None:
    """Raise unless `labels [instances]` holds integers from 0 to `num_classes - 1`."""
    if labels.ndim != 1:
        raise ValueError(f"labels must have shape [instances], but got {list(labels.shape)}.")
    if labels.is_floating_point() or labels.is_complex() or labels.dtype == torch.bool:
        raise TypeError(f"labels must hold class numbers (integers), but got {labels.dtype}.")
    check_one_per_instance("labels", len(labels), num_instances)
    if labels.numel() == 0:
        return
    low, high = (int(v) for v in torch.aminmax(labels.long()))
    if low < 0 or high >= num_classes:
        raise ValueError(
            f"labels must lie between 0 and num_classes - 1 = {num_classes - 1}, but range from {low} "
            f"to {high}. Number the classes from 0, or raise num_classes."
        )


def check_class_labels(labels: Iterable[object]) -> None:
    """Raise unless the labels of the classes are text, numbers or booleans, which is what a saved model can hold."""
    for label in labels:
        if not isinstance(label, (str, Real, np.bool_)):
            raise TypeError(
                f"the labels of classes must be text, numbers or booleans, but got {label!r}. Turn them into text."
            )


def check_counts(counts: Tensor, bag_names: Sequence[object]) -> None:
    """Raise unless each row of `counts [bags, classes]` can be divided by its sum, or is all NaN."""
    odd = torch.nonzero(~(counts.isfinite().all(dim=1) | counts.isnan().all(dim=1)))
    if odd.numel():
        bag = int(odd[0])
        raise ValueError(
            f"counts must be finite, and known for all classes or for none, but bag {bag_names[bag]!r} has "
            f"{_row(counts, bag)}. Fill them in (0 for a class that does not occur), or leave the whole row empty "
            "(NaN)."
        )
    negative = torch.nonzero((counts < 0).any(dim=1))
    if negative.numel():
        bag = int(negative[0])
        raise ValueError(
            f"counts must not be negative, but bag {bag_names[bag]!r} has {_row(counts, bag)}. Clip noisy counts at 0."
        )
    empty = torch.nonzero(counts.sum(dim=1) == 0)
    if empty.numel():
        bag = int(empty[0])
        raise ValueError(
            f"counts must not be all zero, but bag {bag_names[bag]!r} has {_row(counts, bag)}. "
            "For a bag with unknown proportions, leave the whole row empty (NaN)."
        )


def check_enough_known_bags(num_known: int) -> None:
    """Raise unless the proportions of at least two bags are known."""
    if num_known < 2:
        raise ValueError(
            "at least 2 bags must have known proportions, since classes are told apart by how bags differ, but "
            f"there {'is only 1' if num_known else 'are none'}. Add bags, or cut them finer."
        )


def check_same_names(what: str, given: Iterable[object], expected: Iterable[object], fix: str) -> None:
    """Raise unless both hold the same bags; name the first that is missing or unexpected."""
    given, expected = list(given), list(expected)
    known = set(given)
    if missing := [name for name in expected if name not in known]:
        raise ValueError(f"{what} must cover every bag, but bag {missing[0]!r} is missing. {fix}")
    known = set(expected)
    if extra := [name for name in given if name not in known]:
        raise ValueError(
            f"{what} must name only bags that have instances, but bag {extra[0]!r} has none. "
            "Drop it, or look for a spelling that differs."
        )


def check_single_instances(common_size: int | None) -> None:
    """Raise unless every bag holds exactly one instance; `common_size` is the size that all bags share."""
    if common_size != 1:
        held = "bags of different sizes" if common_size is None else f"bags of {common_size}"
        raise ValueError(
            f"method 'supervised' needs bags of one instance each, but got {held}. "
            "Use 'kl' or 'rot' to learn from larger bags."
        )


def check_floating_instances(method: str, instances: Tensor) -> None:
    """Raise unless the instances are floating point, for a method that shifts them a little."""
    if not instances.is_floating_point():
        raise TypeError(
            f"method {method!r} shifts the inputs a little, which needs floating point, but they are "
            f"{instances.dtype}. Pass an augment that normalises them, or call .float() on them."
        )


def check_prior(prior: Tensor, *, num_classes: int, device: torch.device) -> None:
    """Raise unless `prior [classes]` holds the shares of all classes, which sum to 1."""
    if not isinstance(prior, Tensor):
        raise TypeError(f"prior must be a torch.Tensor [classes], but got {type(prior).__name__}.")
    if list(prior.shape) != [num_classes]:
        raise ValueError(
            f"prior must hold one share per class, shape [{num_classes}], but got {list(prior.shape)}; "
            "take the mean of the proportions of all bags, weighted by their sizes."
        )
    _check_same_device("prior", prior.device, device)
    if prior.device.type == "cpu":
        total = float(prior.sum())
        if not (abs(total - 1) <= PROPORTION_TOLERANCE and bool((prior >= 0).all())):
            raise ValueError(
                f"prior must hold shares of at least 0 that sum to 1, but {_row(prior[None], 0)} sums to {total:.6g}; "
                "divide it by its sum."
            )


def check_probabilities(argument: str, probabilities: Tensor, *, num_instances: int, num_classes: int) -> None:
    """Raise unless `probabilities [instances, classes]` are finite, at least 0, and sum to 1 in every row."""
    if not isinstance(probabilities, Tensor):
        raise TypeError(
            f"{argument} must be a torch.Tensor or an array [instances, classes], but got "
            f"{type(probabilities).__name__}."
        )
    if list(probabilities.shape) != [num_instances, num_classes]:
        raise ValueError(
            f"{argument} must hold one row per instance and one column per class, shape "
            f"[{num_instances}, {num_classes}], but got {list(probabilities.shape)}."
        )
    if not probabilities.is_floating_point():
        raise TypeError(f"{argument} must be floating point, but got {probabilities.dtype}; call .float() on it.")
    values = probabilities.detach().float()
    sums = values.sum(dim=1)
    for bad, fix in (
        (~values.isfinite().all(dim=1), "Look where NaN or infinity comes from."),
        ((values < 0).any(dim=1), "If these are logits, call .softmax(dim=1) on them."),
        ((sums - 1).abs() > _PROBABILITY_TOLERANCE, "Divide each row by its sum; logits need a softmax."),
    ):
        rows = torch.nonzero(bad)
        if rows.numel():
            row = int(rows[0])
            raise ValueError(
                f"{argument} must be probabilities, finite, at least 0 and with sum 1 in every row, but row {row} is "
                f"{_row(values, row)}. {fix}"
            )


def check_features(features: Tensor) -> None:
    """Raise unless `features` is a floating-point matrix `[rows, width]` of finite numbers."""
    if not isinstance(features, Tensor):
        raise TypeError(f"features must be a torch.Tensor [rows, width], but got {type(features).__name__}.")
    if features.ndim != 2:
        raise ValueError(f"features must have shape [rows, width], but got {list(features.shape)}; flatten each row.")
    if not features.is_floating_point():
        raise TypeError(f"features must be floating point, but got {features.dtype}; call .float() on them.")
    if len(features) < 2:
        raise ValueError(f"features must have at least 2 rows, but got {len(features)}.")
    for part, first in zip(features.split(2**16), range(0, len(features), 2**16), strict=True):
        bad = torch.nonzero(~part.isfinite().all(dim=1))
        if bad.numel():
            raise ValueError(f"features must be finite, but row {first + int(bad[0])} holds NaN or infinity.")
