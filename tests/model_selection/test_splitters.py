import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.model_selection import cross_val_score
from sklearn.tree import DecisionTreeClassifier

from bagwise.model_selection import BootstrapBags, HalfBags, WholeBags

bag_ids = st.lists(st.integers(0, 6), min_size=2, max_size=40)


@given(bag_ids, st.integers(2, 4), st.integers(0, 9))
def test_whole_bags_tests_every_instance_once_and_cuts_no_bag(bags, folds, seed):
    bags = np.array(bags)
    if len(set(bags)) < folds:
        with pytest.raises(ValueError, match=f"for {folds} folds"):
            list(WholeBags(folds, seed).split(None, groups=bags))
        return
    splits = list(WholeBags(folds, seed).split(None, groups=bags))
    assert len(splits) == WholeBags(folds, seed).get_n_splits()
    assert sorted(np.concatenate([test for _, test in splits])) == list(range(len(bags)))
    for train, test in splits:
        assert sorted([*train, *test]) == list(range(len(bags)))
        assert not set(bags[train]) & set(bags[test])
        assert len(test)
    number_per_fold = [len(set(bags[test])) for _, test in splits]
    assert max(number_per_fold) - min(number_per_fold) <= 1


@given(bag_ids, st.integers(0, 9))
def test_half_bags_cuts_every_bag_in_the_middle(bags, seed):
    bags = np.array(bags)
    sizes = np.bincount(bags)
    if sizes.max() < 2:
        with pytest.raises(ValueError, match="at least 2 instances"):
            list(HalfBags(seed=seed).split(None, groups=bags))
        return
    splits = list(HalfBags(repeats=2, seed=seed).split(None, groups=bags))
    assert len(splits) == 4
    for train, test in splits:
        assert sorted([*train, *test]) == list(range(len(bags)))
        in_test = np.bincount(bags[test], minlength=len(sizes))
        assert set(in_test[sizes == 1]) <= {0}
        larger = sizes > 1
        assert (np.abs(2 * in_test - sizes)[larger] <= 1).all()
    testable = np.flatnonzero(sizes[bags] > 1)
    assert sorted([*splits[0][1], *splits[1][1]]) == list(testable)


def test_halves_are_drawn_at_random_within_a_bag():
    together = 0
    for seed in range(400):
        _, test = next(HalfBags(seed=seed).split(None, groups=np.zeros(4, dtype=int)))
        together += (0 in test) == (1 in test)
    assert together / 400 == pytest.approx(1 / 3, abs=0.08)  # of 6 halves of 4, 2 hold both or neither


@given(bag_ids, st.integers(0, 9))
def test_bootstrap_draws_whole_bags_and_tests_the_rest(bags, seed):
    bags = np.array(bags)
    num_bags = len(set(bags))
    if num_bags < 2:
        with pytest.raises(ValueError, match="at least 2"):
            list(BootstrapBags(seed=seed).split(None, groups=bags))
        return
    splits = list(BootstrapBags(repeats=3, seed=seed).split(None, groups=bags))
    assert len(splits) == 3
    for train, test in splits:
        assert len(test)
        assert not set(bags[train]) & set(bags[test])
        times = {bag: {np.count_nonzero(train == row) for row in np.flatnonzero(bags == bag)} for bag in set(bags)}
        assert all(len(set_of_one) == 1 for set_of_one in times.values())
        assert sum(min(set_of_one) for set_of_one in times.values()) == num_bags


@pytest.mark.parametrize("splitter", [WholeBags, HalfBags, BootstrapBags])
def test_the_seed_decides_and_global_random_state_is_left_alone(splitter):
    bags = np.repeat(np.arange(20), 3)
    before = np.random.get_state()[1].copy()  # noqa: NPY002

    def tests(seed):
        return [test.tolist() for _, test in splitter(seed=seed).split(None, groups=bags)]

    assert tests(3) == tests(3)
    assert tests(3) != tests(4)
    assert (np.random.get_state()[1] == before).all()  # noqa: NPY002


def test_scikit_learn_takes_them_as_cv():
    X, y = np.random.default_rng(0).normal(size=(30, 2)), np.tile([0, 1], 15)
    scores = cross_val_score(DecisionTreeClassifier(), X, y, groups=np.repeat(list("abcde"), 6), cv=WholeBags(folds=5))
    assert len(scores) == 5


def test_without_groups_the_message_says_what_to_pass():
    with pytest.raises(ValueError, match="groups=bags"):
        next(WholeBags().split(np.zeros((4, 2))))


@pytest.mark.parametrize("make", [lambda: WholeBags(folds=1), lambda: HalfBags(repeats=0), lambda: BootstrapBags(0)])
def test_senseless_numbers_are_refused(make):
    with pytest.raises(ValueError, match="must be at least"):
        make()
