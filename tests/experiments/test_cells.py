import dataclasses
import json
import time

import pytest
import torch

from bagwise.experiments import cells, trials
from bagwise.experiments.cells import cell_epochs, run_cell
from bagwise.experiments.grid import PRESETS
from bagwise.experiments.provenance import collect_provenance
from bagwise.experiments.records import Cell, RecordError
from bagwise.experiments.sweep import clear_work
from bagwise.experiments.time_limit import OutOfTimeError, TimeLimit
from bagwise.training import NonFiniteLossError

KL = Cell("digits", "tiny", "kl", 64, 0)
ROT = Cell("digits", "tiny", "rot", 64, 0)


def run(cell, dataset, work, limit=None, announce=lambda what, epochs: None):
    return run_cell(cell, work, limit or TimeLimit(), announce, dataset=dataset)


@pytest.fixture
def trainings(monkeypatch):
    """The keyword arguments of every call of `train`, which runs as usual."""
    calls = []
    original = trials.train

    def spy(network, **arguments):
        calls.append(arguments)
        return original(network, **arguments)

    monkeypatch.setattr(trials, "train", spy)
    return calls


def test_a_cell_chooses_the_lowest_criterion_and_reports_the_last_epoch(tiny_preset, digits, tmp_path):
    record = run(ROT, digits, tmp_path)
    tried = record.selection.candidates
    assert [(c.learning_rate, c.alpha) for c in tried] == [(0.01, 0.3), (0.01, 0.7), (0.1, 0.3), (0.1, 0.7)]
    assert record.chosen == min(tried, key=lambda c: c.criterion)
    assert record.curve.epoch == (1, 2, 3)
    assert record.final.accuracy == record.curve.test_accuracy[-1]
    assert record.recipe["learning_rate"] == record.chosen.learning_rate
    assert (record.num_classes, record.num_bags) == (10, 1442 // 64)
    assert record.seconds >= sum(c.seconds for c in tried)


def test_small_cells_are_computed_on_the_cpu_and_say_so_where_there_is_a_gpu(
    tiny_preset, digits, tmp_path, monkeypatch
):
    here = run(KL, digits, tmp_path).provenance.hardware
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "a GPU")
    assert run(KL, digits, tmp_path).provenance.hardware == here
    assert collect_provenance().hardware == "a GPU"


def test_candidates_see_held_out_bags_only_and_the_final_run_all_bags(tiny_preset, digits, tmp_path, trainings):
    record = run(KL, digits, tmp_path)
    *searches, final = trainings
    assert len(searches) == 2
    for call in searches:
        assert call["evaluator"] is None
        assert call["recipe"].epochs == tiny_preset.search_epochs
        names = set(call["bags"].bag_names) | set(call["held_out"].bag_names)
        assert len(names) == call["bags"].num_bags + call["held_out"].num_bags == record.num_bags
    assert final["evaluator"] is not None
    assert final["held_out"] is None
    assert final["bags"].num_bags == record.num_bags
    assert final["recipe"].epochs == tiny_preset.recipe.epochs
    assert record.selection.held_out_bags == round(0.2 * record.num_bags)


def test_nothing_is_chosen_from_test_labels(tiny_preset, digits, tmp_path):
    shuffled = dataclasses.replace(digits, test_labels=digits.test_labels.flip(0))
    honest, blind = run(ROT, digits, tmp_path / "a"), run(ROT, shuffled, tmp_path / "b")
    assert honest.final != blind.final
    criteria = [[c.criterion for c in record.selection.candidates] for record in (honest, blind)]
    assert criteria[0] == criteria[1]
    assert (honest.chosen.learning_rate, honest.chosen.alpha) == (blind.chosen.learning_rate, blind.chosen.alpha)
    assert honest.curve.train_loss == blind.curve.train_loss


def test_the_evaluator_is_built_once_and_only_after_the_choice(tiny_preset, digits, tmp_path, monkeypatch):
    events = []
    evaluator, train = cells.Evaluator, trials.train
    monkeypatch.setattr(cells, "Evaluator", lambda *a, **k: (events.append("labels"), evaluator(*a, **k))[1])
    monkeypatch.setattr(trials, "train", lambda *a, **k: (events.append("train"), train(*a, **k))[1])
    run(KL, digits, tmp_path)
    assert events == ["train", "train", "labels", "train"]


