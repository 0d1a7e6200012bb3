"""IDX, the format of MNIST and Fashion-MNIST.

A file is two zero bytes, the code of the value type, the number of dimensions, each dimension as a big-endian
32-bit integer, and then the values in C order.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

import numpy as np

from bagwise.experiments.datasets.source import SourceFile

_UINT8 = 0x08


def parse_idx(file: SourceFile) -> np.ndarray:
    """Return the values of an IDX file of unsigned bytes, in the shape that its header states."""
    content = file.content
    if len(content) < 4 or content[:2] != b"\0\0":
        raise ValueError(
            f"{file.origin}: an IDX file must start with two zero bytes, a type and a number of dimensions, "
            f"but this one starts with {content[:4].hex(' ') or 'nothing'}. Download it again."
        )
    value_type, num_dims = content[2], content[3]
    if value_type != _UINT8:
        raise ValueError(
            f"{file.origin}: the values must be unsigned bytes (type 08), "
            f"but the header says {value_type:02x}. It is another file; download the official one."
        )
    header_size = 4 + 4 * num_dims
    if num_dims == 0 or len(content) < header_size:
        raise ValueError(
            f"{file.origin}: the header must hold {num_dims or 'at least 1'} dimensions, "
            f"but the file has only {len(content)} bytes. It is cut off; download it again."
        )
    shape = struct.unpack(f">{num_dims}I", content[4:header_size])
    expected = header_size + int(np.prod(shape, dtype=object))
    if len(content) != expected:
        raise ValueError(
            f"{file.origin}: the header says {' x '.join(map(str, shape))} values, so {expected} bytes, "
            f"but the file has {len(content)}. It is corrupt; download it again."
        )
    return np.frombuffer(content, np.uint8, offset=header_size).reshape(shape)


def decode_idx(files: Sequence[SourceFile], *, num_classes: int) -> tuple[np.ndarray, np.ndarray]:
    """Return `images [n, 1, h, w]` and `labels [n]` from a file of images and a file of labels."""
    image_file, label_file = files
    images, labels = parse_idx(image_file), parse_idx(label_file)
    if images.ndim != 3 or labels.ndim != 1 or len(images) != len(labels):
        raise ValueError(
            f"images must have 3 dimensions and labels 1, of the same length, but {image_file.origin} has "
            f"shape {list(images.shape)} and {label_file.origin} {list(labels.shape)}."
        )
    label_file.check_labels(labels, num_classes)
    return images[:, None].copy(), labels.astype(np.int64)
