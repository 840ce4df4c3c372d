"""Preparing a raw table: encoded training, validation and test rows, in memory or in a folder.

The order is: label, split, target encoding, histories, negatives, encoder. A table in memory is one
chunk. A larger one is processed chunk by chunk, and an engine counts and encodes its rows a file at
a time on any machines, which all see the folder. Results are put together in the order of the rows,
so that they are equal to the bit, whoever does the work.
"""

import json
import os
import shutil
from collections.abc import Callable, Collection, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from fieldwise.config import nearest
from fieldwise.data.encode.encoder import Encoder, check_table, column_of, missing_marks
from fieldwise.data.encode.fitted_fields import Counted, count_column
from fieldwise.data.prepare import derived
from fieldwise.data.prepare.labels import LabelledRows, read_labels, with_event_label
from fieldwise.data.prepare.row_fingerprints import count_repeats
from fieldwise.data.prepare.settings import (
    PARTS,
    HistorySettings,
    NegativeSampling,
    SplitSettings,
    TargetEncoding,
)
from fieldwise.data.prepare.splits import rank_texts, split_table
from fieldwise.data.read.arrow_files import MappedRows, join_rows, map_rows, table_bytes, take_rows
from fieldwise.data.read.row_numbers import counting_from, renumbering_rows
from fieldwise.data.reports import NO_REPORTS, Reports
from fieldwise.data.table import Chunks, EncodedTable, save_chunks
from fieldwise.distributed.engine import Engine, Task
from fieldwise.errors import ConfigError, DataError, SchemaError
from fieldwise.schema import Field, Schema
from fieldwise.storage import scratch
from fieldwise.storage.arrays import arrow_bytes, map_array, write_array
from fieldwise.storage.files import (
    LOCK,
    cannot_write,
    disk_is_full,
    file_digest,
    new_file,
    sync_tree,
    write_atomically,
)
from fieldwise.storage.machine import ahead
from fieldwise.storage.scratch import MemoryBudget

ENCODER = "encoder.json"
ROWS = "{}.rows"  # raw rows of a part that are mapped; those of smaller tables are in one file
GROUP = "{}.group.npy"
DONE = "{}.done"  # facts of a finished stage, as JSON
TARGETS = "{}.targets.npy"
SCRATCH = "scratch"
SOURCE = "source"


@dataclass(frozen=True, eq=False)
class SplitPart:
    """The rows of one part: raw (or a function that reads them), encoded, and their groups (or None).

    Args:
        bound: where scratch folders may lie, and how many rows are processed at once, if they are
            larger than memory.
        stored: file or folder of the raw rows in the cache, if they were read from there.
    """

    rows: pl.DataFrame | Callable[[], pl.DataFrame]
    table: EncodedTable
    group: np.ndarray | None
    bound: MemoryBudget | None = None
    stored: Path | None = None

    @cached_property
    def frame(self) -> pl.DataFrame:
        """The raw rows; rows in the cache are read at the first access."""
        return self.rows if isinstance(self.rows, pl.DataFrame) else self.rows()

    @property
    def raw_bytes(self) -> int:
        """Bytes of the raw rows: of their files if they are stored, else about as many as they take in memory."""
        if self.stored is not None and self.stored.exists():
            files = self.stored.rglob("*") if self.stored.is_dir() else [self.stored]
            return sum(path.stat().st_size for path in files if path.is_file())
        return table_bytes(self.frame)

    @property
    def y(self) -> np.ndarray:
        """Targets [N, T], the main label's first."""
        return self.table.targets

    @property
    def main(self) -> np.ndarray:
        """Targets of the main label [N]."""
        return np.asarray(self.y[:, 0])


