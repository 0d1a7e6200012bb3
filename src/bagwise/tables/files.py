"""Files of tables: the one place that knows CSV, Parquet and Arrow.

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
    "CSV": "It must be text in UTF-8 with commas between the columns, their names in the first line, and as many "
    "fields in every line.",
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

    In a CSV file, numbers, dates, times and booleans are recognised; a column of whole numbers where one has a leading
    zero stays text, since it holds ids.

    Args:
        path: of the file.
        text: columns of a CSV file that are text whatever they look like. Parquet and Arrow know their types.
    """
    import polars as pl

    kind = file_type(path)
    path = _existing_file(path)
    with _as_builtin_errors(path, kind):
        if kind == "CSV":
            frame = _read_csv(path, text)
        elif kind == "Parquet":
            frame = pl.read_parquet(path, glob=False)
        else:
            frame = pl.read_ipc(path)
    if frame.height == 0:
        raise ValueError(f"{path} must have at least one row, but has only the names of {frame.width} columns.")
    return frame


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
    if num_rows == 0:
        raise ValueError(f"{path} must have at least one row, but has only the names of {len(columns)} columns.")
    return ParquetFile(path, num_rows, columns)


def _read_csv(path: Path, text: Collection[str]) -> pl.DataFrame:
    import polars as pl

    # types follow from all rows: a word in the last one makes the column text, which later checks can name
    frame = pl.read_csv(path, glob=False, infer_schema_length=None)
    for name in frame.columns:
        if name.endswith("_duplicated_0"):
            raise ValueError(
                f"the names of columns must differ, but {path} has {name.removesuffix('_duplicated_0')!r} twice. "
                "Rename one."
            )
    if frame.width == 1 and (mark := next((mark for mark in ";\t|" if mark in frame.columns[0]), None)):
        raise ValueError(f"{path} must have commas between the columns, but has {mark!r}. Save it with commas.")
    # to find that a million words are no dates takes polars 15 seconds, so the first rows tell where to look for them
    start = pl.read_csv(path, glob=False, n_rows=1000, try_parse_dates=True)
    for name, dtype in start.schema.items():
        if isinstance(dtype, pl.Date | pl.Datetime) and frame[name].dtype == pl.String:
            dates = frame[name].str.strptime(dtype, strict=False)
            if dates.null_count() == frame[name].null_count():
                frame = frame.with_columns(dates)
    unsure = [name for name, dtype in frame.schema.items() if dtype.is_integer() or name in text]
    if not unsure:
        return frame
    as_text = pl.read_csv(path, glob=False, columns=unsure, schema_overrides=dict.fromkeys(unsure, pl.String))
    kept = [name for name in unsure if name in text or as_text[name].str.contains(r"^[+-]?0[0-9]").any()]
    return frame.with_columns(as_text.select(kept))


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
