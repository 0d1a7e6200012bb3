"""`ProportionClassifier`: learning from label proportions with the conventions of scikit-learn."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any, Self

import numpy as np
import torch
from scipy import sparse
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.metrics import accuracy_score
from sklearn.utils import assert_all_finite, column_or_1d
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_consistent_length, check_is_fitted, validate_data
from torch import Tensor, nn

from bagwise import model_folder
from bagwise.bags import Bags
from bagwise.bags.data import number_bags
from bagwise.bags.validation import check_between, check_choice, check_one_per_instance
from bagwise.fitting import bag_report, choose_held_out, fit_network, predict_probabilities, seed_of
from bagwise.methods import get_method
from bagwise.metrics import bag_kl_divergence
from bagwise.networks import build_network
from bagwise.onnx_export import export_onnx
from bagwise.tables.preprocessing import (
    Preprocessing,
    fit_array,
    fit_preprocessing,
    fit_sparse,
    preprocessing_from_json,
)
from bagwise.tables.proportions import ProportionTable, read_proportions, shares_of
from bagwise.tables.reading import Table, read_table
from bagwise.tables.sparse import SparseRows
from bagwise.training import Recipe
from bagwise.training.randomness import private_randomness

NetworkFactory = Callable[[int, int], nn.Module]

NETWORKS = ("linear", "mlp")
DEVICES = ("auto", "cpu", "cuda")


class ProportionClassifier(ClassifierMixin, BaseEstimator):
    """A classifier of instances, learned from the label proportions of bags.

    Args:
        method: a name of `bagwise.methods`: "kl", "rot", ...
        method_parameters: hyper-parameters of the method, e.g. `{"alpha": 0.3}` for "rot".
        network: "linear", "mlp" (two hidden layers of 256), or a function from (number of inputs, number of classes)
            to an `nn.Module` that gives logits.
        epochs: passes over the bags. The weights of the epoch that does best on held-out bags are kept.
        learning_rate: the highest learning rate of Adam; it falls to zero along a cosine.
        batch_size: most instances in a batch of whole bags; a larger bag is a batch of its own. None: 512, and fewer
            in a small table, so that an epoch has about 50 steps.
        weight_decay: strength of the L2 penalty.
        validation_fraction: share of the bags that are held out to choose the epoch; 0 for none. With fewer than 20
            bags none is held out, and the last epoch counts.
        counts: whether `proportions` holds counts of instances rather than shares.
        device: "auto", "cpu" or "cuda".
        random_state: seed of the weights, the order and the held-out bags; an int makes `fit` repeatable.
        verbose: whether to show a progress bar.

    Attributes:
        classes_: labels of the classes, sorted; the columns of `predict_proba`.
        preprocessing_: what is done to each column; print it.
        network_: the trained network, from preprocessed inputs to logits.
        history_: one dict per epoch: "epoch", "loss", and "held_out" ({"kl", "l1"}) where bags were held out.
        best_epoch_: the epoch whose weights were kept.
        bag_report_: columns of equal length, one row per bag, for a data frame of any kind: "bag", "size",
            "held_out", "known <class>" and "predicted <class>" for each class, "l1" (sum of absolute differences).
        n_features_in_: number of columns of X, without a column of bag ids.
        feature_names_in_: their names, where X is a data frame.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> X, bags = rng.normal(size=(400, 2)), np.repeat(np.arange(40), 10)
        >>> wards = {ward: {"no": sum(x < 0), "yes": sum(x >= 0)} for ward, x in enumerate(X[:, 0].reshape(40, 10))}
        >>> clf = ProportionClassifier(network="linear", counts=True, random_state=0)
        >>> clf.fit(X, bags=bags, proportions=wards).predict([[-2, 0], [2, 0]])
        array(['no', 'yes'], dtype='<U3')
    """

    def __init__(
        self,
        method: str = "kl",
        *,
        method_parameters: Mapping[str, float | str] | None = None,
        network: str | NetworkFactory = "mlp",
        epochs: int = 30,
        learning_rate: float = 0.003,
        batch_size: int | None = None,
        weight_decay: float = 1e-5,
        validation_fraction: float = 0.1,
        counts: bool = False,
        device: str = "auto",
        random_state: int | np.random.RandomState | None = None,
        verbose: bool = False,
    ) -> None:
        self.method = method
        self.method_parameters = method_parameters
        self.network = network
        self.epochs = epochs
        self.learning_rate = learning_rate
        self.batch_size = batch_size
        self.weight_decay = weight_decay
        self.validation_fraction = validation_fraction
        self.counts = counts
        self.device = device
        self.random_state = random_state
        self.verbose = verbose

    def fit(self, X: Any, y: Any = None, *, bags: Any = None, proportions: Any = None) -> Self:
        """Learn from the proportions of bags; without `bags`, from the labels `y` of the instances.

        Args:
            X: `[instances, columns]`: a data frame of any library (numbers, text, booleans, dates, lists of numbers,
                missing values), an array of numbers (NaN is a missing value), or a SciPy sparse matrix.
            y: `[instances]` labels, used only without `bags`: every instance is then a bag of its own.
            bags: `[instances]` the bag id of each, or the name of a column of X, which is then no input.
            proportions: a data frame, dict or array; see `bagwise.tables.read_proportions`. For scikit-learn's
                cross-validation pass `read_proportions(...)`, which scikit-learn does not cut into folds.
        """
        method = get_method(self.method, **(self.method_parameters or {}))
        check_choice("device", self.device, DEVICES)
        check_between("validation_fraction", self.validation_fraction, 0, 1)
        seed = seed_of(self.random_state)
        table = read_table(X)
        if bags is None:
            if proportions is not None:
                raise ValueError("proportions were given without bags. Pass bags=, the bag id of each row of X.")
            self.bag_column_ = None
            inputs = self._fit_inputs(X, table)
            data = self._bags_of_one(inputs, y)
        else:
            self.bag_column_ = bags if isinstance(bags, str) else None
            if self.bag_column_ is not None:
                bags, table = _take_bag_column(table, self.bag_column_)
            inputs = self._fit_inputs(X, table)
            data = self._bags(inputs, bags, proportions)
        self._fit_network(data, method, seed)
        return self

    def predict_proba(self, X: Any) -> np.ndarray:
        """Return the probability of each class, `[instances, classes]`, in the order of `classes_`."""
        check_is_fitted(self, "network_")
        return self._probabilities(self._encode(X))

    def predict(self, X: Any) -> np.ndarray:
        """Return the most likely class of each instance, `[instances]`."""
        most_likely = self.predict_proba(X).argmax(axis=1)
        return self.classes_[most_likely]

    def score(
        self, X: Any, y: Any = None, sample_weight: Any = None, *, bags: Any = None, proportions: Any = None
    ) -> float:
        """Return the accuracy for labels `y`, or, without labels, minus the mean KL(known | predicted) of bags."""
        if y is not None:
            return float(accuracy_score(y, self.predict(X), sample_weight=sample_weight))
        if bags is None or proportions is None:
            raise ValueError("a score needs the labels y of the instances, or bags and proportions.")
        probabilities = self.predict_proba(X)
        likely_column = bags if isinstance(bags, str) else getattr(bags, "name", None)
        if isinstance(bags, str):
            bags, _ = _take_bag_column(read_table(X), bags)
        index, names = number_bags(bags)
        shares = self._shares(names, proportions, likely_column, self.classes_.tolist())
        logits = torch.from_numpy(probabilities).log()
        return -float(bag_kl_divergence(logits, torch.from_numpy(index), torch.from_numpy(shares)))

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Write the fitted model into a folder: JSON and safetensors, no pickle. `bag_report_` is not kept."""
        check_is_fitted(self, "network_")
        # values of NumPy, as a search leaves them, are no JSON
        parameters = {
            name: value.item() if isinstance(value, np.generic) else value for name, value in self.get_params().items()
        }
        if not isinstance(self.network, str):
            parameters["network"] = {"factory": model_folder.importable_name(self.network)}
        if isinstance(self.random_state, np.random.RandomState):
            parameters["random_state"] = None  # the generator has moved on: there is nothing to repeat
        model = {
            "parameters": parameters,
            "classes": self.classes_.tolist(),
            "classes_dtype": self.classes_.dtype.str,
            "preprocessing": self.preprocessing_.as_json(),
            "named_columns": hasattr(self, "feature_names_in_"),
            "bag_column": self.bag_column_,
            "history": self.history_,
            "best_epoch": self.best_epoch_,
        }
        model_folder.write_model(folder, model, self.network_.state_dict())

    @classmethod
    def load(cls, folder: str | os.PathLike[str], *, network: NetworkFactory | None = None) -> Self:
        """Return the model that `save` wrote. Nothing in the folder is executed.

        Args:
            folder: of `save`.
            network: the function that built the network, where it is neither "linear" nor "mlp".
        """
        model, weights = model_folder.read_model(folder)
        parameters = model["parameters"]
        if isinstance(parameters["network"], dict):
            name = parameters["network"]["factory"]
            if network is None or model_folder.importable_name(network) != name:
                raise ValueError(f"this model has a network of its own, {name}. Import it and pass it as network=.")
            parameters["network"] = network
        classifier = cls(**parameters)
        classifier.classes_ = np.array(model["classes"], dtype=model["classes_dtype"])
        classifier.preprocessing_ = preprocessing_from_json(model["preprocessing"])
        classifier.bag_column_ = model["bag_column"]
        classifier.history_, classifier.best_epoch_ = model["history"], model["best_epoch"]
        names = classifier.preprocessing_.names
        classifier.n_features_in_ = len(names)
        if model["named_columns"]:
            classifier.feature_names_in_ = np.array(names, dtype=object)
        classifier.network_ = classifier._new_network(seed=0)
        try:
            classifier.network_.load_state_dict(weights)
        except RuntimeError as error:
            raise model_folder.ModelFolderError(f"the weights in {folder} do not fit the network: {error}") from None
        classifier.network_.eval()
        return classifier

    def export_onnx(self, path: str | os.PathLike[str]) -> None:
        """Write the model, with its preprocessing of numbers, to an ONNX file (extra `onnx`).

        Input "x" `[rows, columns]` float64 in the order of `preprocessing_.numbers.names`, NaN where missing; output
        "probabilities" `[rows, classes]`. Columns of text, dates and lists cannot be exported.
        """
        check_is_fitted(self, "network_")
        if others := [part.name for part in self.preprocessing_.others]:
            raise ValueError(
                f"only columns of numbers and booleans can be exported, but {others[0]!r} is "
                f"{dict(self.preprocessing_.kinds)[others[0]]}. Turn it into numbers before fitting."
            )
        export_onnx(path, self.preprocessing_.numbers, self.network_)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        tags.input_tags.allow_nan = True
        return tags

    def _fit_inputs(self, X: Any, table: Table | None) -> Tensor | SparseRows:
        """Fit the preprocessing and return the inputs of the network, `[instances, width]`."""
        if table is not None:
            if table.num_rows < 2 or not table.names:
                raise ValueError(
                    f"X must have at least 2 rows and 1 column, but has {table.num_rows} and {len(table.names)}."
                )
            self.preprocessing_ = fit_preprocessing(table)
            self.n_features_in_ = len(table.names)
            self.__dict__.pop("feature_names_in_", None)  # of an earlier fit
            if table.is_named:
                self.feature_names_in_ = np.array(table.names, dtype=object)
            return torch.from_numpy(self.preprocessing_.encode(table))
        values = _array(self, X, reset=True)
        self.preprocessing_ = fit_sparse(values) if sparse.issparse(values) else fit_array(values)
        return _encode_array(self.preprocessing_, values)

    def _encode(self, X: Any) -> Tensor | SparseRows:
        """Return the inputs of the network for new instances."""
        table = read_table(X)
        if table is None:
            if self.preprocessing_.names != self.preprocessing_.numbers.names:
                raise TypeError(
                    "this model was fitted on a data frame with columns that are not numbers; pass a data frame with "
                    f"the same columns, not {type(X).__name__}."
                )
            return _encode_array(self.preprocessing_, _array(self, X, reset=False))
        if self.bag_column_ in table.names:
            table = table.without(self.bag_column_)
        if table.num_rows == 0:
            raise ValueError("X must have at least one row, but has none.")
        if not hasattr(self, "feature_names_in_") and set(table.names) != set(self.preprocessing_.names):
            # fitted on an array: there are no names to match, so columns count by their place
            values = _array(self, table.numbers(table.names), reset=False)
            return _encode_array(self.preprocessing_, values)
        return torch.from_numpy(self.preprocessing_.encode(table))

    def _bags_of_one(self, inputs: Tensor | SparseRows, y: Any) -> Bags:
        if y is None:
            raise ValueError(
                "ProportionClassifier requires y to be passed, but the target y is None. To learn from proportions, "
                "pass bags= and proportions=."
            )
        y = column_or_1d(y, warn=True)
        assert_all_finite(y, input_name="y")
        check_classification_targets(y)
        check_consistent_length(inputs, y)
        self.classes_, labels = np.unique(y, return_inverse=True)
        if len(self.classes_) < 2:
            raise ValueError(f"y must hold at least 2 classes, but holds only one class: {self.classes_[0]!r}.")
        return Bags(inputs, np.arange(len(labels)), np.eye(len(self.classes_), dtype=np.float32)[labels])

    def _bags(self, inputs: Tensor | SparseRows, bags: Any, proportions: Any) -> Bags:
        if proportions is None:
            raise ValueError("bags were given without proportions. Pass proportions=, the known shares of each bag.")
        index, names = number_bags(bags)
        check_one_per_instance("bags", len(index), len(inputs))
        shares = self._shares(names, proportions, self.bag_column_ or getattr(bags, "name", None))
        num_known = int((~np.isnan(shares[:, 0])).sum())
        if num_known < 2:
            raise ValueError(
                "at least 2 bags must have known proportions, since classes are told apart by how bags differ, but "
                f"there {'is only 1' if num_known else 'are none'}."
            )
        return Bags(inputs, bags, shares, bag_names=names)

    def _shares(
        self, names: tuple[Any, ...], proportions: Any, likely_column: object, classes: list[Any] | None = None
    ) -> np.ndarray:
        """Return the proportions of the bags called `names`, `[bags, classes]`; set `classes_` unless given."""
        table = read_proportions(proportions, likely_column=likely_column)
        rows = table.rows_of(names, allow_others=isinstance(proportions, ProportionTable))
        if classes is None:
            self.classes_ = np.array(table.classes)
        elif list(table.classes) != classes:
            raise ValueError(
                f"proportions must have the classes that the model was fitted on, {classes}, but have "
                f"{list(table.classes)}."
            )
        return shares_of(table, rows, names, self.counts)

    def _fit_network(self, bags: Bags, method: Any, seed: int) -> None:
        """Train, keep the weights of the epoch that is best on held-out bags, and compare all bags with them."""
        batch_size = self.batch_size
        if batch_size is None:
            batch_size = min(512, max(1, bags.num_instances // 50))
        recipe = Recipe(
            epochs=self.epochs,
            batch_instances=batch_size,
            optimizer="adam",
            learning_rate=self.learning_rate,
            weight_decay=self.weight_decay,
            decay_all=False,
            schedule="cosine",
            seed=seed,
        )
        held_out = choose_held_out(bags, self.validation_fraction, seed)
        fitted = fit_network(
            self._new_network(seed),
            bags,
            method,
            recipe,
            held_out=held_out,
            accelerator=self.device,
            progress=bool(self.verbose),
        )
        self.network_, self.history_, self.best_epoch_ = fitted.network, fitted.history, fitted.best_epoch
        self.bag_report_ = bag_report(bags, self._probabilities(bags.instances), self.classes_, held_out)

    def _probabilities(self, inputs: Any) -> np.ndarray:
        cuda = self.device != "cpu" and torch.cuda.is_available()
        return predict_probabilities(self.network_, inputs, torch.device("cuda" if cuda else "cpu"))

    def _new_network(self, seed: int) -> nn.Module:
        width, num_classes = self.preprocessing_.width, len(self.classes_)
        if isinstance(self.network, str):
            check_choice("network", self.network, NETWORKS)
            return build_network(self.network, (width,), num_classes, seed)
        with private_randomness(seed, torch.device("cpu")):
            return self.network(width, num_classes)


def _array(estimator: ProportionClassifier, X: Any, *, reset: bool) -> Any:
    """Return X as a float64 array or CSR matrix, checked as scikit-learn does it; NaN is a missing value."""
    values: Any = validate_data(
        estimator,
        X,
        reset=reset,
        accept_sparse="csr",
        ensure_all_finite="allow-nan",
        ensure_min_samples=2 if reset else 1,
    )
    if sparse.issparse(values) and np.isnan(values.data).any():
        raise ValueError("a sparse X must not hold NaN: zero is its missing value. Fill the NaN in.")
    return values.astype(np.float64, copy=False)


def _encode_array(preprocessing: Preprocessing, values: Any) -> Tensor | SparseRows:
    if sparse.issparse(values):
        return SparseRows(values, preprocessing.numbers)
    return torch.from_numpy(preprocessing.numbers.encode(values))


def _take_bag_column(table: Table | None, name: str) -> tuple[list[Any], Table]:
    """Return the bag ids and the table without them."""
    if table is None:
        raise TypeError(f"bags={name!r} names a column, so X must be a data frame. Pass the bag ids themselves.")
    check_choice("bags", name, table.names)
    return table.values(name), table.without(name)
