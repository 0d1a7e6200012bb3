import pytest

from bagwise.experiments.leaderboard.bag_kinds import BAG_KINDS
from bagwise.experiments.leaderboard.contenders import CONTENDERS
from bagwise.experiments.leaderboard.presets import PRESETS, BenchmarkCell, default_preset, plan_benchmark
from bagwise.experiments.sweep import Shard
from bagwise.methods import METHODS


def test_every_method_that_learns_from_bags_is_a_contender():
    assert set(METHODS) - {"supervised"} <= set(CONTENDERS)


def test_cells_come_seed_by_seed_and_each_once():
    cells = plan_benchmark(
        ["digits", "adult", "digits"],
        "demo",
        contenders=["rot", "kl", "kl"],
        bag_kinds=["dirichlet", "uniform"],
        bag_sizes=[64, 16, 16],
        seeds=2,
    )
    assert len(cells) == len(set(cells)) == 2 * 2 * 2 * 2 * 2
    assert [cell.seed for cell in cells] == [0] * 16 + [1] * 16
    assert [(cell.dataset, cell.name) for cell in cells[:5]] == [
        ("digits", "kl-uniform-16-seed0"),
        ("digits", "rot-uniform-16-seed0"),
        ("digits", "kl-uniform-64-seed0"),
        ("digits", "rot-uniform-64-seed0"),
        ("digits", "kl-dirichlet-16-seed0"),
    ]


def test_the_defaults_are_the_presets():
    for name, preset in PRESETS.items():
        cells = plan_benchmark(["digits"], name, contenders=list(CONTENDERS))
        assert len(cells) == preset.seeds * len(preset.bag_kinds) * len(preset.bag_sizes) * len(CONTENDERS)
        assert set(preset.bag_kinds) <= set(BAG_KINDS)


def test_without_a_preset_each_data_set_has_its_own():
    cells = plan_benchmark(["digits", "cifar10"], None, contenders=["kl"])
    assert [(cell.dataset, cell.preset, cell.bag_size, cell.seed) for cell in cells] == [
        ("digits", "demo", 16, 0),
        ("digits", "demo", 64, 0),
        ("cifar10", "fast", 16, 0),
        ("cifar10", "fast", 64, 0),
        ("cifar10", "fast", 256, 0),
        ("cifar10", "fast", 1024, 0),
        ("digits", "demo", 16, 1),
        ("digits", "demo", 64, 1),
    ]


def test_default_presets():
    assert [default_preset(name) for name in ("digits", "adult", "cifar10")] == ["demo", "demo", "fast"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"preset": "dem"}, "Did you mean 'demo'"),
        ({"contenders": ["kll"]}, "Did you mean 'kl'"),
        ({"contenders": ["supervised"]}, "contenders"),
        ({"bag_kinds": ["clusterd"]}, "Did you mean 'clustered'"),
        ({"bag_sizes": [0]}, "bag_sizes"),
        ({"seeds": 0}, "seeds"),
    ],
)
def test_a_wrong_plan_is_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        plan_benchmark(["digits"], **{"preset": "demo", "contenders": ["kl"], **arguments})


def test_shards_part_the_cells():
    cells = plan_benchmark(["digits"], "demo", contenders=["kl", "rot", "dsq"], seeds=2)
    shards = [Shard(number, 5).take(cells) for number in range(1, 6)]
    assert sorted((cell for shard in shards for cell in shard), key=cells.index) == cells


def test_the_record_of_a_cell_lies_apart_from_those_of_the_paper():
    cell = BenchmarkCell("digits", "demo", "kl", "uniform", 16, 0)
    assert cell.place.as_posix() == "digits/benchmark/demo/kl-uniform-16-seed0.json"
