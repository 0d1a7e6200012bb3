import numpy as np
import pytest
import torch

from bagwise.bags import BagLayout
from bagwise.probe import Probe, ProbeNetwork, fit_probe, smoothing
from bagwise.probe import neighbours as search


def accuracy(logits, labels):
    return float((logits.argmax(dim=1) == labels).float().mean())


def test_it_learns_from_few_large_bags(clusters):
    features, layout, proportions, labels = clusters()
    fit = fit_probe(features, layout, proportions)
    assert accuracy(fit.logits, labels) > 0.95
    more, _, _, their_labels = clusters(seed=5)
    assert accuracy(fit.network(more), their_labels) > 0.95


def test_the_choice_is_the_best_of_the_criterion(clusters):
    features, layout, proportions, _ = clusters()
    fit = fit_probe(features, layout, proportions)
    assert sorted(fit.criterion) == [(0, 8), (0, 16), (2, 8), (2, 16)]  # there are 16 columns
    assert (fit.rounds, fit.directions) == min(fit.criterion, key=fit.criterion.get)


def test_what_is_set_is_done(clusters):
    features, layout, proportions, _ = clusters()
    fit = fit_probe(features, layout, proportions, probe=Probe(neighbours=5, rounds=1, directions=3))
    assert (fit.rounds, fit.directions) == (1, 3)
    assert int(fit.network.neighbours) == 5


@pytest.mark.parametrize("rounds", [0, 1, 2, 3])
def test_the_network_gives_training_rows_about_the_logits_of_the_fit(clusters, rounds):
    features, layout, proportions, _ = clusters()
    fit = fit_probe(features, layout, proportions, probe=Probe(rounds=rounds))
    again = fit.network(features)
    # a new row that equals a training row has that one among its neighbours
    tolerance = 1e-3 if rounds == 0 else 0.3 * float(fit.logits.std())
    assert float((again - fit.logits).abs().mean()) < tolerance
    assert accuracy(again, fit.logits.argmax(dim=1)) > 0.98


def test_the_network_is_the_smoothing_of_a_new_row_step_by_step(clusters):
    features, layout, proportions, _ = clusters()
    fit = fit_probe(features, layout, proportions, probe=Probe(neighbours=4, rounds=2))
    network = fit.network
    new = clusters(num_rows=6, seed=3)[0]
    bank = network.bank
    # the bank, smoothed once, from what it stores
    distances = torch.cdist(bank, bank).fill_diagonal_(torch.inf)
    once = (bank + bank[distances.topk(4, largest=False).indices].sum(dim=1)) / 5
    row = torch.nn.functional.normalize(new - network.centre, dim=1) @ network.directions
    found = torch.cdist(row, bank).topk(4, largest=False).indices
    row = (row + bank[found].sum(dim=1)) / 5
    row = (row + once[found].sum(dim=1)) / 5
    np.testing.assert_allclose(network(new), row @ (25 * network.head) + network.bias, rtol=1e-3, atol=1e-3)


def test_the_order_of_the_rows_does_not_matter(clusters):
    features, layout, proportions, _ = clusters()
    order = torch.randperm(len(features), generator=torch.Generator().manual_seed(1))
    shuffled = BagLayout.from_index(layout.bag_index[order], layout.num_bags)
    fit, other = fit_probe(features, layout, proportions), fit_probe(features[order], shuffled, proportions)
    assert (other.rounds, other.directions) == (fit.rounds, fit.directions)
    np.testing.assert_allclose(other.logits.softmax(dim=1), fit.logits.softmax(dim=1)[order], atol=0.02)


def test_the_numbers_of_the_bags_do_not_matter_once_the_choice_is_made(clusters):
    features, layout, proportions, _ = clusters()
    new_number = torch.tensor([3, 5, 0, 1, 4, 2])
    renumbered = BagLayout.from_index(new_number[layout.bag_index], 6)
    probe = Probe(rounds=2, directions=8)
    fit = fit_probe(features, layout, proportions, probe=probe)
    other = fit_probe(features, renumbered, proportions[new_number.argsort()], probe=probe)
    np.testing.assert_allclose(other.logits.softmax(dim=1), fit.logits.softmax(dim=1), atol=0.02)


def test_scale_and_shift_of_the_features_do_not_matter(clusters):
    features, layout, proportions, _ = clusters()
    fit, other = fit_probe(features, layout, proportions), fit_probe(8 * features - 4, layout, proportions)
    np.testing.assert_allclose(other.logits.softmax(dim=1), fit.logits.softmax(dim=1), atol=0.02)


def test_the_same_seed_gives_the_same_probe_and_global_randomness_is_left_alone(clusters, monkeypatch):
    monkeypatch.setattr(search, "_MOST_ROWS_IN_ONE_CELL", 100)  # so that something is drawn
    features, layout, proportions, _ = clusters()
    before = torch.get_rng_state(), np.random.get_state()[1].copy()  # noqa: NPY002
    one, two = (fit_probe(features, layout, proportions, seed=3) for _ in range(2))
    assert torch.equal(one.logits, two.logits)
    assert torch.equal(torch.get_rng_state(), before[0])
    np.testing.assert_array_equal(np.random.get_state()[1], before[1])  # noqa: NPY002


