"""Read the pickles of CIFAR's python version without trusting them.

A pickle is a program: loading one with `pickle.load` runs whatever its author wrote. This reader knows three
names, those with which Python 2 wrote a NumPy array, and gives each a harmless stand-in that records its
arguments. Any other name is refused, so that a pickle can build dicts, lists, numbers and byte strings, and
arrays of bytes, and nothing else.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable

import numpy as np

from bagwise.experiments.datasets.source import SourceFile


def load_pickled_arrays(file: SourceFile) -> dict[object, object]:
    """Return the pickled dict of `file`; its keys are bytes, as Python 2 strings are."""
    try:
        loaded = _ArrayUnpickler(io.BytesIO(file.content), encoding="bytes").load()
        if not isinstance(loaded, dict):
            raise pickle.UnpicklingError(f"it holds a {type(loaded).__name__} where a dict is expected")
        return {key: _array(value) if isinstance(value, _Array) else value for key, value in loaded.items()}
    except Exception as error:  # a damaged pickle can fail in any way that its opcodes can
        raise ValueError(
            f"{file.origin}: refused as a pickle of CIFAR's python version: {error}. "
            "Delete it and download the official archive again."
        ) from error


class _DataType:
    """Stands in for `numpy.dtype`: keeps the code, such as b"u1"."""

    def __init__(self, code: object, *_: object) -> None:
        self.code = code

    def __setstate__(self, state: object) -> None:
        pass  # the byte order, which single bytes do not have


class _Array:
    """Stands in for `numpy.ndarray`, and for the function that makes one: keeps the pickled state."""

    def __init__(self, *_: object) -> None:
        self.state: object = None

    def __setstate__(self, state: object) -> None:
        self.state = state


_KNOWN: dict[tuple[str, str], Callable[..., object]] = {
    ("numpy.core.multiarray", "_reconstruct"): _Array,
    ("numpy", "ndarray"): _Array,
    ("numpy", "dtype"): _DataType,
}


class _ArrayUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str, /) -> Callable[..., object]:
        known = _KNOWN.get((module, name))
        if known is None:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}, which no CIFAR file needs")
        return known


def _array(pickled: _Array) -> np.ndarray:
    """Build the array of unsigned bytes that `pickled` describes."""
    match pickled.state:
        case (int(), tuple(shape), _DataType(code=b"u1"), bool(fortran), bytes(content)):
            return np.frombuffer(content, np.uint8).reshape(shape, order="F" if fortran else "C")
    raise pickle.UnpicklingError("it holds an array that is not one of plain bytes")
