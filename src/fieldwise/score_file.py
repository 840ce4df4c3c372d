"""Scores of a file's rows, written to a file: in slices, so that no table is too long."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl

from fieldwise.bundle import Bundle
from fieldwise.data.encoder import check_table
from fieldwise.data.tables import SlicedTable
from fieldwise.data.writing import TableWriter
from fieldwise.errors import ConfigError

__all__ = ["ROW", "ScoredFile", "score_file"]

ROW = "row"
SLICE_ROWS = 131_072


@dataclass(frozen=True, kw_only=True)
class ScoredFile:
    """What was written: how many rows, its columns, and the share of each field's values that no training row had."""

    rows: int
    columns: tuple[str, ...]
    unseen: Mapping[str, float]


def score_file(
    bundle: Bundle,
    data: Path,
    out: Path,
    *,
    score_column: str = "score",
    separator: str | None = None,
    encoding: str = "utf-8",
    slice_rows: int = SLICE_ROWS,
) -> ScoredFile:
    """Write keys and predictions of a file's rows, in its order; `out` appears whole or not at all.

    Memory holds a few slices of a Parquet or Arrow file; a text file is read whole (see `SlicedTable`).

    Args:
        bundle: what scores.
        data: any file that `as_table` reads; without a column of the schema's keys, rows are numbered from 0.
        out: any file that `write_table` writes.
        score_column: of the main label; another label's is `score_column.NAME`.
        separator: of delimited text.
        encoding: of delimited text.
        slice_rows: rows at once, at least 1.

    Errors:
        ConfigError: `out` is `data`, or a key has the name of the scores' column.
        DataError: the file cannot be read, lacks a column or holds what it must not; `out` cannot be written.
    """
    if out.resolve() == data.resolve():
        raise ConfigError(f"--out must not be the file that --data reads, found {out} for both: choose another name")
    table = SlicedTable(data, separator=separator, encoding=encoding)
    keys = [key for key in bundle.schema.keys if key in table.empty.columns]
    scores = [score_column, *(f"{score_column}.{label.name}" for label in bundle.schema.more_labels)]
    taken = [column for column in scores if column in (keys or [ROW])]
    if taken:
        raise ConfigError(
            f"the scores need a column of their own, but {taken[0]!r} names the rows: give another --score-column"
        )
    check_table(table.empty, bundle.schema)
    wanted = list(dict.fromkeys([*keys, *bundle.schema.columns]))
    rows, unseen = 0, Counter[tuple[str, int]]()
    with TableWriter(out) as writer:

        def score(part: pl.DataFrame) -> None:
            nonlocal rows
            encoded = bundle.encoder.transform(part, first_row=rows)
            found = bundle.prediction(bundle.score_table(encoded)).reshape(part.height, len(scores))
            named = part.select(keys) if keys else pl.DataFrame({ROW: np.arange(rows, rows + part.height)})
            writer.add(named.with_columns(pl.Series(c, s) for c, s in zip(scores, found.T, strict=True)))
            for name, counts in bundle.encoder.unseen_counts(encoded).items():
                unseen.update({(name, k): n for k, n in enumerate(counts)})
            rows += part.height

        for part in table.slices(wanted, slice_rows):
            score(part)
        if not rows:
            score(table.empty.select(wanted))  # a file with the columns alone
    names = dict.fromkeys(name for name, _ in unseen)
    shares = {name: unseen[name, 0] / (unseen[name, 1] or 1) for name in names}
    return ScoredFile(rows=rows, columns=(*(keys or [ROW]), *scores), unseen=shares)
