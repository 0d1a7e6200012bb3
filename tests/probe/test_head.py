import numpy as np
import pytest
import torch

from bagwise import functional as BF
from bagwise.bags import BagLayout
from bagwise.probe import head as solver
from bagwise.probe.choice import heads_of_folds, held_out_divergence
from bagwise.probe.head import BagsInOrder, fit_head
from reference.neighbours import mean_divergence


@pytest.fixture
def bags(generator):
    """Ragged bags in a shuffled order, of which bag 2 is not taken: rows, their bags, the proportions."""
    bag_of = torch.tensor([2, 0, 1, 3, 0, 3, 3, 1, 2, 0, 3, 1, 1, 0])
    rows = torch.randn(len(bag_of), 4, generator=generator)
    proportions = torch.tensor([[0.5, 0.25, 0.25], [0.25, 0.75, 0.0], [1.0, 0.0, 0.0], [0.5, 0.0, 0.5]])
    return rows, bag_of, proportions


def taken(rows, bag_of, proportions, chosen):
    return BagsInOrder.of(rows, BagLayout.from_index(bag_of, len(proportions)), proportions, np.array(chosen))


def test_the_loss_is_that_of_a_loop(bags, generator):
    rows, bag_of, proportions = bags
    head = torch.randn(5, 3, generator=generator, dtype=torch.float64)
    value, _ = solver._loss(taken(*bags, [0, 1, 2, 3]), head)
    expected = mean_divergence(rows.numpy(), head[:-1].numpy(), head[-1].numpy(), bag_of.numpy(), proportions.numpy())
    assert float(value) == pytest.approx(expected, rel=1e-5)


def test_the_gradient_is_that_of_bag_kl(bags, generator):
    rows, bag_of, proportions = bags
    head = torch.randn(5, 3, generator=generator).requires_grad_()
    BF.bag_kl(rows @ head[:-1] + head[-1], bag_of, proportions).backward()
    _, gradient = solver._loss(taken(*bags, [0, 1, 2, 3]), head.detach().double())
    np.testing.assert_allclose(gradient, head.grad, rtol=1e-4, atol=1e-6)


def test_bags_that_are_not_taken_do_not_count(bags, generator):
    rows, bag_of, proportions = bags
    head = torch.randn(5, 3, generator=generator, dtype=torch.float64)
    some = taken(rows, bag_of, proportions, [3, 0]).divergence(head)
    every = taken(rows, bag_of, proportions, [0, 1, 2, 3]).divergence(head)
    np.testing.assert_allclose(some, every[[3, 0]], rtol=1e-6)


def test_no_direction_lowers_the_loss_of_a_solution(clusters, monkeypatch):
    monkeypatch.setattr(solver, "_MOST_STEPS", 1000)
    monkeypatch.setattr(solver, "_SMALLEST_GAIN", 1e-12)
    features, layout, proportions, _ = clusters()
    problem = BagsInOrder.of(features.double(), layout, proportions, np.arange(6))
    head = fit_head(problem)
    _, gradient = solver._loss(problem, head)
    gradient[:-1] += solver._RIDGE * head[:-1]
    assert gradient.abs().max() < 1e-5


def test_a_candidate_is_judged_as_if_it_were_the_only_one(clusters):
    """The head of a narrower candidate is no start for the next: it would lead to another head than the final fit."""
    features, layout, proportions, _ = clusters(num_bags=12, num_classes=6, spread=2.0)
    rows = features - features.mean(dim=0)
    known = np.arange(12)

    def divergence(candidates):
        heads = heads_of_folds(rows, layout, proportions, known, candidates, seed=0)
        return held_out_divergence(rows, layout, proportions, known, heads, seed=0)

    assert divergence([2, 4, 16])[16] == divergence([16])[16]


def test_a_class_that_no_bag_holds_is_hardly_predicted(clusters):
    features, layout, proportions, _ = clusters()
    with_another = torch.cat([proportions, torch.zeros(6, 1)], dim=1)
    head = fit_head(BagsInOrder.of(features, layout, with_another, np.arange(6)))
    assert head.isfinite().all()
    assert (features.double() @ head[:-1] + head[-1]).softmax(dim=1)[:, 3].max() < 0.01
