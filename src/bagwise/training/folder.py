"""The folder of a run: its checkpoint and its log, consistent at any moment."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bagwise.training.checkpoint import (
    Checkpoint,
    CheckpointError,
    load_checkpoint,
    save_checkpoint,
    write_atomically,
)


class RunFolder:
    """`checkpoint.safetensors`, the state after the last saved epoch, and `log.jsonl`, one line per epoch.

    An epoch's line is written before its checkpoint. After a kill the log is therefore never behind the checkpoint,
    and lines ahead of it belong to epochs that will be run again: resuming drops them.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self.checkpoint = self.path / "checkpoint.safetensors"
        self.log = self.path / "log.jsonl"

    def prepare(self, run: Mapping[str, Any]) -> None:
        """Make the folder ready for `run`, new or resumed, before any time is spent on training."""
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            trial = self.path / ".writable"
            for file in (self.checkpoint, self.log, trial):
                for leftover in self.path.glob(f".{file.name}.*.tmp"):  # of a process that was killed while writing
                    leftover.unlink(missing_ok=True)
            write_atomically(trial, b"")
            trial.unlink()
            checkpoint = self.checkpoint_so_far()
            if checkpoint is not None:
                self._check_same_run(checkpoint.run, run)
            self._rewind_log(0 if checkpoint is None else checkpoint.epochs)
        except OSError as error:
            raise type(error)(
                error.errno,
                f"the run's folder cannot be used ({error.strerror}). Make room, mend its permissions or choose "
                "another folder",
                str(self.path),
            ) from None

    def checkpoint_so_far(self) -> Checkpoint | None:
        """Return the state to go on from, or None for a new run."""
        return load_checkpoint(self.checkpoint) if self.checkpoint.exists() else None

    def history(self) -> list[dict[str, Any]]:
        """Return the entries of the log."""
        return [json.loads(line) for line in self.log.read_bytes().splitlines()]

    def record(self, entry: Mapping[str, Any]) -> None:
        """Add the line of one epoch to the log."""
        try:
            with open(self.log, "a", encoding="utf-8") as file:
                file.write(json.dumps(_plain(entry), allow_nan=False) + "\n")
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise self._explained(error, self.log, entry["epoch"]) from error

    def save(self, checkpoint: Checkpoint) -> None:
        """Replace the checkpoint; where that fails, the previous one is intact."""
        try:
            save_checkpoint(self.checkpoint, checkpoint)
        except OSError as error:
            raise self._explained(error, self.checkpoint, checkpoint.epochs) from error

    def _explained(self, error: OSError, file: Path, epoch: int) -> OSError:
        kept = "the previous checkpoint is intact" if self.checkpoint.exists() else "no checkpoint exists yet"
        return type(error)(
            error.errno,
            f"epoch {epoch} could not be saved ({error.strerror}); {kept}. Make room and run the same training "
            "again: it goes on from there",
            str(file),
        )

    def _check_same_run(self, saved: Mapping[str, Any], run: Mapping[str, Any]) -> None:
        if differences := _differences(saved, run):
            shown = "; ".join(differences[:3])
            more = f"; and {len(differences) - 3} more" if len(differences) > 3 else ""
            raise CheckpointError(
                f"{self.checkpoint} belongs to another run: {shown}{more}. "
                "Train with what the checkpoint has to resume it, or choose another folder."
            )

    def _rewind_log(self, epochs: int) -> None:
        """Keep the first `epochs` lines of the log, which must be those of the first epochs."""
        lines = self.log.read_bytes().splitlines(keepends=True) if self.log.exists() else []
        if lines and not epochs and _epoch_of(lines[0]) != 1:
            raise CheckpointError(
                f"{self.log} is not the log of a training, and would be overwritten. Move it away, or choose another "
                "folder."
            )
        lines = lines[:epochs]
        kept = [_epoch_of(line) for line in lines]
        if kept != list(range(1, epochs + 1)):
            raise CheckpointError(
                f"{self.log} does not hold one line for each of the {epochs} epochs of the checkpoint beside it. "
                "Put it back as it was, or choose another folder."
            )
        write_atomically(self.log, b"".join(lines))


def _epoch_of(line: bytes) -> int | None:
    """Return the epoch of a line of the log; None where it is no such line."""
    try:
        return json.loads(line)["epoch"]
    except (ValueError, KeyError, TypeError):
        return None


def _plain(value: Any) -> Any:
    """Return a value as JSON has it: numbers of NumPy or torch as Python's, null for what is not finite."""
    if isinstance(value, Mapping):
        return {str(name): _plain(part) for name, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(part) for part in value]
    if getattr(value, "ndim", None) == 0:
        return _plain(value.item())
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if value is None or isinstance(value, (bool, int, str)):
        return value
    raise TypeError(
        f"the log of a run holds numbers and words, but an evaluator returned {type(value).__name__}: {value!r:.80}. "
        "Let it return float(...) of each score."
    )


def _differences(saved: Any, wanted: Any, place: str = "") -> list[str]:
    """Describe where two JSON values differ, field by field."""
    if isinstance(saved, Mapping) and isinstance(wanted, Mapping):
        found = []
        for key in dict.fromkeys([*saved, *wanted]):
            inner = f"{place}.{key}" if place else str(key)
            found += _differences(saved.get(key), wanted.get(key), inner)
        return found
    if saved == wanted:
        return []
    return [f"{place} is {_show(saved)} there and {_show(wanted)} here"]


def _show(value: Any) -> str:
    return "absent" if value is None else json.dumps(value)
