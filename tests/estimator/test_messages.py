import numpy as np
import pyarrow as pa
import pytest
import torch

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
        (
            {"bags": pa.table({"ward": ["a", "b"]}), "proportions": NAN_WARD},
            ValueError,
            r"got a Table of shape \[2, 1\]",
        ),
        ({"bags": [["a"], ["b"]], "proportions": NAN_WARD}, TypeError, "a bag id must be a single value"),
        ({"bags": 7, "proportions": NAN_WARD}, TypeError, "one id per instance, a column .* but got 7. Pass a list"),
        (
            {"bags": [1, "b"], "proportions": NAN_WARD},
            TypeError,
            "of one type.* 1 and 'b'. Convert them, e.g. all to text",
        ),
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
        ({"batch_size": 0}, "batch_size must be at least 1, but got 0"),
        ({"random_state": -1}, "random_state must be at least 0"),
        ({"random_state": 10**23}, r"random_state must be .* less than 2\*\*63, but got 10{23}"),
    ],
)
def test_parameters_that_make_no_sense(changes, message, fast):
    with pytest.raises(ValueError, match=message):
        ProportionClassifier(**(fast | changes)).fit([[1.0], [2.0]], [0, 1])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"random_state": np.random.default_rng(0)}, "random_state must be None, an integer or .* Pass an integer"),
        ({"random_state": 1.5}, "random_state must be None, an integer or .* but got 1.5"),
        ({"learning_rate": "x"}, "learning_rate must be a number, but got 'x'"),
        ({"weight_decay": None}, "weight_decay must be a number, but got None"),
        ({"validation_fraction": [0.1]}, r"validation_fraction must be a number, but got \[0.1\]"),
        ({"batch_size": 2.5}, "batch_size must be an integer of at least 1, but got 2.5"),
        ({"method": "rot", "method_parameters": {"alpha": "x"}}, "alpha must be a number, but got 'x'"),
        ({"proportion_noise": "laplace"}, r'but got \'laplace\'\. Pass ProportionNoise\("laplace", scale\)'),
    ],
)
def test_parameters_of_the_wrong_type(changes, message, fast):
    with pytest.raises(TypeError, match=message):
        ProportionClassifier(**(fast | changes)).fit([[1.0], [2.0]], [0, 1])


def test_labels_that_cannot_be_saved_are_refused_before_the_training(fast):
    days = np.array(["2024-01-01", "2025-01-01"], dtype="M8[D]")
    message = r"labels of classes must be text, numbers or booleans, but got .*2024, 1, 1.* Turn them into text"
    with pytest.raises(TypeError, match=message.replace("2024, 1, 1", "2024-01-01")):
        ProportionClassifier(**fast).fit([[1.0], [2.0]], days)
    shares = {bag: dict.fromkeys(days.tolist(), 0.5) for bag in "ab"}
    with pytest.raises(TypeError, match=message):
        ProportionClassifier(**fast).fit([[1.0], [2.0]], bags=["a", "b"], proportions=shares)


@pytest.mark.parametrize("seed", [0, 2**63 - 1, np.uint64(7)])
def test_the_ends_of_the_seeds(seed, fast):
    fitted = [ProportionClassifier(**(fast | {"random_state": seed, "epochs": 1})) for _ in range(2)]
    first, second = (model.fit([[1.0], [2.0]], [0, 1]).predict_proba([[1.5]]) for model in fitted)
    np.testing.assert_array_equal(first, second)


@pytest.mark.parametrize("method", ["kl", "probe", "self-training"])
def test_a_gpu_that_is_not_there(method, fast, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ValueError, match=r"device 'cuda' needs a GPU, but this machine has none .* Use auto or cpu"):
        ProportionClassifier(method, **(fast | {"device": "cuda"})).fit([[1.0], [2.0]], [0, 1])
