"""Preparing a raw table: encoded training, validation and test rows, in memory or in a folder.

The order is: label, split, target encoding, histories, negatives, features as of their time,
encoder. A table in memory is one chunk. A larger one is processed chunk by chunk, and an engine
counts and encodes its rows a file at a time on any machines, which all see the folder. Results are
put together in the order of the rows, so that they are equal to the bit, whoever does the work.
"""

import json
import os
import shutil
from collections.abc import Callable, Collection, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import polars as pl

from fieldwise.config import nearest
from fieldwise.data.encode.encoder import Encoder, check_table, missing_marks
from fieldwise.data.prepare.file_tasks import counted_files, encoded_files
from fieldwise.data.prepare.histories import add_histories, check_history
from fieldwise.data.prepare.labels import (
    LabelledRows,
    read_labels,
    schema_weights,
    with_event_label,
)
from fieldwise.data.prepare.negatives import with_negatives
from fieldwise.data.prepare.prepared import (
    ENCODER,
    GROUP,
    ROWS_FOLDER,
    Prepared,
    SplitPart,
    encode_table,
    group_codes,
    read_encoder,
    read_part,
    save_encoder,
    write_facts,
)
from fieldwise.data.prepare.repeated_rows import count_repeats
from fieldwise.data.prepare.settings import (
    PARTS,
    HistorySettings,
    NegativeSampling,
    SplitSettings,
    TargetEncoding,
)
from fieldwise.data.prepare.splits import split_table
from fieldwise.data.prepare.target_encoding import add_target_encoding, check_target_encoding
from fieldwise.data.read.mapped_rows import MappedRows, join_rows, take_rows
from fieldwise.data.read.row_numbers import renumbering_rows
from fieldwise.data.reports import NO_REPORTS, Reports
from fieldwise.distributed.engine import Engine
from fieldwise.errors import ConfigError, DataError, SchemaError
from fieldwise.schema import Schema
from fieldwise.storage.arrays import map_array, write_array
from fieldwise.storage.files import cannot_write, disk_is_full, new_file, write_atomically
from fieldwise.storage.folders import sync_tree
from fieldwise.storage.locks import LOCK
from fieldwise.storage.scratch import NO_LIMIT, MemoryBudget

DONE = "{}.done"
"""Facts of a finished stage, as JSON."""
TARGETS = "{}.targets.npy"
WEIGHTS = "{}.weights.npy"
SCRATCH = "scratch"
SOURCE = "source"


class RowFeatures(Protocol):
    """Columns computed from the log's rows as of their time: `fieldwise.features.log_features.LogFeatures`."""

    @property
    def made(self) -> tuple[str, ...]:
        """The new columns."""

    def check(self, frame: pl.DataFrame, *, has_negatives: bool) -> None:
        """Check that they can be computed from a table."""

    def add(
        self,
        frames: Mapping[str, pl.DataFrame],
        events: Mapping[str, pl.DataFrame],
        targets: Mapping[str, np.ndarray],
        *,
        budget: MemoryBudget,
    ) -> dict[str, pl.DataFrame]:
        """The tables of all parts with them, by the rows of the log and their targets."""


