"""CIFAR-10 and CIFAR-100: the binary version and the python version.

Both hold the pixels of an image as 3 planes (red, green, blue) of 32 rows of 32.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from bagwise.experiments.datasets.pickled_arrays import load_pickled_arrays
from bagwise.experiments.datasets.source import SourceFile

_SHAPE = (3, 32, 32)
_PIXELS = 3 * 32 * 32


def parse_cifar_binary(file: SourceFile, *, label_bytes: int, num_classes: int) -> tuple[np.ndarray, np.ndarray]:
    """Return `images [n, 3, 32, 32]` and `labels [n]` of one file of the binary version.

    A record is `label_bytes` bytes and then the pixels; the last of the label bytes is the class
    (CIFAR-100 has the superclass before it).
    """
    record = label_bytes + _PIXELS
    if not file.content or len(file.content) % record:
        raise ValueError(
            f"{file.origin}: the size must be a multiple of {record} bytes, one record per image, "
            f"but it is {len(file.content)}. It is cut off or another format; download it again."
        )
    records = np.frombuffer(file.content, np.uint8).reshape(-1, record)
    labels = records[:, label_bytes - 1]
    file.check_labels(labels, num_classes)
    return records[:, label_bytes:].reshape(-1, *_SHAPE), labels.astype(np.int64)


def parse_cifar_python(file: SourceFile, *, label_key: bytes, num_classes: int) -> tuple[np.ndarray, np.ndarray]:
    """Return `images [n, 3, 32, 32]` and `labels [n]` of one file of the python version, a pickled dict."""
    batch = load_pickled_arrays(file)
    pixels, labels = batch.get(b"data"), batch.get(label_key)
    if not isinstance(pixels, np.ndarray) or not isinstance(labels, list):
        raise ValueError(
            f"{file.origin}: the pickle must hold an array b'data' and a list {label_key!r}, "
            f"but it holds {sorted(map(repr, batch))}. Download it again."
        )
    is_class = all(type(label) is int and 0 <= label < num_classes for label in labels)
    if pixels.shape != (len(labels), _PIXELS) or not is_class:
        raise ValueError(
            f"{file.origin}: there must be one row of {_PIXELS} pixels and one label in 0..{num_classes - 1} "
            f"per image, but the pixels have shape {list(pixels.shape)} and there are {len(labels)} labels."
        )
    return pixels.reshape(-1, *_SHAPE), np.array(labels, dtype=np.int64)


def decode_cifar_binary(
    files: Sequence[SourceFile], *, label_bytes: int, num_classes: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return the images and labels of several files of the binary version, one after the other."""
    parts = [parse_cifar_binary(file, label_bytes=label_bytes, num_classes=num_classes) for file in files]
    return _concatenate(parts)


def decode_cifar_python(
    files: Sequence[SourceFile], *, label_key: bytes, num_classes: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return the images and labels of several files of the python version, one after the other."""
    parts = [parse_cifar_python(file, label_key=label_key, num_classes=num_classes) for file in files]
    return _concatenate(parts)


def _concatenate(parts: Sequence[tuple[np.ndarray, np.ndarray]]) -> tuple[np.ndarray, np.ndarray]:
    images, labels = zip(*parts, strict=True)
    return np.concatenate(images), np.concatenate(labels)  # copies: what torch may write to
