import pytest
import torch

from bagwise.bags import SwappedColumns

# a value tells its row (tens) and its column (ones)
ROWS = 10 * torch.arange(200)[:, None] + torch.arange(8)


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def test_values_stay_in_their_column_and_come_from_one_other_row():
    got = SwappedColumns(share=0.4)(ROWS, generator())
    assert torch.equal(got % 10, ROWS % 10)
    own = torch.arange(200)
    for row, values in enumerate(got // 10):
        donors = set(values.tolist()) - {row}
        assert len(donors) <= 1
    swapped = (got // 10 != own[:, None]).float()
    assert abs(swapped.mean() - 0.4) < 0.03
    assert len(set(swapped.sum(dim=1).tolist())) > 4  # each row draws its own columns
    assert len({int(donor) for values in got // 10 for donor in values}) > 150


def test_inputs_of_one_column_move_together():
    groups = (0, 0, 0, 1, 2, 2, 2, 2)
    got = SwappedColumns(share=0.5, groups=groups)(ROWS, generator()) // 10
    swapped = got != torch.arange(200)[:, None]
    for first in (0, 4):
        together = swapped[:, [place for place in range(8) if groups[place] == groups[first]]]
        assert (together.all(dim=1) == together.any(dim=1)).all()
    assert 0 < (swapped[:, 0] != swapped[:, 4]).sum() < 200


@pytest.mark.parametrize("rows", [ROWS[:1], ROWS[:0]])
def test_a_row_that_is_alone_stays_as_it_is(rows):
    assert torch.equal(SwappedColumns(share=0.9)(rows, generator()), rows)


def test_the_generator_decides_and_nothing_else():
    strong = SwappedColumns()
    before = torch.get_rng_state()
    assert torch.equal(strong(ROWS, generator(1)), strong(ROWS, generator(1)))
    assert not torch.equal(strong(ROWS, generator(1)), strong(ROWS, generator(2)))
    assert torch.equal(before, torch.get_rng_state())
    assert strong.normalise(ROWS) is ROWS


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: SwappedColumns(share=1), "share must be at least 0 and less than 1"),
        (lambda: SwappedColumns(groups=(0, 1))(ROWS, generator()), "names 2 and there are 8 inputs"),
        (
            lambda: SwappedColumns(groups=(1,) * 7 + (8,))(ROWS, generator()),
            "columns from 0, but holds 1 to 8",
        ),
    ],
)
def test_what_is_wrong_is_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()