def test_bags_without_proportions_help_as_neighbours_only(clusters):
    features, layout, proportions, labels = clusters()
    unknown = proportions.clone()
    unknown[4:] = torch.nan
    fit = fit_probe(features, layout, unknown)
    assert fit.logits.isfinite().all()
    assert accuracy(fit.logits, labels) > 0.9


@pytest.mark.parametrize("num_bags", [2, 3])
def test_two_bags_tell_two_classes_apart(clusters, num_bags):
    features, layout, proportions, labels = clusters(num_bags=num_bags, num_classes=2)
    assert accuracy(fit_probe(features, layout, proportions).logits, labels) > 0.9


def test_bags_of_one_row_can_be_held_out():
    """With two bags, a head that is judged has seen a single row."""
    rows = torch.randn(2, 4, generator=torch.Generator().manual_seed(0))
    fit = fit_probe(rows, BagLayout.from_sizes([1, 1]), torch.eye(2))
    assert np.isfinite(list(fit.criterion.values())).all()
    assert torch.equal(fit.logits.argmax(dim=1), torch.arange(2))


def test_one_known_bag_is_too_few(clusters):
    features, layout, proportions, _ = clusters()
    proportions[1:] = torch.nan
    with pytest.raises(ValueError, match="at least 2 bags must have known proportions"):
        fit_probe(features, layout, proportions)


def test_a_bag_without_rows_is_left_out(clusters):
    features, layout, proportions, labels = clusters()
    with_empty = BagLayout.from_index(layout.bag_index, 7)
    fit = fit_probe(features, with_empty, torch.cat([proportions, proportions[:1]]))
    assert accuracy(fit.logits, labels) > 0.95


def test_a_bank_smaller_than_the_data_still_learns(clusters, monkeypatch):
    monkeypatch.setattr(smoothing, "MOST_ROWS_IN_BANK", 200)
    features, layout, proportions, labels = clusters()
    fit = fit_probe(features, layout, proportions, probe=Probe(rounds=2))
    assert len(fit.network.bank) == 200
    assert accuracy(fit.logits, labels) > 0.95
    assert accuracy(fit.network(features), labels) > 0.95


def test_without_smoothing_no_row_is_stored(clusters):
    features, layout, proportions, _ = clusters()
    fit = fit_probe(features, layout, proportions, probe=Probe(rounds=0))
    assert len(fit.network.bank) == 0
    assert sum(buffer.numel() for buffer in fit.network.buffers()) < 400


def test_the_state_is_all_there_is(clusters):
    features, layout, proportions, _ = clusters()
    network = fit_probe(features, layout, proportions).network
    restored = ProbeNetwork.from_state(network.state_dict())
    assert torch.equal(restored(features), network(features))
    state = network.state_dict()
    with pytest.raises(RuntimeError, match="a probe has the tensors"):
        ProbeNetwork.from_state({"weight": state["head"]})
    with pytest.raises(RuntimeError, match="head must have shape"):
        ProbeNetwork.from_state(state | {"head": state["head"][:2]})
    with pytest.raises(RuntimeError, match="do not add up"):
        ProbeNetwork.from_state(state | {"cell_sizes": state["cell_sizes"] + 1})


@pytest.mark.parametrize(
    ("features", "error", "message"),
    [
        (torch.zeros(600, 16, dtype=torch.int64), TypeError, "floating point"),
        (torch.zeros(600, 4, 4), ValueError, "flatten each row"),
        (torch.zeros(599, 16), ValueError, "one entry per instance"),
        (torch.full((600, 16), torch.nan), ValueError, "row 0 holds NaN"),
    ],
)
def test_messages(clusters, features, error, message):
    _, layout, proportions, _ = clusters()
    with pytest.raises(error, match=message):
        fit_probe(features, layout, proportions)


@pytest.mark.parametrize("bad", [{"neighbours": 0}, {"rounds": -1}, {"directions": 0}])
def test_settings_are_checked(bad):
    with pytest.raises(ValueError, match="at least 1"):
        Probe(**bad)


def test_constant_features_give_the_overall_shares(clusters):
    _, layout, proportions, _ = clusters()
    fit = fit_probe(torch.ones(600, 16), layout, proportions)
    np.testing.assert_allclose(fit.logits.softmax(dim=1)[0], proportions.mean(dim=0), atol=0.02)


@pytest.mark.parametrize("rounds", [0, 2])
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_rows_of_another_precision_are_taken_as_the_fit_takes_them(clusters, rounds, dtype):
    features, layout, proportions, _ = clusters()
    rows = features.to(dtype)
    network = fit_probe(rows, layout, proportions, probe=Probe(rounds=rounds)).network
    torch.testing.assert_close(network(rows), network(rows.float()), rtol=0, atol=0)