@dataclass(frozen=True, kw_only=True, eq=False)
class Prepared:
    """Data prepared for training.

    Args:
        encoder: fitted on the training rows only.
        counts: rows of each part, rows dropped by the label's rule and by the split (if any),
            sampled negatives, and rows that equal a training row (`count_repeats`).
        marks: by column that is read as numbers, the marks of missing values, and how many cells
            hold each.
        unseen: for each part but train and each field with a vocabulary, the share of unknown
            values.
    """

    encoder: Encoder
    train: SplitPart
    valid: SplitPart
    test: SplitPart
    counts: Mapping[str, int]
    unseen: Mapping[str, Mapping[str, float]]
    marks: Mapping[str, Mapping[str, int]]


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
        folder: of this preparation alone, from which all rows are mapped; it exists. None: they are
            in memory.
        chunk_rows: gives how many rows of a table are processed at once; given with a folder.
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
    folder: Path | None = None
    chunk_rows: Callable[[pl.DataFrame], int] | None = None
    reports: Reports = NO_REPORTS
    engine: Engine | None = None

    def run(self, source: Callable[[Path], MappedRows]) -> Prepared:
        """Prepared data; stages that are finished in the folder are not done again.

        `source` reads the raw table, if it needs to with files in a folder that it may create.
        """
        if self.folder is None:
            table = source(Path())
            parts, dropped = self._divided(table)
            marks = missing_marks(table.frame, self.schema)
            rows, counts = self.derived(parts)
            encoder, encoded, unseen = self.encode(rows)
            counts = {**dropped, **counts}
            return Prepared(encoder=encoder, counts=counts, unseen=unseen, marks=marks, **encoded)
        with ThreadPoolExecutor(1, thread_name_prefix="fieldwise-flusher") as thread:
            facts = self._facts("rows")
            flushed = None
            if facts is None:
                facts = self._write_rows(source)
                # while the rows are used
                flushed = thread.submit(self._finish, "rows", flush=True, **facts)
            counts = facts["counts"]
            targets = {name: map_array(self._path(TARGETS.format(name))) for name in PARTS}
            rows = {name: LabelledRows(self._mapped(name).frame, y) for name, y in targets.items()}
            encoder, encoded, unseen = self.encode(rows)
            self.reports.begin("finishing the preparation")
            if flushed is not None:
                flushed.result()
        write_facts(self.folder, counts, unseen, facts["marks"])
        return Prepared(
            encoder=encoder, counts=counts, unseen=unseen, marks=facts["marks"], **encoded
        )

    def encode(
        self, rows: Mapping[str, LabelledRows]
    ) -> tuple[Encoder, dict[str, SplitPart], dict[str, dict[str, float]]]:
        """An encoder fitted on `train`, the encoded parts, and `Prepared.unseen`."""
        train = rows["train"].frame
        if self._facts("encoder") is None:
            with self._bounded("vocabularies and scales", train):
                counted = self.engine and counted_files(
                    self._mapped("train"), self.schema, self.engine
                )
                encoder = Encoder.fit(train, self.schema, counted=counted)
            if self.folder is not None:
                write_atomically(self._path(ENCODER), encoder.to_json().encode())
                self._finish("encoder")
        else:
            encoder = _read_encoder(self._path(ENCODER))
        parts = {}
        unseen = {}
        for name, part in rows.items():
            facts = self._facts(name)
            if facts is None:
                with self._bounded(f"encoding {name} rows", part.frame):
                    chunks = None
                    if self.engine is not None:
                        chunks = encoded_files(self._mapped(name), self._path(ENCODER), self.engine)
                    weight = None if part.weight is None else part.weight.astype(np.float32)
                    folder = None if self.folder is None else self.folder / name
                    table = encode_table(encoder, part.frame, part.y, weight, folder, chunks)
                    groups = group_codes(part.frame, self.schema)
                    facts = {"unseen": {} if name == "train" else encoder.unseen_in(table)}
                    if self.folder is not None and groups is not None:
                        with new_file(self._path(GROUP.format(name))) as file:
                            write_array(file, groups)
                self._finish(name, **facts)
            parts[name] = (
                SplitPart(part.frame, table, groups)
                if self.folder is None
                else _read_part(self.folder, name)
            )
            if name != "train":
                unseen[name] = facts["unseen"]
        return encoder, parts, unseen

    def _write_rows(self, source: Callable[[Path], MappedRows]) -> dict[str, Any]:
        """Write the rows of each part with all columns, and their targets; returns `Prepared.counts` and `marks`."""
        with self._scratch_folder() as place:
            table = source(self._path(SOURCE))
            self.reports.begin("labels, split and rows of each part", table.frame.height)
            with MemoryBudget(
                place, self.chunk_rows and self.chunk_rows(table.frame), self.reports.add
            ).active():
                marks = missing_marks(table.frame, self.schema)
                parts, dropped = self._divided(table)
                self.reports.add(sum(dropped.values()))
                del table
                # its place on disk is free again
                shutil.rmtree(self._path(SOURCE), ignore_errors=True)
                rows, counts = self.derived(parts)
                for name, part in rows.items():
                    # else they are written already
                    if self.negatives or self.history or self.target_encoding:
                        chunks = (part.frame[at] for at in scratch.chunk_slices(part.frame.height))
                        join_rows(chunks, self._path(ROWS.format(name)))
                    with new_file(self._path(TARGETS.format(name))) as file:
                        write_array(file, part.y)
        return {"counts": {**dropped, **counts}, "marks": marks}

    def _divided(self, table: MappedRows) -> tuple[dict[str, LabelledRows], dict[str, int]]:
        """The rows of each part with their targets, and how many rows the labels' rules and the split drop.

        What will be added to the rows is checked here already. In a folder, rows to which nothing
        is added are written there at once, and files of the table that hold rows of one part alone
        are moved.
        """
        frame = table.frame
        schema = self.schema
        check_columns(frame.columns, schema)
        made: list[str] = []
        if self.history is not None:
            derived.check_history(frame, schema, self.history)
            made.append(self.history.column)
        if self.target_encoding is not None:
            if self.negatives is not None:
                raise ConfigError(
                    "target_encoding needs the label of every row, found [negatives] too: remove one of them"
                )
            derived.check_target_encoding(frame, schema, self.target_encoding)
            made += self.target_encoding.made
        check_table(frame, schema, made_later=made)
        frame = with_event_label(frame, schema, self.negatives is not None)
        rows = read_labels(frame, schema.labels, missing=schema.missing)
        with renumbering_rows(rows.kept):
            indices = split_table(rows.frame, self.split, schema, seed=self.seed, y=rows.y[:, 0])
        folders = (
            {} if self.folder is None else {name: self.folder / ROWS.format(name) for name in PARTS}
        )
        for folder in folders.values():
            shutil.rmtree(folder, ignore_errors=True)  # of a killed process
        places = {} if self.negatives or self.history or self.target_encoding else folders
        # else some rows were dropped, or a label was added
        files = table.files if rows.frame is table.frame else ()
        parts = {}
        for name in PARTS:
            numbers = getattr(indices, name)
            part = take_rows(rows.frame, numbers, places.get(name), files, self.reports.add)
            parts[name] = LabelledRows(part, scratch.take(rows.y, numbers))
        dropped = {"dropped_by_label": rows.dropped}
        if indices.dropped:
            dropped["dropped_by_split"] = indices.dropped
        return parts, dropped

    def derived(
        self, rows: Mapping[str, LabelledRows]
    ) -> tuple[dict[str, LabelledRows], dict[str, int]]:
        """The rows of each part with target encoding, histories and negatives, and counts (`Prepared.counts`)."""
        schema = self.schema
        frames = {name: part.frame for name, part in rows.items()}
        targets = {name: part.y for name, part in rows.items()}
        mains = {name: part.y[:, 0] for name, part in rows.items()}
        weights = {name: part.weight for name, part in rows.items() if part.weight is not None}
        counts = count_repeats(frames, schema)  # of the raw rows, without sampled negatives
        if self.target_encoding is not None:
            frames = derived.add_target_encoding(
                frames, mains, self.target_encoding, seed=self.seed
            )
        if self.history is not None:
            order = self.history.order or schema.time
            assert order is not None, "checked before the split"
            # Before sampling negatives: an item that a user never used is not an event of that
            # user.
            settings = self.history.of_schema(schema)
            form = schema.format_of(order)
            frames = derived.add_histories(frames, mains, settings, order=order, order_format=form)
        if weights and self.negatives is not None:
            raise ConfigError(
                "a sampled negative has no weight: omit the rows' weights or the negatives"
            )
        if self.negatives is not None:
            negatives = self.negatives.of_schema(schema)
            frames, targets, drawn = derived.with_negatives(
                frames, targets, schema, negatives, self.seed
            )
            counts |= drawn
        for name, weight in weights.items():
            if not weight.any():
                raise DataError(
                    f"some {name} row must have a weight above 0, but the weights of all {len(weight)} are zero: give "
                    "rows of every class a weight, or use another split"
                )
        for name, y in targets.items():
            y = y[weights[name] > 0] if name in weights else y
            for label, target in zip(schema.labels, y.T, strict=True):
                positive = int((target > 0.5).sum())
                if label.task == "binary" and positive in (0, len(y)):
                    result = "positive" if positive else "negative"
                    log = ", or, in a log of positives only, add [negatives]" if positive else ""
                    raise DataError(
                        f"the {name} rows must hold both classes: all {len(y)} are {result} by the rule of label "
                        f"{label.name!r}; check the rule, use another split{log or ', or add rows of the other class'}"
                    )
        counts |= {f"{name}_rows": frame.height for name, frame in frames.items()}
        return {
            name: LabelledRows(f, targets[name], weight=weights.get(name))
            for name, f in frames.items()
        }, counts

    def _path(self, name: str = "") -> Path:
        assert self.folder is not None, "stages have a folder"
        return self.folder / name

    def _mapped(self, name: str) -> MappedRows:
        return MappedRows.of_folder(self._path(ROWS.format(name)))

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
        """Note in the folder, if any, that a stage is finished; `flush`: with the rows of all parts on disk."""
        if self.folder is None:
            return
        try:
            for name in PARTS if flush else ():
                sync_tree(self._path(ROWS.format(name)))
        except OSError as e:
            raise cannot_write(self._path(), e) from e
        write_atomically(self._path(DONE.format(stage)), json.dumps(facts).encode())

    @contextmanager
    def _scratch_folder(self) -> Iterator[Path]:
        """A context with a new folder for scratch files."""
        place = self._path(SCRATCH)
        shutil.rmtree(place, ignore_errors=True)  # of a killed process
        try:
            place.mkdir()
            yield place
        except Exception as e:
            # which a killed process leaves for the next one
            shutil.rmtree(self._path(SOURCE), ignore_errors=True)
            if isinstance(e, OSError):
                raise cannot_write(self._path(), e) from e
            raise
        finally:
            shutil.rmtree(place, ignore_errors=True)

    @contextmanager
    def _bounded(self, phase: str, frame: pl.DataFrame) -> Iterator[None]:
        """A context of a phase, in which a table's rows are processed in chunks if there is a folder."""
        self.reports.begin(phase, frame.height)
        if self.folder is None:
            yield
            return
        with (
            self._scratch_folder() as place,
            MemoryBudget(
                place, self.chunk_rows and self.chunk_rows(frame), self.reports.add
            ).active(),
        ):
            yield


