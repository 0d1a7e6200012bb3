import lzma

import numpy as np
import pytest
import torch

from bagwise.experiments.datasets.adult import COLUMNS, load_adult
from bagwise.experiments.leaderboard.data import BENCHMARK_DATASETS, load_benchmark_data
from bagwise.experiments.leaderboard.published import read_published

TRAIN = """\
39, State-gov, 77516, Bachelors, 13, Never-married, Adm-clerical, Not-in-family, White, Male, 2174, 0, 40, Cuba, <=50K
50, ?, 83311, Bachelors, 13, Married-civ-spouse, Exec-managerial, Husband, White, Male, 0, 0, 13, India, >50K
38, Private, 215646, HS-grad, 9, Divorced, Handlers-cleaners, Not-in-family, Black, Female, 0, 10, 40, Cuba, <=50K

"""
TEST = """\
|1x3 Cross validator
25, Private, 226802, 11th, 7, Never-married, Machine-op-inspct, Own-child, Black, Male, 0, 0, 40, Atlantis, >50K.
"""


@pytest.fixture
def adult(tmp_path):
    (tmp_path / "adult.data").write_text(TRAIN)
    (tmp_path / "adult.test.xz").write_bytes(lzma.compress(TEST.encode()))
    return tmp_path


def test_adult_is_read_from_plain_and_packed_files(adult):
    (train, train_labels), (test, test_labels) = load_adult(adult)
    assert train_labels.tolist() == [0, 1, 0]
    assert test_labels.tolist() == [1]
    assert train.dtype == test.dtype == np.float32
    assert train.shape == (3, train.shape[1])
    assert test.shape == (1, train.shape[1])
    ages = np.array([39, 50, 38])
    assert train[:, 0] == pytest.approx((ages - ages.mean()) / ages.std(), abs=1e-6)
    assert test[0, 0] == pytest.approx((25 - ages.mean()) / ages.std(), abs=1e-5)  # by the training split
    assert train[:, 6:].sum(axis=1).tolist() == [8, 8, 8]  # each category has one input that is 1, a missing one too


def test_adult_fits_into_the_benchmark(adult):
    data = load_benchmark_data("adult", adult)
    assert data.is_table
    assert data.input_shape == (data.train.shape[1],)
    assert data.num_classes == 2
    assert data.views.weak is data.views.contrastive is None


def test_missing_and_wrong_files_are_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"there is no adult\.data.*--data"):
        load_adult(tmp_path)
    (tmp_path / "adult.data").write_text("a, b\n")
    with pytest.raises(ValueError, match=f"{len(COLUMNS)} cells"):
        load_adult(tmp_path)


def test_digits_have_two_views_of_one_shape(digits):
    assert not digits.is_table
    generator = torch.Generator().manual_seed(0)
    for view in (digits.views.weak, digits.views.strong):
        assert view(digits.train[:5], generator).shape == (5, 1, 8, 8)


def test_an_unknown_name_suggests_the_nearest():
    with pytest.raises(ValueError, match="Did you mean 'adult'"):
        load_benchmark_data("adlut")


def test_published_numbers_are_accuracies_of_known_data_and_contenders():
    from bagwise.experiments.leaderboard.bag_kinds import BAG_KINDS
    from bagwise.experiments.leaderboard.contenders import CONTENDERS

    entries = [entry for name in BENCHMARK_DATASETS for entry in read_published(name)]
    assert len(entries) > 60
    for entry in entries:
        assert 0.05 < entry.accuracy < 1
        assert entry.bag_kind in BAG_KINDS
        assert not entry.contender or entry.contender in CONTENDERS
    places = [(e.dataset, e.method, e.terms, e.bag_kind, e.bag_size) for e in entries]
    assert len(places) == len(set(places))


def test_the_best_published_numbers_are_those_of_the_survey():
    best = {}
    for entry in read_published("cifar10"):
        if entry.bag_kind == "uniform":
            best[entry.bag_size] = max(best.get(entry.bag_size, 0), entry.accuracy)
    assert best == {16: 0.9524, 32: 0.9525, 64: 0.9458, 128: 0.9453, 256: 0.9395}


def test_terms_say_what_is_known():
    terms = {entry.method: entry.terms for entry in read_published("cifar10")}
    assert terms["L2P-AHIL"] == "WRN-28-2, 1024 epochs"
    assert terms["RLPL"] == "network not noted, contrastive pretraining"
