"""A file's content with the name that messages call it by."""

from __future__ import annotations

import gzip
import hashlib
import io
import tarfile
import zlib
from collections.abc import Collection
from pathlib import Path
from typing import NamedTuple

import numpy as np

# What reading a damaged gzip stream or tar archive raises.
_DAMAGED = (tarfile.TarError, EOFError, zlib.error, gzip.BadGzipFile)


class SourceFile(NamedTuple):
    """The content of one data file.

    Attributes:
        origin: where it came from, as messages call it.
        content: its bytes, decompressed.
    """

    origin: str
    content: bytes

    def sha256(self) -> str:
        """SHA-256 of the content, in hexadecimal."""
        return hashlib.sha256(self.content).hexdigest()

    def check_labels(self, labels: np.ndarray, num_classes: int) -> None:
        """Raise unless every label is a class number."""
        if labels.size and labels.max() >= num_classes:
            raise ValueError(
                f"{self.origin}: labels must lie in 0..{num_classes - 1}, but it holds {labels.max()}. "
                "It is corrupt or another data set's; download it again."
            )


def read_plain(path: Path) -> SourceFile:
    """Read a file, unzipped if its content is a gzip stream."""
    content = path.read_bytes()
    if content.startswith(b"\x1f\x8b"):
        try:
            with gzip.open(io.BytesIO(content)) as stream:
                content = stream.read()
        except _DAMAGED as error:
            raise ValueError(
                f"{path}: the gzip stream is damaged ({error}). Delete it and download it again."
            ) from error
    return SourceFile(str(path), content)


def read_archive(path: Path, members: Collection[str]) -> dict[str, SourceFile]:
    """Read the named members of a `.tar.gz` in one pass; nothing is unpacked to disk.

    Other members are passed over unread, and so are links and directories that bear a wanted name: there is
    no path for an archive to write to.
    """
    found: dict[str, SourceFile] = {}
    try:
        with tarfile.open(path, "r:gz") as archive:
            for entry in archive:
                stream = archive.extractfile(entry) if entry.isreg() and entry.name in members else None
                if stream is not None:
                    found[entry.name] = SourceFile(f"{path}:{entry.name}", stream.read())
    except _DAMAGED as error:
        raise ValueError(f"{path}: the archive is damaged ({error}). Delete it and download it again.") from error
    missing = [name for name in members if name not in found]
    if missing:
        raise ValueError(
            f"{path}: the archive must hold {', '.join(missing)}, but does not. "
            "It is not the official archive; delete it and download it again."
        )
    return found
