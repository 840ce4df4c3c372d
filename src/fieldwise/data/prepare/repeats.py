"""Rows of validation and test that equal a training row: figures on them tell what was learned by heart."""

from collections.abc import Mapping

import numpy as np
import polars as pl

from fieldwise.schema import Schema

__all__ = ["copies_sentence", "count_repeats", "repeat_sentences"]

REPEATS = "{}_rows_in_train"
WORDS = {"valid": "validation", "test": "test"}


def count_repeats(frames: Mapping[str, pl.DataFrame], schema: Schema) -> dict[str, int]:
    """How many rows of each part but `train` equal a training row: `PART_rows_in_train`, where there are any.

    Rows are equal where all fields and labels are, and time, group and keys with them: two events of one user are two
    where they have their own times. A key that numbers the rows, all of whose values differ, tells nothing and is not
    looked at. Rows are compared by a hash of 64 bits.

    Args:
        frames: the parts by name.
        schema: what their columns mean; columns that are made later are not looked at.

    >>> from fieldwise import Categorical, Label
    >>> schema = Schema(fields=(Categorical("item"),), label=Label("liked"))
    >>> train = pl.DataFrame({"item": ["a", "b"], "liked": [1, 0]})
    >>> count_repeats({"train": train, "test": pl.DataFrame({"item": ["a", "a"], "liked": [1, 0]})}, schema)
    {'test_rows_in_train': 1}
    """
    train = frames["train"]
    named = [*schema.columns, *(label.column for label in schema.labels), schema.time, schema.grouping]
    keys = [key for key in schema.row_keys if key in train.columns and not _numbers_rows(train.get_column(key))]
    columns = [c for c in dict.fromkeys([*named, *keys]) if c is not None and c in train.columns]
    known = np.unique(_hashes(train, columns))
    found = {}
    for name, frame in frames.items():
        if name == "train" or not frame.height:
            continue
        hashes = _hashes(frame, columns)
        place = np.searchsorted(known, hashes).clip(max=len(known) - 1)
        if count := int((known[place] == hashes).sum()):
            found[REPEATS.format(name)] = count
    return found


def copies_sentence(frame: pl.DataFrame) -> str:
    """What a person should know of a raw table's rows that equal an earlier row in every column, or nothing.

    >>> copies_sentence(pl.DataFrame({"user": [1, 1, 2], "click": [0, 0, 1]})).partition(":")[0]
    '1 of 3 rows equals an earlier row in every column'
    """
    copies = frame.height - (frame.hash_rows(seed=0).n_unique() if frame.width else frame.height)
    if not copies:
        return ""
    verb = "equals" if copies == 1 else "equal"
    return (
        f"{copies:,} of {frame.height:,} rows {verb} an earlier row in every column: they stay, and where one copy "
        "trains and the other is a test row, figures flatter; remove them if they are one event written twice"
    )


def repeat_sentences(counts: Mapping[str, int]) -> list[str]:
    """What a person should know of the counts of `prepare`, a sentence for each part that has such rows.

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
                "their figures tell what was learned by heart; where the log holds rows twice, remove them before, or "
                "split by time"
            )
    return found


def _numbers_rows(column: pl.Series) -> bool:
    return len(column) > 1 and column.n_unique() == len(column)


def _hashes(frame: pl.DataFrame, columns: list[str]) -> np.ndarray:
    return frame.select(columns).hash_rows(seed=0).to_numpy()
