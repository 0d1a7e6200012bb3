import datetime as dt
import os

import polars as pl
import pyarrow as pa
import pyarrow.feather
import pyarrow.ipc
import pytest
from polars.testing import assert_frame_equal

from bagwise.tables.files import file_type, open_parquet, read_frame
from bagwise.tables.slices import write_slices

FRAME = pl.DataFrame(
    {
        "ward": ["Köln", "Ulm", None],
        "age": [31.5, None, 45.0],
        "born": [dt.date(1990, 1, 31), None, dt.date(1969, 12, 31)],
        "seen": [dt.datetime(2020, 1, 1, 6, 30), None, dt.datetime(2021, 7, 4)],
        "member": [True, None, False],
        "children": [2, None, 0],
    }
)
SUFFIXES = [".csv", ".parquet", ".pq", ".arrow", ".feather", ".ipc", ".PARQUET"]


def text_file(folder, content, name="table.csv"):
    path = folder / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_table_comes_back_as_it_was_written(tmp_path, suffix):
    path = tmp_path / f"table{suffix}"
    write_slices([FRAME], path)
    assert_frame_equal(read_frame(path), FRAME)
    assert os.listdir(tmp_path) == [path.name]


@pytest.mark.parametrize("suffix", [".parquet", ".arrow"])
def test_lists_come_back_as_they_were_written(tmp_path, suffix):
    frame = pl.DataFrame({"embedding": [[0.5, 1.5], [2.0, 3.0]]})
    write_slices([frame], tmp_path / f"table{suffix}")
    assert_frame_equal(read_frame(tmp_path / f"table{suffix}"), frame)


def test_files_of_pyarrow_can_be_read(tmp_path):
    pyarrow.feather.write_feather(pa.table({"age": [1, 2]}), tmp_path / "table.feather")
    assert read_frame(tmp_path / "table.feather")["age"].to_list() == [1, 2]


def test_the_name_of_a_file_is_no_pattern(tmp_path):
    write_slices([FRAME], tmp_path / "a[1].parquet")
    write_slices([FRAME.head(1)], tmp_path / "a1.parquet")
    write_slices([FRAME], tmp_path / "a*.csv")
    assert read_frame(tmp_path / "a[1].parquet").height == 3
    assert open_parquet(tmp_path / "a[1].parquet").num_rows == 3
    assert sum(frame.height for frame in open_parquet(tmp_path / "a[1].parquet").slices(2)) == 3
    assert read_frame(tmp_path / "a*.csv").height == 3


def test_ids_with_leading_zeros_stay_text(tmp_path):
    path = text_file(tmp_path, "ward,code,size,zero,share\n007,12,100,0,0.5\n012,-05,20,0,007.5\n123,,3,0,1\n")
    frame = read_frame(path)
    assert frame["ward"].to_list() == ["007", "012", "123"]
    assert frame["code"].to_list() == ["12", "-05", None]
    assert frame["size"].to_list() == [100, 20, 3]
    assert frame["zero"].to_list() == [0, 0, 0]
    assert frame["share"].to_list() == [0.5, 7.5, 1.0]


def test_columns_that_are_asked_for_as_text_stay_text(tmp_path):
    path = text_file(tmp_path, "ward,day,size\n12,2020-01-31,3\n7,,4\n")
    frame = read_frame(path, text=["ward", "day", "no such column"])
    assert frame["ward"].to_list() == ["12", "7"]
    assert frame["day"].to_list() == ["2020-01-31", None]
    assert frame["size"].to_list() == [3, 4]


def test_a_word_in_the_last_row_makes_the_column_text(tmp_path):
    path = text_file(tmp_path, "age\n" + "1\n" * 20_000 + "unknown\n")
    assert read_frame(path)["age"].dtype == pl.String


def test_a_byte_order_mark_is_not_part_of_a_name(tmp_path):
    assert read_frame(text_file(tmp_path, "\ufeffward,age\na,1\n")).columns == ["ward", "age"]


