"""Every check of a setting that a caller hands in, in one place; `validation` has those of data.

A message states the rule, the offending value and the fix.
"""

from __future__ import annotations

import difflib
import unicodedata
from collections.abc import Iterable
from numbers import Integral

import numpy as np
import torch

# what two texts that look alike need
DIFFERS_IN_FORM = (
    "differs by how accents are encoded (Unicode NFC against NFD): normalise both, in pandas by .str.normalize('NFC')."
)

MOST_NAMES_LISTED = 25  # all methods, and their number may grow a little


def check_choice(argument: str, value: object, known: Iterable[str]) -> None:
    """Raise unless `value` is one of the `known` names; suggest the nearest."""
    known = list(known)
    if value in known:
        return
    listed = ", ".join(repr(name) for name in known[:MOST_NAMES_LISTED])
    if len(known) > MOST_NAMES_LISTED:  # the columns of a table may be thousands
        listed += f" and {len(known) - MOST_NAMES_LISTED} more"
    for name in known:
        if differ_in_form_alone(name, value):
            raise ValueError(f"{argument} must be one of {listed}, but got {value!r}. {name!r} {DIFFERS_IN_FORM}")
    lower = {name.lower(): name for name in known}
    nearest = difflib.get_close_matches(str(value).lower(), lower, n=1)
    hint = f" Did you mean {lower[nearest[0]]!r}?" if nearest else ""
    raise ValueError(f"{argument} must be one of {listed}, but got {value!r}.{hint}")


def differ_in_form_alone(one: object, other: object) -> bool:
    """Whether two texts look alike but are not equal, since letters with accents have two forms in Unicode."""
    return (
        isinstance(one, str)
        and isinstance(other, str)
        and one != other
        and unicodedata.normalize("NFC", one) == unicodedata.normalize("NFC", other)
    )


def check_type(argument: str, value: object, expected: type, example: str) -> None:
    """Raise unless `value` is of the expected type; `example` is what a caller could write."""
    if not isinstance(value, expected):
        raise TypeError(f"{argument} must be a {expected.__name__}, but got {type(value).__name__}. Pass {example}.")


def check_count(argument: str, value: object) -> None:
    """Raise unless `value` is an integer of at least 1."""
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise TypeError(f"{argument} must be an integer of at least 1, but got {value!r}.")
    if value < 1:
        raise ValueError(f"{argument} must be at least 1, but got {value}.")


def _check_number(argument: str, value: object) -> None:
    """Raise unless `value` can be compared with numbers, so that a check of its range means something."""
    if isinstance(value, str) or not hasattr(value, "__float__"):
        raise TypeError(f"{argument} must be a number, but got {value!r}.")


def check_between(argument: str, value: float, low: float, high: float) -> None:
    """Raise unless `low <= value < high`."""
    _check_number(argument, value)
    if not low <= value < high:
        raise ValueError(f"{argument} must be at least {low:g} and less than {high:g}, but got {value!r}.")


def check_positive(argument: str, value: float) -> None:
    """Raise unless `value` is positive and finite."""
    _check_number(argument, value)
    if not 0 < value < float("inf"):
        raise ValueError(f"{argument} must be positive and finite, but got {value!r}.")


def check_share(argument: str, value: float) -> None:
    """Raise unless `value` lies between 0 and 1, both included."""
    _check_number(argument, value)
    if not 0 <= value <= 1:
        raise ValueError(f"{argument} must lie between 0 and 1, but got {value!r}.")


def check_alpha(alpha: float) -> None:
    """Raise unless 0 < alpha < 1."""
    _check_number("alpha", alpha)
    if 0 < alpha < 1:
        return
    if alpha == 1:
        why = "at alpha=1 the proportions are ignored and the loss carries no signal"
    elif alpha == 0:
        why = "at alpha=0 the predictions are ignored and the gradient is zero"
    else:
        why = "it weighs the predictions (alpha) against the proportions (1 - alpha)"
    raise ValueError(f"alpha must lie strictly between 0 and 1, but got {alpha}: {why}.")


def check_epsilon(epsilon: float) -> None:
    """Raise unless epsilon > 0."""
    _check_number("epsilon", epsilon)
    if epsilon == 0:
        raise ValueError(
            "epsilon must be positive, but got 0. Without the entropy term the exact plan is transport_lp "
            "(proportions met exactly) or combinatorial (met as closely as alpha says)."
        )
    if not 0 < epsilon < float("inf"):
        raise ValueError(f"epsilon must be positive and finite, but got {epsilon}. The paper uses 1.")


def check_random_state(value: object) -> None:
    """Raise unless `value` is None, an integer that every generator takes as its seed, or a `RandomState`."""
    if value is None or isinstance(value, np.random.RandomState):
        return
    if not isinstance(value, Integral):
        raise TypeError(
            f"random_state must be None, an integer or a numpy.random.RandomState, but got {value!r}. Pass an integer."
        )
    if not 0 <= int(value) < 2**63:
        raise ValueError(f"random_state must be at least 0 and less than 2**63, but got {value}.")


def check_device(device: str) -> None:
    """Raise where a GPU is asked for by name and PyTorch finds none."""
    if device == "cuda" and not torch.cuda.is_available():
        raise ValueError("device 'cuda' needs a GPU, but this machine has none that PyTorch can use. Use auto or cpu.")
