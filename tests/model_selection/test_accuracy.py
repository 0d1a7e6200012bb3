import numpy as np
import pytest

from bagwise.model_selection import estimate_accuracy


def simulate(rng, num_bags, size, num_classes=4, sharpness=2.5, tilt=0.0):
    """Right probabilities, labels drawn from them, and the bags' proportions; `tilt` makes predictions lean."""
    index = np.repeat(np.arange(num_bags), size)
    logits = sharpness * rng.normal(size=(len(index), num_classes))
    f = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    labels = (f.cumsum(axis=1) > rng.random((len(f), 1))).argmax(axis=1)
    counts = np.zeros((num_bags, num_classes))
    np.add.at(counts, (index, labels), 1)
    shown = f * np.exp(tilt * np.arange(num_classes))
    shown /= shown.sum(axis=1, keepdims=True)
    return counts / size, shown, index, (shown.argmax(axis=1) == labels).mean()


@pytest.mark.parametrize("size", [1, 8, 64])
@pytest.mark.parametrize("tilt", [0.0, 1.0])
@pytest.mark.parametrize("power", [0.2, 1.0, 5.0])
def test_residuals_need_no_calibration(size, tilt, power):
    proportions, f, index, truth = simulate(np.random.default_rng(0), 1500, size, tilt=tilt)
    f = f**power / (f**power).sum(axis=1, keepdims=True)
    estimate = estimate_accuracy(proportions, f, index)
    assert estimate.method == "residuals"
    assert estimate.accuracy == pytest.approx(truth, abs=0.02)
    assert estimate.low <= truth <= estimate.high


@pytest.mark.parametrize("power", [0.5, 1.0, 2.0])
def test_temperature_undoes_a_wrong_temperature(power):
    proportions, f, index, truth = simulate(np.random.default_rng(1), 600, 16)
    f = f**power / (f**power).sum(axis=1, keepdims=True)
    estimate = estimate_accuracy(proportions, f, index, method="temperature")
    assert estimate.temperature == pytest.approx(power, rel=0.15)
    assert estimate.accuracy == pytest.approx(truth, abs=0.03)


def test_bags_of_one_give_the_accuracy_itself():
    proportions, f, index, truth = simulate(np.random.default_rng(2), 300, 1, tilt=0.5)
    assert estimate_accuracy(proportions, f, index).accuracy == pytest.approx(truth, abs=0.003)


def test_models_that_lean_differently_are_told_apart():
    rng = np.random.default_rng(3)
    one, other = simulate(rng, 150, 64, tilt=2.0), simulate(rng, 150, 64, tilt=-2.0)
    proportions, f = (np.concatenate([one[part], other[part]]) for part in (0, 1))
    index = np.concatenate([one[2], other[2] + 150])
    truth = (one[3] + other[3]) / 2
    models = np.repeat(["a", "b"], 150)
    apart = estimate_accuracy(proportions, f, index, model_of_bag=models).accuracy
    together = estimate_accuracy(proportions, f, index).accuracy
    assert apart == pytest.approx(truth, abs=0.02)
    assert together < truth - 0.1


def test_the_estimate_is_unbiased_and_its_interval_covers_with_few_bags():
    truths, estimates, covered = [], [], 0
    for seed in range(150):
        proportions, f, index, truth = simulate(np.random.default_rng(seed), 30, 16, tilt=1.0)
        estimate = estimate_accuracy(proportions, f, index, model_of_bag=np.arange(30) % 3, resamples=200, seed=seed)
        truths.append(truth)
        estimates.append(estimate.accuracy)
        covered += estimate.low <= truth <= estimate.high
    standard_error = np.std(np.subtract(estimates, truths)) / np.sqrt(150)
    assert abs(np.mean(estimates) - np.mean(truths)) < 3 * standard_error
    assert 0.85 <= covered / 150 <= 0.99


def test_errors_that_go_together_make_residuals_err_on_the_safe_side():
    rng = np.random.default_rng(4)
    labels = rng.integers(2, size=(200, 30))
    bad_bag = rng.random((200, 1)) < 0.2
    wrong = rng.random((200, 30)) < np.where(bad_bag, 0.6, 0.05)
    # in a bad bag class 0 is taken for class 1, never the other way round
    predicted = np.where(wrong & ((labels == 0) | ~bad_bag), 1 - labels, labels)
    proportions = np.stack([1 - labels.mean(axis=1), labels.mean(axis=1)], axis=1)
    estimate = estimate_accuracy(
        proportions, np.eye(2)[predicted.ravel()], np.repeat(np.arange(200), 30), method="residuals"
    )
    assert estimate.accuracy < (predicted == labels).mean()


def test_auto_takes_residuals_for_random_bags_and_temperature_for_bags_of_a_kind():
    rng = np.random.default_rng(7)
    proportions, f, index, _ = simulate(rng, 100, 16)
    at_random = estimate_accuracy(proportions, f, index)
    assert at_random.method == "residuals"
    assert at_random.dispersion == pytest.approx(1, abs=0.3)
    # the same instances, put together by their likeliest class
    order = np.lexsort((rng.random(len(f)), f.argmax(axis=1)))
    labels = (f.cumsum(axis=1) > rng.random((len(f), 1))).argmax(axis=1)
    of_a_kind = np.eye(4)[labels[order]].reshape(100, 16, 4).mean(axis=1)
    estimate = estimate_accuracy(of_a_kind, f[order], index)
    assert estimate.method == "temperature"
    assert estimate.dispersion > 3
    assert estimate.accuracy == pytest.approx((f.argmax(axis=1) == labels).mean(), abs=0.04)


def test_unknown_bags_are_left_out_and_the_seed_decides_the_interval():
    proportions, f, index, _ = simulate(np.random.default_rng(5), 40, 10)
    models = np.arange(40) % 2
    first = estimate_accuracy(proportions, f, index, model_of_bag=models)
    keep = np.arange(40) != 7
    unknown = np.where(keep[:, None], proportions, np.nan)
    left_out = estimate_accuracy(unknown, f, index, model_of_bag=models)
    rows = keep[index]
    dropped = estimate_accuracy(
        proportions[keep], f[rows], (np.cumsum(keep) - 1)[index[rows]], model_of_bag=models[keep]
    )
    assert left_out == dropped
    assert left_out.num_bags == 39
    assert first == estimate_accuracy(proportions, f, index, model_of_bag=models)
    assert first != estimate_accuracy(proportions, f, index, model_of_bag=models, seed=1)
    assert "from 40 bags" in str(first)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"method": "residual"}, "Did you mean 'residuals'"),
        ({"level": 1.0}, "level"),
        ({"model_of_bag": np.arange(40)}, "Use fewer folds"),
    ],
)
def test_wrong_options_are_refused(options, message):
    proportions, f, index, _ = simulate(np.random.default_rng(6), 40, 4)
    with pytest.raises(ValueError, match=message):
        estimate_accuracy(proportions, f, index, **options)
