"""Which rows trained a bundle: a sketch kept with it tells a table of them from a table of new rows."""

from collections.abc import Mapping
from typing import Any

import polars as pl

from fieldwise.bundle.bundle import Bundle
from fieldwise.data.prepare.row_sketch import Overlap, RowSketch
from fieldwise.errors import DataError
from fieldwise.schema import Schema

__all__ = ["TRAINED_ROWS", "rows_trained", "trained_rows", "trained_words"]

TRAINED_ROWS = "train_rows"
MARGIN = 0.05  # logs repeat themselves: so much more than among validation rows is more than that


def trained_rows(schema: Schema, train: pl.DataFrame, valid: pl.DataFrame) -> dict[str, Any]:
    """What a bundle keeps of its training rows, as plain values.

    Rows are told apart by keys, fields and time, not by labels. Kept beside the sketch is the share of validation rows
    that equal a training row: new rows do so as often.
    """
    named = dict.fromkeys([*schema.row_keys, *schema.columns, *([schema.time] if schema.time else [])])
    sketch = RowSketch.of(train, [name for name in named if name in train.columns and name in valid.columns])
    return {**sketch.to_plain(), "valid_share": sketch.overlap(valid).share}


def trained_words(rows: int, seen: Overlap) -> str:
    """That rows of a table trained the model, how many were looked for and found, and what their figures say.

    Args:
        rows: of the table.
        seen: of `rows_trained`.

    >>> trained_words(5145, Overlap(looked=5145, found=4096))
    '4,096 of these 5,145 rows trained the model, so these figures say little of new rows'
    >>> trained_words(90_000, Overlap(looked=5145, found=4096)).partition(", so")[0]
    'of these 90,000 rows 5,145, drawn at random, were checked, and 4,096 of them trained the model'
    """
    told = "nothing" if seen.share == 1 else "little"
    if seen.looked < rows:
        checked = f"of these {rows:,} rows {seen.looked:,}, drawn at random, were checked"
        found = f"{checked}, and {seen.found:,} of them trained the model"
    else:
        found = f"{seen.found:,} of these {rows:,} rows trained the model"
    return f"{found}, so these figures say {told} of new rows"


def rows_trained(bundle: Bundle, frame: pl.DataFrame) -> Overlap | None:
    """How many of a table's rows trained the bundle; none are found where no more do than new rows that repeat some.

    Only some rows of long tables can be compared, a random sample of them.

    Returns:
        None where it cannot be told: an older bundle, or a table without a column that rows are told apart by.
    """
    kept = bundle.about.get(TRAINED_ROWS)
    if not isinstance(kept, Mapping):
        return None
    try:
        sketch, usual = RowSketch.from_plain(kept), float(kept["valid_share"])
    except (DataError, LookupError, TypeError, ValueError):
        return None
    if not sketch.rows or any(name not in frame.columns for name in sketch.columns):
        return None
    overlap = sketch.overlap(frame)
    return overlap if overlap.share > usual + MARGIN else Overlap(overlap.looked, 0)
