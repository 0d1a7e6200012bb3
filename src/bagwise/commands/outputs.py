"""Outputs that are there in full or not at all, and whose place is checked before the work begins."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from fnmatch import fnmatch
from pathlib import Path

# What a fit writes. A folder with anything else in it is never overwritten.
_FILES_OF_A_MODEL = ("model.json", "weights-*.safetensors", "report.html")


@contextmanager
def staged_file(path: Path, *, overwrite: bool) -> Iterator[Path]:
    """Give a place to write a file; it becomes `path` when the block ends without an error, and is gone otherwise.

    Raises where `path` exists and `overwrite` is false, or nothing can be written there, before the block starts.
    """
    if path.is_dir():
        raise IsADirectoryError(f"{path} is a folder, but must be the name of a file.")
    if path.exists() and not overwrite:
        raise FileExistsError(f"{path} exists already. Choose another name, or pass --overwrite.")
    with _staging_folder(path) as folder:
        yield folder / path.name
        path.parent.mkdir(parents=True, exist_ok=True)
        os.replace(folder / path.name, path)


@contextmanager
def staged_model_folder(path: Path, *, overwrite: bool) -> Iterator[Path]:
    """Give a place to write the folder of a model; see `staged_file`. Only another model is ever overwritten."""
    if path.exists() or path.is_symlink():
        if not path.is_dir():
            raise NotADirectoryError(f"{path} exists and is not a folder. Choose another name for the model.")
        names = sorted(entry.name for entry in path.iterdir())
        if foreign := [name for name in names if not any(fnmatch(name, own) for own in _FILES_OF_A_MODEL)]:
            raise FileExistsError(
                f"{path} holds {foreign[0]!r}, which is no part of a model. Choose another folder, or move it away."
            )
        if names and not overwrite:
            raise FileExistsError(f"{path} holds a model already. Choose another folder, or pass --overwrite.")
    with _staging_folder(path) as folder:
        new, old = folder / "new", folder / "old"
        new.mkdir()
        yield new
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.exists():
            os.rename(path, old)
        os.rename(new, path)


@contextmanager
def _staging_folder(path: Path) -> Iterator[Path]:
    """Make a folder on the disk of `path` for the time of the block: where it cannot be made, neither can `path`."""
    ancestor = next(parent for parent in path.absolute().parents if parent.exists())
    try:
        folder = Path(tempfile.mkdtemp(prefix=f".{path.name}.", suffix=".tmp", dir=ancestor))
    except OSError as error:
        raise OSError(
            f"{path} cannot be written, since nothing can be made in {ancestor} ({error.strerror}). "
            "Choose another place."
        ) from None
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
