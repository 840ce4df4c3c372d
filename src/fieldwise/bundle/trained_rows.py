"""Detecting training rows: a bundle's sketch of its training rows distinguishes them from new rows."""

from collections.abc import Mapping
from typing import Any

import polars as pl

from fieldwise.bundle.bundle import Bundle
from fieldwise.data.prepare.row_fingerprints import Overlap, RowSketch
from fieldwise.schema import Schema

TRAINED_ROWS = "train_rows"
MARGIN = 0.05  # logs have repeated rows: a share above the validation rows' share plus this means training rows


def trained_rows(schema: Schema, train: pl.DataFrame, valid: pl.DataFrame, *, refit: bool) -> dict[str, Any]:
    """The sketch of a bundle's training rows, as plain values.

    Rows are identified by keys, fields and time, not by labels. The share of validation rows that equal a training row
    is stored too, as an estimate for new rows.

    Args:
        schema: the bundle's schema.
        train: training rows.
        valid: validation rows.
        refit: whether the bundle's network was trained on the validation rows too.
    """
    named = dict.fromkeys([*schema.row_keys, *schema.columns, *([schema.time] if schema.time else [])])
    sketch = RowSketch.of(train, [name for name in named if name in train.columns and name in valid.columns])
    share = sketch.overlap(valid).share
    if refit:
        sketch = RowSketch.of(
            pl.concat([part.select(sketch.columns) for part in (train, valid)], how="vertical_relaxed"), sketch.columns
        )
    return {**sketch.to_plain(), "valid_share": share}


def trained_words(rows: int, seen: Overlap) -> str:
    """A sentence that rows of a table were trained on: how many were checked and found, and what that means.

    Args:
        rows: number of rows of the table.
        seen: the result of `rows_trained`.

    >>> trained_words(5145, Overlap(checked=5145, found=4096))
    '4,096 of these 5,145 rows were trained on, so the metrics say little about new rows'
    >>> trained_words(90_000, Overlap(checked=5145, found=4096)).partition(", so")[0]
    'a random 5,145 of these 90,000 rows were checked, and 4,096 of them were trained on'
    """
    told = "nothing" if seen.share == 1 else "little"
    if seen.checked < rows:
        checked = f"a random {seen.checked:,} of these {rows:,} rows were checked"
        found = f"{checked}, and {seen.found:,} of them were trained on"
    else:
        found = f"{seen.found:,} of these {rows:,} rows were trained on"
    return f"{found}, so the metrics say {told} about new rows"


def rows_trained(bundle: Bundle, frame: pl.DataFrame) -> Overlap | None:
    """The number of a table's rows that the bundle was trained on; 0 if the share is no higher than for new rows.

    For long tables only a random sample of rows is compared.

    Returns:
        None if unknown: an older bundle, or a table without a column that identifies rows.
    """
    kept = bundle.about.get(TRAINED_ROWS)
    if not isinstance(kept, Mapping):
        return None
    try:
        sketch, usual = RowSketch.from_plain(kept), float(kept["valid_share"])
    except (LookupError, TypeError, ValueError):
        return None
    if not sketch.rows or any(name not in frame.columns for name in sketch.columns):
        return None
    overlap = sketch.overlap(frame)
    return overlap if overlap.share > usual + MARGIN else Overlap(overlap.checked, 0)
