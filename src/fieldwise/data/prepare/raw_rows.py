"""Raw tables that are made piece by piece, in memory or in mapped files."""

import secrets
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np
import polars as pl

from fieldwise.data.read.mapped import RowFile, RowsWriter, map_rows
from fieldwise.storage.scratch import IN_MEMORY, Scratch

__all__ = ["join_rows", "take_rows"]


def join_rows(pieces: Iterable[pl.DataFrame], scratch: Scratch = IN_MEMORY, folder: Path | None = None) -> pl.DataFrame:
    """The table of all pieces, of which there is at least one, one after another.

    Args:
        pieces: tables with the same columns.
        scratch: with a folder, the rows are written and mapped.
        folder: where they are written, so that they survive a power cut; a new one of `scratch` if omitted.

    Errors:
        DataError: the disk is full, or the folder is not writable.
    """
    if scratch.folder is None:
        return pl.concat(pieces)
    writer = RowsWriter(folder or scratch.folder / secrets.token_hex(8), sync=folder is not None)
    empty = None
    for piece in pieces:
        writer.add(piece)
        empty = piece.clear() if empty is None else empty
    paths = writer.finish()
    return map_rows(paths) if paths or empty is None else empty


def take_rows(
    frame: pl.DataFrame,
    rows: np.ndarray,
    scratch: Scratch = IN_MEMORY,
    folder: Path | None = None,
    files: Sequence[RowFile] = (),
    told: Callable[[int], None] = lambda _: None,
) -> pl.DataFrame:
    """Some rows of a table.

    Args:
        frame: the table, in memory or mapped.
        rows: row numbers, ascending.
        scratch: where they lie, if they are more than a piece.
        folder: see `join_rows`.
        files: the table's, if it is mapped and its files are not needed any more: those with no other rows are moved
            to `folder`, which is much faster than to write them again.
        told: called with the number of rows of each piece.
    """

    def pieces(numbers: np.ndarray) -> Iterator[pl.DataFrame]:
        for at in scratch.pieces(len(numbers)):
            yield _rows_between(frame, numbers[at])
            told(at.stop - at.start)

    if folder is not None and files and len(rows):
        writer, written = RowsWriter(folder, sync=True), 0
        ends = np.searchsorted(rows, [file.end for file in files])
        for file, start, end in zip(files, [0, *ends[:-1]], ends, strict=True):
            if not 0 < end - start == file.rows:
                continue
            for piece in pieces(rows[written:start]):
                writer.add(piece)
            written = int(start)
            if writer.take(file):
                written = int(end)
                told(file.rows)
        for piece in pieces(rows[written:]):
            writer.add(piece)
        return map_rows(writer.finish())
    if not scratch.several(len(rows)) and folder is None:
        told(len(rows))
        return frame[rows]
    return join_rows(pieces(rows), scratch, folder)


def _rows_between(frame: pl.DataFrame, rows: np.ndarray) -> pl.DataFrame:
    if not len(rows):
        return frame.clear()
    first = int(rows[0])
    return frame[first : int(rows[-1]) + 1][rows - first]
