import numpy as np
import pytest

from bagwise.report.model_bags import BagComparison, DescribedRows, draw_bags
from bagwise.report.model_statistics import calibration, class_balance, confidence, fit_to_bags


def described(probabilities, bag_index, shares, held_out=None):
    num_bags = len(shares)
    held_out = np.zeros(num_bags, dtype=bool) if held_out is None else np.asarray(held_out)
    names = tuple(f"bag {bag}" for bag in range(num_bags))
    rows, bags = len(bag_index), num_bags
    return DescribedRows(None, np.asarray(bag_index), names, np.asarray(shares), held_out, probabilities, rows, bags)


@pytest.fixture
def truthful():
    """600 bags of 1 to 60 whose labels were drawn from the very probabilities that are predicted."""
    rng = np.random.default_rng(5)
    bag_index = rng.permutation(np.repeat(np.arange(600), rng.integers(1, 61, size=600)))
    lean = rng.normal(size=(600, 3))
    logits = rng.normal(size=(len(bag_index), 3)) * 1.5 + lean[bag_index]
    probabilities = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    labels = (probabilities.cumsum(axis=1) > rng.random((len(bag_index), 1))).argmax(axis=1)
    counts = np.zeros((600, 3))
    np.add.at(counts, (bag_index, labels), 1)
    shares = counts / counts.sum(axis=1, keepdims=True)
    return described(probabilities, bag_index, shares, held_out=np.arange(600) % 2 == 0)


def test_shares_and_noise_are_those_of_a_plain_loop(truthful):
    compared = BagComparison.of(truthful)
    for bag in (0, 7, 599):
        f = truthful.probabilities[truthful.bag_index == bag]
        assert compared.sizes[bag] == len(f)
        assert compared.known[bag] == pytest.approx(truthful.shares[bag])
        assert compared.predicted[bag] == pytest.approx(f.mean(axis=0))
        # nobody is ever quite certain: a thousandth is spread evenly
        assert compared.noise[bag] == pytest.approx(np.sqrt((f * (1 - f)).sum(axis=0)) / len(f), rel=0.02)


def test_a_truthful_model_strays_as_chance_allows(truthful):
    fit = fit_to_bags(BagComparison.of(truthful), np.array([1 / 3] * 3))
    assert fit is not None
    assert fit.dispersion == pytest.approx(1, abs=0.12)
    assert fit.beyond_two == pytest.approx(0.05, abs=0.015)
    assert fit.missed < 0.6 * fit.blind_missed
    assert fit.kl < fit.blind_kl


def test_a_model_that_is_too_sure_strays_more(truthful):
    sharp = truthful.probabilities**4
    sharp /= sharp.sum(axis=1, keepdims=True)
    overall = np.array([1 / 3] * 3)
    too_sure = described(sharp, truthful.bag_index, truthful.shares)
    assert fit_to_bags(BagComparison.of(too_sure), overall).dispersion > 2


def test_fit_is_that_of_a_plain_loop():
    shares = [[0.5, 0.5], [0.25, 0.75]]
    probabilities = np.array([[0.9, 0.1], [0.3, 0.7], [0.2, 0.8], [0.2, 0.8], [0.2, 0.8], [0.6, 0.4]])
    fit = fit_to_bags(BagComparison.of(described(probabilities, [0, 0, 1, 1, 1, 1], shares)), np.array([0.4, 0.6]))
    assert fit.missed == pytest.approx((0.1 + 0.05) / 2)
    assert fit.blind_missed == pytest.approx((0.1 + 0.15) / 2)
    first, second = (
        0.5 * np.log(0.5 / 0.6) + 0.5 * np.log(0.5 / 0.4),
        0.25 * np.log(0.25 / 0.3) + 0.75 * np.log(0.75 / 0.7),
    )
    assert fit.kl == pytest.approx((first + second) / 2)
    assert (fit.num_bags, fit.num_rows) == (2, 6)
    assert fit_to_bags(BagComparison.of(described(probabilities, [0] * 6, shares[:1])).part(held_out=True), 0.5) is None


def test_what_is_missed_does_not_depend_on_the_number_of_classes():
    shares, probabilities = np.array([[0.5, 0.5, 0.0]]), np.array([[0.8, 0.2, 0.0]] * 4)  # 3 of 10 would have to change
    for num_classes in (2, 3):
        compared = BagComparison.of(described(probabilities[:, :num_classes], [0] * 4, shares[:, :num_classes]))
        assert fit_to_bags(compared, np.full(num_classes, 1 / num_classes)).missed == pytest.approx(0.3, abs=1e-3)


