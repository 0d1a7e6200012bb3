import numpy as np
import pandas as pd
import pytest
from scipy import sparse
from sklearn.model_selection import GroupKFold

from bagwise import ProportionClassifier, ProportionNoise
from bagwise.model_selection import BootstrapBags, HalfBags, WholeBags, cross_validate, kl_score
from bagwise.tables import read_proportions


def test_scores_are_those_of_a_plain_loop(estimator, problem):
    splitter = WholeBags(folds=3, seed=1)
    result = cross_validate(estimator, problem.X, problem.bags, problem.proportions, splitter=splitter)
    expected = []
    for train, test in splitter.split(problem.X, groups=problem.bags):
        names = sorted(set(problem.bags[train]))
        table = {name: problem.proportions[int(name[-2:])] for name in names}
        estimator.fit(problem.X[train], bags=problem.bags[train], proportions=read_proportions(table))
        divergences = []
        for name in sorted(set(problem.bags[test])):
            z = problem.proportions[int(name[-2:])]
            p = estimator.predict_proba(problem.X[test][problem.bags[test] == name]).mean(axis=0)
            divergences.append(sum(z[k] * np.log(z[k] / p[k]) for k in range(3) if z[k] > 0))
        expected.append(np.mean(divergences))
    np.testing.assert_allclose(result.scores["kl"], expected)
    assert result.mean("kl") == pytest.approx(np.mean(expected))
    assert result.standard_error("kl") == pytest.approx(np.std(expected, ddof=1) / np.sqrt(3))
    assert set(result.scores) == {"kl", "l1", "chi-square"}
    assert len(result.fit_seconds) == 3


def test_accuracy_is_estimated_without_labels_and_near_the_truth(estimator, problem):
    result = cross_validate(estimator, problem.X, problem.bags, problem.proportions)
    truth = (result.probabilities.argmax(axis=1) == problem.labels).mean()
    estimate = result.accuracy()
    assert truth > 0.8
    assert estimate.accuracy == pytest.approx(truth, abs=0.05)
    assert result.accuracy("temperature").method == "temperature"
    np.testing.assert_array_equal(result.bag_index, problem.index)


@pytest.mark.parametrize("form", ["counts", "dict", "table"])
def test_proportions_come_in_any_form(estimator, problem, form):
    names = [f"bag-{number:02d}" for number in range(60)]
    forms = {
        "counts": problem.counts,
        "dict": {name: dict(enumerate(row)) for name, row in reversed(list(zip(names, problem.counts, strict=True)))},
        "table": read_proportions(dict(zip(names, problem.counts, strict=True))),
    }
    options = {"splitter": WholeBags(folds=2), "scores": ["kl"]}
    expected = cross_validate(estimator, problem.X, problem.bags, problem.proportions, **options)
    given = cross_validate(estimator, problem.X, problem.bags.tolist(), forms[form], **options)
    np.testing.assert_allclose(given.scores["kl"], expected.scores["kl"])


def test_the_name_of_the_bags_finds_their_column_as_in_fit(problem):
    wards = pd.Series(problem.index, name="ward")
    table = pd.DataFrame(problem.counts, columns=["a", "b", "c"]).rename_axis("ward").reset_index()
    classifier = ProportionClassifier(network="linear", epochs=1, counts=True, random_state=0)
    classifier.fit(problem.X, bags=wards, proportions=table)
    result = cross_validate(classifier, problem.X, wards, table, splitter=WholeBags(folds=2), scores=["kl"])
    np.testing.assert_array_equal(result.proportions, problem.proportions)


def test_rows_and_bags_are_as_many(estimator, problem):
    with pytest.raises(ValueError, match="bags must have one entry per instance"):
        cross_validate(estimator, problem.X, problem.bags[1:], problem.proportions)


def test_a_sparse_matrix_of_any_format_will_do(problem):
    classifier = ProportionClassifier(network="linear", epochs=1, random_state=0)
    options = {"splitter": WholeBags(folds=2), "scores": ["kl"]}
    expected, given = (
        cross_validate(classifier, form(problem.X), problem.bags, problem.proportions, **options)
        for form in (sparse.csr_matrix, sparse.coo_matrix)
    )
    np.testing.assert_array_equal(given.probabilities, expected.probabilities)


