import math

import pytest
from sklearn.model_selection import ParameterGrid

from bagwise import ProportionClassifier
from bagwise.model_selection import WholeBags, cross_validate, successive_halving

SPLITTER = WholeBags(folds=2)


def test_the_best_candidate_is_found_by_held_out_bags(estimator, problem):
    candidates = ParameterGrid({"learning_rate": [1e-4, 0.1], "penalty": [1e-3, 10.0]})
    result = successive_halving(
        estimator, candidates, problem.X, problem.bags, problem.proportions, most=40, factor=2, splitter=SPLITTER
    )
    assert result.best == {"learning_rate": 0.1, "penalty": 1e-3, "epochs": 40}
    again = cross_validate(
        estimator.set_params(**result.best), problem.X, problem.bags, problem.proportions, splitter=SPLITTER
    )
    assert result.score == pytest.approx(again.mean("kl"))
    table = result.table()
    assert table.splitlines()[2].startswith("| learning_rate=0.1, penalty=0.001 | 40 |")
    assert len(table.splitlines()) == 2 + len(result.trials)


def test_rungs_shrink_the_field_as_they_grow(estimator, problem):
    candidates = [{"penalty": 10.0**-power} for power in range(9)]
    result = successive_halving(
        estimator, candidates, problem.X, problem.bags, problem.proportions, most=27, splitter=SPLITTER, score="l1"
    )
    per_rung = {rung: [t for t in result.trials if t.rung == rung] for rung in range(3)}
    assert [len(per_rung[rung]) for rung in range(3)] == [9, 3, 1]
    assert [per_rung[rung][0].resource for rung in range(3)] == [3, 9, 27]
    # who goes on was the best of the rung before
    for rung in (0, 1):
        going_on = [t.parameters for t in per_rung[rung + 1]]
        best = [t.parameters for t in sorted(per_rung[rung], key=lambda t: t.score)[: len(going_on)]]
        assert sorted(p["penalty"] for p in going_on) == sorted(p["penalty"] for p in best)
    assert result.trials[0].rung == 2


def test_no_rung_is_cheaper_than_the_least(estimator, problem):
    result = successive_halving(
        estimator, [{"penalty": p} for p in (0.1, 1, 10, 100)], problem.X, problem.bags, problem.proportions,
        most=8, least=5, splitter=SPLITTER,
    )  # fmt: skip
    assert {t.resource for t in result.trials} == {8}
    assert len(result.trials) == 4


def test_a_candidate_that_diverges_loses_and_is_shown(estimator, problem):
    candidates = [{"learning_rate": math.inf}, {"learning_rate": 0.1}]
    arguments = problem.X, problem.bags, problem.proportions
    result = successive_halving(estimator, candidates, *arguments, most=5, factor=2, splitter=SPLITTER)
    assert result.best["learning_rate"] == 0.1
    assert result.trials[-1].score == math.inf
    assert "diverged (the loss is not finite)" in result.table()
    with pytest.raises(ValueError, match="every candidate"):
        successive_halving(estimator, candidates[:1], *arguments, most=5, splitter=SPLITTER)


@pytest.mark.parametrize(
    ("candidates", "options", "message"),
    [
        ([{}], {"score": "chi-square"}, "score must be one of 'kl', 'l1'"),
        ([], {}, "the number of candidates"),
        ([{"epochs": 3}], {}, "must not set the resource 'epochs'"),
        ([{}], {"factor": 1}, "factor must be at least 2"),
        ([{}], {"least": 9}, "most at least least"),
        ([{"penalti": 3}], {}, "penalti"),
    ],
)
def test_wrong_options_are_refused(estimator, problem, candidates, options, message):
    with pytest.raises(ValueError, match=message):
        successive_halving(estimator, candidates, problem.X, problem.bags, problem.proportions, most=5, **options)


def test_methods_and_their_parameters_are_searched_together(problem):
    model = ProportionClassifier(network="linear", learning_rate=0.03, counts=True, device="cpu", random_state=0)
    candidates = [
        {"method": "kl"},
        {"method": "rot", "method_parameters": {"alpha": 0.3}},
        {"method": "l2", "learning_rate": 1e-6},
    ]
    result = successive_halving(model, candidates, problem.X, problem.bags, problem.counts, most=4, splitter=SPLITTER)
    assert result.best["method"] != "l2"
    assert result.best["epochs"] == 4
    assert "method='rot', method_parameters={'alpha': 0.3}" in result.table()
    best = model.set_params(**result.best).fit(problem.X, bags=problem.bags, proportions=problem.counts)
    assert best.score(problem.X, problem.labels) > 0.6