def check_columns(columns: Collection[str], schema: Schema) -> None:
    """Check that a table has the schema's time, group, id and key columns."""
    named = [(what, getattr(schema, what)) for what in ("time", "user", "item", "group")]
    for what, column in [*named, *(("keys", key) for key in schema.keys)]:
        if column is not None and column not in columns:
            raise SchemaError(
                f"the schema's {what} must be in the table: {column!r} is not; {nearest(column, columns)}"
            )


def group_codes(frame: pl.DataFrame, schema: Schema) -> np.ndarray | None:
    """An integer per row for its group [N] (`Schema.grouping`), unrelated to other tables' ones, or None without it.

    A row without a group is its own group, so that group AUC skips and counts it like every group
    of one class.
    """
    if schema.grouping is None or schema.grouping not in frame.columns:
        return None
    ranks, counts = rank_texts(frame.get_column(schema.grouping))
    codes = scratch.empty(frame.height, np.int64)
    end = len(counts)
    for at in scratch.chunk_slices(frame.height):
        absent = ranks[at] == 0
        codes[at] = ranks[at]
        codes[at][absent] = end + np.arange(absent.sum())
        end += int(absent.sum())
    return codes


def encoded_together(
    train: SplitPart, valid: SplitPart, schema: Schema
) -> tuple[Encoder, EncodedTable]:
    """An encoder fitted on training and validation rows, and these rows encoded by it, the training rows first.

    If only one part has row weights, each row of the other gets their mean.
    """
    columns = [c for c in dict.fromkeys(schema.columns) if c in train.frame.columns]
    try:
        frame = pl.concat(
            [train.frame.select(columns), valid.frame.select(columns)], how="vertical_relaxed"
        )
    except pl.exceptions.PolarsError as e:
        raise DataError(
            f"training again on validation rows needs the same types of values in both tables: {e}; convert one of "
            "them, or set training.refit = false"
        ) from None
    with (train.bound or MemoryBudget()).active(in_new_folder=True):
        y = scratch.empty((frame.height, train.y.shape[1]), np.float32)
        y[: len(train.y)] = train.y
        y[len(train.y) :] = valid.y
        tables = (train.table, valid.table)
        means = [np.float32(one.weight.mean()) for one in tables if one.weight is not None]
        weights = [
            np.full(len(one), means[0]) if one.weight is None else one.weight
            for one in tables
            if means
        ]
        encoder = Encoder.fit(frame, schema)
        return encoder, encode_table(
            encoder, frame, y, np.concatenate(weights) if weights else None
        )


