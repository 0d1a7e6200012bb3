"""Files of tables: CSV, Parquet and Arrow; `csv_reading` finds out what a CSV file holds.

A file that cannot be used raises `ValueError` (what it holds) or `OSError` (that it is there, and may be read or
written), in one line that names the file and the fix.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from bagwise.tables.csv_reading import CsvTable, csv_style, read_csv

if TYPE_CHECKING:
    import polars as pl

# polars is imported where it is used: the command line must answer --help without it

FILE_TYPES = {
    ".csv": "CSV",
    ".parquet": "Parquet",
    ".pq": "Parquet",
    ".arrow": "Arrow",
    ".feather": "Arrow",
    ".ipc": "Arrow",
}

_FIXES = {
    "CSV": "It must be text in UTF-8 with commas, semicolons or tabs between the columns, their names in the first "
    "line, and as many fields in every line.",
    "Parquet": "It may be incomplete: copy or write it again.",
    "Arrow": "It may be incomplete, or an Arrow stream: write it again as an Arrow (Feather) file.",
}


def file_type(path: str | os.PathLike[str]) -> str:
    """Return "CSV", "Parquet" or "Arrow", by the suffix of the name."""
    suffix = Path(path).suffix.lower()
    if suffix not in FILE_TYPES:
        known = ", ".join(FILE_TYPES)
        raise ValueError(
            f"a table must be a file that ends in one of {known}, but got {str(path)!r}. "
            "Convert it, or choose such a name."
        )
    return FILE_TYPES[suffix]


def read_frame(path: str | os.PathLike[str], *, text: Collection[str] = ()) -> pl.DataFrame:
    """Read a table from a CSV, Parquet or Arrow (Feather) file, by its suffix.

    See `read_csv_table` for CSV files.

    Args:
        path: of the file.
        text: columns of a CSV file that are text whatever they look like. Parquet and Arrow know their types.
    """
    import polars as pl

    kind = file_type(path)
    if kind == "CSV":
        return read_csv_table(path, text=text).frame
    path = _existing_file(path)
    with _as_builtin_errors(path, kind):
        frame = pl.read_parquet(path, glob=False) if kind == "Parquet" else pl.read_ipc(path)
    _check_has_rows(path, frame.height, frame.width)
    return frame


def read_csv_table(path: str | os.PathLike[str], *, text: Collection[str] = ()) -> CsvTable:
    """Read a CSV file, and tell what is not sure of it.

    Numbers, dates, times and booleans are recognised, also beside words such as NA for missing ones, and numbers with
    spaces around them; a column of whole numbers where one has a leading zero stays text, since it holds ids. The
    columns may have semicolons between them, and numbers decimal commas then, or tabs.

    Args:
        path: of the file.
        text: columns that are text whatever they look like.
    """
    path = _existing_file(path)
    with _as_builtin_errors(path, "CSV"):
        table = read_csv(path, text)
    _check_has_rows(path, table.frame.height, table.frame.width)
    return table


def unusual_style(path: str | os.PathLike[str]) -> str | None:
    """Return in words how a CSV file is written where commas are not what is between its columns; None elsewhere."""
    if file_type(path) != "CSV":
        return None
    path = _existing_file(path)
    with _as_builtin_errors(path, "CSV"):
        style = csv_style(path)
    return None if style.separator == "," else f"{path} is read with {style}"


@dataclass(frozen=True)
class ParquetFile:
    """A Parquet file that is read in slices of rows.

    Attributes:
        path: of the file.
        num_rows: number of rows.
        columns: names of the columns.
    """

    path: Path
    num_rows: int
    columns: tuple[str, ...]

    def slices(self, rows: int, columns: Collection[str] | None = None) -> Iterator[pl.DataFrame]:
        """Yield the file from start to end, at most `rows` rows at a time; `columns` alone where given."""
        import polars as pl

        scan = pl.scan_parquet(self.path, glob=False)
        if columns is not None:
            scan = scan.select(columns)
        for start in range(0, self.num_rows, rows):
            with _as_builtin_errors(self.path, "Parquet"):
                frame = scan.slice(start, rows).collect(engine="streaming")  # needs no whole row group
            if frame.height != min(rows, self.num_rows - start):
                raise ValueError(f"{self.path} changed while it was read: it has lost rows. Start again.")
            yield frame


def open_parquet(path: str | os.PathLike[str]) -> ParquetFile:
    """Read what a Parquet file says of itself, and none of its rows."""
    import polars as pl

    if file_type(path) != "Parquet":
        raise ValueError(
            f"only Parquet files can be read in slices, but got {str(path)!r}. Convert it, or read it as a whole."
        )
    path = _existing_file(path)
    with _as_builtin_errors(path, "Parquet"):
        scan = pl.scan_parquet(path, glob=False)
        columns = tuple(scan.collect_schema())
        num_rows = int(scan.select(pl.len()).collect().item())
    _check_has_rows(path, num_rows, len(columns))
    return ParquetFile(path, num_rows, columns)


def _check_has_rows(path: Path, num_rows: int, num_columns: int) -> None:
    if num_rows == 0:
        raise ValueError(f"{path} must have at least one row, but has only the names of {num_columns} columns.")


def _existing_file(path: str | os.PathLike[str]) -> Path:
    path = Path(path)
    if not path.exists():
        raise FileNotFoundError(f"there is no file {path}. Check the spelling and the folder.")
    if not path.is_file():
        raise IsADirectoryError(f"a table must be a file, but {path} is a folder. Name a file in it.")
    if path.stat().st_size == 0:
        raise ValueError(f"{path} is empty: it has no columns and no rows. Write it again.")
    return path


@contextmanager
def _as_builtin_errors(path: Path, kind: str) -> Iterator[None]:
    """Turn the errors of polars, which go over many lines, into one line that names the file."""
    import polars as pl

    try:
        yield
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException) as error:
        raise ValueError(f"{path} cannot be read as {kind}: {first_line(error)}. {_FIXES[kind]}") from None


def first_line(error: BaseException) -> str:
    """Return what an error says, as part of a sentence: those of polars go over many lines."""
    return (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(".")
