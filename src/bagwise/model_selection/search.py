"""Choose method and hyper-parameters by held-out bags: successive halving."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from sklearn.base import clone

from bagwise.bags.setting_checks import check_choice, check_count
from bagwise.model_selection.splitters import Splitter, WholeBags
from bagwise.model_selection.validation import BagEstimator, cross_validate

# "chi-square" is no criterion: a model that knows nothing scores a perfect 1.
SEARCH_SCORES = ("kl", "l1")


@dataclass(frozen=True)
class Trial:
    """One candidate at one rung.

    Attributes:
        parameters: of the estimator.
        rung: from 0, the cheapest.
        resource: how much it was given, e.g. epochs.
        score: mean over splits, lower is better; infinite where training failed.
        standard_error: of the score.
        seconds: of all fits.
        failure: why training failed, or None.
    """

    parameters: Mapping[str, Any]
    rung: int
    resource: int
    score: float
    standard_error: float
    seconds: float
    failure: str | None = None


@dataclass(frozen=True)
class SearchResult:
    """What a search gives back.

    Attributes:
        best: parameters of the best candidate at the full resource, the resource included.
        score: its mean score on held-out bags. As the best of several it flatters; estimate anew to quote it.
        trials: every trial, the dearest rung first and the best first within a rung.
        resource: the name of the resource.
        criterion: the name of the score.
    """

    best: Mapping[str, Any]
    score: float
    trials: tuple[Trial, ...]
    resource: str
    criterion: str

    def table(self) -> str:
        """Return the trials as a Markdown table."""
        lines = [f"| parameters | {self.resource} | {self.criterion} | ± | seconds |", "|---|---:|---:|---:|---:|"]
        for trial in self.trials:
            parameters = ", ".join(f"{name}={value!r}" for name, value in trial.parameters.items())
            score = trial.failure or f"{trial.score:.5f}"
            lines.append(
                f"| {parameters} | {trial.resource} | {score} | {trial.standard_error:.5f} | {trial.seconds:.1f} |"
            )
        return "\n".join(lines)


def successive_halving(
    estimator: BagEstimator,
    candidates: Iterable[Mapping[str, Any]],
    X: Any,
    bags: Any,
    proportions: Any,
    *,
    most: int,
    least: int = 1,
    resource: str = "epochs",
    factor: int = 3,
    splitter: Splitter = WholeBags(),  # noqa: B008  (frozen)
    score: str = "kl",
) -> SearchResult:
    """Find the best of `candidates`: all get a little training, the best third three times as much, and so on.

    Every candidate is judged by `cross_validate` on the same splits, so by the proportions of held-out bags alone.
    Jamieson and Talwalkar, *Non-stochastic best arm identification and hyperparameter optimization* (2016).

    Args:
        estimator: with the interface of `BagEstimator` and scikit-learn's `set_params`.
        candidates: parameters to set, e.g. a list of dicts or `sklearn.model_selection.ParameterGrid`.
        X: `[instances, ...]`, array, sparse matrix or data frame.
        bags: `[instances]` the bag id of each instance.
        proportions: as in `cross_validate`.
        most: resource of the last rung.
        least: smallest resource of the first rung.
        resource: the parameter that holds the resource, an integer.
        factor: resources grow and candidates shrink by this factor from rung to rung.
        splitter: which bags are held out.
        score: "kl" or "l1".

    Example:
        >>> candidates = [
        ...     {"method": "kl", "learning_rate": 0.01},
        ...     {"method": "rot", "method_parameters": {"alpha": 0.3}},
        ... ]
        >>> result = successive_halving(classifier, candidates, X, bags, table, most=30)  # doctest: +SKIP
        >>> classifier.set_params(**result.best).fit(X, bags=bags, proportions=table)  # doctest: +SKIP
    """
    check_choice("score", score, SEARCH_SCORES)
    survivors = [dict(candidate) for candidate in candidates]
    check_count("the number of candidates", len(survivors))
    check_count("least", least)
    check_count("factor", factor)
    if factor < 2 or most < least:
        raise ValueError(f"factor must be at least 2 and most at least least, but got {factor=}, {most=}, {least=}.")
    if clash := [candidate for candidate in survivors if resource in candidate]:
        raise ValueError(
            f"candidates must not set the resource {resource!r}, but {clash[0]} does. "
            "Leave it out, or pass another resource=."
        )

    def trial(parameters: dict[str, Any], rung: int, amount: int) -> Trial:
        candidate: Any = clone(estimator)
        candidate.set_params(**parameters, **{resource: amount})
        try:
            result = cross_validate(candidate, X, bags, proportions, splitter=splitter, scores=[score])
        except FloatingPointError as error:  # diverged: a bad candidate, not a bad search
            return Trial(parameters, rung, amount, math.inf, math.nan, math.nan, f"diverged ({error})")
        mean = result.mean(score)
        return Trial(parameters, rung, amount, mean, result.standard_error(score), float(result.fit_seconds.sum()))

    trials: list[Trial] = []
    for rung, amount in enumerate(_rungs(len(survivors), least, most, factor)):
        if rung > 0:
            survivors = survivors[: max(1, len(survivors) // factor)]
        done = sorted((trial(parameters, rung, amount) for parameters in survivors), key=lambda t: t.score)
        survivors = [dict(t.parameters) for t in done]
        trials = done + trials
    best = trials[0]
    if not np.isfinite(best.score):
        raise ValueError(f"every candidate of the last rung failed; the first: {best.failure}")
    return SearchResult({**best.parameters, resource: best.resource}, best.score, tuple(trials), resource, score)


def _rungs(num_candidates: int, least: int, most: int, factor: int) -> list[int]:
    """Resources of the rungs: as many as it takes to come down to one candidate, none below `least`."""
    rungs = [most]
    while len(rungs) * math.log(factor) <= math.log(num_candidates) + 1e-9 and rungs[0] // factor >= least:
        rungs.insert(0, rungs[0] // factor)
    return rungs
