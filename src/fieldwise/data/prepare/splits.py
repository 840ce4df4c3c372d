"""Splitting rows into training, validation (for early stopping) and test rows."""

from dataclasses import dataclass

import numpy as np
import polars as pl

from fieldwise.data.prepare.drawing import draw_parts
from fieldwise.data.prepare.ordering import order_values
from fieldwise.data.prepare.split_kind import SplitColumns, SplitRows
from fieldwise.data.prepare.split_settings import SplitSettings
from fieldwise.errors import DataError
from fieldwise.storage.scratch import IN_MEMORY, Scratch

__all__ = ["Split", "hold_out", "split_table"]


@dataclass(frozen=True, kw_only=True)
class Split:
    """Row numbers of each part: sorted, int64; every row of the table is in exactly one part.

    Shape:
        train [N_train], valid [N_valid], test [N_test].
    """

    train: np.ndarray
    valid: np.ndarray
    test: np.ndarray
    users_kept_in_train: int = 0

    @property
    def sizes(self) -> dict[str, int]:
        """Rows of each part."""
        return {"train": len(self.train), "valid": len(self.valid), "test": len(self.test)}


def split_table(
    frame: pl.DataFrame,
    settings: SplitSettings,
    columns: SplitColumns | None = None,
    *,
    seed: int = 0,
    y: np.ndarray | None = None,
    scratch: Scratch = IN_MEMORY,
) -> Split:
    """Split a table's rows.

    Args:
        frame: the table, after the label's rule has dropped rows.
        settings: settings of the split.
        columns: the schema's columns, used if the settings have none.
        seed: random seed; ignored by splits without randomness.
        y: targets [N], needed to stratify.
        scratch: where arrays of N numbers lie, and how many rows are processed at once.

    Errors:
        DataError: a column is missing or has nulls, a value belongs to no part, a part would be empty.

    >>> frame = pl.DataFrame({"t": [5, 1, 2, 4, 3]})
    >>> from fieldwise.data.prepare.split_settings import TimeSplit
    >>> split_table(frame, TimeSplit(valid=0.2, test=0.2), SplitColumns(time="t")).test
    array([0])
    """
    if y is not None and len(y) != frame.height:
        raise DataError(f"targets must match the table's rows: found {len(y)} targets and {frame.height} rows")
    rows = SplitRows(frame=frame, columns=columns or SplitColumns(), seed=seed, y=y, scratch=scratch)
    part, kept = settings.assign(rows)
    train, valid, test = (scratch.where(part, k) for k in range(3))
    split = Split(train=train, valid=valid, test=test, users_kept_in_train=kept)
    empty = [name for name, n in split.sizes.items() if n == 0]
    if empty:
        few = "a table needs at least 3 rows, and for a model that is of use hundreds: add rows"
        raise DataError(
            f"every part needs rows: the {settings.kind} split of {frame.height} rows leaves {' and '.join(empty)} "
            f"empty; {few if frame.height == 1 else settings.advice(kept)}"
        )
    return split


def hold_out(
    frame: pl.DataFrame,
    share: float,
    *,
    seed: int = 0,
    y: np.ndarray | None = None,
    time: str | None = None,
    time_format: str | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """Split rows into kept rows and a held-out share.

    Args:
        frame: the table.
        share: share of held-out rows, within (0, 1).
        seed: random seed.
        y: targets [N] for a stratified random sample.
        time: hold out the latest rows by this column instead; rows of equal time are never separated.
        time_format: format of that column, if it is text.

    Returns:
        Sorted row numbers, int64: of the kept rows, of the held-out rows.

    Errors:
        DataError: a side would be empty.

    >>> hold_out(pl.DataFrame({"t": [5, 1, 2, 4, 3]}), 0.4, time="t")[1].tolist()
    [0, 3]
    """
    if time is None:
        classes = None if y is None else np.unique(y, return_inverse=True)[1].astype(np.int64)
        held = draw_parts(frame.height, (share, 0.0), seed, classes) == 1
    else:
        values = order_values(frame, time, "time", time_format)
        moments, rank, counts = np.unique(values, return_inverse=True, return_counts=True)
        before = np.cumsum(counts)[:-1]  # rows before each cut that leaves rows on both sides
        cut = np.argmin(np.abs(before - frame.height * (1 - share))) if len(moments) > 1 else 0
        held = rank > cut
    if held.all() or not held.any():
        raise DataError(f"both held-out and kept rows are needed: {share:g} of {frame.height} leaves one side empty")
    return np.flatnonzero(~held).astype(np.int64), np.flatnonzero(held).astype(np.int64)