@dataclass(frozen=True, kw_only=True)
class Preparation:
    """How a raw table becomes encoded rows, in stages: the rows of all parts, the encoder, each part's encoded rows.

    With a folder each finished stage stays there, and it holds at the end what `read_prepared`
    reads. A stage that was begun and not finished begins again, but not the reading of text; the
    result is the same as if not interrupted.

    Args:
        seed: seed of the split, the negatives and the folds; the same seed, table and settings give
            the same result.
        negatives: for logs with only positives.
        history: for a column of each row's earlier items of its user; a sampled negative has its
            positive's history.
        target_encoding: for columns of target-encoded categories.
        features: for columns as of each row's time; a sampled negative has those of its own item.
        folder: of this preparation alone, from which all rows are mapped; it exists. None: they are
            in memory.
        chunk_rows: gives how many rows of a table are processed at once; given with a folder.
        table_memory: bytes that a table of features may take, as `MemoryBudget.memory`.
        reports: receives the phases and their rows.
        engine: machines that do what can be done file by file, and see the folder; None: this
            process.
    """

    schema: Schema
    split: SplitSettings
    seed: int
    negatives: NegativeSampling | None = None
    history: HistorySettings | None = None
    target_encoding: TargetEncoding | None = None
    features: RowFeatures | None = None
    folder: Path | None = None
    chunk_rows: Callable[[pl.DataFrame], int] | None = None
    table_memory: int | None = None
    reports: Reports = NO_REPORTS
    engine: Engine | None = None

    def run(self, source: Callable[[Path], MappedRows]) -> Prepared:
        """Prepared data; stages that are finished in the folder are not done again.

        `source` reads the raw table, if it needs to with files in a folder that it may create.
        """
        if self.folder is not None:
            return self._run_in_folder(source, self.folder)
        table = source(Path())
        parts, dropped = self._split_rows(table, budget=NO_LIMIT)
        marks = missing_marks(table.frame, self.schema, budget=NO_LIMIT)
        rows, counts = self.derived(parts, budget=NO_LIMIT)
        encoder, encoded, unseen = self.encode(rows)
        counts = {**dropped, **counts}
        return Prepared(encoder=encoder, counts=counts, unseen=unseen, marks=marks, **encoded)

    def _run_in_folder(self, source: Callable[[Path], MappedRows], folder: Path) -> Prepared:
        with ThreadPoolExecutor(1, thread_name_prefix="fieldwise-flusher") as thread:
            facts = self._facts("rows")
            flushed = None
            if facts is None:
                facts = self._write_rows(source)
                # while the rows are used
                flushed = thread.submit(self._finish, "rows", flush=True, **facts)
            rows = {name: self._written_rows(name, folder) for name in PARTS}
            encoder, encoded, unseen = self.encode(rows)
            self.reports.begin("finishing the preparation")
            if flushed is not None:
                flushed.result()
        counts = facts["counts"]
        marks = facts["marks"]
        write_facts(folder, counts, unseen, marks)
        return Prepared(encoder=encoder, counts=counts, unseen=unseen, marks=marks, **encoded)

    def _written_rows(self, name: str, folder: Path) -> LabelledRows:
        """The rows of a part that `_write_rows` has written."""
        weights = folder / WEIGHTS.format(name)
        return LabelledRows(
            self._mapped(name).frame,
            map_array(folder / TARGETS.format(name)),
            weight=map_array(weights) if weights.exists() else None,
        )

    def encode(
        self, rows: Mapping[str, LabelledRows]
    ) -> tuple[Encoder, dict[str, SplitPart], dict[str, dict[str, float]]]:
        """An encoder fitted on `train`, the encoded parts, and `Prepared.unseen`."""
        encoder = self._fitted_encoder(rows["train"].frame)
        parts = {}
        unseen = {}
        for name, part in rows.items():
            parts[name], unseen_shares = self._encoded_part(encoder, name, part)
            if name != "train":
                unseen[name] = unseen_shares
        return encoder, parts, unseen

    def _fitted_encoder(self, train: pl.DataFrame) -> Encoder:
        if self._facts("encoder") is not None:
            return read_encoder(self._path())
        with self._phase("vocabularies and scales", train) as budget:
            counted = None
            if self.engine is not None:
                rows = self._mapped("train")
                counted = counted_files(rows, self.schema, self.engine, budget=budget)
            encoder = Encoder.fit(train, self.schema, counted=counted, budget=budget)
        if self.folder is not None:
            save_encoder(encoder, self._path())
            self._finish("encoder")
        return encoder

    def _encoded_part(
        self, encoder: Encoder, name: str, part: LabelledRows
    ) -> tuple[SplitPart, dict[str, float]]:
        """A part with its encoded rows, and the share of unknown values of its fields (none for `train`)."""
        weight = None if part.weight is None else part.weight.astype(np.float32)
        folder = None if self.folder is None else self.folder / name
        facts = self._facts(name)
        if facts is None:
            with self._phase(f"encoding {name} rows", part.frame) as budget:
                chunks = None
                if self.engine is not None:
                    rows = self._mapped(name)
                    chunks = encoded_files(rows, self._path(ENCODER), self.engine, budget=budget)
                table = encode_table(
                    encoder, part.frame, part.y, weight, folder, chunks, budget=budget
                )
                groups = group_codes(part.frame, self.schema, budget=budget)
                unseen = {} if name == "train" else encoder.unseen_in(table)
                if self.folder is None:
                    return SplitPart(part.frame, table, groups), unseen
                if groups is not None:
                    with new_file(self._path(GROUP.format(name))) as file:
                        write_array(file, groups)
            facts = {"unseen": unseen}
            self._finish(name, **facts)
        return read_part(self._path(), name, encoder), facts["unseen"]

    def _write_rows(self, source: Callable[[Path], MappedRows]) -> dict[str, Any]:
        """Write the rows of each part with all columns, and their targets; returns `Prepared.counts` and `marks`."""
        with self._scratch_folder() as scratch_folder:
            table = source(self._path(SOURCE))
            self.reports.begin("labels, split and rows of each part", table.frame.height)
            budget = self._budget(scratch_folder, table.frame)
            marks = missing_marks(table.frame, self.schema, budget=budget)
            parts, dropped = self._split_rows(table, budget=budget)
            self.reports.add(sum(dropped.values()))
            del table
            # its place on disk is free again
            shutil.rmtree(self._path(SOURCE), ignore_errors=True)
            rows, counts = self.derived(parts, budget=budget)
            for name, part in rows.items():
                # else they are written already
                if self._adds_to_rows:
                    frame = part.frame
                    chunks = (frame[chunk] for chunk in budget.chunk_slices(frame.height))
                    join_rows(chunks, self._path(ROWS_FOLDER.format(name)), budget=budget)
                with new_file(self._path(TARGETS.format(name))) as file:
                    write_array(file, part.y)
                if part.weight is not None:
                    with new_file(self._path(WEIGHTS.format(name))) as file:
                        write_array(file, part.weight)
        return {"counts": {**dropped, **counts}, "marks": marks}

    @property
    def _adds_to_rows(self) -> bool:
        """Whether rows or columns are added to the parts after the split."""
        trials = self.schema.label.trials
        additions = (self.negatives, self.history, self.target_encoding, self.features, trials)
        return any(settings is not None for settings in additions)

    def _split_rows(
        self, table: MappedRows, *, budget: MemoryBudget
    ) -> tuple[dict[str, LabelledRows], dict[str, int]]:
        """The rows of each part with their targets, and how many rows the labels' rules and the split drop.

        What will be added to the rows is checked here already. In a folder, rows to which nothing
        is added are written there at once, and files of the table that hold rows of one part alone
        are moved.
        """
        schema = self.schema
        self._check(table.frame, budget=budget)
        frame = with_event_label(table.frame, schema, self.negatives is not None)
        weight = schema_weights(frame, schema, budget=budget)
        rows = read_labels(
            frame, schema.labels, weight=weight, missing=schema.missing, budget=budget
        )
        with renumbering_rows(rows.row_numbers):
            split = split_table(
                rows.frame, self.split, schema, seed=self.seed, y=rows.y[:, 0], budget=budget
            )

        folders: dict[str, Path] = {}
        if self.folder is not None:
            folders = {name: self.folder / ROWS_FOLDER.format(name) for name in PARTS}
        for folder in folders.values():
            shutil.rmtree(folder, ignore_errors=True)  # of a killed process
        if self._adds_to_rows:
            folders = {}
        # else some rows were dropped, or a label was added
        files = table.files if rows.frame is table.frame else ()

        parts = {}
        for name in PARTS:
            numbers = getattr(split, name)
            part = take_rows(
                rows.frame, numbers, folders.get(name), files, self.reports.add, budget=budget
            )
            part_weight = None if rows.weight is None else budget.take(rows.weight, numbers)
            parts[name] = LabelledRows(part, budget.take(rows.y, numbers), weight=part_weight)
        dropped = {"dropped_by_label": rows.dropped}
        if split.dropped:
            dropped["dropped_by_split"] = split.dropped
        return parts, dropped

    def _check(self, frame: pl.DataFrame, *, budget: MemoryBudget) -> None:
        """Check that a table has what the schema and the settings name."""
        check_columns(frame.columns, self.schema)
        if self.schema.weight_columns and self.negatives is not None:
            raise ConfigError(
                "a sampled negative has no weight: omit weight and trials in the schema, or the negatives"
            )
        if self.schema.label.sampled is not None and self.negatives is not None:
            raise ConfigError(
                "[negatives] are drawn, and sampled says which share of a log's own rows was kept: omit one of them"
            )
        new_columns: list[str] = []
        if self.history is not None:
            check_history(frame, self.schema, self.history, budget=budget)
            new_columns.append(self.history.column)
        if self.target_encoding is not None:
            if self.negatives is not None:
                raise ConfigError(
                    "target_encoding needs the label of every row, found [negatives] too: remove one of them"
                )
            check_target_encoding(frame, self.schema, self.target_encoding)
            new_columns += self.target_encoding.made
        if self.features is not None:
            self.features.check(frame, has_negatives=self.negatives is not None)
            new_columns += self.features.made
        check_table(frame, self.schema, made_later=new_columns, budget=budget)

    def derived(
        self, rows: Mapping[str, LabelledRows], *, budget: MemoryBudget
    ) -> tuple[dict[str, LabelledRows], dict[str, int]]:
        """The rows of each part with what is added to them, and counts (`Prepared.counts`)."""
        schema = self.schema
        frames = {name: part.frame for name, part in rows.items()}
        targets = {name: part.y for name, part in rows.items()}
        main_targets = {name: part.main for name, part in rows.items()}
        weights = {name: part.weight for name, part in rows.items() if part.weight is not None}
        # of the raw rows, without sampled negatives
        counts = count_repeats(frames, schema, budget=budget)

        if self.target_encoding is not None:
            frames = add_target_encoding(
                frames,
                main_targets,
                self.target_encoding,
                weights=weights,
                seed=self.seed,
                budget=budget,
            )
        if self.history is not None:
            order = self.history.order or schema.time
            assert order is not None, "checked before the split"
            # Before sampling negatives: an item that a user never used is not an event of that
            # user.
            frames = add_histories(
                frames,
                main_targets,
                self.history.of_schema(schema),
                order=order,
                order_format=schema.format_of(order),
                budget=budget,
            )
        events = frames
        event_targets = targets
        if self.negatives is not None:
            if weights:
                raise ConfigError(
                    "a sampled negative has no weight: omit the rows' weights or the negatives"
                )
            negatives = self.negatives.of_schema(schema)
            frames, targets, sampled = with_negatives(
                frames, targets, schema, negatives, self.seed, budget=budget
            )
            counts |= sampled

        if self.features is not None:
            frames = self.features.add(frames, events, event_targets, budget=budget)

        _check_weights(weights)
        complete = {}
        for name, frame in frames.items():
            part = LabelledRows(frame, targets[name], weight=weights.get(name))
            complete[name] = part.of_one_class(schema, budget=budget)
        for name, part in complete.items():
            y = part.y if part.weight is None else part.y[part.weight > 0]
            _check_classes(name, y, schema, self.negatives)
            counts[f"{name}_rows"] = part.frame.height
        return complete, counts

    def _path(self, name: str = "") -> Path:
        assert self.folder is not None, "stages have a folder"
        return self.folder / name

    def _mapped(self, name: str) -> MappedRows:
        return MappedRows.of_folder(self._path(ROWS_FOLDER.format(name)))

    def _facts(self, stage: str) -> dict[str, Any] | None:
        """What a finished stage has stated; None if it is not finished, or there is no folder."""
        if self.folder is None:
            return None
        try:
            facts: dict[str, Any] = json.loads(self._path(DONE.format(stage)).read_text("utf-8"))
        except (OSError, ValueError):
            return None
        return facts

    def _finish(self, stage: str, *, flush: bool = False, **facts: Any) -> None:
        """Note in the folder that a stage is finished; `flush`: with the rows of all parts on disk."""
        if flush:
            try:
                for name in PARTS:
                    sync_tree(self._path(ROWS_FOLDER.format(name)))
            except OSError as e:
                raise cannot_write(self._path(), e) from e
        write_atomically(self._path(DONE.format(stage)), json.dumps(facts).encode())

    @contextmanager
    def _scratch_folder(self) -> Iterator[Path]:
        """A context with a new folder for scratch files."""
        folder = self._path(SCRATCH)
        shutil.rmtree(folder, ignore_errors=True)  # of a killed process
        try:
            folder.mkdir()
            yield folder
        except Exception as e:
            # which a killed process leaves for the next one
            shutil.rmtree(self._path(SOURCE), ignore_errors=True)
            if isinstance(e, OSError):
                raise cannot_write(self._path(), e) from e
            raise
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def _budget(self, scratch_folder: Path, frame: pl.DataFrame) -> MemoryBudget:
        """How many rows of a table are processed at once, with scratch files in a folder."""
        chunk_rows = None if self.chunk_rows is None else self.chunk_rows(frame)
        return MemoryBudget(scratch_folder, chunk_rows, self.reports.add, self.table_memory)

    @contextmanager
    def _phase(self, name: str, frame: pl.DataFrame) -> Iterator[MemoryBudget]:
        """A context of a phase, with the memory budget for a table's rows: without a limit unless there is a folder."""
        self.reports.begin(name, frame.height)
        if self.folder is None:
            yield NO_LIMIT
            return
        with self._scratch_folder() as folder:
            yield self._budget(folder, frame)


