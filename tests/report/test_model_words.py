import dataclasses
from types import SimpleNamespace

import numpy as np
import pytest

from bagwise.model_selection import AccuracyEstimate
from bagwise.report.model_statistics import ClassShare, Fit
from bagwise.report.model_words import accuracy_assumptions, fit_warnings, headline, points, signed, training_in_words

GOOD = Fit(30, 900, 0.021, 0.09, 0.01, 0.08, 1.0, 0.05)


def warn(held_out=GOOD, trained_on=GOOD, classes=(), has_noise=False):
    return fit_warnings(held_out, trained_on, classes, has_noise=has_noise)


def test_a_good_fit_gives_no_warning():
    assert warn() == []
    assert warn(trained_on=None) == []


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"held_out": None}, "No bag was kept from training"),
        ({"held_out": dataclasses.replace(GOOD, num_bags=7)}, "Only 7 bags could be held out"),
        ({"held_out": dataclasses.replace(GOOD, num_bags=1)}, "Only 1 bag could be held out"),
        ({"held_out": dataclasses.replace(GOOD, beyond_two=0.21)}, "21.0 % of the shares lie beyond two"),
        ({"held_out": dataclasses.replace(GOOD, kl=0.05)}, "much of what it learned is their noise"),
        ({"classes": [ClassShare("rare", 0.03, 0.03, 0.0, 0.01)]}, "Class 'rare' is never the most likely"),
    ],
)
def test_each_fault_is_said_once_in_plain_words(change, words):
    (warning,) = warn(**change)
    assert words in warning


def test_a_model_no_better_than_a_guess_is_named_whatever_bags_there_are():
    blind, few = dataclasses.replace(GOOD, kl=0.079), dataclasses.replace(GOOD, num_bags=7)
    assert "For bags held out the model is hardly better" in warn(held_out=blind)[-1]
    assert "For bags that it was trained on the model is hardly better" in warn(held_out=few, trained_on=blind)[-1]
    assert "For bags that it was trained on the model is hardly better" in warn(held_out=None, trained_on=blind)[-1]


def test_a_model_worse_than_a_guess_is_called_so():
    worse = dataclasses.replace(GOOD, kl=0.24)
    assert "For bags held out the model is worse than a guess" in warn(held_out=worse)[-1]
    assert "(divergence 0.24 against 0.08)" in warn(held_out=worse)[-1]


def test_noise_in_the_counts_explains_bags_that_stray():
    assert warn(held_out=dataclasses.replace(GOOD, beyond_two=0.21), has_noise=True) == []


def test_a_few_bags_may_stray_by_luck_and_a_single_one_is_no_pattern():
    assert warn(held_out=dataclasses.replace(GOOD, beyond_two=0.15)) == []
    assert warn(held_out=dataclasses.replace(GOOD, beyond_two=0.15, num_bags=300)) != []
    assert warn(held_out=dataclasses.replace(GOOD, dispersion=9.0)) == []


def test_the_headline_prefers_held_out_bags_and_says_which():
    text = headline(1234, 56, 3, GOOD, dataclasses.replace(GOOD, missed=0.5))
    assert "one of 3 classes" in text
    assert "1,234 rows in 56 groups" in text
    assert "the 30 bags kept from training, the predicted shares are off by 2.1 points" in text
    assert "the 30 bags it was trained on" in headline(1234, 56, 3, None, GOOD)
    assert "1,234 rows whose class is known" in headline(1234, 1234, 3, GOOD, GOOD)


def trained(method, history, best_epoch, *, held_out=True, epochs=30):
    bags = {"held_out": np.array([False, held_out])}
    return training_in_words(
        SimpleNamespace(method=method, epochs=epochs, history_=history, best_epoch_=best_epoch, bag_report_=bags)
    )


def test_the_rule_by_which_an_epoch_was_kept_is_the_real_one():
    assert trained("kl", [{}] * 16, 12) == (
        "Epoch 12 of 16 was kept: the last that met the proportions of held-out bags as closely as the best one, to "
        "half a standard error."
    )
    text = trained("rot", [{}] * 8, 8, held_out=False)
    assert text == "The last of 8 epochs was kept: no bags were held out to choose one."


def test_a_probe_has_no_epochs():
    entry = {"rounds": 2, "directions": 16, "self_taught": False, "candidates": [{}] * 8}
    plain = (
        "A probe, a linear head on 16 directions of rows averaged with their nearest ones in 2 rounds. Of 8 such "
        "settings, this one met bags that were left out in turn most closely."
    )
    assert trained("probe", [entry], 1) == plain
    assert trained("probe", [{**entry, "self_taught": True}], 1) == (
        f"{plain} Its labels of the rows then taught a head on the rows as they are, which is the one that is used."
    )
    as_set = trained("probe", [{"rounds": 0, "directions": 1, "self_taught": False, "candidates": [{}]}], 1)
    assert as_set == "A probe, a linear head on 1 direction of the rows as they are. No other setting was tried."


def test_self_training_is_said_to_be_kept_or_refused():
    candidates = [
        {"start": "network", "kl": 0.02},
        {"start": "probe", "kl": 0.9},
        {"start": "self-training", "kl": 0.01},
    ]
    kept = trained("self-training", [{}] * 10 + [{"candidates": candidates}], 11, epochs=5)
    assert kept.startswith(
        "6 epochs by KL, then 5 epochs of learning from labels that fit the bags. The latter were kept"
    )
    assert "fell from 0.02 to 0.01, by more than a standard error" in kept
    candidates[2]["kl"] = 0.03
    refused = trained("self-training", [{}] * 10 + [{"candidates": candidates}], 4, epochs=5)
    assert "The latter were refused: the divergence of held-out bags went from 0.02 to 0.03" in refused
    assert "Of the former, epoch 4 was kept: the last that" in refused
    unjudged = trained("self-training", [{}] * 10 + [{"candidates": []}], 11, epochs=5, held_out=False)
    assert "The last one was kept: no bags were held out" in unjudged


def test_the_assumption_is_that_of_the_method():
    random_bags = AccuracyEstimate(0.9, 0.8, 0.95, 0.95, "residuals", 1.1, 40)
    by_place = AccuracyEstimate(0.9, 0.8, 0.95, 0.95, "temperature", 12.3, 40, temperature=1.7)
    assert "about the variance of bags drawn at random" in accuracy_assumptions(random_bags, flatters=False)[0]
    assert "mistake in one row says nothing" in accuracy_assumptions(random_bags, flatters=False)[0]
    first, *others = accuracy_assumptions(by_place, flatters=True)
    assert "12.3 times the variance of bags drawn at random" in first
    assert "temperature 1.70" in first
    assert "flatters a little" in others[-1]


def test_numbers_in_words():
    assert points(0.0312) == "3.1"
    assert points(0.00031) == "0.03"
    assert [signed(value) for value in (1.25, -3.0, -0.01)] == ["+1.2", "−3.0", "+0.0"]