def test_equal_cells_give_equal_records(tiny_preset, digits, tmp_path):
    first, second = (run(KL, digits, tmp_path / name) for name in "ab")
    assert (first.final, first.curve.train_loss) == (second.final, second.curve.train_loss)
    other_seed = run(dataclasses.replace(KL, seed=1), digits, tmp_path / "c")
    assert other_seed.curve.train_loss != first.curve.train_loss


def test_losses_are_compared_on_the_same_bags(tiny_preset, digits, tmp_path, trainings):
    run(KL, digits, tmp_path)
    run(ROT, digits, tmp_path)
    finals = [call["bags"] for call in trainings if call["evaluator"] is not None]
    assert torch.equal(finals[0].instances, finals[1].instances)


def test_a_batch_holds_at_least_one_bag(tiny_preset, digits, tmp_path):
    record = run(dataclasses.replace(KL, bag_size=400), digits, tmp_path)
    assert record.recipe["batch_instances"] == 400
    assert record.num_bags == 3


@pytest.mark.parametrize("bag_size", [400, 1000])  # 3 bags: one would be held out; 1 bag: none could be
def test_with_too_few_bags_the_training_bags_are_the_criterion(tiny_preset, digits, tmp_path, trainings, bag_size):
    record = run(dataclasses.replace(KL, bag_size=bag_size), digits, tmp_path)
    assert record.selection.held_out_bags == 0
    assert "training bags" in record.selection.criterion
    assert trainings[0]["held_out"].num_bags == trainings[0]["bags"].num_bags == record.num_bags


def test_a_single_candidate_needs_no_search(tiny_preset, digits, tmp_path, trainings, monkeypatch):
    monkeypatch.setitem(PRESETS, "tiny", dataclasses.replace(tiny_preset, learning_rates=(0.1,)))
    record = run(KL, digits, tmp_path)
    assert len(trainings) == 1
    assert record.chosen.learning_rate == 0.1
    assert record.chosen.criterion is None


def test_a_candidate_that_diverges_is_kept_in_the_table_and_not_chosen(tiny_preset, digits, tmp_path, monkeypatch):
    monkeypatch.setitem(PRESETS, "tiny", dataclasses.replace(tiny_preset, learning_rates=(1e30, 0.1)))
    record = run(KL, digits, tmp_path)
    assert [c.criterion is None for c in record.selection.candidates] == [True, False]
    assert record.chosen.learning_rate == 0.1


def test_a_final_run_that_diverges_gives_way_to_the_next_candidate(tiny_preset, digits, tmp_path, monkeypatch):
    original, refused = trials.train, []

    def train(network, **arguments):
        if arguments["evaluator"] is not None and not refused:
            refused.append(arguments["recipe"].learning_rate)
            time.sleep(0.5)
            raise NonFiniteLossError("diverged")
        return original(network, **arguments)

    monkeypatch.setattr(trials, "train", train)
    record = run(KL, digits, tmp_path)
    searched = sum(candidate.seconds for candidate in record.selection.candidates)
    assert record.seconds > searched + sum(record.curve.seconds) + 0.45  # those of the run in vain count, too
    assert record.chosen.learning_rate != refused[0]
    assert record.recipe["learning_rate"] == record.chosen.learning_rate


def test_when_everything_diverges_the_message_says_what_to_do(tiny_preset, digits, tmp_path, monkeypatch):
    monkeypatch.setitem(PRESETS, "tiny", dataclasses.replace(tiny_preset, learning_rates=(1e30, 1e32)))
    with pytest.raises(NonFiniteLossError, match=r"every candidate \(2 were tried\).*smaller learning rates"):
        run(KL, digits, tmp_path)


def test_candidates_that_are_done_are_not_run_again(tiny_preset, digits, tmp_path, trainings):
    whole = run(ROT, digits, tmp_path)
    trainings.clear()
    again = run(ROT, digits, tmp_path)
    assert len(trainings) == 1  # the final run
    assert again.selection == whole.selection


def test_candidates_of_another_recipe_are_not_taken_for_this_one(tiny_preset, digits, tmp_path, trainings, monkeypatch):
    run(KL, digits, tmp_path)
    changed = dataclasses.replace(tiny_preset.recipe, weight_decay=0.1)
    monkeypatch.setitem(PRESETS, "tiny", dataclasses.replace(tiny_preset, recipe=changed))
    trainings.clear()
    run(KL, digits, tmp_path)
    assert len(trainings) == 3


