"""A fitted model as one ONNX file, from raw numbers to probabilities."""

from __future__ import annotations

import copy
import logging
import os
import warnings
from pathlib import Path

import torch
from torch import Tensor, nn

from bagwise.tables.columns import MOST_DEVIATIONS, Numbers
from bagwise.training.checkpoint import write_atomically


class _FromRawNumbers(nn.Module):
    """What `Numbers.encode` does, then the network, then softmax, as one module."""

    def __init__(self, numbers: Numbers, network: nn.Module) -> None:
        super().__init__()
        self._network = copy.deepcopy(network).float().cpu().eval()
        self.register_buffer("_center", torch.tensor(numbers.center, dtype=torch.float64))
        self.register_buffer("_scale", torch.tensor(numbers.scale, dtype=torch.float64))
        self.register_buffer("_valued", torch.tensor(numbers.valued).nonzero().flatten())
        self.register_buffer("_marked", torch.tensor(numbers.marked).nonzero().flatten())

    def forward(self, x: Tensor) -> Tensor:
        """Return the probabilities `[rows, classes]` of `x [rows, columns]` float64, NaN where missing."""
        missing = x.isnan()
        # in double precision until the values are small: float32 would round times and large counts
        deviations = ((x - self._center) / self._scale).clamp(-MOST_DEVIATIONS, MOST_DEVIATIONS)  # pyright: ignore[reportOperatorIssue]
        scaled = torch.where(missing, 0.0, deviations).float()
        kept = scaled.index_select(1, self._valued)  # pyright: ignore[reportArgumentType]
        marks = missing.float().index_select(1, self._marked)  # pyright: ignore[reportArgumentType]
        return self._network(torch.cat([kept, marks], dim=1)).softmax(dim=1)


def export_onnx(path: str | os.PathLike[str], numbers: Numbers, network: nn.Module) -> None:
    """Write a model of columns of numbers to an ONNX file.

    The graph has one input, "x" `[rows, columns]` float64 with NaN for missing values, in the order of `numbers.names`,
    and one output, "probabilities" `[rows, classes]` float32; the number of rows is free.
    """
    try:
        import onnx  # noqa: F401
        import onnxscript  # noqa: F401
    except ImportError as error:
        raise ModuleNotFoundError(f"the export needs {error.name}: pip install 'bagwise[onnx]'") from None
    module = _FromRawNumbers(numbers, network).eval()
    example = torch.zeros(2, len(numbers.names), dtype=torch.float64)
    logger = logging.getLogger("torch.onnx")
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the exporter's notes about itself
            program = torch.onnx.export(
                module,
                (example,),
                input_names=["x"],
                output_names=["probabilities"],
                dynamic_shapes={"x": {0: torch.export.Dim("rows")}},
                dynamo=True,
                verbose=False,
            )
    finally:
        logger.setLevel(before)
    if program is None:
        raise RuntimeError("torch.onnx gave no program for this network.")
    write_atomically(Path(path), program.model_proto.SerializeToString())
