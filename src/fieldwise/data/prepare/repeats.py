"""Validation and test rows that equal a training row, on which metrics reflect memorisation."""

from collections.abc import Mapping

import numpy as np
import polars as pl

from fieldwise.schema import Schema
from fieldwise.storage.scratch import IN_MEMORY, Scratch

__all__ = ["copies_sentence", "count_repeats", "repeat_sentences"]

REPEATS = "{}_rows_in_train"
WORDS = {"valid": "validation", "test": "test"}


def count_repeats(frames: Mapping[str, pl.DataFrame], schema: Schema, scratch: Scratch = IN_MEMORY) -> dict[str, int]:
    """The number of rows of each part but `train` that equal a training row, as `PART_rows_in_train`, if not 0.

    Rows are equal if all fields, labels, time, group and keys are equal: two events of one user with different times
    are different. A key with all distinct values is ignored. Rows are compared by a 64-bit hash.

    Args:
        frames: the parts by name.
        schema: their schema; columns that are made later are ignored.
        scratch: where hashes lie, and how many rows are processed at once.

    >>> from fieldwise import Categorical, Label
    >>> schema = Schema(fields=(Categorical("item"),), label=Label("liked"))
    >>> train = pl.DataFrame({"item": ["a", "b"], "liked": [1, 0]})
    >>> count_repeats({"train": train, "test": pl.DataFrame({"item": ["a", "a"], "liked": [1, 0]})}, schema)
    {'test_rows_in_train': 1}
    """
    train = frames["train"]
    named = [*schema.columns, *(label.column for label in schema.labels), schema.time, schema.grouping]
    keys = [key for key in schema.row_keys if key in train.columns and not _numbers_rows(train, key, scratch)]
    columns = [c for c in dict.fromkeys([*named, *keys]) if c is not None and c in train.columns]
    known = _hashes(train, columns, scratch)
    known.sort()
    found = {}
    for name, frame in frames.items():
        if name == "train" or not frame.height:
            continue
        hashes, count = _hashes(frame, columns, scratch), 0
        for at in scratch.pieces(frame.height):
            some = np.sort(hashes[at])  # a search in ascending order stays in the cache
            place = np.searchsorted(known, some).clip(max=len(known) - 1)
            count += int((known[place] == some).sum())
        if count:
            found[REPEATS.format(name)] = count
    return found


def copies_sentence(frame: pl.DataFrame) -> str:
    """A sentence on rows of a raw table that equal an earlier row in every column, or an empty text.

    >>> copies_sentence(pl.DataFrame({"user": [1, 1, 2], "click": [0, 0, 1]})).partition(":")[0]
    '1 of 3 rows equals an earlier row in every column'
    """
    copies = frame.height - (frame.hash_rows(seed=0).n_unique() if frame.width else frame.height)
    if not copies:
        return ""
    verb = "equals" if copies == 1 else "equal"
    return (
        f"{copies:,} of {frame.height:,} rows {verb} an earlier row in every column: they are kept, but if one copy is "
        "trained on and the other is a test row, metrics are too good; remove them if they are duplicates"
    )


def repeat_sentences(counts: Mapping[str, int]) -> list[str]:
    """A sentence for each part with rows that equal a training row, from the counts of `prepare`.

    >>> repeat_sentences({"test_rows": 5000, "test_rows_in_train": 312})[0].partition(":")[0]
    '312 of 5,000 test rows (6.2 %) equal a training row in all fields and the label'
    """
    found = []
    for part, words in WORDS.items():
        count, rows = counts.get(REPEATS.format(part), 0), counts.get(f"{part}_rows", 0)
        if count and rows:
            share = 100 * count / rows
            percent = f"{share:.1f} %" if share >= 0.1 else "less than .1 %"
            found.append(
                f"{count:,} of {rows:,} {words} rows ({percent}) equal a training row in all fields and the label: "
                "metrics on them reflect memorisation; if the log has duplicate rows, remove them first, or "
                "split by time"
            )
    return found


def _numbers_rows(train: pl.DataFrame, key: str, scratch: Scratch) -> bool:
    """Whether all values of a column differ."""
    if train.height < 2:
        return False
    hashes = _hashes(train, [key], scratch)
    hashes.sort()
    pieces = (hashes[at.start : at.stop + 1] for at in scratch.pieces(len(hashes)))
    return not any((piece[1:] == piece[:-1]).any() for piece in pieces)


def _hashes(frame: pl.DataFrame, columns: list[str], scratch: Scratch) -> np.ndarray:
    wanted, found = frame.select(columns), scratch.empty(frame.height, np.uint64)
    for at in scratch.pieces(frame.height):
        found[at] = wanted[at].hash_rows(seed=0).to_numpy()
    return found
