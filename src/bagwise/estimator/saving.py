"""A fitted classifier as JSON and tensors, and back."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from bagwise import model_folder
from bagwise.estimator.ways import restored_network
from bagwise.functional.noise import ProportionNoise
from bagwise.tables.preprocessing import preprocessing_from_json

if TYPE_CHECKING:
    from bagwise.estimator.classifier import ProportionClassifier

AnyClassifier = TypeVar("AnyClassifier", bound="ProportionClassifier")

# In the file of tensors the weights of the network and the columns of the report go by these first names.
_NETWORK, _REPORT = "network.", "bag_report."


def save(classifier: ProportionClassifier, folder: str | os.PathLike[str]) -> None:
    """Write the fitted model into a folder; see `ProportionClassifier.save`."""
    report = classifier.bag_report_
    model = {
        "parameters": _parameters_as_json(classifier),
        "classes": classifier.classes_.tolist(),
        "classes_dtype": classifier.classes_.dtype.str,
        "preprocessing": classifier.preprocessing_.as_json(),
        "named_columns": hasattr(classifier, "feature_names_in_"),
        "bag_column": classifier.bag_column_,
        "history": classifier.history_,
        "best_epoch": classifier.best_epoch_,
        "warnings": list(classifier.warnings_),
        "bags": [bag if isinstance(bag, str | int | float) else str(bag) for bag in report["bag"].tolist()],
        "bag_report": list(report),  # the order of the columns
    }
    tensors = {_NETWORK + name: tensor for name, tensor in classifier.network_.state_dict().items()}
    tensors |= {_REPORT + name: torch.from_numpy(column) for name, column in report.items() if name != "bag"}
    model_folder.write_model(folder, model, tensors)


def load(
    kind: type[AnyClassifier], folder: str | os.PathLike[str], network: Callable[[int, int], nn.Module] | None
) -> AnyClassifier:
    """Return the model that `save` wrote; see `ProportionClassifier.load`."""
    model, tensors = model_folder.read_model(folder)
    classifier = kind(**_parameters_from_json(model["parameters"], network))
    classifier.classes_ = np.array(model["classes"], dtype=model["classes_dtype"])
    classifier.bag_column_ = model["bag_column"]
    classifier.history_, classifier.best_epoch_ = model["history"], model["best_epoch"]
    classifier.warnings_ = tuple(model["warnings"])
    classifier._set_columns(preprocessing_from_json(model["preprocessing"]), is_named=model["named_columns"])
    classifier.bag_report_ = _report(model["bag_report"], model["bags"], _part(tensors, _REPORT))
    try:
        classifier.network_ = restored_network(
            classifier.method, _part(tensors, _NETWORK), lambda: classifier._new_network(seed=0)
        )
    except RuntimeError as error:
        raise model_folder.ModelFolderError(f"the weights in {folder} do not fit the network: {error}") from None
    classifier.network_.eval()
    return classifier


def _parameters_as_json(classifier: ProportionClassifier) -> dict[str, Any]:
    parameters = _plain(classifier.get_params(deep=False))
    if not isinstance(classifier.network, str):
        parameters["network"] = {"factory": model_folder.importable_name(classifier.network)}
    if isinstance(classifier.random_state, np.random.RandomState):
        parameters["random_state"] = None  # the generator has moved on: there is nothing to repeat
    if classifier.proportion_noise is not None:
        parameters["proportion_noise"] = _plain(dataclasses.asdict(classifier.proportion_noise))
    return parameters


def _plain(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the same without values of NumPy, as a search leaves them, which are no JSON."""
    return {
        name: value.item() if isinstance(value, np.generic) else _plain(value) if isinstance(value, Mapping) else value
        for name, value in values.items()
    }


def _parameters_from_json(
    parameters: Mapping[str, Any], network: Callable[[int, int], nn.Module] | None
) -> dict[str, Any]:
    known = dict(parameters)
    if isinstance(known["network"], dict):
        name = known["network"]["factory"]
        if network is None or model_folder.importable_name(network) != name:
            raise ValueError(f"this model has a network of its own, {name}. Import it and pass it as network=.")
        known["network"] = network
    if known["proportion_noise"] is not None:
        known["proportion_noise"] = ProportionNoise(**known["proportion_noise"])
    return known


def _report(columns: list[str], bags: list[Any], tensors: Mapping[str, Tensor]) -> dict[str, np.ndarray]:
    names = np.empty(len(bags), dtype=object)
    names[:] = bags
    return {name: names if name == "bag" else tensors[name].numpy() for name in columns}


def _part(tensors: Mapping[str, Tensor], first_name: str) -> dict[str, Tensor]:
    return {name.removeprefix(first_name): tensor for name, tensor in tensors.items() if name.startswith(first_name)}