def encoded_by(encoder: Encoder, part: SplitPart, own: Encoder) -> EncodedTable:
    """A part's rows encoded by an encoder: `part.table` if `own`, the encoder of that, is equal."""
    if encoder is own or encoder.to_json() == own.to_json():
        return part.table
    with (part.bound or MemoryBudget()).active(in_new_folder=True):
        return encode_table(encoder, part.frame, part.table.y, part.table.weight)


def encode_table(
    encoder: Encoder,
    frame: pl.DataFrame,
    y: np.ndarray | None,
    weight: np.ndarray | None = None,
    folder: Path | None = None,
    chunks: Chunks | None = None,
) -> EncodedTable:
    """The encoded rows of a table, from `chunks` if they are given: in `folder`, else in scratch files or memory."""
    folder = folder or scratch.new_path()
    if folder is None:
        return replace(encoder.transform(frame, y=y), weight=weight)
    if chunks is None:  # each is encoded while the one before is written
        slices = scratch.chunk_slices(frame.height)
        chunks = ahead((at, encoder.transform(frame[at], first_row=at.start)) for at in slices)
    return save_chunks(folder, encoder.layout, frame.height, _reporting(chunks), y, weight)


def _reporting(chunks: Chunks) -> Iterator[tuple[slice, EncodedTable]]:
    for at, table in chunks:
        yield at, table
        scratch.budget().on_rows(len(table))


