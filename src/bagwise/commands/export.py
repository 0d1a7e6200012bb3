"""`bagwise export`: a model as an ONNX file."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from bagwise.commands.outputs import staged_file
from bagwise.estimator import ProportionClassifier


@dataclass(frozen=True)
class Exported:
    """What was exported.

    Attributes:
        onnx: the file.
        columns: of the input "x", in this order.
        classes: of the output "probabilities", in this order.
    """

    onnx: str
    columns: tuple[str, ...]
    classes: tuple[str, ...]


def export_model(model: Path, onnx: Path, *, overwrite: bool) -> Exported:
    """Write the model in a folder to an ONNX file."""
    if onnx.suffix in (".json", ".safetensors") and onnx.exists():
        raise FileExistsError(f"{onnx} exists and may be part of a model. Choose a name that ends in .onnx.")
    with staged_file(onnx, overwrite=overwrite) as staged:
        classifier = ProportionClassifier.load(model)
        classifier.export_onnx(staged)
    return Exported(str(onnx), classifier.preprocessing_.numbers.names, tuple(str(c) for c in classifier.classes_))
