"""The rows that a bundle was trained on: fingerprints in the bundle, and a table's rows among them."""

from typing import Any

import polars as pl

from fieldwise.bundle.bundle import Bundle
from fieldwise.data.prepare.row_fingerprints import RowFingerprints, TrainTestOverlap
from fieldwise.schema import Schema

MARGIN_OF_REPEATED_ROWS = 0.05
"""Logs have repeated rows: a share above that of the validation rows plus this means training rows."""


def trained_rows(
    schema: Schema, train: pl.DataFrame, valid: pl.DataFrame, *, refit: bool
) -> dict[str, Any]:
    """The sketch of a bundle's training rows, as plain values; of the validation rows too after a `refit` on them.

    Rows are identified by keys, fields and time, not by labels. The share of validation rows that
    equal a training row is stored too, as an estimate for new rows.
    """
    identifying = [*schema.row_keys, *schema.columns]
    if schema.time is not None:
        identifying.append(schema.time)
    present = [
        name
        for name in dict.fromkeys(identifying)
        if name in train.columns and name in valid.columns
    ]
    sketch = RowFingerprints.of(train, present)
    share = sketch.overlap(valid).share

    if refit:
        parts = [part.select(sketch.columns) for part in (train, valid)]
        sketch = RowFingerprints.of(pl.concat(parts, how="vertical_relaxed"), sketch.columns)
    return {**sketch.to_plain(), "valid_share": share}


def trained_words(rows: int, seen: TrainTestOverlap) -> str:
    """A sentence that rows of a table were trained on: how many were checked and found, and what that means.

    >>> trained_words(5145, TrainTestOverlap(checked=5145, found=4096))
    '4,096 of these 5,145 rows were trained on, so the metrics say little about new rows'
    >>> trained_words(90_000, TrainTestOverlap(checked=5145, found=4096)).partition(", so")[0]
    'a random 5,145 of these 90,000 rows were checked, and 4,096 of them were trained on'
    """
    amount = "nothing" if seen.share == 1 else "little"
    if seen.checked < rows:
        checked = f"a random {seen.checked:,} of these {rows:,} rows were checked"
        found = f"{checked}, and {seen.found:,} of them were trained on"
    else:
        found = f"{seen.found:,} of these {rows:,} rows were trained on"
    return f"{found}, so the metrics say {amount} about new rows"


def rows_trained(bundle: Bundle, frame: pl.DataFrame) -> TrainTestOverlap | None:
    """The number of a table's rows that the bundle was trained on; 0 if the share is no higher than for new rows.

    Of long tables a random sample is compared. None: a table without a column that identifies rows,
    or an old bundle.
    """
    saved = bundle.about.train_rows
    if saved is None:
        return None
    try:
        sketch = RowFingerprints.from_plain(saved)
        share_of_new_rows = float(saved["valid_share"])
    except (LookupError, TypeError, ValueError):
        return None
    if not sketch.rows or any(name not in frame.columns for name in sketch.columns):
        return None

    overlap = sketch.overlap(frame)
    if overlap.share <= share_of_new_rows + MARGIN_OF_REPEATED_ROWS:
        return TrainTestOverlap(overlap.checked, 0)
    return overlap
