"""Checkpoints: one safetensors file with a JSON header, replaced in one step, so that a kill leaves a good one."""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor, nn

FORMAT = "bagwise-checkpoint-1"


@dataclass(frozen=True)
class Checkpoint:
    """The state of a training between two epochs.

    Attributes:
        run: what is being trained, as JSON: it must be equal when the run resumes.
        epochs: how many epochs are done. All generators follow from this and the seed.
        updates: how many updates the averaged weights have seen.
        tensors: weights, averaged weights, optimizer state and what the method remembers, by name.
    """

    run: Mapping[str, Any]
    epochs: int
    updates: int
    tensors: Mapping[str, Tensor]

    def part(self, prefix: str) -> dict[str, Tensor]:
        """Return the tensors whose names start with `prefix` and a dot, without it."""
        start = f"{prefix}."
        return {name[len(start) :]: tensor for name, tensor in self.tensors.items() if name.startswith(start)}


class CheckpointError(ValueError):
    """A checkpoint cannot be used; the message names the file, what is wrong with it and the fix."""


def check_can_be_saved(network: nn.Module) -> None:
    """Raise unless the state of a network is made of tensors."""
    for name, value in network.state_dict().items():
        if not isinstance(value, Tensor):
            raise TypeError(
                f"the state of a network must be tensors to be saved in a folder, but {name!r} is "
                f"{type(value).__name__} (of get_extra_state?). Return a tensor there, or train without a folder."
            )


def save_checkpoint(path: Path, checkpoint: Checkpoint) -> None:
    """Write `checkpoint` to `path`; until it is complete, the previous file stays what it was."""
    # copies: tied weights would share memory, which the format forbids
    tensors = {name: tensor.detach().to("cpu", copy=True).contiguous() for name, tensor in checkpoint.tensors.items()}
    header = {
        "format": FORMAT,
        "run": json.dumps(checkpoint.run),
        "epochs": str(checkpoint.epochs),
        "updates": str(checkpoint.updates),
        "checksum": _checksum(tensors),
    }
    write_atomically(path, save(tensors, metadata=header))


def load_checkpoint(path: Path) -> Checkpoint:
    """Read the checkpoint at `path`."""
    try:
        with safe_open(path, framework="pt") as file:
            header = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  (not a dict)
    except SafetensorError as error:
        raise CheckpointError(f"{path} is not a readable checkpoint ({error}). {_FIX}") from None
    if header.get("format") != FORMAT:
        raise CheckpointError(
            f"{path} is not a checkpoint of this version of bagwise: its format is "
            f"{header.get('format')!r}, not {FORMAT!r}. {_FIX}"
        )
    if header["checksum"] != _checksum(tensors):
        raise CheckpointError(f"{path} is damaged: its contents do not match its checksum. {_FIX}")
    return Checkpoint(
        run=json.loads(header["run"]),
        epochs=int(header["epochs"]),
        updates=int(header["updates"]),
        tensors=tensors,
    )


def write_atomically(path: Path, data: bytes) -> None:
    """Write `data` to `path` so that at any moment the file is either the old one or the new one, in full."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with open(temporary, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())  # the contents must be on the disk before the name points to them
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


_FIX = "Move it away to start anew, or choose another folder."


def _checksum(tensors: Mapping[str, Tensor]) -> str:
    checksum = 0
    for name in sorted(tensors):
        checksum = zlib.crc32(tensors[name].flatten().view(torch.uint8).numpy().data, checksum)
    return f"{checksum:08x}"
