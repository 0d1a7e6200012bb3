import pytest

from bagwise.experiments.datasets import DATASET_NAMES, MIRRORED_DATASETS
from bagwise.experiments.grid import (
    ALPHAS,
    BAG_SIZES,
    LEARNING_RATES,
    LOSSES,
    PRESETS,
    default_preset,
    plan_cells,
)
from bagwise.experiments.sweep import Shard


def test_the_grid_is_the_papers():
    assert BAG_SIZES == (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
    assert LOSSES == ("avg-kl", "kl", "rot")
    assert LEARNING_RATES == (0.001, 0.003, 0.01, 0.03, 0.1, 0.3)
    assert ALPHAS == (0.1, 0.3, 0.5, 0.7, 0.9)


def test_the_paper_preset_is_the_papers_recipe():
    paper = PRESETS["paper"]
    recipe = paper.recipe
    assert paper.network == "resnet18"
    assert (recipe.epochs, recipe.optimizer, recipe.momentum, recipe.nesterov) == (400, "sgd", 0.9, False)
    assert (recipe.schedule, recipe.weight_decay, recipe.decay_all) == ("step", 0.005, True)
    assert (recipe.ema, recipe.drop_last) == (None, False)
    assert (paper.shift, paper.bag_sizes) == (1, BAG_SIZES)
    assert (paper.learning_rates, paper.alphas) == (LEARNING_RATES, ALPHAS)


def test_every_preset_covers_the_losses_and_a_part_of_the_papers_bag_sizes():
    for preset in PRESETS.values():
        assert set(preset.bag_sizes) <= set(BAG_SIZES)
        assert preset.search_epochs <= preset.recipe.epochs
        assert all(0 < alpha < 1 for alpha in preset.alphas)


def test_only_rot_has_an_alpha():
    paper = PRESETS["paper"]
    assert len(paper.candidates("kl")) == len(paper.candidates("avg-kl")) == 6
    assert all(candidate.alpha is None for candidate in paper.candidates("kl"))
    pairs = {(candidate.learning_rate, candidate.alpha) for candidate in paper.candidates("rot")}
    assert pairs == {(rate, alpha) for rate in LEARNING_RATES for alpha in ALPHAS}


def test_digits_are_not_mirrored():
    assert set(DATASET_NAMES) - {"digits"} == MIRRORED_DATASETS


def test_default_presets():
    assert default_preset("digits") == "demo"
    assert default_preset("cifar10") == "fast"


def test_cells_come_seed_by_seed_so_that_a_prefix_is_a_figure():
    cells = plan_cells("cifar10", "fast", seeds=2)
    first_seed = cells[: len(cells) // 2]
    assert {cell.seed for cell in first_seed} == {0}
    assert {(cell.loss, cell.bag_size) for cell in first_seed} == {(l, s) for l in LOSSES for s in BAG_SIZES}
    assert len(cells) == len(set(cells)) == 66


def test_a_plan_holds_each_cell_once_whatever_the_order_asked_for():
    cells = plan_cells("digits", "demo", losses=["rot", "kl", "kl"], bag_sizes=[16, 1, 16], seeds=1)
    assert [cell.name for cell in cells] == ["kl-1-seed0", "rot-1-seed0", "kl-16-seed0", "rot-16-seed0"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"preset": "fasst"}, "Did you mean 'fast'"),
        ({"losses": ["kll"]}, "Did you mean 'kl'"),
        ({"bag_sizes": [0]}, "bag_sizes"),
        ({"seeds": 0}, "seeds"),
    ],
)
def test_a_wrong_plan_is_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        plan_cells("digits", **{"preset": "demo", **arguments})


@pytest.mark.parametrize("count", [1, 2, 7, 8, 40])
def test_shards_part_the_cells(count):
    cells = plan_cells("cifar10", "fast", seeds=1)
    shards = [Shard(number, count).take(cells) for number in range(1, count + 1)]
    assert sorted((c for shard in shards for c in shard), key=cells.index) == cells
    assert max(map(len, shards)) - min(map(len, shards)) <= 1


@pytest.mark.parametrize("text", ["0/8", "9/8", "2", "2/", "/8", "a/b", "2/8/1", "-1/8", ""])
def test_a_wrong_shard_is_refused(text):
    with pytest.raises(ValueError, match="2/8"):
        Shard.parse(text)