def is_begun(folder: Path) -> bool:
    """Whether a stage of an earlier preparation in a folder is finished."""
    return any(folder.glob(DONE.format("*")))


def link_results(folder: Path, to: Path) -> None:
    """Give the results of a folder another place, on the same disk and without copies; they stay where they are.

    File systems without links have them moved.
    """
    for path in sorted(folder.rglob("*")):
        new = to / path.relative_to(folder)
        if path.is_dir():
            new.mkdir()
        elif not any(map(path.match, (DONE.format("*"), TARGETS.format("*"), LOCK))):
            try:
                os.link(path, new)
            except OSError as e:
                if disk_is_full(e):
                    raise
                path.rename(new)


def write_prepared(prepared: Prepared, folder: Path) -> None:
    """Write prepared data to a folder."""
    (folder / ENCODER).write_text(prepared.encoder.to_json(), "utf-8")
    write_facts(folder, prepared.counts, prepared.unseen, prepared.marks)
    for name in PARTS:
        part: SplitPart = getattr(prepared, name)
        part.table.save(folder / name)
        try:
            part.frame.write_ipc(folder / f"{name}.arrow")
        except OSError as e:
            raise cannot_write(folder, e) from e
        except pl.exceptions.PolarsError as e:
            raise DataError(
                f"the {name} rows cannot be written as Arrow: {str(e).splitlines()[0]}"
            ) from e
        if part.group is not None:
            np.save(folder / GROUP.format(name), part.group, allow_pickle=False)


def write_facts(
    folder: Path,
    counts: Mapping[str, int],
    unseen: Mapping[str, Mapping[str, float]],
    marks: Mapping[str, Mapping[str, int]],
) -> None:
    """Write what `Prepared` states about its rows."""
    facts = {"counts": counts, "unseen": unseen, "marks": marks}
    write_atomically(folder / "prepared.json", json.dumps(facts).encode())


def read_prepared(folder: Path) -> Prepared:
    """Prepared data from `write_prepared`; encoded rows are mapped, and raw rows are read when needed."""
    about = json.loads((folder / "prepared.json").read_text("utf-8"))
    encoder = _read_encoder(folder / ENCODER)
    parts = {name: _read_part(folder, name) for name in PARTS}
    if any(part.table.layout != encoder.layout for part in parts.values()):
        raise DataError("the cache's encoder does not match its rows")
    return Prepared(
        encoder=encoder,
        counts=about["counts"],
        unseen=about["unseen"],
        marks=about["marks"],
        **parts,
    )


