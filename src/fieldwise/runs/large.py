"""Tables that do not fit in the memory that a recipe states."""

import dataclasses
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import polars as pl

from fieldwise.data.prepare.prepared import Part, Prepared
from fieldwise.data.read.kinds import kind_of, suffix_of
from fieldwise.data.read.mapped import MappedRows, arrow_library
from fieldwise.data.read.one_file import TextFormat
from fieldwise.data.read.pieces import Bounds, estimated_bytes
from fieldwise.data.read.source import open_files, raw_pieces
from fieldwise.data.read.text_types import TextTypes
from fieldwise.data.reports import NoReports, Reports
from fieldwise.distributed.engine import Engine
from fieldwise.errors import DataError, MissingExtraError
from fieldwise.runs.data_settings import DataSettings
from fieldwise.storage.scratch import Bound

__all__ = ["LargeTable", "large_table", "size_text", "spread_table"]

IN_MEMORY = 6  # preparing a table at once takes some six times the memory of its rows
PIECES = 32  # of the memory; a piece takes several times its rows' memory while it is prepared
COPIES = 3  # of the rows on disk: as read, by part, encoded
LEAST_ROWS = 1_000  # per piece
MB = 10**6
PROBE_BYTES = 1 << 20  # of a text, to learn how much memory its rows take
PACKED = 10
PLACES, PLACE_ROWS = 16, 256  # of a table, in which the size of rows is estimated
FILE_BYTES = 1 << 24  # of rows for a machine, about: such pieces are gathered to files of twice to four times as many


@dataclass(frozen=True, kw_only=True)
class LargeTable:
    """A table that is prepared piece by piece.

    Args:
        memory: bytes that may be in memory.
        size: bytes that its rows take, about.
        reports: told the phases of the preparation.
        engine: machines that do a part of the work file by file; None: this process does all.
    """

    memory: int
    size: float
    reports: Reports = field(default_factory=NoReports)
    engine: Engine | None = None

    def read(self, data: DataSettings, folder: Path) -> MappedRows:
        """The raw table, mapped if it takes more than its share of the memory.

        Args:
            data: where it is.
            folder: for scratch files.
        """
        bounds = Bounds.within(self.memory // IN_MEMORY, IN_MEMORY)
        return open_files(data.files, _format(data), bounds, folder, self.reports)

    def piece_rows(self, frame: pl.DataFrame) -> int:
        """How many rows of a table are processed at once.

        Errors:
            DataError: the memory does not hold a useful piece.
        """
        row = max(1.0, _row_bytes(frame))
        rows = int(self.memory / PIECES / row)
        if rows < min(LEAST_ROWS, frame.height):
            least = min(LEAST_ROWS, frame.height) * row * PIECES
            raise DataError(
                f"data.memory must hold a piece of the table: {self.memory / MB:,.0f}MB is too little for rows of "
                f"{row:,.0f} bytes; set it to {least / MB + 1:,.0f}MB or more"
            )
        return rows if self.engine is None else min(rows, max(LEAST_ROWS, int(FILE_BYTES / row)))

    def bounded(self, prepared: Prepared, place: Path) -> Prepared:
        """Prepared data whose parts know how they are processed, with scratch files in `place`."""

        def bounded(part: Part) -> Part:
            bound = Bound(place=place, piece=self.piece_rows(part.frame))
            return dataclasses.replace(part, rows=part.frame, bound=bound)

        return dataclasses.replace(
            prepared, train=bounded(prepared.train), valid=bounded(prepared.valid), test=bounded(prepared.test)
        )

    def check_space(self, folder: Path, *, begun: bool = False) -> None:
        """Check that a folder's disk has room for the prepared rows that it does not hold yet.

        Args:
            folder: of the preparation.
            begun: whether it goes on with the rows of the parts, so that those as read are not written again.

        Errors:
            DataError: it has not; both numbers are given.
        """
        written = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
        needed, free = self.size * (COPIES - begun) - written, shutil.disk_usage(folder).free
        if needed > free:
            raise DataError(
                f"preparing this table needs some {size_text(needed)} of disk, and {folder} has {size_text(free)} "
                "free: free some space, or set FIELDWISE_CACHE to a folder on another disk"
            )


def large_table(data: DataSettings) -> LargeTable | None:
    """What a table's preparation needs if it does not fit in memory at once, else None.

    Only a user's own files are prepared piece by piece. Without pyarrow, a table is large only if `data.memory` is set.

    Errors:
        DataError: see `find_files`. MissingExtraError: the table is large, and pyarrow is not installed.
    """
    if data.path is None:
        return None
    memory = data.memory_bytes
    files = data.files
    if not all(path.is_file() for path in files):
        return None  # reading it says so
    size = sum(map(estimated_bytes, files))
    if size * IN_MEMORY > memory and kind_of(files[0]) == "delimited text":
        size = min(size, _bytes_of_text(data, files))
    if size * IN_MEMORY <= memory:
        return None
    try:
        arrow_library()
    except MissingExtraError:
        if data.memory is None:
            return None
        raise
    return LargeTable(memory=memory, size=size)


def spread_table(data: DataSettings, engine: Engine) -> LargeTable:
    """What a table's preparation needs if other machines share the work, however small it is.

    Errors:
        DataError: see `find_files`. MissingExtraError: pyarrow is not installed.
    """
    arrow_library()
    size = sum(map(estimated_bytes, (path for path in data.files if path.is_file())))
    return LargeTable(memory=data.memory_bytes, size=size, engine=engine)


def _format(data: DataSettings) -> TextFormat:
    return TextFormat(separator=data.separator, encoding=data.encoding, columns=data.columns)


def _bytes_of_text(data: DataSettings, files: Sequence[Path]) -> float:
    """The memory that text takes as typed columns, by its first rows; packed text counts as ten times longer."""
    whole = sum(path.stat().st_size * (PACKED if suffix_of(path)[1] else 1) for path in files)
    for _, piece in raw_pieces(files[:1], _format(data), Bounds(memory=whole, piece_bytes=PROBE_BYTES)):
        letters = sum(int(column.str.len_bytes().sum()) for column in piece.iter_columns())
        return TextTypes().add(piece).estimated_size() / (letters + piece.height * piece.width) * whole
    return 0.0


def _row_bytes(frame: pl.DataFrame) -> float:
    """The memory that a row takes, about: of a long table the mean over rows in several places."""
    if frame.height <= PLACES * PLACE_ROWS:
        return frame.estimated_size() / max(1, frame.height)
    starts = range(0, frame.height - PLACE_ROWS + 1, (frame.height - PLACE_ROWS) // (PLACES - 1))
    sizes = [frame[start : start + PLACE_ROWS].estimated_size() for start in starts]
    return sum(sizes) / (len(sizes) * PLACE_ROWS)


def size_text(number: float) -> str:
    """A number of bytes for people."""
    return f"{number / 1e9:,.1f} GB" if number >= 1e9 else f"{number / 1e6:,.0f} MB"
