"""CSV files, which have no types: what separates their columns, and what the columns hold."""

from __future__ import annotations

import codecs
import re
import shlex
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import polars as pl

# What R, spreadsheets and databases write where a number is missing. In a column of text they stay words.
MISSING_WORDS = ("NA", "N/A", "n/a", "#N/A", "NaN", "nan", "NULL", "null", ".")

_ALL_ROWS: Mapping[str, Any] = {"infer_schema_length": None}

_BLOCK = 2**24  # bytes

_YEAR_LAST = r"^\s*[0-9]{1,2}[/-][0-9]{1,2}[/-][0-9]"  # nobody writes month.day.year


@dataclass(frozen=True, eq=False)
class CsvTable:
    """What was read from a CSV file.

    Attributes:
        frame: its rows.
        unsure_dates: columns read as day/month/year that could be month/day/year as well.
    """

    frame: pl.DataFrame
    unsure_dates: tuple[str, ...]


@dataclass(frozen=True)
class CsvStyle:
    """How a CSV file is written.

    Attributes:
        separator: between the columns.
        decimal_comma: whether numbers have a comma, as in 1,5.
    """

    separator: str = ","
    decimal_comma: bool = False

    def __str__(self) -> str:
        """Return it in words."""
        mark = "a tab" if self.separator == "\t" else f"{self.separator!r}"
        return f"{mark} between the columns" + (" and commas in decimal numbers" if self.decimal_comma else "")


def csv_style(path: Path) -> CsvStyle:
    """Find out from its first line, and for decimal commas from all rows, how a CSV file is written."""
    import polars as pl

    _check_is_utf8(path)
    with path.open(encoding="utf-8") as file:
        names = re.sub('"[^"]*"', "", file.readline())
    mark = next((mark for mark in ";\t|" if mark in names), ",")
    if "," in names or mark == ",":
        return CsvStyle()
    if mark != ";":
        return CsvStyle(mark)
    # with such a separator, numbers have commas or points: the right guess leaves fewer columns of text
    texts = {}
    for comma in (False, True):
        guess = pl.read_csv(path, **_options(CsvStyle(mark, comma)), **_ALL_ROWS, null_values=MISSING_WORDS)
        texts[comma] = sum(dtype == pl.String for dtype in guess.dtypes)
    return CsvStyle(mark, texts[True] < texts[False])


def read_csv(path: Path, text: Collection[str]) -> CsvTable:
    """Read a CSV file; see `bagwise.tables.files.read_frame`."""
    import polars as pl

    options = _options(csv_style(path))
    # types follow from all rows: a word in the last one makes the column text, which later checks can name
    frame = pl.read_csv(path, **options, **_ALL_ROWS)
    for name in frame.columns:
        if name.endswith("_duplicated_0"):
            raise ValueError(
                f"the names of columns must differ, but {path} has {name.removesuffix('_duplicated_0')!r} twice. "
                "Rename one."
            )
    frame = _without_missing_words(frame, path, options, text)
    if not options["decimal_comma"]:
        frame = _with_spaced_numbers(frame, text)
    frame, unsure_dates = _with_dates(frame, path, options)
    whole = [name for name, dtype in frame.schema.items() if dtype.is_integer() or name in text]
    if whole:
        as_text = pl.read_csv(path, **options, columns=whole, schema_overrides=dict.fromkeys(whole, pl.String))
        kept = [name for name in whole if name in text or as_text[name].str.contains(r"^[+-]?0[0-9]").any()]
        frame = frame.with_columns(as_text.select(kept))
    return CsvTable(frame, tuple(name for name in unsure_dates if name not in text))


def _check_is_utf8(path: Path) -> None:
    """Raise where a file is not UTF-8: polars would read the names of its columns all the same, with signs missing."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    line = 1
    with path.open("rb") as file:
        block = file.read(_BLOCK)
        is_utf16 = block.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)) or b"\0" in block[:4]
        try:
            while not is_utf16:
                decoder.decode(block, final=not block)
                if not block:
                    return
                line += block.count(b"\n")
                block = file.read(_BLOCK)
        except UnicodeDecodeError as error:
            # what the decoder kept of the block before may be part of the bad bytes, but no line ends in it
            line += error.object.count(b"\n", 0, error.start)
    raise ValueError(
        f"{path} must be text in UTF-8, but line {line} is not. Save it as 'CSV UTF-8', or convert it, for example by "
        f"iconv -f {'UTF-16' if is_utf16 else 'WINDOWS-1252'} -t UTF-8 {shlex.quote(str(path))} > converted.csv"
    )


def _options(style: CsvStyle) -> dict[str, Any]:
    return {"glob": False, "separator": style.separator, "decimal_comma": style.decimal_comma}


def _without_missing_words(
    frame: pl.DataFrame, path: Path, options: Mapping[str, Any], text: Collection[str]
) -> pl.DataFrame:
    """Return the frame with gaps for such words in columns that hold nothing else, or no other text."""
    import polars as pl

    worded = [
        name
        for name, dtype in frame.schema.items()
        if dtype == pl.String and name not in text and frame[name].is_in(MISSING_WORDS).any()
    ]
    if not worded:
        return frame
    gaps = pl.read_csv(path, **options, **_ALL_ROWS, columns=worded, null_values=MISSING_WORDS)
    no_text = [name for name in worded if gaps[name].dtype != pl.String or gaps[name].null_count() == gaps.height]
    return frame.with_columns(gaps.select(no_text))


def _with_spaced_numbers(frame: pl.DataFrame, text: Collection[str]) -> pl.DataFrame:
    """Return the frame with numbers in place of their text in columns that have spaces around them, as in `39, 13`."""
    import polars as pl

    for name, kind in frame.schema.items():
        if kind != pl.String or name in text:
            continue
        words = frame[name].str.strip_chars()
        if (words == frame[name]).all():
            continue
        words = words.replace([*MISSING_WORDS, ""], None)
        if words.null_count() == len(words) or words.str.contains(r"^[+-]?0[0-9]").any():
            continue
        for dtype in (pl.Int64, pl.Float64):
            numbers = words.cast(dtype, strict=False)
            if numbers.null_count() == words.null_count():
                frame = frame.with_columns(numbers)
                break
    return frame


def _with_dates(frame: pl.DataFrame, path: Path, options: Mapping[str, Any]) -> tuple[pl.DataFrame, list[str]]:
    """Return the frame with dates in place of their text, and the columns where day and month could be swapped."""
    import polars as pl

    unsure = []
    # to find that a million words are no dates takes polars 15 seconds, so the first rows tell where to look for them
    start = pl.read_csv(path, **options, n_rows=1000, try_parse_dates=True, null_values=MISSING_WORDS)
    for name, dtype in start.schema.items():
        if isinstance(dtype, pl.Date | pl.Datetime) and frame[name].dtype == pl.String:
            words = frame[name].replace(list(MISSING_WORDS), None)
            dates = words.str.strptime(dtype, strict=False)
            if dates.null_count() == words.null_count():
                frame = frame.with_columns(dates)
                if words.str.contains(_YEAR_LAST).any() and (dates.dt.day() <= 12).all():
                    unsure.append(name)
    return frame, unsure
