"""Rows that repeat: those that equal a training row, and copies in a raw table."""

from collections.abc import Mapping

import numpy as np
import polars as pl

from fieldwise.schema import Schema
from fieldwise.storage.scratch import MemoryBudget

REPEATS = "{}_rows_in_train"
WORDS = {"valid": "validation", "test": "test"}


def count_repeats(
    frames: Mapping[str, pl.DataFrame], schema: Schema, *, budget: MemoryBudget
) -> dict[str, int]:
    """The number of rows of each part but `train` that equal a training row, as `PART_rows_in_train`, if not 0.

    Rows are equal if all fields, labels, time, group and keys are equal: two events of one user
    with different times are different. A key with all distinct values is ignored. Rows are compared
    by a 64-bit hash.

    >>> from fieldwise import Categorical, Label
    >>> schema = Schema(fields=(Categorical("item"),), label=Label("liked"))
    >>> train = pl.DataFrame({"item": ["a", "b"], "liked": [1, 0]})
    >>> test = pl.DataFrame({"item": ["a", "a"], "liked": [1, 0]})
    >>> count_repeats({"train": train, "test": test}, schema, budget=MemoryBudget())
    {'test_rows_in_train': 1}
    """
    train = frames["train"]
    columns = [
        *schema.columns,
        *(label.column for label in schema.labels),
        schema.time,
        schema.grouping,
        *(
            key
            for key in schema.row_keys
            if key in train.columns and _has_repeats(train, key, budget=budget)
        ),
    ]
    compared = [c for c in dict.fromkeys(columns) if c is not None and c in train.columns]
    if schema.time in compared and not _equal_rows(frames, [schema.time], budget=budget):
        return {}  # as after a split by time: the other columns need not be read
    return _equal_rows(frames, compared, budget=budget)


def _has_repeats(frame: pl.DataFrame, key: str, *, budget: MemoryBudget) -> bool:
    """Whether a value of a column occurs more than once, or the table has a single row."""
    hashes = _sorted_hashes(frame, [key], budget=budget)
    if len(hashes) < 2:
        return True
    for chunk in budget.chunk_slices(len(hashes)):
        # with the first of the next chunk
        neighbours = hashes[chunk.start : chunk.stop + 1]
        if (neighbours[1:] == neighbours[:-1]).any():
            return True
    return False


def _equal_rows(
    frames: Mapping[str, pl.DataFrame], columns: list[str], *, budget: MemoryBudget
) -> dict[str, int]:
    """`count_repeats` by some columns."""
    train_hashes = _sorted_hashes(frames["train"], columns, budget=budget)
    counts: dict[str, int] = {}
    for name, frame in frames.items():
        if name == "train" or not frame.height:
            continue
        # an ascending search stays in the cache
        hashes = _sorted_hashes(frame, columns, budget=budget)
        count = 0
        for chunk in budget.chunk_slices(len(hashes)):
            nearest = np.searchsorted(train_hashes, hashes[chunk]).clip(max=len(train_hashes) - 1)
            count += int((train_hashes[nearest] == hashes[chunk]).sum())
        if count:
            counts[REPEATS.format(name)] = count
    return counts


def _sorted_hashes(frame: pl.DataFrame, columns: list[str], *, budget: MemoryBudget) -> np.ndarray:
    """The hashes of all rows by some columns, ascending [N] uint64."""
    wanted = frame.select(columns)
    hashes = budget.fill(
        frame.height, np.uint64, lambda chunk: wanted[chunk].hash_rows(seed=0).to_numpy()
    )
    hashes.sort()
    return hashes


def copies_sentence(frame: pl.DataFrame) -> str:
    """A sentence on rows of a raw table that equal an earlier row in every column, or an empty text."""
    copies = frame.height - (frame.hash_rows(seed=0).n_unique() if frame.width else frame.height)
    if not copies:
        return ""
    verb = "equals" if copies == 1 else "equal"
    return (
        f"{copies:,} of {frame.height:,} rows {verb} an earlier row in every column: they are kept, but if one copy is "
        "trained on and the other is a test row, metrics are too good; remove them if they are duplicates"
    )


def repeat_sentences(counts: Mapping[str, int]) -> list[str]:
    """A sentence for each part with rows that equal a training row, from the counts of `prepare`."""
    sentences = []
    for part, words in WORDS.items():
        count = counts.get(REPEATS.format(part), 0)
        rows = counts.get(f"{part}_rows", 0)
        if count and rows:
            share = 100 * count / rows
            percent = f"{share:.1f} %" if share >= 0.1 else "less than .1 %"
            sentences.append(
                f"{count:,} of {rows:,} {words} rows ({percent}) equal a training row in all fields and the label: "
                "metrics on them reflect memorisation; if the log has duplicate rows, remove them first, or "
                "split by time"
            )
    return sentences
