import datetime as dt
import os

import polars as pl
import pyarrow as pa
import pyarrow.feather
import pyarrow.ipc
import pytest
from polars.testing import assert_frame_equal

from bagwise.tables import csv_reading
from bagwise.tables.files import file_type, open_parquet, read_csv_table, read_frame, unusual_style
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


@pytest.mark.parametrize("word", ["NA", "N/A", "n/a", "NaN", "null", "."])
def test_words_for_missing_values_are_gaps_among_numbers_and_dates(tmp_path, word):
    rows = ["age,size,born,seen,member,none", "31.5,3,1990-01-31,2020-01-01T06:30:00,true,", ",4,1990-02-01,,false,"]
    path = text_file(tmp_path, "\n".join([*rows, ",".join([word] * 6)]))
    frame = read_frame(path)
    assert frame["age"].fill_nan(None).to_list() == [31.5, None, None]
    assert frame["size"].fill_nan(None).to_list() == [3, 4, None]
    assert frame["born"].to_list() == [dt.date(1990, 1, 31), dt.date(1990, 2, 1), None]
    assert frame["seen"].to_list() == [dt.datetime(2020, 1, 1, 6, 30), None, None]
    assert frame["member"].to_list() == [True, False, None]
    assert frame["none"].cast(pl.Float64).fill_nan(None).to_list() == [None] * 3


def test_spaces_around_numbers_do_not_make_them_text(tmp_path):
    """As in the original file of the Adult census."""
    lines = ["age,hours,gain,zip,job,id", "39, 40, 1.5, 01234, none, 1", "50, NA , -2, 99999, 7, 2", "38,,3e2, 8, , 3"]
    frame = read_frame(text_file(tmp_path, "\n".join(lines)), text=["id"])
    assert frame.to_dict(as_series=False) == {
        "age": [39, 50, 38],
        "hours": [40, None, None],
        "gain": [1.5, -2.0, 300.0],
        "zip": [" 01234", " 99999", " 8"],  # ids
        "job": [" none", " 7", " "],
        "id": [" 1", " 2", " 3"],
    }


@pytest.mark.parametrize("word", ["NA", "N/A", "null", "."])
def test_words_for_missing_values_stay_in_text(tmp_path, word):
    path = text_file(tmp_path, f"country,ward,code,asked\nDE,007,1x,1\n{word},012,2,2\n{word},{word},{word},{word}\n")
    frame = read_frame(path, text=["asked"])
    assert frame["country"].to_list() == ["DE", word, word]
    assert frame["ward"].to_list() == ["007", "012", word]
    assert frame["code"].to_list() == ["1x", "2", word]
    assert frame["asked"].to_list() == ["1", "2", word]


@pytest.mark.parametrize(
    ("dates", "unsure"),
    [
        (["01/02/2020", "12/12/2020", ""], True),
        (["1-2-2020", "12-12-2020", "NA"], True),
        (["01/02/2020 10:30", "03/04/2020 11:30", ""], True),
        (["01/02/2020", "13/02/2020", ""], False),
        (["01.02.2020", "03.04.2020", ""], False),
        (["2020-01-02", "2020-03-04", ""], False),
        (["2020/01/02", "2020/03/04", ""], False),
    ],
)
def test_dates_that_may_have_the_month_first(tmp_path, dates, unsure):
    rows = [f"{number},{date},{date}" for number, date in enumerate(dates)]
    table = read_csv_table(text_file(tmp_path, "\n".join(["size,born,ward", *rows])), text=["ward"])
    assert table.frame["born"].dtype.is_temporal()
    assert table.unsure_dates == (("born",) if unsure else ())


@pytest.mark.parametrize(
    ("content", "style"),
    [
        ("ward;age;share;day\nUlm, West;1;1,5;2020-01-31\n012;NA;-2,25;\n", "';' between the columns and commas in"),
        ("ward;age;share;day\nUlm, West;1;1.5;2020-01-31\n012;NA;-2.25;\n", "';' between the columns"),
        ("ward;age;share;day\nUlm, West;1;NA;2020-01-31\n012;NA;-2,25;\n", "';' between the columns and commas in"),
        ('"ward";age;share;day\r\n"Ulm, West";1;1,5;2020-01-31\r\n012;NA;-2,25;\r\n', "';' between the columns and"),
        ("ward\tage\tshare\tday\nUlm, West\t1\t1.5\t2020-01-31\n012\tNA\t-2.25\t\n", "a tab between the columns"),
        ("ward|age|share|day\nUlm, West|1|1.5|2020-01-31\n012|NA|-2.25|\n", "'|' between the columns"),
    ],
)
def test_files_without_commas_between_the_columns(tmp_path, content, style):
    path = text_file(tmp_path, f"\ufeff{content}")
    frame = read_frame(path)
    assert frame["ward"].to_list() == ["Ulm, West", "012"]
    assert frame["age"].to_list() == [1, None]
    assert frame["share"].to_list() == ([None, -2.25] if ";NA;" in content.splitlines()[1] else [1.5, -2.25])
    assert frame["day"].to_list() == [dt.date(2020, 1, 31), None]
    assert unusual_style(path).startswith(f"{path} is read with {style}")


def test_ids_in_files_with_semicolons_stay_text(tmp_path):
    frame = read_frame(text_file(tmp_path, "ward;zip;size\n007;8001;1\n012;8002;2\n"), text=["zip"])
    assert frame.to_dict(as_series=False) == {"ward": ["007", "012"], "zip": ["8001", "8002"], "size": [1, 2]}


def test_other_marks_in_a_header_with_commas_are_part_of_the_names(tmp_path):
    path = text_file(tmp_path, '"age, in years;",a|b\n1,2\n')
    assert read_frame(path).columns == ["age, in years;", "a|b"]
    assert unusual_style(path) is None
    assert unusual_style("table.parquet") is None


WRONG_CONTENTS = {
    "nothing.csv": (b"", "is empty"),
    "header.csv": (b"ward,age\n", "at least one row"),
    "ragged.csv": (b"ward,age\n1,2,3\n", "as many fields in every line"),
    "latin.csv": ("ward\nKöln\n".encode("latin-1"), "UTF-8, but line 2 is not.* WINDOWS-1252"),
    "latin names.csv": ("ward,Grüne\nUlm,3\n".encode("latin-1"), "UTF-8, but line 1 is not"),
    "utf-16.csv": ("ward,Grüne\nUlm,3\n".encode("utf-16"), "UTF-8, but line 1 is not.* UTF-16"),
    "no mark.csv": ("ward,Grüne\nUlm,3\n".encode("utf-16-le"), "UTF-8, but line 1 is not.* UTF-16"),
    "cut.csv": ("ward\nUlm\nKö".encode()[:-1], "UTF-8, but line 3 is not"),
    "twice.csv": (b"ward,ward\n1,2\n", "'ward' twice"),
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


def test_letters_of_several_bytes_may_lie_across_blocks(tmp_path, monkeypatch):
    monkeypatch.setattr(csv_reading, "_BLOCK", 3)
    assert read_frame(text_file(tmp_path, "ward,Grüne\n€x,1\n€€,2\n")).columns == ["ward", "Grüne"]
    path = text_file(tmp_path, "ward\nUlm\nKöln\n€\n".encode() + b"\xe4\n")
    with pytest.raises(ValueError, match="line 5 is not"):
        read_frame(path)


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
