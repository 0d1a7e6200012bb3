import dataclasses
import statistics

import pytest

from bagwise.experiments.leaderboard.published import read_published
from bagwise.report.leaderboard import leaderboard_caption
from bagwise.report.leaderboard_summary import Setting, is_within_spread, summarise_benchmark
from bagwise.report.leaderboard_words import (
    best_published,
    headline,
    label,
    listed,
    read_missing,
    read_self_training,
    read_setting,
    read_spread,
)
from bagwise.report.summary import Accuracy
from fakes.benchmark_records import make_benchmark_record

SMALL, LARGE = Setting("uniform", 16), Setting("uniform", 256)


def board_of(accuracies, seeds=1, apart=0.0, published=()):
    """A leaderboard from {contender: {setting: accuracy}}; seeds lie `apart` from each other."""
    return summarise_benchmark(
        [
            make_benchmark_record(
                name, accuracy + apart * seed, bag_kind=setting.bag_kind, bag_size=setting.bag_size, seed=seed
            )
            for seed in range(seeds)
            for name, scores in accuracies.items()
            for setting, accuracy in scores.items()
        ],
        published,
    )


def test_contenders_are_ordered_by_their_mean_distance_to_the_best():
    board = board_of(
        {
            "kl": {SMALL: 0.95, LARGE: 0.40},
            "rot": {SMALL: 0.90, LARGE: 0.30},
            "ahil": {SMALL: 0.93, LARGE: 0.60},
        }
    )
    assert board.contenders == ("ahil", "kl", "rot")
    assert board.behind == pytest.approx({"ahil": 0.01, "kl": 0.10, "rot": 0.175})
    assert [name for name, _ in board.ranking(SMALL)] == ["kl", "ahil", "rot"]


def test_chance_is_the_most_frequent_class_where_records_tell_it():
    record = make_benchmark_record("kl", 0.8)
    assert summarise_benchmark([record], ()).chance == 1 / record.num_classes
    told = dataclasses.replace(record, largest_class=0.76)
    board = summarise_benchmark([record, told], ())
    assert board.chance == 0.76
    assert "Always naming the most frequent class is right in 76 %." in leaderboard_caption(board)


def test_a_contender_is_judged_by_the_settings_it_has():
    board = board_of({"kl": {SMALL: 0.9, LARGE: 0.5}, "rot": {LARGE: 0.55}, "dsq": {SMALL: 0.8}})
    assert board.contenders == ("rot", "kl", "dsq")
    assert board.missing == (("rot", SMALL), ("dsq", LARGE))
    assert read_missing(board) == (
        "2 of 6 combinations have no record yet: ROT on uniform bags of 16; DSQ on uniform bags of 256."
    )
    assert read_missing(board_of({"kl": {SMALL: 0.9}})) is None


def test_scores_are_means_over_seeds():
    board = board_of({"kl": {SMALL: 0.90}}, seeds=3, apart=0.01)
    score = board.scores["kl"][SMALL]
    assert score.accuracy == Accuracy(pytest.approx(0.91), pytest.approx(statistics.stdev([0.90, 0.91, 0.92])), seeds=3)
    assert score.log_loss == pytest.approx(0.09)
    assert score.balanced_accuracy == pytest.approx(0.91)
    assert score.calibration_error == pytest.approx(0.03)
    assert (score.seconds, score.epochs) == (15, 4)
    assert board.max_seeds == 3


def test_the_path_starts_after_the_search_and_ends_with_all_seconds():
    board = board_of({"kl": {SMALL: 0.9}}, seeds=2, apart=0.02)
    assert board.scores["kl"][SMALL].path == (((13.0, pytest.approx(0.455)), (15.0, pytest.approx(0.91))),)


def test_a_value_that_is_not_finite_has_no_mean():
    record = make_benchmark_record("kl", 0.9)
    broken = dataclasses.replace(record, final=dataclasses.replace(record.final, log_loss=None))
    board = summarise_benchmark([broken, make_benchmark_record("kl", 0.9, seed=1)])
    assert board.scores["kl"][SMALL].log_loss is None


@pytest.mark.parametrize(
    ("best", "other", "num_test", "within"),
    [
        ((0.900, 0.010), (0.891, 0.001), 10**6, True),
        ((0.900, 0.001), (0.891, 0.010), 10**6, False),
        ((0.900, 0.001), (0.600, 0.400), 10**6, False),  # now and then as good is not as good
        ((0.900, 0.001), (0.891, 0.001), 10**6, False),
        ((0.900, None), (0.891, None), 1000, True),  # the standard error is 0.0095
        ((0.900, None), (0.890, None), 1000, False),
        ((1.0, 0.0), (0.999, 0.0), 1000, True),  # one instance of the test set
        ((1.0, 0.0), (0.997, 0.0), 1000, False),
    ],
)
def test_within_the_spread(best, other, num_test, within):
    assert is_within_spread(Accuracy(*best, seeds=2), Accuracy(*other, seeds=2), num_test) is within


def test_settings_are_ordered_by_kind_and_size():
    settings = [Setting("uniform", 128), Setting("uniform", 16), Setting("clustered", 64), Setting("dirichlet", 16)]
    board = board_of({"kl": dict.fromkeys(settings, 0.5)})
    assert board.settings == (settings[1], settings[0], settings[2], settings[3])
    assert board.bag_kinds == ("uniform", "clustered", "dirichlet")
    assert board.sizes("uniform") == (16, 128)


