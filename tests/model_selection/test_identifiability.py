import numpy as np
import pytest

from bagwise import ProportionNoise
from bagwise.model_selection import identifiability_warnings, noise_warnings


def random_bags(rng, num_bags, size, shares):
    return rng.multinomial(size, shares, size=num_bags) / size


@pytest.mark.parametrize("size", [1, 8, 512])
@pytest.mark.parametrize("shares", [[0.5, 0.5], [0.7, 0.2, 0.1], [0.1] * 10])
def test_random_bags_are_good_news_at_any_size(size, shares):
    proportions = random_bags(np.random.default_rng(0), 150, size, shares)
    assert identifiability_warnings(proportions, np.full(150, size)) == []


def test_a_class_that_never_occurs_is_named_and_the_rest_is_still_judged():
    proportions = np.insert(random_bags(np.random.default_rng(1), 50, 8, [0.5, 0.5]), 1, 0, axis=1)
    (warning,) = identifiability_warnings(proportions, np.full(50, 8), ["red", "green", "blue"])
    assert warning.startswith("class 'green' never occurs: its proportion is 0 in all 50 bags")


def test_fewer_distinct_bags_than_classes():
    proportions = np.tile([[0.2, 0.3, 0.5], [0.5, 0.3, 0.2]], (10, 1))
    (warning,) = identifiability_warnings(proportions, np.full(20, 10))
    assert "2 distinct rows of proportions for 3 classes" in warning


def test_nearly_equal_proportions_come_with_the_numbers():
    rng = np.random.default_rng(2)
    share = 0.4 + 0.001 * rng.normal(size=100)  # bags of 1000 drawn at random would differ by 0.0155
    (warning,) = identifiability_warnings(np.stack([share, 1 - share], axis=1), np.full(100, 1000), ["no", "yes"])
    assert "'no' against 'yes'" in warning or "'yes' against 'no'" in warning
    assert "vary by 6 %" in warning


def test_two_classes_that_always_go_together_are_found_among_many():
    rng = np.random.default_rng(3)
    proportions = random_bags(rng, 200, 50, [0.25, 0.25, 0.5])
    # the first class is always split in halves
    split = np.column_stack([proportions[:, 0] / 2, proportions[:, 0] / 2, proportions[:, 1:]])
    (warning,) = identifiability_warnings(split, np.full(200, 50), ["a", "b", "c", "d"])
    assert "'a' against 'b'" in warning or "'b' against 'a'" in warning
    assert "vary by 0 %" in warning


def test_ragged_bags_are_judged_by_their_own_noise():
    rng = np.random.default_rng(4)
    sizes = np.array([4, 400] * 80)
    proportions = np.stack([rng.multinomial(size, [0.3, 0.7]) / size for size in sizes])
    assert identifiability_warnings(proportions, sizes) == []


@pytest.mark.parametrize(
    ("proportions", "message"),
    [
        ([[np.nan, np.nan]], "no bag has known proportions"),
        ([[1.0, 0.0]], "only class 0 occurs"),
        ([[0.5, 0.5]], "1 distinct rows"),
    ],
)
def test_the_smallest_cases(proportions, message):
    assert message in identifiability_warnings(proportions, [4])[-1]


def test_wrong_input_is_named():
    with pytest.raises(ValueError, match="sum to 1"):
        identifiability_warnings([[3, 4]], [7])
    with pytest.raises(ValueError, match="sizes"):
        identifiability_warnings([[0.5, 0.5]], [7, 8])


def test_noise_that_drowns_the_counts_is_told_with_its_share():
    rng = np.random.default_rng(0)
    true = rng.binomial(50, 0.3, size=4000)
    for scale, drowns in ((1.0, False), (10.0, True)):
        noisy = true + rng.normal(0, scale, 4000)
        shares = np.stack([noisy, 50 - noisy], axis=1) / 50
        found = noise_warnings(shares, np.full(4000, 50), ProportionNoise("gaussian", scale))
        assert bool(found) == drowns
    # variances 10.5 of the labels and 100 of the noise
    share = int(found[0].split("explains ")[1].split(" %")[0])
    assert abs(share - 100 * 100 / 110.5) < 9
    assert "standard deviation 10 per count" in found[0]


def test_unknown_bags_do_not_count_in_the_noise():
    shares = np.array([[0.1, 0.9], [0.9, 0.1], [np.nan, np.nan]])
    assert noise_warnings(shares, [50, 50, 10_000], ProportionNoise("laplace", 1.0)) == []
