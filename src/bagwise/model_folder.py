"""The folder of a fitted model: `model.json` and the weights it names. Nothing in it is ever executed."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import safetensors
import safetensors.torch
import torch
from torch import Tensor

from bagwise import __version__
from bagwise.training.checkpoint import write_atomically

FORMAT = "bagwise-model"
# Raised when older readers would misread a newer folder.
FORMAT_VERSION = 2


class ModelFolderError(ValueError):
    """A folder does not hold a usable model; the message names the file, what is wrong with it and the fix."""


def write_model(folder: str | os.PathLike[str], model: Mapping[str, Any], weights: Mapping[str, Tensor]) -> None:
    """Write a model; at any moment the folder holds the old model or the new one, in full.

    The weights go into a file named after their contents; `model.json` names it, and is replaced in one step.

    Args:
        folder: is made where there is none; other files in it are left alone.
        model: everything but the weights, as JSON values.
        weights: tensors by name.
    """
    path = Path(folder)
    if path.exists() and not path.is_dir():
        raise ModelFolderError(f"a model is saved into a folder, but {path} is a file. Name a folder, new or not.")
    if (path / "model.json").exists():
        _read_json(path / "model.json")  # never overwrite somebody else's file
    path.mkdir(parents=True, exist_ok=True)
    # copies: tied weights would share memory, which the format forbids
    tensors = {name: tensor.detach().to("cpu", copy=True).contiguous() for name, tensor in weights.items()}
    data = safetensors.torch.save(tensors, metadata={"format": FORMAT})
    digest = hashlib.sha256(data).hexdigest()
    file = f"weights-{digest[:16]}.safetensors"
    content = {
        "format": FORMAT,
        "format_version": FORMAT_VERSION,
        "versions": {
            "bagwise": __version__,
            "torch": torch.__version__,
            "numpy": np.__version__,
            "python": platform.python_version(),
        },
        "weights": {"file": file, "sha256": digest},
        "model": model,
    }
    text = json.dumps({**content, "sha256": _digest(content)}, indent=1, ensure_ascii=False)
    write_atomically(path / file, data)
    write_atomically(path / "model.json", text.encode())
    for old in path.glob("weights-*.safetensors"):
        if old.name != file:
            old.unlink()


def read_model(folder: str | os.PathLike[str]) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Return the model and the weights that `write_model` wrote; raise `ModelFolderError` for anything else."""
    path = Path(folder)
    if not (path / "model.json").is_file():
        raise ModelFolderError(
            f"{path} is not the folder of a model: it has no model.json. "
            "Give the folder that `bagwise fit` or `save` wrote."
        )
    content = _read_json(path / "model.json")
    version = content.get("format_version")
    if version != FORMAT_VERSION:
        written_by = content.get("versions", {}).get("bagwise", "another version")
        raise ModelFolderError(
            f"{path} was written by bagwise {written_by} in format {version}, but this is bagwise {__version__}, which "
            f"reads format {FORMAT_VERSION}. Install the version that wrote it, or fit the model anew."
        )
    claimed = content.pop("sha256", None)
    if claimed != _digest(content):
        raise ModelFolderError(f"{path / 'model.json'} was changed after it was saved. {_FIX}")
    weights = path / content["weights"]["file"]
    if weights.parent != path:
        raise ModelFolderError(f"{path / 'model.json'} names weights outside its folder: {weights}. {_FIX}")
    return content["model"], _read_weights(weights, content["weights"]["sha256"])


def importable_name(factory: Callable[..., Any]) -> str:
    """Return "module:name" of a function that an import can find; raise for any other."""
    module, name = getattr(factory, "__module__", None), getattr(factory, "__qualname__", type(factory).__name__)
    found = None if module in (None, "__main__") else getattr(sys.modules.get(module), name, None)
    if found is not factory:
        raise ValueError(
            f"a model can be saved only if its network comes from a function at the top of a module, but {name!r} is "
            "not importable by name. Move it into a module of its own."
        )
    return f"{module}:{name}"


_FIX = "Copy the folder again from where it was saved, or fit the model anew."


def _read_json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ModelFolderError(f"{path} is not readable as JSON ({error}). {_FIX}") from None
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise ModelFolderError(f"{path} is not the description of a bagwise model. Choose another folder.")
    return content


def _read_weights(path: Path, digest: str) -> dict[str, Tensor]:
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        raise ModelFolderError(f"{path}, the weights of the model, is missing. {_FIX}") from None
    if hashlib.sha256(data).hexdigest() != digest:
        raise ModelFolderError(f"{path} is truncated or changed: it does not match its checksum. {_FIX}")
    try:
        return safetensors.torch.load(data)
    except safetensors.SafetensorError as error:
        raise ModelFolderError(f"{path} is not a safetensors file ({error}). {_FIX}") from None


def _digest(content: Mapping[str, Any]) -> str:
    canonical = json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(canonical.encode()).hexdigest()