def check_columns(columns: Collection[str], schema: Schema) -> None:
    """Check that a table has the schema's time, group, id and key columns."""
    named = [(what, getattr(schema, what)) for what in ("time", "user", "item", "group")]
    named += [("keys", key) for key in schema.keys]
    for what, column in named:
        if column is not None and column not in columns:
            raise SchemaError(
                f"the schema's {what} must be in the table: {column!r} is not; {nearest(column, columns)}"
            )


def _check_weights(weights: Mapping[str, np.ndarray]) -> None:
    """Check that the rows of each part with weights do not all weigh nothing."""
    for name, weight in weights.items():
        if not weight.any():
            raise DataError(
                f"some {name} row must have a weight above 0, but the weights of all {len(weight)} are zero: give "
                "rows of every class a weight, or use another split"
            )


def _check_classes(
    part: str, y: np.ndarray, schema: Schema, negatives: NegativeSampling | None
) -> None:
    """Check that a part's targets [N, T] hold both classes of each binary label."""
    for label, target in zip(schema.labels, y.T, strict=True):
        positives = int((target > 0.5).sum())
        if label.task != "binary" or positives not in (0, len(y)):
            continue
        if positives:
            only_class = "positive"
            remedy = "or, in a log of positives only, add [negatives]"
            if negatives is not None:
                remedy = f"or add {part!r} to the parts of [negatives]"
        else:
            only_class = "negative"
            remedy = "or add rows of the other class"
        raise DataError(
            f"the {part} rows must hold both classes: all {len(y)} are {only_class} by the rule of label "
            f"{label.name!r}; check the rule, use another split, {remedy}"
        )


def is_begun(folder: Path) -> bool:
    """Whether a stage of an earlier preparation in a folder is finished."""
    return any(folder.glob(DONE.format("*")))


def link_results(folder: Path, to: Path) -> None:
    """Give the results of a folder another place, on the same disk and without copies; they stay where they are.

    File systems without links have them moved.
    """
    unfinished = (DONE.format("*"), TARGETS.format("*"), WEIGHTS.format("*"), LOCK)
    for path in sorted(folder.rglob("*")):
        new = to / path.relative_to(folder)
        if path.is_dir():
            new.mkdir()
        elif not any(map(path.match, unfinished)):
            try:
                os.link(path, new)
            except OSError as e:
                if disk_is_full(e):
                    raise
                path.rename(new)
