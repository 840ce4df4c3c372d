"""Predictions for the rows of a file, written to a file in slices."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from fieldwise.bundle.bundle import SLICE_ROWS, Bundle, bundle_digest
from fieldwise.data.encode.encoder import check_table
from fieldwise.data.read.file_listing import find_files
from fieldwise.data.read.mapped_rows import RowsWriter, map_rows
from fieldwise.data.read.sliced_table import SlicedTable
from fieldwise.data.read.table_writer import TableWriter
from fieldwise.data.read.text_format import TextFormat
from fieldwise.data.reports import NO_REPORTS, Reports
from fieldwise.distributed.engine import Engine, Task
from fieldwise.errors import Argument, BundleError, ConfigError
from fieldwise.ops.devices import Precision, device_of, in_precision
from fieldwise.storage.arrays import arrow_bytes
from fieldwise.storage.files import check_not_input, scratch_folder, write_atomically
from fieldwise.storage.machine import keep_freed_arrays, return_freed_memory
from fieldwise.storage.scratch import NO_LIMIT

__all__ = ["LOGIT", "PREDICTION", "ROW", "ScoredFile", "SpreadScores", "score_file"]

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
    reports: Reports = NO_REPORTS,
    precision: Precision = "float32",
    spread: "SpreadScores | None" = None,
) -> ScoredFile:
    """Write keys and predictions for a file's rows, in order; `out` is written atomically.

    Only a few slices are in memory; small text files are read as a whole (see `SlicedTable`).

    Args:
        bundle: the bundle that scores.
        data: any file, folder or pattern that `as_table` reads, or an opened one (text with options
            of its own, and the schema's `text_columns`); without the schema's key columns, rows are
            numbered from 0.
        out: any file that `write_table` writes, or a writer of one.
        column: column of the main label's predictions (probabilities or numbers); another label's
            is `COLUMN.NAME`.
        logit: also write the predictions' log-odds, after calibration, in a column `logit` for the
            main label and `logit.NAME` for others; only for binary labels.
        reports: receives the rows as they are written.
        precision: `bfloat16` multiplies matrices in 16 bits, faster on CPUs and GPUs with such
            instructions.
        spread: machines that score the slices, to the same bits; None: this process.

    Errors:
        ConfigError: `out` is `data`, a key has the name of a prediction column, or `logit` without
            a binary label.
        DataError: the file cannot be read, lacks a column or has an invalid value; `out` cannot be
            written.
    """
    writing = out if isinstance(out, TableWriter) else TableWriter(out)
    check_not_input(writing.path, find_files(data) if isinstance(data, Path) else data.files)
    table = (
        SlicedTable(data, TextFormat(text_columns=bundle.schema.text_columns))
        if isinstance(data, Path)
        else data
    )
    keys = [key for key in bundle.schema.row_keys if key in table.empty.columns]
    predictions, logits = _columns(bundle, keys or [ROW], column, logit)
    given: dict[str, Any] = {
        "keys": keys,
        "predictions": predictions,
        "logits": logits,
        "precision": precision,
    }
    check_table(table.empty, bundle.schema, budget=NO_LIMIT)
    wanted = list(dict.fromkeys([*keys, *bundle.schema.columns]))
    keep_freed_arrays()
    rows = 0
    unseen = Counter[str]()
    values = Counter[str]()
    reports.begin("prediction", table.count())
    slices = table.slices(wanted, SLICE_ROWS)
    scored = (
        _scored_here(bundle, slices, given)
        if spread is None
        else spread.scored(slices, writing.path, given)
    )

    def or_none() -> Iterator[Scored]:
        yield from scored
        if not rows:  # a file with only a header
            yield _scored(bundle, table.empty.select(wanted), 0, **given)

    with writing as writer:
        for frame, counts in or_none():
            writer.add(frame)
            rows += frame.height
            reports.add(frame.height)
            for name, (unknown, count) in counts.items():
                unseen[name] += unknown
                values[name] += count
    shares = {name: unseen[name] / (values[name] or 1) for name in unseen}
    return ScoredFile(
        rows=rows, columns=(*(keys or [ROW]), *predictions, *filter(None, logits)), unseen=shares
    )


Scored = tuple[pl.DataFrame, Mapping[str, tuple[int, int]]]
"""Keys and predictions of some rows, and their `Encoder.unseen_counts`."""


def _scored_here(
    bundle: Bundle, slices: Iterable[pl.DataFrame], given: Mapping[str, Any]
) -> Iterator[Scored]:
    first = 0
    for part in slices:
        yield _scored(bundle, part, first, **given)
        first += part.height
        # else encoding, whose arrays have other sizes in every slice, takes ever more
        return_freed_memory()


def _scored(
    bundle: Bundle,
    part: pl.DataFrame,
    first: int,
    *,
    keys: list[str],
    predictions: list[str],
    logits: list[str | None],
    precision: Precision,
) -> Scored:
    """Keys and predictions of some rows, of which the first has the number `first`; columns as of `_columns`."""
    encoded = bundle.encoder.transform(part, first_row=first)
    named = (
        part.select(keys) if keys else pl.DataFrame({ROW: np.arange(first, first + part.height)})
    )
    with in_precision(precision, device_of(bundle.network).type):
        score = bundle.score_table(encoded)
    values = [
        of.reshape(len(score), len(predictions)).T
        for of in (bundle.prediction(score), bundle.calibrated(score))
    ]
    pairs = zip([*predictions, *logits], np.concatenate(values), strict=True)
    result = named.with_columns(
        pl.Series(name, column) for name, column in pairs if name is not None
    )
    return result, bundle.encoder.unseen_counts(encoded)


def _columns(
    bundle: Bundle, keys: list[str], column: str, logit: bool
) -> tuple[list[str], list[str | None]]:
    """The columns beside the keys: of predictions by label, and of logits (None for labels without one).

    Errors:
        ConfigError: a key has the name of one, or `logit` without a binary label.
    """
    labels = bundle.schema.labels
    if logit and all(label.task != "binary" for label in labels):
        raise ConfigError(
            Argument("logit"),
            f" is for probabilities, but the label {labels[0].name!r} is a number: omit it",
        )
    ends = {"": labels[0].task} | {f".{label.name}": label.task for label in labels[1:]}
    predictions = [column + end for end in ends]
    logits = [LOGIT + end if logit and task == "binary" else None for end, task in ends.items()]
    names = [*keys, *predictions, *filter(None, logits)]
    twice = [name for k, name in enumerate(names) if name in names[:k]]
    if twice:
        raise ConfigError(
            f"predictions need a new column, but {twice[0]!r} exists already: give another ",
            Argument("column"),
        )
    return predictions, logits


@dataclass(frozen=True, kw_only=True)
class SpreadScores:
    """Scores slices on an engine, whose processes load the bundle once each; see `score_file`.

    The slices lie in files beside the predictions, in a folder that all machines see: each from
    shortly before it is scored until its predictions are written.

    Args:
        engine: does the work.
        folder: of the bundle, which all machines see.
        imports: modules with your own models (`--import`).
    """

    engine: Engine
    folder: Path
    imports: Sequence[str] = ()

    def scored(
        self, slices: Iterable[pl.DataFrame], out: Path, columns: Mapping[str, Any]
    ) -> Iterator[Scored]:
        """The scored slices, in their order.

        Args:
            slices: raw rows.
            out: where the predictions will be; scratch files lie beside it.
            columns: `keys`, columns and `precision`, as of `_scored`.
        """
        folder = self.folder.absolute()
        about = {"columns": columns, "bundle": [str(folder), bundle_digest(folder), *self.imports]}
        out.parent.mkdir(parents=True, exist_ok=True)
        with scratch_folder(out.parent.absolute()) as place:
            place.chmod(0o755)  # other machines' processes may be another user's

            def tasks() -> Iterator[Task]:
                """A task per slice, whose rows are written when it is asked for."""
                writer = RowsWriter(place, gather=0)
                first = 0
                for part in slices:
                    writer.add(part)
                    path = writer.paths[-1]
                    yield {**about, "rows": str(path), "first": first}
                    first += part.height

            for answer in self.engine(score_rows, tasks()):
                path = Path(answer["path"])
                result = pl.read_ipc(path.read_bytes())
                path.unlink()
                path.with_suffix("").unlink()
                yield result, {name: (n, of) for name, (n, of) in answer["unseen"].items()}


def score_rows(given: Mapping[str, Any]) -> dict[str, Any]:
    """Score one file of rows; keys and predictions go to a file beside it."""
    rows = map_rows([Path(given["rows"])])
    result, unseen = _scored(_bundle(*given["bundle"]), rows, given["first"], **given["columns"])
    path = f"{given['rows']}.scores"
    write_atomically(Path(path), arrow_bytes(result))
    return {"path": path, "unseen": unseen}


@lru_cache(maxsize=1)
def _bundle(folder: str, digest: str, *imports: str) -> Bundle:
    """The bundle, kept for the next piece of work in this process."""
    from fieldwise.models.registry import import_model

    for module in imports:
        import_model(module)
    if bundle_digest(Path(folder)) != digest:
        raise BundleError(f"the bundle {folder} has changed while rows were scored: start again")
    return Bundle.load(folder)
