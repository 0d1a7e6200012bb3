"""`bagwise export`."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Annotated

import typer

from bagwise.cli.messages import failures_explained, show, show_json
from bagwise.cli.options import AsJson, Model, Overwrite


def export(
    model: Model,
    onnx: Annotated[Path, typer.Option(metavar="FILE", help="ONNX file to write.")],
    overwrite: Overwrite = False,
    json: AsJson = False,
) -> None:
    """Write a model as an ONNX file.

    For programs without Python. All columns that the model was fitted on must hold numbers or booleans.

    Input "x": rows of numbers in the order of the columns that this command prints, NaN where missing. Output
    "probabilities": one for each class, in the order printed. Needs the extra `onnx`: pip install 'bagwise[onnx]'.

    \b
    Example:
      bagwise export model --onnx model.onnx
    """
    with failures_explained():
        from bagwise.commands.export import export_model

        done = export_model(model, onnx, overwrite=overwrite)
        if json:
            show_json(dataclasses.asdict(done))
            return
        show(f"columns: {', '.join(done.columns)}\nclasses: {', '.join(done.classes)}\nonnx: {done.onnx}")
