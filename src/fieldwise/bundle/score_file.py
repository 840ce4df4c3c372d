"""Predictions for the rows of a file, written to a file in slices."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import polars as pl

from fieldwise.bundle.bundle import SLICE_ROWS, Bundle
from fieldwise.data.encode.checks import check_table
from fieldwise.data.read.found import find_files
from fieldwise.data.read.sliced import SlicedTable
from fieldwise.data.read.writing import TableWriter
from fieldwise.data.reports import NO_REPORTS, Reports
from fieldwise.errors import ConfigError
from fieldwise.ops.devices import device_of
from fieldwise.storage.memory import keep_freed_arrays, return_freed_memory
from fieldwise.training.precision import Precision, in_precision

__all__ = [
    "LOGIT",
    "PREDICTION",
    "ROW",
    "ScoreColumns",
    "Scored",
    "ScoredFile",
    "Scoring",
    "Spread",
    "check_two_files",
    "score_file",
    "score_rows_of",
    "scored_slice",
]

ROW = "row"
PREDICTION = "prediction"
LOGIT = "logit"


@dataclass(frozen=True, kw_only=True)
class ScoredFile:
    """The result: number of rows, columns, and each field's share of values that are not in the training rows."""

    rows: int
    columns: tuple[str, ...]
    unseen: Mapping[str, float]


def score_file(
    bundle: Bundle,
    data: Path | SlicedTable,
    out: Path | TableWriter,
    *,
    column: str = PREDICTION,
    logit: bool = False,
    reports: Reports | None = None,
) -> ScoredFile:
    """Write keys and predictions for a file's rows, in order; `out` is written atomically.

    Only a few slices are in memory; small text files are read as a whole (see `SlicedTable`).

    Args:
        bundle: the bundle that scores.
        data: any file, folder or pattern that `as_table` reads, or an opened one (text with options of its own);
            without the schema's key columns, rows are numbered from 0.
        out: any file that `write_table` writes, or a writer of one.
        column: column of the main label's predictions (probabilities or numbers); another label's is `COLUMN.NAME`.
        logit: also write the predictions' log-odds, after calibration, in a column `logit` for the main label and
            `logit.NAME` for others; only for binary labels.
        reports: told the rows as they are written.

    Errors:
        ConfigError: `out` is `data`, a key has the name of a prediction column, or `logit` without a binary label.
        DataError: the file cannot be read, lacks a column or has an invalid value; `out` cannot be written.
    """
    return score_rows_of(bundle, data, out, Scoring(column=column, logit=logit, reports=reports or NO_REPORTS))


@dataclass(frozen=True, kw_only=True)
class Scoring:
    """How `score_rows_of` scores a file.

    Args:
        column: as for `score_file`.
        logit: as for `score_file`.
        reports: as for `score_file`.
        spread: machines that score the slices, to the same bits; None: this process.
        precision: `bfloat16` multiplies matrices in 16 bits, faster on CPUs and GPUs with such instructions.
    """

    column: str = PREDICTION
    logit: bool = False
    reports: Reports = NO_REPORTS
    spread: "Spread | None" = None
    precision: Precision = "float32"


def score_rows_of(bundle: Bundle, data: Path | SlicedTable, out: Path | TableWriter, how: Scoring) -> ScoredFile:
    """`score_file`, in this process or on other machines."""
    writing = out if isinstance(out, TableWriter) else TableWriter(out)
    check_two_files(data if isinstance(data, Path) else data.path, writing.path)
    table = SlicedTable(data) if isinstance(data, Path) else data
    keys = [key for key in bundle.schema.row_keys if key in table.empty.columns]
    made = ScoreColumns.of(bundle, how, keys or [ROW])
    check_table(table.empty, bundle.schema)
    wanted = list(dict.fromkeys([*keys, *bundle.schema.columns]))
    keep_freed_arrays()
    rows, unseen, told = 0, Counter[tuple[str, int]](), how.reports
    told.begin("prediction", table.count())
    slices = table.slices(wanted, SLICE_ROWS)
    if how.spread is None:
        scored = _scored_here(bundle, slices, made, keys)
    else:
        given = {"column": how.column, "logit": how.logit, "precision": how.precision}
        scored = how.spread.scored(slices, writing.path, given | {"keys": keys})
    with writing as writer:
        for frame, counts in scored:
            writer.add(frame)
            for name, pair in counts.items():
                unseen.update({(name, k): n for k, n in enumerate(pair)})
            rows += frame.height
            told.add(frame.height)
        if not rows:  # a file with only a header
            frame, counts = scored_slice(bundle, table.empty.select(wanted), made, keys, 0)
            writer.add(frame)
            unseen.update({(name, k): n for name, pair in counts.items() for k, n in enumerate(pair)})
    names = dict.fromkeys(name for name, _ in unseen)
    shares = {name: unseen[name, 0] / (unseen[name, 1] or 1) for name in names}
    return ScoredFile(rows=rows, columns=(*(keys or [ROW]), *made.names), unseen=shares)


