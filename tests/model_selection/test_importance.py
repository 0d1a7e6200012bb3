import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from scipy import sparse

from bagwise.model_selection.importance import permutation_importance


class ByFirstColumn:
    """Knows the classes from the first column alone; records what it was shown."""

    def __init__(self):
        self.shown = []

    def predict_proba(self, X):
        self.shown.append(X)
        matrix = X.toarray() if sparse.issparse(X) else np.asarray(X, dtype=float)
        yes = 1 / (1 + np.exp(-8 * matrix[:, 0]))
        return np.stack([1 - yes, yes], axis=1)


@pytest.fixture
def votes():
    """Two columns of which the first decides; 40 bags of 5 to 20."""
    rng = np.random.default_rng(3)
    bags = np.repeat(np.arange(40), rng.integers(5, 21, size=40))
    X = rng.normal(size=(len(bags), 2))
    yes = np.bincount(bags, weights=X[:, 0] > 0) / np.bincount(bags)
    return X, bags, np.stack([1 - yes, yes], axis=1)


def test_the_column_that_decides_is_first_and_the_other_does_nothing(votes):
    importance = permutation_importance(ByFirstColumn(), *votes)
    first, second = importance.columns
    assert first.column == "x0"
    assert first.increase > 5 * importance.score > 0
    assert first.increase > 2 * first.spread > 0
    assert (second.column, second.increase, second.spread) == ("x1", 0, 0)
    assert (importance.num_rows, importance.num_bags, importance.repeats) == (len(votes[0]), 40, 5)


def test_it_is_the_mean_growth_of_the_divergence_by_hand(votes):
    X, bags, proportions = votes

    def divergence(X):
        predicted = ByFirstColumn().predict_proba(X)
        total = 0
        for bag in range(40):
            p = predicted[bags == bag].mean(axis=0)
            total += sum(z * np.log(z / q) for z, q in zip(proportions[bag], p, strict=True) if z > 0)
        return total / 40

    model = ByFirstColumn()
    importance = permutation_importance(model, X, bags, proportions, repeats=3)
    shown = [shuffled for shuffled in model.shown[1:] if not np.array_equal(shuffled[:, 0], X[:, 0])]
    assert importance.score == pytest.approx(divergence(X))
    assert importance.columns[0].increase == pytest.approx(np.mean([divergence(x) - divergence(X) for x in shown]))
    for shuffled in shown:
        assert sorted(shuffled[:, 0]) == sorted(X[:, 0])  # the same values in another order
        assert np.array_equal(shuffled[:, 1], X[:, 1])


@pytest.mark.parametrize(
    "convert",
    [
        lambda X: pd.DataFrame(X, columns=["age", "noise"], index=np.arange(len(X))[::-1]),
        lambda X: pl.DataFrame(X, schema=["age", "noise"]),
        lambda X: pa.table({"age": X[:, 0], "noise": X[:, 1]}),
        sparse.csr_array,
        sparse.csr_matrix,
        sparse.coo_matrix,
    ],
)
def test_every_kind_of_table_gives_the_same(votes, convert):
    X, bags, proportions = votes
    expected = permutation_importance(ByFirstColumn(), X, bags, proportions)
    found = permutation_importance(ByFirstColumn(), convert(X), bags, proportions)
    assert [c.increase for c in found.columns] == pytest.approx([c.increase for c in expected.columns])
    assert found.columns[0].column in ("age", "x0")


def test_the_name_of_the_bags_finds_their_column_as_in_fit(votes):
    X, bags, proportions = votes
    table = pd.DataFrame(proportions, columns=["no", "yes"]).rename_axis("ward").reset_index()
    found = permutation_importance(ByFirstColumn(), X, pd.Series(bags, name="ward"), table)
    assert found == permutation_importance(ByFirstColumn(), X, bags, proportions)


def test_rows_and_bags_are_as_many(votes):
    X, bags, proportions = votes
    with pytest.raises(ValueError, match="bags must have one entry per instance"):
        permutation_importance(ByFirstColumn(), X, bags[:-1], proportions)


def test_nothing_given_is_changed_and_a_seed_repeats(votes):
    X, bags, proportions = votes
    before = X.copy()
    first = permutation_importance(ByFirstColumn(), X, bags, proportions, seed=1)
    assert first == permutation_importance(ByFirstColumn(), X, bags, proportions, seed=1)
    assert first != permutation_importance(ByFirstColumn(), X, bags, proportions, seed=2)
    assert np.array_equal(X, before)


def test_a_sample_takes_whole_small_bags_and_parts_of_large_ones():
    rng = np.random.default_rng(0)
    sizes = np.array([10_000, 3, 3, 3, *[40] * 200])
    bags = rng.permutation(np.repeat(np.arange(len(sizes)), sizes))
    proportions = np.tile([0.5, 0.5], (len(sizes), 1))
    proportions[1] = np.nan  # unknown: of no use
    X = np.stack([np.arange(len(bags), dtype=float), bags], axis=1)
    model = ByFirstColumn()
    importance = permutation_importance(model, X * 1e-9, bags, proportions, most_rows=500, repeats=1)
    taken = np.bincount((model.shown[0][:, 1] * 1e9).round().astype(int), minlength=len(sizes))
    assert importance.num_rows == taken.sum() == 500
    assert importance.num_bags == (taken > 0).sum() >= 50
    assert taken.max() == 10  # a fiftieth of the sample
    assert taken[1] == 0
    assert set(taken[2:4]) <= {0, 3}


def test_when_time_is_up_every_column_has_been_shuffled_once(votes):
    importance = permutation_importance(ByFirstColumn(), *votes, seconds=0)
    assert importance.repeats == 1
    assert len(importance.columns) == 2
    assert np.isnan(importance.columns[0].spread)