def _read_encoder(path: Path) -> Encoder:
    return Encoder.from_json(path.read_text("utf-8"), "the preparation's encoder")


def _read_part(folder: Path, name: str) -> SplitPart:
    table = EncodedTable.open(folder / name)
    group = folder / GROUP.format(name)
    mapped = folder / ROWS.format(name)
    stored = mapped if mapped.is_dir() else folder / f"{name}.arrow"

    def rows() -> pl.DataFrame:
        if stored is mapped:
            return MappedRows.of_folder(mapped).frame
        try:
            frame = pl.read_ipc(stored)
        except (pl.exceptions.PolarsError, OSError) as e:
            raise DataError(
                f"the cache's raw rows can no longer be read: {str(e).splitlines()[0]}; start again"
            ) from e
        if frame.height != len(table):
            raise DataError(
                f"the cache's raw rows {stored} must be {len(table)}, found {frame.height}; clear the cache"
            )
        return frame

    return SplitPart(rows, table, map_array(group) if group.exists() else None, stored=stored)


def counted_files(
    rows: MappedRows, schema: Schema, engine: Engine
) -> Callable[[Field], Iterator[Counted]]:
    """`counted` for `Encoder.fit`, by an engine, a file at a time; the memory budget gets the rows of each."""
    tasks = _file_tasks(rows, schema=schema.to_dict())
    answers = list[dict[str, Any]]()
    for answer in engine(count_file, tasks):
        answers.append(answer)
        scratch.budget().on_rows(answer["rows"])

    def counted(f: Field) -> Iterator[Counted]:
        name = f"{schema.fields.index(f)}.arrow"
        for task, answer in zip(tasks, answers, strict=True):
            values = pl.read_ipc(Path(task["to"]) / name)
            yield Counted(rows=answer["rows"], present=answer["present"][name], values=values)

    return counted


def count_file(given: Mapping[str, Any]) -> dict[str, Any]:
    """Count every field's column in one file of training rows; the counts go to files."""
    frame = map_rows([Path(given["rows"])])
    to = Path(given["to"])
    present = {}
    to.mkdir(exist_ok=True)
    schema = Schema.from_dict(given["schema"])
    for k, f in enumerate(schema.fields):
        if not f.shares:
            with counting_from(given["first"]), MemoryBudget().active():  # a file is one chunk
                (counted,) = count_column(f, column_of(frame, f), missing=schema.missing)
            write_atomically(to / f"{k}.arrow", arrow_bytes(counted.values))
            present[f"{k}.arrow"] = counted.present
    return {"rows": frame.height, "present": present}


def encoded_files(
    rows: MappedRows, encoder: Path, engine: Engine
) -> Iterator[tuple[slice, EncodedTable]]:
    """The encoded rows of each file, by an engine, and which rows they are; `encoder` is its JSON file."""
    tasks = _file_tasks(rows, encoder=str(encoder), digest=file_digest(encoder))
    for file, answer in zip(rows.files, engine(encode_file, tasks), strict=True):
        yield slice(file.first, file.end), EncodedTable.open(Path(answer["path"]))


def encode_file(given: Mapping[str, Any]) -> dict[str, Any]:
    """Encode one file of rows; the encoded rows go to a folder."""
    encoder = _kept_encoder(given["encoder"], given["digest"])
    encoder.transform(map_rows([Path(given["rows"])]), first_row=given["first"]).save(
        Path(given["to"])
    )
    return {"path": given["to"]}


@lru_cache(maxsize=1)
def _kept_encoder(path: str, digest: str) -> Encoder:
    """The encoder in a file, kept for the next piece of work in this process."""
    if file_digest(Path(path)) != digest:
        raise DataError(
            f"{path} must hold the encoder that was fitted, but its content is another: prepare again"
        )
    return _read_encoder(Path(path))


def _file_tasks(rows: MappedRows, **about: Any) -> list[Task]:
    """A task for each file of rows, with the folder that its results go to."""
    folder = scratch.budget().folder
    assert folder is not None, "other processes find their work in files"
    own = (
        {"rows": str(file.path), "first": file.first, "to": str(scratch.new_path())}
        for file in rows.files
    )
    return [{**task, **about} for task in own]