Scored = tuple[pl.DataFrame, Mapping[str, tuple[int, int]]]
"""Keys and predictions of some rows, and their `Encoder.unseen_counts`."""


class Spread(Protocol):
    """Interface of machines that score slices of a table."""

    def scored(self, slices: Iterable[pl.DataFrame], out: Path, columns: Mapping[str, Any]) -> Iterator[Scored]:
        """The scored slices, in their order.

        Args:
            slices: raw rows.
            out: where the predictions will be; scratch files lie beside it.
            columns: `keys`, and `column`, `logit` and `precision` of `Scoring`.
        """


def _scored_here(
    bundle: Bundle, slices: Iterable[pl.DataFrame], made: "ScoreColumns", keys: list[str]
) -> Iterator[Scored]:
    first = 0
    for part in slices:
        yield scored_slice(bundle, part, made, keys, first)
        first += part.height
        return_freed_memory()  # else encoding, whose arrays have other sizes in every slice, takes ever more


def scored_slice(bundle: Bundle, part: pl.DataFrame, made: "ScoreColumns", keys: list[str], first: int) -> Scored:
    """Keys and predictions of some rows, of which the first has the number `first`."""
    encoded = bundle.encoder.transform(part, first_row=first)
    named = part.select(keys) if keys else pl.DataFrame({ROW: np.arange(first, first + part.height)})
    with in_precision(made.precision, device_of(bundle.network).type):
        score = bundle.score_table(encoded)
    found = named.with_columns(made.filled(bundle, score))
    return found, bundle.encoder.unseen_counts(encoded)


def check_two_files(data: Path, out: Path) -> None:
    """Check that predictions are not written over the rows.

    Errors:
        ConfigError: the predictions' file is among those of the rows.
    """
    if out.resolve() in {path.resolve() for path in find_files(data)}:
        raise ConfigError(f"--out must not be a file of --data, found {out} for both: choose another name")


@dataclass(frozen=True, kw_only=True)
class ScoreColumns:
    """The output columns besides the keys: predictions per label, and optionally logits per binary label."""

    predictions: tuple[str, ...]
    logits: tuple[str | None, ...]  # per label; None if a label has no logit column
    precision: Precision = "float32"  # in which they are computed

    @classmethod
    def of(cls, bundle: Bundle, how: Scoring, keys: list[str]) -> "ScoreColumns":
        """The columns of a bundle's predictions.

        Errors:
            ConfigError: a key has the name of one, or `logit` without a binary label.
        """
        labels, column, logit = bundle.schema.labels, how.column, how.logit
        if logit and all(label.task != "binary" for label in labels):
            raise ConfigError(f"--logit is for probabilities, but the label {labels[0].name!r} is a number: omit it")
        ends = ["", *(f".{label.name}" for label in labels[1:])]
        logits = (
            LOGIT + end if logit and label.task == "binary" else None for end, label in zip(ends, labels, strict=True)
        )
        predictions = tuple(column + end for end in ends)
        made = cls(predictions=predictions, logits=tuple(logits), precision=how.precision)
        twice = [name for k, name in enumerate(made.names) if name in (*keys, *made.names[:k])]
        if twice:
            raise ConfigError(f"predictions need a new column, but {twice[0]!r} exists already: give another --column")
        return made

    @property
    def names(self) -> tuple[str, ...]:
        """All of them, in the file's order."""
        return (*self.predictions, *(name for name in self.logits if name is not None))

    def filled(self, bundle: Bundle, score: np.ndarray) -> list[pl.Series]:
        """The columns for rows with these scores."""
        shape = (len(score), len(self.predictions))
        found, logit = bundle.prediction(score).reshape(shape), bundle.calibrated(score).reshape(shape)
        pairs = [*zip(self.predictions, found.T, strict=True), *zip(self.logits, logit.T, strict=True)]
        return [pl.Series(name, values) for name, values in pairs if name is not None]