def test_a_damaged_candidate_is_named_and_refused(tiny_preset, digits, tmp_path):
    run(KL, digits, tmp_path)
    path = sorted(tmp_path.glob("*.json"))[0]
    path.write_text(json.dumps({"learning_rate": 1}) + "x")
    with pytest.raises(RecordError, match=str(path)):
        run(KL, digits, tmp_path)


def test_work_is_cleared_cell_by_cell(tiny_preset, digits, tmp_path):
    run(KL, digits, tmp_path)
    run(ROT, digits, tmp_path)
    clear_work(KL, tmp_path)
    assert not list(tmp_path.glob("kl-*"))
    assert len(list(tmp_path.glob("rot-*"))) == 4


def test_a_long_final_run_resumes_from_its_checkpoint(tiny_preset, digits, tmp_path, monkeypatch, trainings):
    monkeypatch.setitem(PRESETS, "tiny", dataclasses.replace(tiny_preset, checkpoint_every=1))
    whole = run(KL, digits, tmp_path / "whole")

    class Stop(Exception):
        pass

    class StopAfterTwo(cells.Evaluator):
        calls = 0

        def __call__(self, network):
            StopAfterTwo.calls += 1
            if StopAfterTwo.calls == 3:
                raise Stop
            return super().__call__(network)

    with monkeypatch.context() as patch:
        patch.setattr(cells, "Evaluator", StopAfterTwo)
        with pytest.raises(Stop):
            run(KL, digits, tmp_path / "cut")
    resumed = run(KL, digits, tmp_path / "cut")
    assert (resumed.final, resumed.curve.train_loss) == (whole.final, whole.curve.train_loss)
    assert resumed.curve.test_accuracy == whole.curve.test_accuracy
    clear_work(KL, tmp_path / "cut")
    assert not list((tmp_path / "cut").iterdir())


def test_a_score_that_is_not_finite_survives_a_resume(tiny_preset, digits, tmp_path, monkeypatch):
    """The log of a run has null for it, and a kill between the last epoch and the record makes us read it there."""
    monkeypatch.setitem(PRESETS, "tiny", dataclasses.replace(tiny_preset, checkpoint_every=1))

    class Infinite(cells.Evaluator):
        def __call__(self, network):
            return super().__call__(network) | {"log_loss": float("inf")}

    monkeypatch.setattr(cells, "Evaluator", Infinite)
    whole = run(KL, digits, tmp_path)
    assert whole.final.log_loss is None
    assert run(KL, digits, tmp_path).final == whole.final


def test_every_run_is_announced_and_the_epochs_add_up(tiny_preset, digits, tmp_path):
    heard = []
    run(ROT, digits, tmp_path, announce=lambda what, epochs: heard.append((what, epochs)))
    assert heard[0] == ("candidate 1 of 4: learning rate 0.01, alpha 0.3", 2)
    assert heard[-1][0].startswith("final run: learning rate")
    assert sum(epochs for _, epochs in heard) == cell_epochs(ROT)


def test_no_run_starts_that_would_end_after_the_limit(tiny_preset, digits, tmp_path, trainings):
    limit = TimeLimit(3600)
    limit.note(work=1, seconds=1500)  # the 2 epochs of a search fit, the 3 of the final run do not
    limit.note = lambda work, seconds: None
    with pytest.raises(OutOfTimeError):
        run(ROT, digits, tmp_path, limit=limit)
    assert [call["evaluator"] for call in trainings] == [None] * 4
    assert len(list(tmp_path.glob("rot-64-seed0.*.json"))) == 4


def test_a_limit_without_experience_lets_the_first_run_start():
    TimeLimit(1.0).check(work=10**6)
    TimeLimit(None).check(work=10**6)
    with pytest.raises(OutOfTimeError):
        TimeLimit(0.0).check(work=1)


def test_the_number_of_threads_is_put_back(tiny_preset, digits, tmp_path, monkeypatch):
    counts = []
    monkeypatch.setattr(torch, "get_num_threads", lambda: 7)
    monkeypatch.setattr(torch, "set_num_threads", counts.append)
    run(KL, digits, tmp_path)
    assert counts == [1, 7]