def test_no_record_is_no_leaderboard():
    with pytest.raises(ValueError, match="run the benchmark first"):
        summarise_benchmark([])


def test_budgets_that_differ_are_all_told():
    records = [make_benchmark_record("kl", 0.9), make_benchmark_record("rot", 0.9, budget=600)]
    assert summarise_benchmark(records).budgets == (150, 600)


def test_a_setting_in_words():
    board = board_of({"kl": {SMALL: 0.90}, "rot": {SMALL: 0.89}, "dsq": {SMALL: 0.8}, "l1": {SMALL: 0.3}}, 2, 0.016)
    assert read_setting(board, SMALL) == (
        "KL leads with 90.8 ± 1.1 %; ROT is within the spread; next is DSQ, 10.0 points behind; last is L1 with "
        "30.8 ± 1.1 %."
    )
    crowd = board_of({f"m{number}": {SMALL: 0.9} for number in range(9)})
    assert "; m1, m2, m3, m4, m5 and 3 more are within the spread." in read_setting(crowd, SMALL)
    alone = board_of({"kl": {SMALL: 0.90}})
    assert read_setting(alone, SMALL) == "KL leads with 90.0 %."


def test_published_numbers_in_words():
    board = board_of({"kl": {SMALL: 0.96, LARGE: 0.5}}, published=read_published("cifar10"))
    assert read_setting(board, SMALL).endswith(
        "The best published, SoftMatch-LLP, has 95.2 %: ours is 0.8 points above."
    )
    assert read_setting(board, LARGE).endswith("The best published, RLPL, has 94.0 %: ours is 44.0 points below.")
    assert best_published(board, Setting("uniform", 4096)) is None


def test_the_headline_names_who_wins_most():
    board = board_of({"kl": {SMALL: 0.95, LARGE: 0.4}, "ahil": {SMALL: 0.93, LARGE: 0.6}, "rot": {SMALL: 0.952}})
    assert headline(board) == (
        "ROT, AHIL and KL are best, or within the spread of the best, in 1 of 2 settings. "
        "ROT is best wherever it has a record."
    )
    apart = board_of({"kl": {SMALL: 0.95, LARGE: 0.4}, "ahil": {SMALL: 0.93, LARGE: 0.6}})
    assert headline(apart).endswith("in 1 of 2 settings. On average AHIL is closest to the best, 1.0 point behind.")
    assert headline(board_of({"kl": {SMALL: 0.9, LARGE: 0.2}})) == "KL alone has run: 90.0 % at best, 20.0 % at worst."
    one = board_of({"kl": {SMALL: 0.9}, "rot": {SMALL: 0.8}})
    assert headline(one) == "KL is best on uniform bags of 16."


def test_the_headline_says_who_is_best_everywhere():
    accuracies = {"kl": {SMALL: 0.95, LARGE: 0.6}, "rot": {SMALL: 0.949, LARGE: 0.599}, "dsq": {SMALL: 0.7, LARGE: 0.3}}
    assert headline(board_of(accuracies)) == "KL is best in every setting. ROT is within the spread of it."
    del accuracies["rot"]
    assert headline(board_of(accuracies)) == "KL is best in every setting."


def test_one_seed_is_called_one_seed():
    assert "One seed stands behind each number" in read_spread(board_of({"kl": {SMALL: 0.9}}))
    many = read_spread(board_of({"kl": {SMALL: 0.9}}, seeds=3))
    assert "standard deviation over seeds (up to 3)" in many
    assert "10,000 test instances" in many


def self_training_that(decision):
    record = make_benchmark_record("self-training", 0.9)
    criterion = f"KL of held-out bags; then, {decision}"
    return dataclasses.replace(record, selection=dataclasses.replace(record.selection, criterion=criterion))


def test_what_decided_about_self_training_is_told():
    kept = self_training_that("by 18 others, KL is kept")
    assert read_self_training([kept] * 9) == "Self-training kept KL's network in 9 of 9 cells."
    replaced = self_training_that("by 18 others, labels of the network improve it")
    unasked = self_training_that(
        "with no bags left to decide by, the copy that learned from labels of the probe is taken"
    )
    old = self_training_that("by 0 others, labels of the probe improve it")
    assert read_self_training([kept, replaced, replaced, unasked, old]) == (
        "Self-training kept KL's network in 1 of 5 cells; in 2, held-out bags preferred the copy that learned from "
        "labels; in 2, no bags were held out to decide by, and the copy was taken."
    )
    assert read_self_training([make_benchmark_record("self-training", 0.9), make_benchmark_record("kl", 0.9)]) is None


def test_every_contender_has_a_label():
    from bagwise.experiments.leaderboard.contenders import CONTENDERS
    from bagwise.report.leaderboard_summary import CONTENDER_LABELS

    assert set(CONTENDERS) <= set(CONTENDER_LABELS)
    assert label("a-method-of-old") == "a-method-of-old"
    assert listed(["a"]) == "a"
    assert listed(["a", "b", "c"]) == "a, b and c"
