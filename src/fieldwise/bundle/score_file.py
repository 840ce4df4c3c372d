"""Predictions for the rows of a file, written to a file in slices."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
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
from fieldwise.features.definitions import check_has_features
from fieldwise.ops.devices import Precision, device_of, in_precision
from fieldwise.storage.arrays import arrow_bytes
from fieldwise.storage.files import write_atomically
from fieldwise.storage.folders import scratch_folder
from fieldwise.storage.machine import keep_freed_arrays, return_freed_memory
from fieldwise.storage.outputs import check_not_input
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
    table = data
    if isinstance(table, Path):
        table = SlicedTable(table, TextFormat(text_columns=bundle.schema.text_columns))

    keys = [key for key in bundle.schema.row_keys if key in table.empty.columns]
    output = _Output.of(bundle, keys, column, precision, logit=logit)
    check_has_features(table.empty.columns, bundle.about.recipe_settings, bundle.schema.columns)
    check_table(table.empty, bundle.schema, budget=NO_LIMIT)
    columns_read = list(dict.fromkeys([*keys, *bundle.schema.columns]))
    keep_freed_arrays()
    reports.begin("prediction", table.count())
    slices = table.slices(columns_read, SLICE_ROWS)
    scored = _scored_here(bundle, slices, output)
    if spread is not None:
        scored = spread.scored(slices, writing.path, output)

    rows = 0
    counts: list[UnseenCounts] = []
    with writing as writer:
        for frame, counts_of_slice in scored:
            writer.add(frame)
            reports.add(frame.height)
            rows += frame.height
            counts.append(counts_of_slice)
        if not rows:  # a file with only a header
            frame, counts_of_slice = output.of_rows(bundle, table.empty.select(columns_read), 0)
            writer.add(frame)
            counts.append(counts_of_slice)
    return ScoredFile(rows=rows, columns=output.names, unseen=_unseen_shares(counts))


UnseenCounts = Mapping[str, tuple[int, int]]
"""`Encoder.unseen_counts` of some rows."""
ScoredSlice = tuple[pl.DataFrame, UnseenCounts]
"""Keys and predictions of some rows, and their counts."""


def _unseen_shares(counts: Iterable[UnseenCounts]) -> dict[str, float]:
    """Each field's share of values that are not in the training rows."""
    unseen = Counter[str]()
    values = Counter[str]()
    for counts_of_slice in counts:
        for name, (unknown, count) in counts_of_slice.items():
            unseen[name] += unknown
            values[name] += count
    return {name: unseen[name] / (values[name] or 1) for name in unseen}


def _scored_here(
    bundle: Bundle, slices: Iterable[pl.DataFrame], output: "_Output"
) -> Iterator[ScoredSlice]:
    first_row = 0
    for part in slices:
        yield output.of_rows(bundle, part, first_row)
        first_row += part.height
        # else encoding, whose arrays have other sizes in every slice, takes ever more
        return_freed_memory()


@dataclass(frozen=True, kw_only=True)
class _Output:
    """What is written of each row: keys, or the row's number without any, predictions, and logits.

    Args:
        keys: columns of the rows that are written as they are.
        predictions: the column of each label.
        logits: the column of each label; None for a label whose logits are not written.
        precision: as of `score_file`.
    """

    keys: list[str]
    predictions: list[str]
    logits: list[str | None]
    precision: Precision

    @classmethod
    def of(
        cls, bundle: Bundle, keys: list[str], column: str, precision: Precision, *, logit: bool
    ) -> "_Output":
        """The columns of a bundle's labels.

        Errors:
            ConfigError: a key has the name of one, or `logit` without a binary label.
        """
        labels = bundle.schema.labels
        if logit and all(label.task != "binary" for label in labels):
            raise ConfigError(
                Argument("logit"),
                f" is for probabilities, but the label {labels[0].name!r} is a number: omit it",
            )
        predictions: list[str] = []
        logits: list[str | None] = []
        for label in labels:
            suffix = f".{label.name}" if predictions else ""
            predictions.append(column + suffix)
            logits.append(LOGIT + suffix if logit and label.task == "binary" else None)
        output = cls(keys=keys, predictions=predictions, logits=logits, precision=precision)
        for name, count in Counter(output.names).items():
            if count > 1:
                raise ConfigError(
                    f"predictions need a new column, but {name!r} exists already: give another ",
                    Argument("column"),
                )
        return output

    @property
    def names(self) -> tuple[str, ...]:
        """All columns."""
        logits = [name for name in self.logits if name is not None]
        return (*(self.keys or [ROW]), *self.predictions, *logits)

    def of_rows(self, bundle: Bundle, part: pl.DataFrame, first_row: int) -> ScoredSlice:
        """Keys and predictions of some rows, of which the first has the number `first_row`."""
        encoded = bundle.encoder.transform(part, first_row=first_row)
        result = part.select(self.keys)
        if not self.keys:
            result = pl.DataFrame({ROW: np.arange(first_row, first_row + part.height)})
        with in_precision(self.precision, device_of(bundle.network).type):
            score = bundle.score_table(encoded)
        by_label = len(score), len(self.predictions)
        predictions = bundle.prediction(score).reshape(by_label).T
        logits = bundle.calibrated(score).reshape(by_label).T
        columns = list(map(pl.Series, self.predictions, predictions))
        for name, values in zip(self.logits, logits, strict=True):
            if name is not None:
                columns.append(pl.Series(name, values))
        return result.with_columns(columns), bundle.encoder.unseen_counts(encoded)


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
        self, slices: Iterable[pl.DataFrame], out: Path, output: _Output
    ) -> Iterator[ScoredSlice]:
        """The scored slices, in their order.

        Args:
            slices: raw rows.
            out: where the predictions will be; scratch files lie beside it.
            output: what is written of each row.
        """
        folder = self.folder.absolute()
        about = {
            "output": asdict(output),
            "bundle": [str(folder), bundle_digest(folder), *self.imports],
        }
        out.parent.mkdir(parents=True, exist_ok=True)
        with scratch_folder(out.parent.absolute()) as scratch:
            scratch.chmod(0o755)  # other machines' processes may be another user's

            def tasks() -> Iterator[Task]:
                """A task per slice, whose rows are written when it is asked for."""
                writer = RowsWriter(scratch, gather=0)
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
    output = _Output(**given["output"])
    result, unseen = output.of_rows(_bundle(*given["bundle"]), rows, given["first"])
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
