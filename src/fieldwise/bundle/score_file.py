"""Predictions for a file's rows, written to a file: in slices, so that no table is too long."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl

from fieldwise.bundle.bundle import Bundle
from fieldwise.data.encode.encoder import check_table
from fieldwise.data.read.tables import SlicedTable
from fieldwise.data.read.writing import TableWriter
from fieldwise.errors import ConfigError

__all__ = ["LOGIT", "PREDICTION", "ROW", "ScoredFile", "score_file"]

ROW = "row"
PREDICTION = "prediction"
LOGIT = "logit"
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
    column: str = PREDICTION,
    logit: bool = False,
    separator: str | None = None,
    encoding: str = "utf-8",
    columns: Sequence[str] | None = None,
    slice_rows: int = SLICE_ROWS,
) -> ScoredFile:
    """Write keys and predictions of a file's rows, in its order; `out` appears whole or not at all.

    Memory holds a few slices of a Parquet or Arrow file; a text file is read whole (see `SlicedTable`).

    Args:
        bundle: what scores.
        data: any file that `as_table` reads; without a column of the schema's keys, rows are numbered from 0.
        out: any file that `write_table` writes.
        column: of the main label's predictions: probabilities, or numbers; another label's is `COLUMN.NAME`.
        logit: write the predictions' log-odds too, with any calibration, in a column `logit` for the main label and
            `logit.NAME` for another; a label that is a number has none.
        separator: of delimited text.
        encoding: of delimited text.
        columns: of delimited text without a header.
        slice_rows: rows at once, at least 1.

    Errors:
        ConfigError: `out` is `data`, a key has the name of a column of predictions, or logits are asked for and no
            label is binary.
        DataError: the file cannot be read, lacks a column or holds what it must not; `out` cannot be written.
    """
    if out.resolve() == data.resolve():
        raise ConfigError(f"--out must not be the file that --data reads, found {out} for both: choose another name")
    table = SlicedTable(data, separator=separator, encoding=encoding, columns=columns)
    keys = [key for key in bundle.schema.row_keys if key in table.empty.columns]
    made = _Columns.of(bundle, column, logit, keys or [ROW])
    check_table(table.empty, bundle.schema)
    wanted = list(dict.fromkeys([*keys, *bundle.schema.columns]))
    rows, unseen = 0, Counter[tuple[str, int]]()
    with TableWriter(out) as writer:

        def score(part: pl.DataFrame) -> None:
            nonlocal rows
            encoded = bundle.encoder.transform(part, first_row=rows)
            named = part.select(keys) if keys else pl.DataFrame({ROW: np.arange(rows, rows + part.height)})
            writer.add(named.with_columns(made.filled(bundle, bundle.score_table(encoded))))
            for name, counts in bundle.encoder.unseen_counts(encoded).items():
                unseen.update({(name, k): n for k, n in enumerate(counts)})
            rows += part.height

        for part in table.slices(wanted, slice_rows):
            score(part)
        if not rows:
            score(table.empty.select(wanted))  # a file with the columns alone
    names = dict.fromkeys(name for name, _ in unseen)
    shares = {name: unseen[name, 0] / (unseen[name, 1] or 1) for name in names}
    return ScoredFile(rows=rows, columns=(*(keys or [ROW]), *made.names), unseen=shares)


@dataclass(frozen=True, kw_only=True)
class _Columns:
    """What is written beside the keys: a column of predictions a label, and of logits a binary label where asked."""

    predictions: tuple[str, ...]
    logits: tuple[str | None, ...]  # of the labels in their order; None where a label has none, or none are asked for

    @classmethod
    def of(cls, bundle: Bundle, column: str, logit: bool, keys: list[str]) -> "_Columns":
        labels = bundle.schema.labels
        if logit and all(label.task != "binary" for label in labels):
            raise ConfigError(
                f"--logit is for probabilities, but the label {labels[0].name!r} is a number: leave it out"
            )
        ends = ["", *(f".{label.name}" for label in labels[1:])]
        logits = (
            LOGIT + end if logit and label.task == "binary" else None for end, label in zip(ends, labels, strict=True)
        )
        made = cls(predictions=tuple(column + end for end in ends), logits=tuple(logits))
        twice = [name for k, name in enumerate(made.names) if name in (*keys, *made.names[:k])]
        if twice:
            raise ConfigError(
                f"predictions need a column of their own, but {twice[0]!r} is taken already: give another --column"
            )
        return made

    @property
    def names(self) -> tuple[str, ...]:
        return (*self.predictions, *(name for name in self.logits if name is not None))

    def filled(self, bundle: Bundle, score: np.ndarray) -> list[pl.Series]:
        """The columns of rows with these scores."""
        shape = (len(score), len(self.predictions))
        found, logit = bundle.prediction(score).reshape(shape), bundle.calibrated(score).reshape(shape)
        pairs = [*zip(self.predictions, found.T, strict=True), *zip(self.logits, logit.T, strict=True)]
        return [pl.Series(name, values) for name, values in pairs if name is not None]
