"""Outputs that are there in full or not at all, and whose place is checked before the work begins."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from fnmatch import fnmatch
from pathlib import Path

# What a fit writes. A folder with anything else in it is never overwritten.
_FILES_OF_A_MODEL = ("model.json", "weights-*.safetensors", "report.html")
# Where a fit works inside a folder that exists; one that was killed leaves it behind.
_STAGE, _END_OF_A_STAGE = ".new-model.", ".tmp"


@contextmanager
def staged_file(path: Path, *, overwrite: bool, inputs: Collection[Path] = ()) -> Iterator[Path]:
    """Give a place to write a file; it becomes `path` when the block ends without an error, and is gone otherwise.

    Raises where `path` is one of the `inputs`, or exists and `overwrite` is false, or nothing can be written there,
    before the block starts. A link stays one: the file it points to is written. A file keeps its permissions.
    """
    if path.is_dir():
        raise IsADirectoryError(f"{path} is a folder, but must be the name of a file.")
    for source in inputs:
        if path.exists() and source.exists() and path.samefile(source):
            raise FileExistsError(f"{path} is read by this command, so it cannot be overwritten. Choose another name.")
    if path.exists() and not overwrite:
        raise FileExistsError(f"{path} exists already. Choose another name, or pass --overwrite.")
    target = Path(os.path.realpath(path))

    def move(new: Path) -> None:
        target.parent.mkdir(parents=True, exist_ok=True)
        if target.exists():
            shutil.copymode(target, new / path.name)
        os.replace(new / path.name, target)

    with _staging_folder(path, f".{target.name}.", _nearest_folder(target), move) as new:
        yield new / path.name


@contextmanager
def staged_model_folder(path: Path, *, overwrite: bool) -> Iterator[Path]:
    """Give a place to write the folder of a model; see `staged_file`. Only another model is ever overwritten.

    A folder that exists stays the same one, since it may be a mount point or the current folder, which cannot be
    renamed: its files are replaced, so that it holds the old model or the new one at any moment.
    """
    exists = path.exists() or path.is_symlink()
    if exists:
        _check_may_become_a_model(path, overwrite=overwrite)
    target = Path(os.path.realpath(path))

    def move(new: Path) -> None:
        if target.is_dir():
            _replace_model(new, target)
        else:
            target.parent.mkdir(parents=True, exist_ok=True)
            os.rename(new, target)

    stage, place = (_STAGE, target) if exists else (f".{target.name}.", _nearest_folder(target))
    with _staging_folder(path, stage, place, move) as new:
        yield new


def _check_may_become_a_model(path: Path, *, overwrite: bool) -> None:
    """Raise unless `path` is a folder that is empty, or holds a model that may be overwritten."""
    if not path.is_dir():
        raise NotADirectoryError(f"{path} exists and is not a folder. Choose another name for the model.")
    entries = [entry for entry in sorted(path.iterdir()) if not fnmatch(entry.name, f"{_STAGE}*{_END_OF_A_STAGE}")]
    for entry in entries:
        if not (entry.is_file() and any(fnmatch(entry.name, own) for own in _FILES_OF_A_MODEL)):
            raise FileExistsError(
                f"{path} holds {entry.name!r}, which is no part of a model. Choose another folder, or move it away."
            )
    if entries and not overwrite:
        raise FileExistsError(f"{path} holds a model already. Choose another folder, or pass --overwrite.")


def _replace_model(new: Path, folder: Path) -> None:
    """Move the files of a model into a folder, maybe over another; a kill at any step leaves one of them in full."""
    for pattern in _FILES_OF_A_MODEL:
        old = next(folder.glob(pattern), folder / "model.json")  # a first report is no more public than the model
        if old.exists():
            for file in new.glob(pattern):
                shutil.copymode(old, file)
    weights = [file.name for file in new.glob("weights-*.safetensors")]
    for name in weights:
        os.replace(new / name, folder / name)  # beside the old ones, under a name of their own
    (folder / "report.html").unlink(missing_ok=True)  # no report at all rather than that of the other model
    os.replace(new / "model.json", folder / "model.json")
    for file in list(new.iterdir()):
        os.replace(file, folder / file.name)
    for old in folder.glob("weights-*.safetensors"):
        if old.name not in weights:
            old.unlink()


def _nearest_folder(path: Path) -> Path:
    return next(parent for parent in path.parents if parent.exists())


@contextmanager
def _staging_folder(path: Path, prefix: str, place: Path, move: Callable[[Path], None]) -> Iterator[Path]:
    """Make a folder in `place`, on the disk of `path`, for the time of the block, and then `move` what is in it.

    Where it cannot be made, neither can `path`. What cannot be moved in the end is kept: it may be the work of days.
    """
    try:
        folder = Path(tempfile.mkdtemp(prefix=prefix, suffix=_END_OF_A_STAGE, dir=place))
    except OSError as error:
        raise OSError(
            f"{path} cannot be written, since nothing can be made in {place} ({error.strerror}). Choose another place."
        ) from None
    new, keep = folder / "new", False
    try:
        new.mkdir()  # with the permissions of any folder: a temporary one is for its owner alone
        yield new
        try:
            move(new)
        except OSError as error:
            keep = True
            raise OSError(
                f"{path} could not be put in its place ({error.strerror}), so what was made is kept in {new}. "
                f"Move the files from there to {path}."
            ) from error
    finally:
        if not keep:
            shutil.rmtree(folder, ignore_errors=True)
