import pytest

from bagwise.estimator import ProportionClassifier

NAN_WARD = {"a": [None, None], "b": [0.5, 0.5]}


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({}, ValueError, "requires y to be passed"),
        ({"bags": ["a", "b"]}, ValueError, "bags were given without proportions"),
        ({"proportions": NAN_WARD}, ValueError, "proportions were given without bags"),
        ({"bags": ["a"], "proportions": {"a": [0.5, 0.5]}}, ValueError, "one entry per instance, .* 1 entries and 2"),
        ({"bags": ["a", "b"], "proportions": NAN_WARD}, ValueError, "at least 2 bags .* there is only 1"),
        ({"bags": ["a", None], "proportions": NAN_WARD}, ValueError, "every instance must have a bag id"),
        ({"bags": ["a", "c"], "proportions": NAN_WARD}, ValueError, "bag 'c' is missing"),
        ({"bags": [1, 2], "proportions": {"1": [0, 1], "2": [1, 0]}}, ValueError, "integers .* but text"),
        ({"bags": ["a", "b"], "proportions": {"a": [30, 10], "b": [1, 3]}}, ValueError, "pass counts=True"),
        ({"bags": ["a", "b"], "proportions": {"a": [0.7, 0.7], "b": [1, 0]}}, ValueError, "bag 'a' sums to 1.4"),
        ({"bags": ["a", "b"], "proportions": {"a": [30.5, 69.5], "b": [1, 0]}}, ValueError, "percentages"),
        ({"bags": "ward", "proportions": NAN_WARD}, TypeError, "bags='ward' names a column, so X must be"),
        ({"y": [1, 1]}, ValueError, "at least 2 classes, but holds only one class: .*1"),
    ],
)
def test_arguments_that_make_no_sense(arguments, error, message, fast):
    with pytest.raises(error, match=message):
        ProportionClassifier(**fast).fit([[1.0], [2.0]], **arguments)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"method": "kll"}, r"Did you mean 'kl'\?"),
        ({"network": "mpl"}, r"Did you mean 'mlp'\?"),
        ({"device": "gpu"}, "device must be one of 'auto', 'cpu', 'cuda'"),
        ({"validation_fraction": 1.0}, "validation_fraction must be at least 0 and less than 1"),
        ({"epochs": 0}, "epochs must be at least 1"),
        ({"random_state": -1}, "random_state must be at least 0"),
    ],
)
def test_parameters_that_make_no_sense(changes, message, fast):
    with pytest.raises(ValueError, match=message):
        ProportionClassifier(**(fast | changes)).fit([[1.0], [2.0]], [0, 1])
