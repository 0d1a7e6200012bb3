"""What holds for every contender."""

from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from bagwise.bags import uniform_bags
from bagwise.bags.crops import RandomCrops
from bagwise.bags.swapped_columns import SwappedColumns
from bagwise.experiments.leaderboard.budget import FORWARD
from bagwise.experiments.leaderboard.by_method import ByMethod
from bagwise.experiments.leaderboard.contenders import CONTENDERS
from bagwise.experiments.leaderboard.data import Views
from bagwise.experiments.leaderboard.presets import PRESETS, BenchmarkCell
from bagwise.experiments.leaderboard.pretrained import PASSES_PER_EPOCH, pretrain_for, pretraining_passes
from bagwise.experiments.leaderboard.running import make_task, run_benchmark_cell
from bagwise.experiments.time_limit import OutOfTimeError, TimeLimit
from bagwise.networks import mlp
from bagwise.report.leaderboard_words import read_self_training
from bagwise.self_training import self_train
from bagwise.self_training.em import SELF_TRAINING
from bagwise.training import Recipe, train
from fakes.tiny_benchmark import TINY

METHODS = [name for name, contender in CONTENDERS.items() if isinstance(contender, ByMethod)]


def run(contender, data, work, **cell):
    fields = {"dataset": data.name, "preset": "tiny", "bag_kind": "uniform", "bag_size": 16, "seed": 0, **cell}
    cell = BenchmarkCell(contender=contender, **fields)
    return run_benchmark_cell(cell, work, TimeLimit(), lambda what, passes: None, data={data.name: data})


def outcome(record):
    """All of a record but times and places."""
    tried = [(c.learning_rate, c.criterion) for c in record.selection.candidates]
    return record.cell, record.chosen.learning_rate, tried, record.curve.train_loss, record.final, record.compute


@pytest.fixture(scope="module")
def flops_of_kl():
    return measured_flops(lambda network, bags: train_by("kl", network, bags))


def train_by(method, network, bags):
    recipe = Recipe(epochs=1, batch_instances=64)
    train(
        network,
        bags=bags,
        method=method,
        recipe=recipe,
        strong_augment=SwappedColumns(),
        progress=False,
        accelerator="cpu",
    )


def measured_flops(epoch):
    """What one epoch on 256 instances computes: deep enough that the first layer, which differs, does not count."""
    rows = torch.randn(256, 8, generator=torch.Generator().manual_seed(0))
    bags = uniform_bags(rows, torch.arange(256) % 3, num_classes=3, bag_size=8, seed=0)
    network = mlp(8, 3, hidden=(64,) * 4)
    counter = FlopCounterMode(display=False)
    with counter:
        epoch(network, bags)
    return counter.get_total_flops()


@pytest.mark.parametrize("name", METHODS)
def test_a_method_is_charged_what_it_computes(name, flops_of_kl):
    flops = measured_flops(lambda network, bags: train_by(CONTENDERS[name].method, network, bags))
    assert flops / flops_of_kl == pytest.approx(CONTENDERS[name].passes_per_epoch, rel=0.02)


def test_self_training_is_charged_what_it_computes(flops_of_kl):
    def epoch(network, bags):
        start = torch.full((256, 3), 1 / 3)
        self_train(
            network,
            bags=bags,
            recipe=Recipe(epochs=1, batch_instances=64, ema=0.9),
            start=start,
            progress=False,
            accelerator="cpu",
        )

    assert measured_flops(epoch) / flops_of_kl == pytest.approx(4 / 3, rel=0.02)


def test_pretraining_is_charged_for_two_views_and_a_teacher():
    assert pretraining_passes(10, starts_small=False) == pytest.approx(80 / 3)
    assert pretraining_passes(10, starts_small=True) == pytest.approx(8 / 3 * (7 * 9 / 16 + 3))


