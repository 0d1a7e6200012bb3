import numpy as np
import pytest
import torch

from bagwise.probe import neighbours as search
from bagwise.probe import smoothing
from bagwise.probe.features import comparable, principal_directions
from bagwise.probe.smoothing import compare, smooth
from reference.neighbours import smoothed


@pytest.mark.parametrize("rounds", [1, 2, 3])
def test_smoothing_is_the_mean_with_the_neighbours(generator, rounds):
    compared = compare(torch.randn(60, 5, generator=generator), generator, "cpu")
    got = smooth(compared, 7, rounds, generator)
    np.testing.assert_allclose(got.rows, smoothed(compared.rows.numpy(), 7, rounds), atol=1e-5)
    assert len(got.levels) == rounds


def test_smoothing_among_cells_is_the_same(generator, monkeypatch):
    monkeypatch.setattr(search, "_MOST_ROWS_IN_ONE_CELL", 100)
    monkeypatch.setattr(search, "_ROWS_PER_CELL", 32)  # 9 cells, all of which are searched
    compared = compare(torch.randn(300, 5, generator=generator), generator, "cpu")
    got = smooth(compared, 7, 2, generator)
    assert got.in_bank.tolist() != list(range(300))
    np.testing.assert_allclose(got.rows, smoothed(compared.rows.numpy(), 7, 2), atol=1e-5)


def test_more_neighbours_than_rows_average_all(generator):
    compared = compare(torch.randn(10, 3, generator=generator), generator, "cpu")
    got = smooth(compared, 50, 1, generator)
    assert got.neighbours == 9
    np.testing.assert_allclose(got.rows, compared.rows.mean(dim=0).expand(10, 3), atol=1e-6)


def test_rows_have_length_one_around_the_centre():
    features = torch.tensor([[3.0, 4.0], [1.0, 1.0], [-5.0, 1.0]])
    rows = comparable(features, torch.tensor([1.0, 1.0]))
    np.testing.assert_allclose(rows.norm(dim=1), [1, 0, 1], atol=1e-6)
    np.testing.assert_allclose(rows[2], [-1, 0], atol=1e-6)


@pytest.mark.parametrize("width", [6, 1100])  # the second by iteration
def test_directions_are_those_of_a_singular_value_decomposition(generator, width):
    scales = torch.tensor([5.0, 4.0, 3.0, *[0.1] * (width - 3)])
    rows = torch.randn(300, width, generator=generator) * scales + 2.0
    got = principal_directions(rows, 3, generator).numpy()
    _, _, vectors = np.linalg.svd(rows.numpy() - rows.numpy().mean(axis=0), full_matrices=False)
    np.testing.assert_allclose(np.abs(np.diag(vectors[:3] @ got)), 1, atol=1e-3)
    np.testing.assert_allclose(got.T @ got, np.eye(3), atol=1e-4)


def test_among_many_rows_neighbours_come_from_a_sample(generator, monkeypatch):
    monkeypatch.setattr(smoothing, "MOST_ROWS_IN_BANK", 30)
    compared = compare(torch.randn(100, 4, generator=generator), generator, "cpu")
    got = smooth(compared, 3, 1, generator)
    assert len(set(got.in_bank.tolist())) == 30
    assert len(got.bank.rows) == 30
    outside = next(place for place in range(100) if place not in got.in_bank.tolist())
    distances = (got.levels[0] - compared.rows[outside]).norm(dim=1)
    expected = (compared.rows[outside] + got.levels[0][distances.topk(3, largest=False).indices].sum(dim=0)) / 4
    np.testing.assert_allclose(got.rows[outside], expected, atol=1e-6)