def test_unknown_bags_are_left_out():
    shares = [[0.5, 0.5], [np.nan, np.nan], [1.0, 0.0]]
    compared = BagComparison.of(described(np.full((6, 2), 0.5), [0, 0, 1, 1, 2, 2], shares, [False, True, True]))
    assert compared.names == ("bag 0", "bag 2")
    assert compared.held_out.tolist() == [False, True]
    assert compared.part(held_out=True).names == ("bag 2",)
    assert compared.part(held_out=True).known.tolist() == [[1, 0]]


def test_the_worst_bag_is_worst_for_its_size():
    # a share of 1 where 1/2 is predicted: one standard error in a bag of 1, ten in a bag of 100
    shares = [[1.0, 0.0], [1.0, 0.0], [0.5, 0.5]]
    compared = BagComparison.of(described(np.full((103, 2), 0.5), [0] + [1] * 100 + [2, 2], shares))
    assert compared.worst(3).tolist() == [1, 0, 2]
    assert compared.deviations[:, 0] == pytest.approx([1, 10, 0])


def test_what_is_drawn_of_many_bags(truthful):
    compared = BagComparison.of(truthful)
    assert compared.drawn(600, 10).tolist() == list(range(600))
    drawn = compared.drawn(100, 10)
    assert len(set(drawn)) == 100
    assert set(compared.worst(10)) <= set(drawn)
    assert (np.diff(drawn) > 0).all()
    assert 20 < (drawn >= 300).sum() < 80  # the others at random


def test_held_out_bags_come_first_when_bags_are_drawn():
    sizes, held_out = np.full(1000, 10), np.arange(1000) % 10 == 3
    kept = draw_bags(sizes, held_out, 2000)
    assert kept.sum() == 200
    assert kept[held_out].all()
    kept = draw_bags(np.array([5, 5000, *[5] * 40]), np.arange(42) < 2, 300)  # one that is too large does not end it
    assert kept.sum() == 41
    assert not kept[1]
    kept = draw_bags(np.array([50, 60]), np.array([False, False]), 10)
    assert kept.sum() == 1
    assert draw_bags(np.array([50, 60]), np.array([False, False]), 10, fewest=2).all()


def test_calibration_bins_hold_everything_once_and_sit_on_the_diagonal(truthful):
    compared = BagComparison.of(truthful)
    bins = calibration(compared)
    assert len(bins) == 10
    assert sum(bin.count for bin in bins) == 1800
    assert [bin.predicted for bin in bins] == sorted(bin.predicted for bin in bins)
    strays = [abs(bin.known - bin.predicted) / bin.noise for bin in bins]
    assert max(strays) < 3.5
    assert np.median(strays) > 0.2  # the noise is not overstated either


def test_calibration_of_two_classes_uses_one_and_weighs_rows():
    shares = np.array([[0.9, 0.1]] * 4 + [[0.4, 0.6]])
    probabilities = np.array([[0.8, 0.2]] * 8)
    compared = BagComparison.of(described(probabilities, [0, 1, 2, 3, 4, 4, 4, 4], shares))
    (bin,) = calibration(compared)
    assert bin.count == 5
    assert bin.predicted == pytest.approx(0.2)
    assert bin.known == pytest.approx((4 * 0.1 + 4 * 0.6) / 8)
    assert bin.noise == pytest.approx(np.sqrt(0.16 / 8), rel=0.01)
    assert calibration(compared.part(held_out=True)) == []


def test_confidence_counts_every_row_also_certain_and_clueless_ones():
    found = confidence(np.array([[1.0, 0, 0], [1 / 3, 1 / 3, 1 / 3], [0.95, 0.05, 0], [0.5, 0.3, 0.2]]))
    assert found.shares.sum() == pytest.approx(1)
    assert (found.edges[0], found.edges[-1]) == (pytest.approx(1 / 3), 1)
    assert found.mean == pytest.approx((1 + 1 / 3 + 0.95 + 0.5) / 4)
    assert found.sure == 0.5


def test_class_balance_counts_instances_not_bags():
    shares = [[1.0, 0.0], [0.25, 0.75]]
    probabilities = np.array([[0.9, 0.1]] * 2 + [[0.4, 0.6]] * 8)
    compared = BagComparison.of(described(probabilities, [0] * 2 + [1] * 8, shares))
    first, second = class_balance(compared, probabilities, ["no", "yes"])
    assert (first.label, second.label) == ("yes", "no")
    assert (first.known, first.predicted, first.chosen) == pytest.approx((0.6, 0.5, 0.8))
    assert first.error == pytest.approx((0.1 + 0.15) / 2)