@pytest.fixture(scope="module", params=CONTENDERS)
def honest(request, few_digits, tmp_path_factory):
    """The record of a contender."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(PRESETS, "tiny", TINY)
        return run(request.param, few_digits, tmp_path_factory.mktemp("honest"))


def test_it_stays_within_the_budget_and_reports_the_last_epoch(honest, few_digits):
    assert honest.compute.budget == TINY.budget
    if honest.cell.contender == "probe":
        assert honest.compute.passes == 0  # of pixels as they are
    else:
        assert TINY.budget - 3 < honest.compute.passes <= TINY.budget
    assert honest.final.accuracy == honest.curve.test_accuracy[-1]
    assert honest.curve.epoch == tuple(range(1, len(honest.curve.epoch) + 1))
    assert honest.seconds >= sum(honest.curve.seconds) - 0.01
    assert None not in (honest.final.balanced_accuracy, honest.final.log_loss, honest.final.calibration_error)
    assert honest.num_test == len(few_digits.test_labels)
    assert honest.largest_class == pytest.approx(
        int(few_digits.test_labels.bincount().max()) / honest.num_test, abs=1e-4
    )


def test_no_label_of_a_test_instance_changes_what_is_learned(honest, tiny_preset, few_digits, tmp_path):
    blind = replace(few_digits, test_labels=few_digits.test_labels.flip(0))
    blinded = run(honest.cell.contender, blind, tmp_path)
    assert honest.final != blinded.final
    assert outcome(honest)[:4] == outcome(blinded)[:4]


def test_of_the_training_labels_only_the_proportions_of_bags_are_learned_from(
    honest, tiny_preset, few_digits, tmp_path
):
    """Labels that change places within their bags leave everything as it was."""
    size = honest.cell.bag_size
    order = uniform_bags(
        torch.arange(len(few_digits.train)), few_digits.train_labels, num_classes=10, bag_size=size, seed=0
    ).instances.view(-1, size)
    labels = few_digits.train_labels.clone()
    labels[order] = labels[order].roll(5, dims=1)
    assert not torch.equal(labels, few_digits.train_labels)
    assert outcome(run(honest.cell.contender, replace(few_digits, train_labels=labels), tmp_path)) == outcome(honest)


@pytest.mark.parametrize("name", ["kl", "fixmatch", "probe", "self-training"])
def test_tables_work_as_images_do(name, tiny_preset, table, tmp_path):
    assert run(name, table, tmp_path, bag_size=4).final.accuracy > 0.6


@pytest.mark.parametrize("views_teach", [True, False])
def test_self_training_without_pretraining_keeps_what_held_out_bags_prefer(views_teach, tiny_preset, table, tmp_path):
    views = table.views if views_teach else Views(weak=None, strong=Noise())
    record = run("self-training", replace(table, views=views), tmp_path, bag_size=4)
    by_kl = [accuracy for accuracy in record.curve.test_accuracy if accuracy is not None][-2]
    assert record.selection.criterion.endswith("improve it" if views_teach else "KL is kept")
    assert (record.final.accuracy == by_kl) == (not views_teach)


def test_self_training_says_so_where_no_bags_are_left_to_decide(tiny_preset, table, tmp_path):
    record = run("self-training", table, tmp_path, bag_size=32)  # 15 bags
    assert record.selection.criterion.endswith(
        "; then, with no bags left to decide by, the copy that learned from labels of the probe is taken"
    )
    assert read_self_training([record]) == (
        "Self-training kept KL's network in 0 of 1 cells; in 1, no bags were held out to decide by, and the copy was "
        "taken."
    )


class Noise:
    """Views that show nothing of the instances."""

    def __call__(self, instances, generator):
        return torch.randn(instances.shape, generator=generator)

    def normalise(self, instances):
        return instances


def test_one_pretraining_serves_all_bags_and_contenders_and_counts_in_each(
    tiny_preset, few_digits, tmp_path, monkeypatch
):
    setup = replace(tiny_preset.images, network="small-convnet")
    monkeypatch.setitem(PRESETS, "tiny", replace(tiny_preset, images=setup))
    crops = RandomCrops(mean=(0.3,), std=(0.4,), flip=False)
    views = Views(few_digits.views.weak, few_digits.views.strong, contrastive=crops)
    data = replace(few_digits, views=views)
    heard = []
    cells = [
        BenchmarkCell("digits", "tiny", name, "uniform", size, 0)
        for name, size in (("probe", 8), ("self-training", 8), ("self-training", 16))
    ]
    records = [
        run_benchmark_cell(cell, tmp_path, TimeLimit(), lambda what, _: heard.append(what), data={"digits": data})
        for cell in cells
    ]
    assert len(list(tmp_path.glob("pretrained-seed0-*/"))) == 1
    probe, first, second = records
    # five eighths of the budget, to within an epoch: another one would have been too many
    pretraining = probe.compute.passes - FORWARD
    assert pretraining <= 5 / 8 * tiny_preset.budget < pretraining + PASSES_PER_EPOCH
    assert probe.compute.passes < first.compute.passes <= tiny_preset.budget
    assert first.compute == second.compute
    epochs = len(probe.curve.epoch) - 1  # then its head
    assert epochs > 0
    for record in (first, second):  # not run again, and yet counted
        assert record.curve.train_loss[:epochs] == probe.curve.train_loss[:epochs]
        assert record.curve.seconds[:epochs] == probe.curve.seconds[:epochs]
        assert record.recipe["batch_instances"] == SELF_TRAINING.batch_instances  # its learning rate goes with them
    assert heard.count("pretraining") == 3


def test_a_pretraining_that_was_stopped_does_not_go_on_beyond_the_limit(tiny_preset, few_digits, tmp_path):
    crops = RandomCrops(mean=(0.3,), std=(0.4,), flip=False)
    task = make_task(BenchmarkCell("digits", "tiny", "probe", "uniform", 16, 0), few_digits)
    task = replace(task, network="small-convnet", budget=19.2)

    def pretrained(limit):
        return pretrain_for(task, crops, tmp_path, limit, lambda what, passes: None)

    whole = pretrained(TimeLimit())
    assert pretrained(TimeLimit(0)).history == whole.history  # there is nothing left to run
    (log,) = tmp_path.glob("pretrained-*/log.jsonl")
    log.with_name("checkpoint.safetensors").unlink()
    log.write_bytes(log.read_bytes().splitlines(keepends=True)[0])
    with pytest.raises(OutOfTimeError):
        pretrained(TimeLimit(0))


def test_what_a_preset_left_half_done_does_not_stop_the_preset_that_replaces_it(
    tiny_preset, few_digits, tmp_path, monkeypatch
):
    setup = replace(tiny_preset.images, network="small-convnet")
    crops = RandomCrops(mean=(0.3,), std=(0.4,), flip=False)
    views = Views(few_digits.views.weak, few_digits.views.strong, contrastive=crops)
    data = replace(few_digits, views=views)
    records = []
    for budget in (20, 24):
        preset = replace(tiny_preset, images=setup, budget=budget, checkpoint_every=1)
        monkeypatch.setitem(PRESETS, "tiny", preset)
        records.append(run("self-training", data, tmp_path))  # in the work folder of the one before
    few, more = (len(record.curve.epoch) for record in records)
    assert few < more


def test_a_task_holds_no_label(tiny_preset, digits):
    task = make_task(BenchmarkCell("digits", "tiny", "kl", "uniform", 16, 0), digits)
    tensors = [value for value in vars(task).values() if isinstance(value, torch.Tensor)]
    assert [tensor.shape for tensor in tensors] == [digits.train.shape]
    assert not hasattr(task.bags, "labels")


def test_every_contender_gets_the_same_bags(tiny_preset, digits):
    bags = [
        make_task(BenchmarkCell("digits", "tiny", name, "dirichlet", 16, 3), digits).bags for name in ("kl", "probe")
    ]
    assert torch.equal(bags[0].instances, bags[1].instances)
    assert torch.equal(bags[0].proportions, bags[1].proportions)


def test_a_network_of_nothing_but_layers_can_be_evaluated(tiny_preset, digits):
    task = make_task(BenchmarkCell("digits", "tiny", "kl", "uniform", 16, 0), digits)
    assert task.evaluator()(nn.Flatten())["accuracy"] < 0.5


@pytest.mark.parametrize(("name", "batch"), [("kl", 256), ("llpfc", 640), ("mixbag", 640)])
def test_methods_that_compare_bags_get_several_in_a_batch(name, batch, tiny_preset, few_digits, tmp_path):
    record = run(name, few_digits, tmp_path, bag_size=64)
    assert record.recipe["batch_instances"] == batch
