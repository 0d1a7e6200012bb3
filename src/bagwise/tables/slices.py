"""Tables one slice of rows after another: read so, where the file allows it, and written so."""

from __future__ import annotations

import tempfile
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from bagwise.tables.files import ParquetFile, file_type, first_line, open_parquet, read_csv_table, read_frame

if TYPE_CHECKING:
    import polars as pl


@dataclass(frozen=True, eq=False)
class FrameInMemory:
    """A table that was read as a whole, with the interface of `ParquetFile`.

    Attributes:
        frame: the table.
        unsure_dates: columns read as day/month/year that could be month/day/year as well.
    """

    frame: pl.DataFrame
    unsure_dates: tuple[str, ...] = ()

    @property
    def num_rows(self) -> int:
        """Number of rows."""
        return self.frame.height

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the columns."""
        return tuple(self.frame.columns)

    def slices(self, rows: int, columns: Collection[str] | None = None) -> Iterator[pl.DataFrame]:
        """Yield the table from start to end, at most `rows` rows at a time; `columns` alone where given."""
        frame = self.frame if columns is None else self.frame.select(columns)
        yield from frame.iter_slices(rows)


def open_table(path: Path, *, text: Collection[str] = ()) -> ParquetFile | FrameInMemory:
    """Open a table to be read in slices: Parquet from the disk, slice by slice; CSV and Arrow as a whole.

    Args:
        path: of the file.
        text: columns of a CSV file that are text whatever they look like.
    """
    kind = file_type(path)
    if kind == "Parquet":
        return open_parquet(path)
    if kind == "CSV":
        table = read_csv_table(path, text=text)
        return FrameInMemory(table.frame, table.unsure_dates)
    return FrameInMemory(read_frame(path))


def write_slices(frames: Iterable[pl.DataFrame], path: Path) -> None:
    """Write frames with equal columns, one below the other, to a CSV, Parquet or Arrow file, by its suffix.

    Only one of them is in memory at a time: each goes to a file of its own first, and polars streams these into one.
    """
    import polars as pl

    kind = file_type(path)
    with tempfile.TemporaryDirectory(prefix=".parts.", dir=path.parent) as folder:
        parts: list[Path] = []
        for frame in frames:
            if kind == "CSV" and (nested := [name for name, dtype in frame.schema.items() if dtype.is_nested()]):
                raise ValueError(f"CSV cannot hold lists, but column {nested[0]!r} does. Write Parquet instead.")
            parts.append(Path(folder) / f"{len(parts):09}.parquet")
            try:
                frame.write_parquet(parts[-1])
            except (OSError, pl.exceptions.PolarsError) as error:
                raise OSError(f"{path} cannot be written: {first_line(error)}.") from None
        whole = pl.scan_parquet(parts, glob=False)
        try:
            if kind == "CSV":
                whole.sink_csv(path)
            elif kind == "Parquet":
                whole.sink_parquet(path)
            else:
                whole.sink_ipc(path, compression="lz4")
        except (OSError, pl.exceptions.PolarsError) as error:
            raise OSError(f"{path} cannot be written: {first_line(error)}.") from None