WRONG_CONTENTS = {
    "nothing.csv": (b"", "is empty"),
    "header.csv": (b"ward,age\n", "at least one row"),
    "ragged.csv": (b"ward,age\n1,2,3\n", "as many fields in every line"),
    "latin.csv": ("ward\nKöln\n".encode("latin-1"), "UTF-8"),
    "twice.csv": (b"ward,ward\n1,2\n", "'ward' twice"),
    "semicolons.csv": (b"ward;age\n1;2\n", "';'"),
    "quote.csv": (b'ward,age\n"a,1\nb,2\n', "cannot be read as CSV"),
    "nothing.parquet": (b"", "is empty"),
    "text.parquet": (b"ward,age\n1,2\n", "cannot be read as Parquet"),
    "text.arrow": (b"ward,age\n1,2\n", "cannot be read as Arrow"),
    "table.xlsx": (b"PK", r"\.csv, \.parquet"),
    "table": (b"ward\n1\n", r"\.csv, \.parquet"),
}


@pytest.mark.parametrize("name", WRONG_CONTENTS)
def test_a_file_that_is_no_table_is_refused_in_one_line(tmp_path, name):
    content, message = WRONG_CONTENTS[name]
    path = text_file(tmp_path, content, name)
    with pytest.raises(ValueError, match=message) as raised:
        read_frame(path)
    assert "\n" not in str(raised.value)
    assert str(path) in str(raised.value)


@pytest.mark.parametrize("suffix", [".parquet", ".arrow"])
@pytest.mark.parametrize("share", [0.3, 0.95])
def test_a_truncated_file_is_refused_in_one_line(tmp_path, suffix, share):
    path = tmp_path / f"table{suffix}"
    write_slices([pl.DataFrame({"x": range(1000)})], path)
    path.write_bytes(path.read_bytes()[: int(share * path.stat().st_size)])
    with pytest.raises(ValueError, match="incomplete") as raised:
        read_frame(path)
    assert "\n" not in str(raised.value)


def test_damage_within_a_parquet_file_is_found_when_its_rows_are_read(tmp_path):
    path = tmp_path / "table.parquet"
    write_slices([pl.DataFrame({"x": [f"value {row}" for row in range(5000)]})], path)
    content = bytearray(path.read_bytes())
    content[100:600] = bytes(500)
    path.write_bytes(content)
    file = open_parquet(path)  # the end of the file, which tells of the rest, is whole
    with pytest.raises(ValueError, match="cannot be read as Parquet"):
        list(file.slices(1000))


def test_a_missing_file_and_a_folder_are_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"there is no file .*wards\.csv"):
        read_frame(tmp_path / "wards.csv")
    (tmp_path / "folder.csv").mkdir()
    with pytest.raises(IsADirectoryError, match="is a folder"):
        read_frame(tmp_path / "folder.csv")


@pytest.mark.parametrize("rows", [1, 3, 7, 100])
def test_slices_of_a_parquet_file_are_its_rows_in_order(tmp_path, rows):
    frame = pl.DataFrame({"x": range(20), "y": [str(row) for row in range(20)]})
    frame.write_parquet(tmp_path / "table.parquet", row_group_size=6)
    file = open_parquet(tmp_path / "table.parquet")
    assert (file.num_rows, file.columns) == (20, ("x", "y"))
    slices = list(file.slices(rows))
    assert_frame_equal(pl.concat(slices), frame)
    assert max(part.height for part in slices) == min(rows, 20)
    assert_frame_equal(pl.concat(file.slices(rows, ["y"])), frame.select("y"))


def test_a_file_that_changes_while_it_is_read_is_refused(tmp_path):
    write_slices([pl.DataFrame({"x": range(20)})], tmp_path / "table.parquet")
    file = open_parquet(tmp_path / "table.parquet")
    write_slices([pl.DataFrame({"x": range(10)})], tmp_path / "table.parquet")
    with pytest.raises(ValueError, match="changed while it was read"):
        list(file.slices(8))


def test_only_parquet_files_with_rows_can_be_read_in_slices(tmp_path):
    write_slices([FRAME], tmp_path / "table.csv")
    with pytest.raises(ValueError, match="only Parquet"):
        open_parquet(tmp_path / "table.csv")
    FRAME.head(0).write_parquet(tmp_path / "table.parquet")
    with pytest.raises(ValueError, match="at least one row"):
        open_parquet(tmp_path / "table.parquet")


def test_the_type_of_a_file_follows_from_its_suffix():
    assert file_type("a/b.c/table.CSV") == "CSV"
    with pytest.raises(ValueError, match=r"'table\.txt'"):
        file_type("table.txt")
