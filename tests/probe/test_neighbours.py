import pytest
import torch

from bagwise.probe import neighbours as search
from bagwise.probe.neighbours import Bank, arrange_bank, nearest_rows
from reference.neighbours import nearest


def as_sets(found):
    return [set(places) for places in found.tolist()]


def test_few_rows_are_searched_exactly(generator):
    bank, order = arrange_bank(torch.randn(50, 4, generator=generator), generator)
    rows = torch.randn(7, 4, generator=generator)
    assert order.tolist() == list(range(50))
    expected = [set(nearest(row, bank.rows.numpy(), 5)) for row in rows.numpy()]
    assert as_sets(nearest_rows(rows, bank, 5)) == expected


def test_a_row_is_not_its_own_neighbour(generator):
    bank, _ = arrange_bank(torch.randn(40, 3, generator=generator), generator)
    expected = [set(nearest(row, bank.rows.numpy(), 4, skip=place)) for place, row in enumerate(bank.rows.numpy())]
    assert as_sets(nearest_rows(bank.rows, bank, 4, own_place=torch.arange(40))) == expected


def test_a_row_that_is_not_in_the_bank_skips_none(generator):
    bank, _ = arrange_bank(torch.randn(40, 3, generator=generator), generator)
    nowhere = torch.full((40,), -1)
    assert as_sets(nearest_rows(bank.rows, bank, 4, own_place=nowhere)) == as_sets(nearest_rows(bank.rows, bank, 4))


@pytest.fixture
def many_cells(monkeypatch):
    """Cells from 100 rows on, of 32 rows."""
    monkeypatch.setattr(search, "_MOST_ROWS_IN_ONE_CELL", 100)
    monkeypatch.setattr(search, "_ROWS_PER_CELL", 32)


@pytest.mark.usefixtures("many_cells")
class TestCells:
    def test_nearly_all_true_neighbours_are_found(self, generator):
        centres = 2 * torch.randn(30, 8, generator=generator)
        rows = centres[torch.arange(3000) % 30] + torch.randn(3000, 8, generator=generator)
        bank, _ = arrange_bank(rows, generator)
        assert len(bank.centres) == 3000 // 32
        own_place = torch.arange(3000)
        exact = Bank(bank.rows, bank.rows[:1], torch.tensor([3000]))
        truth = as_sets(nearest_rows(bank.rows, exact, 10, own_place=own_place))
        found = as_sets(nearest_rows(bank.rows, bank, 10, own_place=own_place))
        recall = sum(len(a & b) for a, b in zip(truth, found, strict=True)) / 30_000
        assert recall > 0.9
        assert all(place not in places for place, places in enumerate(found))

    def test_the_bank_holds_every_row_once_cell_after_cell(self, generator):
        rows = torch.randn(500, 3, generator=generator)
        bank, order = arrange_bank(rows, generator)
        assert sorted(order.tolist()) == list(range(500))
        assert torch.equal(bank.rows, rows[order])
        assert int(bank.sizes.sum()) == 500
        nearest_centre = torch.cdist(bank.rows, bank.centres).argmin(dim=1)
        cell_of = torch.arange(len(bank.sizes)).repeat_interleave(bank.sizes)
        assert (nearest_centre == cell_of).float().mean() > 0.99

    def test_all_cells_are_searched_where_there_are_few(self, generator):
        rows = torch.randn(300, 3, generator=generator)  # 9 cells, of which 16 would be searched
        bank, _ = arrange_bank(rows, generator)
        exact = Bank(bank.rows, bank.rows[:1], torch.tensor([300]))
        assert as_sets(nearest_rows(rows, bank, 6)) == as_sets(nearest_rows(rows, exact, 6))

    def test_rows_that_are_all_the_same_have_neighbours(self, generator):
        bank, _ = arrange_bank(torch.ones(200, 3), generator)
        found = nearest_rows(torch.ones(5, 3), bank, 8)
        assert all(len(set(places)) == 8 for places in found.tolist())

    def test_a_cell_of_rows_that_are_all_the_same_is_cut(self, generator, monkeypatch):
        monkeypatch.setattr(search, "_LARGEST_CELL", 64)
        same, others = torch.ones(300, 3), torch.randn(100, 3, generator=generator)
        rows = torch.cat([same, others])
        bank, order = arrange_bank(rows, generator)
        assert int(bank.sizes.max()) == 64
        assert len(bank.sizes) == len(bank.centres)
        assert int(bank.sizes.sum()) == 400
        assert torch.equal(bank.rows, rows[order])
        found = nearest_rows(same[:3], bank, 20)
        assert (bank.rows[found] == 1).all()
