import numpy as np
import pytest

from bagwise import Memberships
from bagwise.model_selection import WholeBags, cross_validate


@pytest.fixture
def overlapping(wards):
    """Everybody lies in a ward and in one of 40 clubs; the counts of both are known."""
    X, labels, bags, counts = wards
    rng = np.random.default_rng(0)
    clubs = rng.permutation(np.arange(600) % 40)
    pairs = Memberships(np.tile(np.arange(600), 2), [*bags.tolist(), *(f"club {club}" for club in clubs)])
    known = dict(counts)
    for club in range(40):
        yes = int((labels[clubs == club] == "yes").sum())
        known[f"club {club}"] = {"yes": yes, "no": int((clubs == club).sum()) - yes}
    return X, labels, pairs, known


def test_both_kinds_of_bags_are_learned_from(overlapping, classifier):
    X, labels, pairs, known = overlapping
    model = classifier().fit(X, bags=pairs, proportions=known)
    assert model.score(X, labels) > 0.95
    assert model.score(X, bags=pairs, proportions=known) > -0.1
    assert len(model.bag_report_["bag"]) == 100
    assert model.bag_report_["size"].sum() == 1200
    assert model.preprocessing_.numbers.center == pytest.approx(tuple(X.mean(axis=0)))  # of instances, not of pairs


def test_pairs_of_disjoint_bags_are_plain_bags(wards, classifier, fitted):
    X, _, bags, counts = wards
    model = classifier().fit(X, bags=Memberships(np.arange(600), bags), proportions=counts)
    np.testing.assert_allclose(model.predict_proba(X), fitted.predict_proba(X), atol=1e-6)


def test_cross_validation_takes_the_copies(overlapping, classifier):
    X, _, pairs, known = overlapping
    model = classifier(epochs=1)
    with pytest.raises(TypeError, match=r"pass X\[memberships\.rows\] as X"):
        cross_validate(model, X, pairs, known)
    result = cross_validate(model, X[pairs.rows], pairs.bag_ids, known, splitter=WholeBags(folds=2))
    assert len(result.bag_names) == 100