def test_a_bag_drawn_twice_counts_as_two_bags_of_its_own_size(estimator, problem):
    seen = []

    class Spy(type(estimator)):
        def fit(self, X, y=None, *, bags=None, proportions=None):
            super().fit(X, bags=bags, proportions=proportions)
            seen.append((np.unique(bags, return_counts=True)[1], self.shares_.numpy(), len(X)))
            return self

    result = cross_validate(
        Spy(epochs=1), problem.X, problem.bags, problem.proportions, splitter=BootstrapBags(repeats=2), scores=["l1"]
    )
    for (sizes, shares, num_rows), (train, _) in zip(
        seen, BootstrapBags(repeats=2).split(None, groups=problem.bags), strict=True
    ):
        assert len(sizes) == 60
        assert num_rows == len(train)
        # of every row of shares there are as many bags as draws, each of the size that its bag has
        drawn, times = np.unique(problem.index[train], return_counts=True)
        assert sorted(sizes) == sorted(np.repeat(problem.sizes[drawn], times // problem.sizes[drawn]))
        np.testing.assert_allclose(
            np.sort(shares[:, 0]), np.sort(np.repeat(problem.proportions[drawn, 0], times // problem.sizes[drawn]))
        )
    assert np.isnan(result.probabilities[result.times_tested == 0]).all()
    with pytest.raises(ValueError, match="splitter=WholeBags"):
        result.accuracy()


def test_halves_keep_the_proportions_of_the_whole_bag(estimator, problem):
    result = cross_validate(estimator, problem.X, problem.bags, problem.proportions, splitter=HalfBags())
    assert len(result.scores["kl"]) == 2
    assert (result.times_tested == 1).all()  # all of these bags can be halved
    assert result.mean("l1") < 1


def test_a_group_splitter_of_scikit_learn_and_a_score_of_ones_own_fit_in(estimator, problem):
    def worst(proportions, probabilities, bag_index):
        return kl_score(proportions, probabilities, bag_index) + 1

    arguments = problem.X, problem.bags, problem.proportions
    result = cross_validate(estimator, *arguments, splitter=GroupKFold(n_splits=3), scores=["kl", worst])
    np.testing.assert_allclose(result.scores["worst"], result.scores["kl"] + 1)


def test_unknown_bags_are_trained_around_and_not_scored(estimator, problem):
    unknown = problem.counts.copy()
    unknown[:5] = np.nan
    result = cross_validate(estimator, problem.X, problem.bags, unknown, splitter=WholeBags(folds=2))
    assert np.isfinite(result.scores["kl"]).all()
    assert result.accuracy().num_bags == 55


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"scores": ["kll"]}, "Did you mean 'kl'"),
        ({"scores": []}, "at least one"),
        ({"proportions": {"bag-00": [1, 0, 0]}}, "bag-01"),
        ({"bags": "precinct"}, "Pass the column itself"),
    ],
)
def test_wrong_input_is_named(estimator, problem, change, message):
    arguments = {"X": problem.X, "bags": problem.bags, "proportions": problem.proportions, **change}
    with pytest.raises((ValueError, TypeError), match=message):
        cross_validate(estimator, **arguments)


def test_the_estimator_itself_is_left_as_it_was(estimator, problem):
    cross_validate(estimator, problem.X, problem.bags, problem.proportions, splitter=WholeBags(folds=2))
    assert not hasattr(estimator, "weights_")


@pytest.mark.parametrize("splitter", [WholeBags(folds=2), HalfBags(), BootstrapBags(repeats=2)])
def test_the_classifier_of_bagwise_fits_in(problem, splitter):
    classifier = ProportionClassifier(
        network="linear", epochs=30, learning_rate=0.05, batch_size=64, device="cpu", random_state=0
    )
    result = cross_validate(classifier, problem.X, problem.bags, problem.proportions, splitter=splitter)
    assert result.mean("kl") < 0.2
    tested = result.times_tested > 0
    assert (result.probabilities[tested].argmax(axis=1) == problem.labels[tested]).mean() > 0.8


def test_counts_and_class_names_reach_the_classifier_of_bagwise(problem):
    classifier = ProportionClassifier(network="linear", epochs=2, counts=True, device="cpu", random_state=0)
    names = [f"bag-{number:02d}" for number in range(60)]
    counts = {name: {"late": c, "early": b, "absent": a} for name, (a, b, c) in zip(names, problem.counts, strict=True)}
    result = cross_validate(classifier, problem.X, problem.bags, counts, splitter=WholeBags(folds=2))
    np.testing.assert_allclose(result.proportions, problem.proportions)  # "absent", "early", "late"


def test_noisy_counts_are_cleaned_before_they_are_scored(problem):
    """Negative counts are refused unless the estimator was told of the noise."""
    noisy = problem.counts + np.random.default_rng(0).laplace(0, 1.0, problem.counts.shape)
    assert (noisy < 0).any()
    model = ProportionClassifier(network="linear", epochs=2, counts=True, device="cpu", random_state=0)
    with pytest.raises(ValueError, match="counts must not be negative"):
        cross_validate(model, problem.X, problem.bags, noisy)
    model.set_params(proportion_noise=ProportionNoise("laplace", 1.0))
    result = cross_validate(model, problem.X, problem.bags, noisy, splitter=WholeBags(folds=2))
    assert np.isfinite(result.mean("kl"))
    np.testing.assert_allclose(result.proportions.sum(axis=1), 1)


def test_a_warning_of_the_bags_is_not_repeated_by_every_fold(problem):
    alike = np.full((60, 2), 0.5)
    model = ProportionClassifier(network="linear", epochs=1, device="cpu", random_state=0)
    cross_validate(model, problem.X, problem.bags, alike, splitter=WholeBags(folds=2))  # warnings are errors here
