"""The estimator itself: parameters, fit, predictions, scores."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self

import numpy as np
import torch
from sklearn.base import ClassifierMixin
from sklearn.metrics import accuracy_score
from sklearn.utils.validation import check_is_fitted
from torch import nn

from bagwise.bags import Bags, Memberships
from bagwise.bags.data import number_bags
from bagwise.bags.randomness import private_randomness
from bagwise.bags.setting_checks import check_between, check_choice, check_count, check_device, check_random_state
from bagwise.estimator import saving
from bagwise.estimator.inputs import TableInputs, column_of_each_input, name_of_each_input, take_bag_column
from bagwise.estimator.targets import bags_of_one, bags_of_proportions, known_shares
from bagwise.estimator.ways import device_of, fit_way, way_to_fit
from bagwise.fitting import (
    bag_report,
    choose_held_out,
    predict_probabilities,
    predict_proportions,
    seed_of,
)
from bagwise.functional.noise import ProportionNoise
from bagwise.methods import fewest_instances
from bagwise.metrics import bag_kl_divergence
from bagwise.model_selection.identifiability import BagWarning, identifiability_warnings, noise_warnings
from bagwise.model_selection.shared_values import shared_value_warnings
from bagwise.networks import build_network
from bagwise.onnx_export import export_onnx
from bagwise.tables.preprocessing import PLURALS
from bagwise.tables.reading import read_table
from bagwise.tables.shares import read_shares
from bagwise.tables.spool import spool_parquet, survey_parquet
from bagwise.training import Recipe

NetworkFactory = Callable[[int, int], nn.Module]

NETWORKS = ("linear", "mlp")
DEVICES = ("auto", "cpu", "cuda")


class ProportionClassifier(ClassifierMixin, TableInputs):
    """A classifier of instances, learned from the label proportions of bags.

    Args:
        method: a name of `bagwise.methods`: "kl", "rot", ...; or "probe", for columns that are an embedding and few,
            large bags: neighbours and a linear head in place of a network, see `bagwise.probe`; or "self-training":
            "kl", then labels that fit the bags, where held-out bags agree, see `bagwise.self_training.improve`.
        method_parameters: hyper-parameters of the method, e.g. `{"alpha": 0.3}` for "rot"; for "probe" the fields of
            `bagwise.probe.Probe`, for "self-training" those of `bagwise.self_training.Labelling`. A probe does not use
            the parameters from `network` to `weight_decay`.
        network: "linear", "mlp" (two hidden layers of 256), or a function from (number of inputs, number of classes)
            to an `nn.Module` that gives logits.
        epochs: most passes over the bags. The weights of the last epoch that does about as well on held-out bags as
            the best one (to half a standard error) are kept.
        patience: stop after this many epochs without progress on held-out bags; None always makes all epochs.
        learning_rate: the highest learning rate of Adam; it falls to zero along a cosine.
        batch_size: most instances in a batch of whole bags; a larger bag is a batch of its own. None: 512, and fewer
            in a small table, so that an epoch has about 50 steps; for a method that compares bags ("llpfc", "mixbag")
            enough for about as many bags as there are classes.
        weight_decay: strength of the L2 penalty.
        validation_fraction: share of the bags that are held out to choose the epoch; 0 for none. With fewer than 20
            bags none is held out, and the last epoch counts.
        counts: whether `proportions` holds counts of instances rather than shares. A tally of a sample of each bag
            is such a count: it need not add up to the size of the bag.
        proportion_noise: what was done to the counts before they were published, e.g. `ProportionNoise("laplace", 2)`
            for differential privacy with that scale. They may then be negative or miss the size of their bag. For
            method "kl".
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
        warnings_: why these bags may not teach all classes, in plain words; also given as `BagWarning` by `fit`.
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
        patience: int | None = 10,
        learning_rate: float = 0.001,
        batch_size: int | None = None,
        weight_decay: float = 1e-4,
        validation_fraction: float = 0.1,
        counts: bool = False,
        proportion_noise: ProportionNoise | None = None,
        device: str = "auto",
        random_state: int | np.random.RandomState | None = None,
        verbose: bool = False,
    ) -> None:
        self.method = method
        self.method_parameters = method_parameters
        self.network = network
        self.epochs = epochs
        self.patience = patience
        self.learning_rate = learning_rate
        self.batch_size = batch_size
        self.weight_decay = weight_decay
        self.validation_fraction = validation_fraction
        self.counts = counts
        self.proportion_noise = proportion_noise
        self.device = device
        self.random_state = random_state
        self.verbose = verbose

    def fit(self, X: Any, y: Any = None, *, bags: Any = None, proportions: Any = None) -> Self:
        """Learn from the proportions of bags; without `bags`, from the labels `y` of the instances.

        Args:
            X: `[instances, columns]`: a data frame of any library (numbers, text, booleans, dates, lists of numbers,
                missing values), an array of numbers (NaN is a missing value), or a SciPy sparse matrix.
            y: `[instances]` labels, used only without `bags`: every instance is then a bag of its own.
            bags: `[instances]` the bag id of each, or the name of a column of X, which is then no input; or
                `Memberships`, where an instance lies in several bags.
            proportions: a data frame, dict or array; see `bagwise.tables.read_proportions`. For scikit-learn's
                cross-validation pass `read_proportions(...)`, which scikit-learn does not cut into folds.
        """
        self._check_parameters()
        table = read_table(X)
        if bags is None:
            if proportions is not None:
                raise ValueError("proportions were given without bags. Pass bags=, the bag id of each row of X.")
            self.bag_column_ = None
            self.classes_, data = bags_of_one(self._fit_inputs(X, table), y)
            return self._fit_bags(data)
        self.bag_column_ = bags if isinstance(bags, str) else None
        likely_column = self.bag_column_ or getattr(bags, "name", None)
        if self.bag_column_ is not None:
            bags, table = take_bag_column(table, self.bag_column_)
        self.classes_, data = bags_of_proportions(
            self._fit_inputs(X, table),
            bags,
            proportions,
            counts=self.counts,
            noise=self.proportion_noise,
            likely_column=likely_column,
        )
        return self._fit_bags(data)

    def fit_parquet(
        self, path: str | os.PathLike[str], *, bags: str, proportions: Any, columns: Sequence[str] | None = None
    ) -> Self:
        """Learn from a Parquet file that may be larger than memory; otherwise as `fit`.

        The file is read twice, in slices of rows. The inputs, 4 bytes each, are kept in the folder of temporary files
        (TMPDIR) until the end; in memory about 50 bytes per row are needed. The preprocessing is fitted on a million
        rows spread over the file, or on all where there are fewer. Rows in any order will do; a file larger than
        memory that is not sorted by bag takes longer to read.

        Args:
            path: of the file.
            bags: its column of bag ids.
            proportions: as in `fit`.
            columns: that are inputs; None for all but the bag ids.
        """
        self._check_parameters()
        survey = survey_parquet(path, bags, columns)
        self.bag_column_ = bags
        self._set_columns(survey.preprocessing, is_named=True)
        self.classes_, shares = known_shares(
            proportions,
            survey.bag_names,
            survey.sizes,
            counts=self.counts,
            noise=self.proportion_noise,
            likely_column=bags,
        )
        return self._fit_bags(Bags.in_order(spool_parquet(survey), survey.sizes, shares, survey.bag_names))

    def predict_proba(self, X: Any) -> np.ndarray:
        """Return the probability of each class, `[instances, classes]`, in the order of `classes_`."""
        check_is_fitted(self, "network_")
        return predict_probabilities(self.network_, self._encode(X), device_of(self.device))

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
            bags, _ = take_bag_column(read_table(X), bags)
        elif isinstance(bags, Memberships):
            probabilities, bags = probabilities[bags.rows], bags.bag_ids
        index, names = number_bags(bags)
        table, shares = read_shares(
            proportions,
            names,
            np.bincount(index),
            counts=self.counts,
            noise=self.proportion_noise,
            likely_column=likely_column,
        )
        if list(table.classes) != self.classes_.tolist():
            raise ValueError(
                f"proportions must have the classes that the model was fitted on, {self.classes_.tolist()}, but have "
                f"{list(table.classes)}."
            )
        logits = torch.from_numpy(probabilities).log()
        return -float(bag_kl_divergence(logits, torch.from_numpy(index), torch.from_numpy(shares)))

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Write the fitted model into a folder: JSON and safetensors, no pickle.

        In `bag_report_` bag ids that are neither text nor numbers are kept as text.
        """
        check_is_fitted(self, "network_")
        saving.save(self, folder)

    @classmethod
    def load(cls, folder: str | os.PathLike[str], *, network: NetworkFactory | None = None) -> Self:
        """Return the model that `save` wrote. Nothing in the folder is executed.

        Args:
            folder: of `save`.
            network: the function that built the network, where it is neither "linear" nor "mlp".
        """
        return saving.load(cls, folder, network)

    def export_onnx(self, path: str | os.PathLike[str]) -> None:
        """Write the model, with its preprocessing of numbers, to an ONNX file (extra `onnx`).

        Input "x" `[rows, columns]` float64 in the order of `preprocessing_.numbers.names`, NaN where missing; output
        "probabilities" `[rows, classes]`. Columns of text, dates and lists cannot be exported.
        """
        check_is_fitted(self, "network_")
        if others := [part.name for part in self.preprocessing_.others]:
            raise ValueError(
                f"only columns of numbers and booleans can be exported, but {others[0]!r} holds "
                f"{PLURALS[dict(self.preprocessing_.kinds)[others[0]]]}. Turn it into numbers before fitting."
            )
        export_onnx(path, self.preprocessing_.numbers, self.network_)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        tags.input_tags.allow_nan = True
        return tags

    def _check_parameters(self) -> None:
        check_choice("device", self.device, DEVICES)
        check_device(self.device)
        check_random_state(self.random_state)
        check_between("validation_fraction", self.validation_fraction, 0, 1)
        if self.batch_size is not None:
            check_count("batch_size", self.batch_size)  # a recipe has another name for it
        way_to_fit(self.method, self.method_parameters or {}, self.proportion_noise)

    def _fit_bags(self, bags: Bags) -> Self:
        """Warn, train, keep the weights of an epoch that is good on held-out bags, and compare all bags with them.

        `preprocessing_` and `classes_` are there already.
        """
        self.warnings_ = tuple(self._reasons_for_doubt(bags))
        for warning in self.warnings_:
            warnings.warn(warning, BagWarning, stacklevel=3)
        seed = seed_of(self.random_state)
        way = way_to_fit(self.method, self.method_parameters or {}, self.proportion_noise)
        batch_size = self.batch_size
        if batch_size is None:
            batch_size = max(min(512, bags.num_instances // 50), fewest_instances(way, bags))
        recipe = Recipe(
            epochs=self.epochs,
            patience=self.patience,
            batch_instances=batch_size,
            optimizer="adam",
            learning_rate=self.learning_rate,
            weight_decay=self.weight_decay,
            decay_all=False,
            schedule="cosine",
            seed=seed,
        )
        held_out = choose_held_out(bags, self.validation_fraction, seed)
        fitted = fit_way(
            way,
            bags,
            held_out=held_out,
            recipe=recipe,
            columns=column_of_each_input(self.preprocessing_),
            new_network=lambda: self._new_network(seed),
            device=self.device,
            progress=bool(self.verbose),
        )
        self.network_, self.history_, self.best_epoch_ = fitted.network, fitted.history, fitted.best_epoch
        predicted = predict_proportions(self.network_, bags, device_of(self.device))
        self.bag_report_ = bag_report(bags, predicted, self.classes_, held_out)
        return self

    def _reasons_for_doubt(self, bags: Bags) -> list[str]:
        if bags.num_bags == bags.num_instances:
            return []  # bags of one are labels
        known, sizes = bags.proportions.double().numpy(), bags.layout.host_sizes
        reasons = identifiability_warnings(known, sizes, self.classes_.tolist())
        if self.proportion_noise is not None:
            reasons += noise_warnings(known, sizes, self.proportion_noise)
        return reasons + shared_value_warnings(bags.instances, bags.layout, name_of_each_input(self.preprocessing_))

    def _new_network(self, seed: int) -> nn.Module:
        width, num_classes = self.preprocessing_.width, len(self.classes_)
        if isinstance(self.network, str):
            check_choice("network", self.network, NETWORKS)
            return build_network(self.network, (width,), num_classes, seed)
        with private_randomness(seed, torch.device("cpu")):
            return self.network(width, num_classes)
