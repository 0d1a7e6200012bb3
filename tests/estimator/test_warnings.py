"""What the bags cannot teach is said before training."""

import warnings

import numpy as np
import pytest

from bagwise import BagWarning, ProportionClassifier


def test_bags_that_hardly_differ_are_warned_of(classifier, tmp_path):
    rng = np.random.default_rng(0)
    X, bags = rng.normal(size=(600, 2)), np.repeat(np.arange(30), 20)
    counts = np.full((30, 2), 10)
    counts[0] = [11, 9]
    with pytest.warns(BagWarning, match=r"hardly differ between the 30 bags: they vary by \d+ %"):
        model = classifier(epochs=1).fit(X, bags=bags, proportions=counts)
    assert len(model.warnings_) == 1
    model.save(tmp_path)
    assert ProportionClassifier.load(tmp_path).warnings_ == model.warnings_


def test_a_warning_comes_before_any_training(classifier):
    X, bags = np.eye(8), [0, 0, 0, 0, 1, 1, 1, 1]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(BagWarning, match=r"class 2 never occurs: its proportion is 0 in all 2 bags"):
            classifier(network=None).fit(X, bags=bags, proportions=[[3, 1, 0], [1, 3, 0]])


def test_the_line_of_the_user_is_named(classifier):
    with pytest.warns(BagWarning) as caught:
        classifier(epochs=1).fit(np.eye(4), bags=[0, 0, 1, 1], proportions=[[1, 1], [1, 1]])
    assert caught[0].filename == __file__


def test_a_column_of_the_bags_makes_the_proportions_speak_of_the_bag(classifier, wards, people):
    X, _, bags, counts = wards
    average = np.repeat(X[:, 0].reshape(60, 10).mean(axis=1), 10)
    with pytest.warns(BagWarning, match=r"column 'x2' has one value in each bag.*--ignore x2 on the command line"):
        model = classifier(epochs=1).fit(np.column_stack([X, average]), bags=bags, proportions=counts)
    assert len(model.warnings_) == 1
    wide = people.append_column("district", people["ward"]).append_column("town", [["Ulm", "Bonn"] * 300])
    with pytest.warns(BagWarning, match="column 'district' has one value in each bag"):
        classifier(epochs=1).fit(wide, bags="ward", proportions=counts)


def test_labels_and_good_bags_give_no_warning(classifier, wards, fitted):
    assert fitted.warnings_ == ()
    assert classifier(epochs=1).fit(wards[0][:4], ["no", "no", "no", "yes"]).warnings_ == ()
