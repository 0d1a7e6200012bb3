import numpy as np
import pytest
import torch

from bagwise.bags import BagLayout
from bagwise.probe import Probe, choice, fit_probe, self_teaching
from bagwise.probe import fit as fitting
from bagwise.probe.self_teaching import self_taught_head
from reference.self_teaching import head_by_turns


def accuracy(logits, labels):
    return float((logits.argmax(dim=1) == labels).float().mean())


def test_a_head_by_turns_is_that_of_a_loop(generator, monkeypatch):
    monkeypatch.setattr(self_teaching, "_TURNS", 3)
    bag_of = torch.tensor([0, 1, 2, 0, 1, 2, 0, 1, 2, 0, 0, 1])
    rows = torch.randn(len(bag_of), 3, generator=generator)
    proportions = torch.tensor([[0.5, 0.3, 0.2], [0.25, 0.25, 0.5], [torch.nan] * 3])
    start = torch.rand(len(bag_of), 3, generator=generator).add(0.1)
    start /= start.sum(dim=1, keepdim=True)
    head = self_taught_head(rows, BagLayout.from_index(bag_of, 3), proportions, start)
    expected = head_by_turns(
        rows.double().numpy(),
        [np.flatnonzero(bag_of.numpy() == bag) for bag in range(3)],
        [*proportions[:2].double().numpy(), None],
        start.double().numpy(),
        turns=3, steps=5, ridge=1e-4, temperature=0.75, cut=0.8, least=0.5, memory=0.3,
    )  # fmt: skip
    np.testing.assert_allclose(head, expected, rtol=0.02, atol=0.02)


def test_rows_teach_what_bags_cannot(clusters):
    features, layout, proportions, labels = clusters(num_bags=4, num_classes=4, spread=0.9)
    new, _, _, their_labels = clusters(num_bags=4, num_classes=4, spread=0.9, seed=5)
    plain, taught = (
        fit_probe(features, layout, proportions, probe=Probe(rounds=0, directions=2, self_taught=how))
        for how in (False, True)
    )
    assert (plain.self_taught, taught.self_taught) == (False, True)
    assert plain.self_taught_criterion is None
    assert accuracy(taught.logits, labels) > accuracy(plain.logits, labels) + 0.02
    assert accuracy(taught.network(new), their_labels) > accuracy(plain.network(new), their_labels) + 0.02
    torch.testing.assert_close(taught.network(features), taught.logits, rtol=1e-3, atol=1e-3)
    assert len(taught.network.bank) == 0  # new rows need no neighbours


def test_held_out_bags_decide_and_their_proportions_are_not_shown(clusters, monkeypatch):
    features, layout, proportions, _ = clusters()
    shown = []

    def spy(rows, layout, proportions, start):
        shown.append(proportions.isnan().all(dim=1))
        return self_taught_head(rows, layout, proportions, start)

    monkeypatch.setattr(choice, "self_taught_head", spy)
    fit = fit_probe(features, layout, proportions)
    held_out = torch.stack(shown)
    assert held_out.sum(dim=0).tolist() == [1] * 6  # each bag once
    assert fit.self_taught == (fit.self_taught_criterion < fit.criterion[fit.rounds, fit.directions])


def test_heads_weigh_by_the_fourth_power_of_how_well_they_meet_held_out_bags(generator):
    rows = torch.randn(7, 3, generator=generator)
    heads = {count: torch.randn(count + 1, 4, generator=generator, dtype=torch.float64) for count in (1, 2, 3)}
    said = [torch.softmax(rows[:, :n].double() @ head[:-1] + head[-1], dim=1) for n, head in heads.items()]

    def averaged(*criterion):
        return choice.averaged_probabilities(rows, heads, dict(zip(heads, criterion, strict=True))).double()

    expected = (said[0] + said[1] / 16 + said[2] / 81) / (1 + 1 / 16 + 1 / 81)
    torch.testing.assert_close(averaged(0.1, 0.2, 0.3), expected, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(averaged(0.0, 0.0, 0.0), sum(said) / 3, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(averaged(0.5, 0.0, 0.5), said[1], rtol=1e-5, atol=1e-6)  # where bags are met exactly


def test_what_is_averaged_labels_rows_better_than_the_best_head_alone(clusters, monkeypatch):
    def accuracies():
        found = []
        for seed in range(4):
            features, layout, proportions, labels = clusters(num_bags=6, num_classes=6, spread=1.5, seed=seed)
            fit = fit_probe(features, layout, proportions, probe=Probe(rounds=0, self_taught=True), seed=seed)
            found.append(accuracy(fit.logits, labels))
        return np.array(found)

    averaged = accuracies()
    monkeypatch.setattr(choice, "_POWER", 1000)  # the best alone
    assert averaged.mean() > accuracies().mean()


@pytest.mark.parametrize(("num_bags", "count"), [(2, 2), (5, 5), (12, 6), (23, 6), (24, 3), (100, 3)])
def test_every_bag_is_held_out_once(num_bags, count):
    known = np.arange(3, 3 + num_bags)
    parts = list(choice.folds(known, seed=1))
    assert len(parts) == count
    np.testing.assert_array_equal(np.sort(np.concatenate([held_out for _, held_out in parts])), known)
    for fitted_on, held_out in parts:
        np.testing.assert_array_equal(np.sort(np.concatenate([fitted_on, held_out])), known)


def test_many_rows_are_not_taught_unless_asked_for(clusters, monkeypatch):
    monkeypatch.setattr(fitting, "_MOST_ROWS_TO_TEACH", 100)
    features, layout, proportions, _ = clusters()
    fit = fit_probe(features, layout, proportions)
    assert (fit.self_taught, fit.self_taught_criterion) == (False, None)
    assert fit_probe(features, layout, proportions, probe=Probe(self_taught=True)).self_taught


def test_a_setting_that_is_no_truth_value_is_refused():
    with pytest.raises(ValueError, match="self_taught must be True, False or None, but got 'no'"):
        Probe(self_taught="no")
