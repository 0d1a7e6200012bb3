import os

import polars as pl
import pytest
from polars.testing import assert_frame_equal

from bagwise.commands.outputs import staged_file
from bagwise.tables.files import ParquetFile, read_frame
from bagwise.tables.slices import open_table, write_slices

FRAME = pl.DataFrame(
    {"id": [f"{row:03d}" for row in range(10)], "x": [row / 7 for row in range(10)], "flag": [True] * 10}
)


@pytest.mark.parametrize("suffix", ["csv", "parquet", "arrow"])
def test_slices_there_and_back(tmp_path, suffix):
    path = tmp_path / f"table.{suffix}"
    write_slices(FRAME.iter_slices(3), path)
    table = open_table(path)
    assert isinstance(table, ParquetFile) == (suffix == "parquet")
    assert (table.num_rows, table.columns) == (10, ("id", "x", "flag"))
    slices = list(table.slices(4))
    assert [frame.height for frame in slices] == [4, 4, 2]
    assert pl.concat(slices).equals(FRAME)
    assert pl.concat(table.slices(4, ["x"])).equals(FRAME.select("x"))
    assert [entry.name for entry in tmp_path.iterdir()] == [path.name]


def test_columns_of_csv_that_are_text_whatever_they_look_like(tmp_path):
    (tmp_path / "table.csv").write_text("code,x\n1,2\n3,4\n")
    table = open_table(tmp_path / "table.csv", text=["code", "not there"])
    assert next(table.slices(9)).to_dict(as_series=False) == {"code": ["1", "3"], "x": [2, 4]}


def test_lists_do_not_go_into_csv(tmp_path):
    with pytest.raises(ValueError, match=r"column 'pair' does\. Write Parquet"):
        write_slices([pl.DataFrame({"pair": [[1, 2]]})], tmp_path / "table.csv")
    assert list(tmp_path.iterdir()) == []


def test_an_error_between_slices_leaves_nothing(tmp_path):
    def frames():
        yield FRAME
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_slices(frames(), tmp_path / "table.parquet")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("suffix", [".csv", ".parquet", ".arrow"])
def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(tmp_path, suffix, full_disk):
    path = tmp_path / f"table{suffix}"
    write_slices([FRAME], path)
    rows = pl.DataFrame({"x": pl.Series(range(200_000)).hash()})
    with (
        full_disk(),
        pytest.raises(OSError, match="cannot be written") as raised,
        staged_file(path, overwrite=True) as new,
    ):
        write_slices([rows], new)
    assert "\n" not in str(raised.value)
    assert_frame_equal(read_frame(path, text=["id"]), FRAME)
    assert os.listdir(tmp_path) == [path.name]
