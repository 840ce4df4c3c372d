"""Prepared data: the raw and encoded rows of each part, in memory or in a folder."""

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np
import polars as pl

from fieldwise.data.encode.encoder import Encoder
from fieldwise.data.encode.portable import map_matrices
from fieldwise.data.prepare.rows_by_value import rank_texts
from fieldwise.data.prepare.settings import PARTS
from fieldwise.data.read.chunk_limits import table_bytes
from fieldwise.data.read.mapped_rows import MappedRows
from fieldwise.data.table import Chunks, EncodedTable, save_chunks
from fieldwise.errors import DataError, first_line
from fieldwise.schema import Schema
from fieldwise.storage.arrays import map_array, write_matrices
from fieldwise.storage.files import cannot_write, new_file, write_atomically
from fieldwise.storage.machine import ahead
from fieldwise.storage.scratch import NO_LIMIT, MemoryBudget

ENCODER = "encoder.json"
VECTORS = "vectors.safetensors"
"""The encoder's matrices of vectors by id."""
FACTS = "prepared.json"
ROWS_FOLDER = "{}.rows"
"""Raw rows of a part that are mapped."""
ROWS_FILE = "{}.arrow"
"""Raw rows of a part of a smaller table."""
GROUP = "{}.group.npy"


@dataclass(frozen=True, eq=False)
class SplitPart:
    """The rows of one part: raw (or a function that reads them), encoded, and their groups (or None).

    Args:
        budget: where scratch folders may lie, and how many rows are processed at once.
        stored: file or folder of the raw rows in the cache, if they were read from there.
    """

    rows: pl.DataFrame | Callable[[], pl.DataFrame]
    table: EncodedTable
    group: np.ndarray | None
    budget: MemoryBudget = NO_LIMIT
    stored: Path | None = None

    @cached_property
    def frame(self) -> pl.DataFrame:
        """The raw rows; rows in the cache are read at the first access."""
        return self.rows if isinstance(self.rows, pl.DataFrame) else self.rows()

    @property
    def raw_bytes(self) -> int:
        """Bytes of the raw rows: of their files if they are stored, else about as many as they take in memory."""
        if self.stored is None or not self.stored.exists():
            return table_bytes(self.frame)
        files = self.stored.rglob("*") if self.stored.is_dir() else [self.stored]
        return sum(path.stat().st_size for path in files if path.is_file())

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


def group_codes(frame: pl.DataFrame, schema: Schema, *, budget: MemoryBudget) -> np.ndarray | None:
    """An integer per row for its group [N] (`Schema.grouping`), unrelated to other tables' ones, or None without it.

    A row without a group is its own group, so that group AUC skips and counts it like every group
    of one class.
    """
    if schema.grouping is None or schema.grouping not in frame.columns:
        return None
    ranks, counts = rank_texts(frame.get_column(schema.grouping), budget=budget)
    codes = budget.empty(frame.height, np.int64)
    next_code = len(counts)
    for chunk in budget.chunk_slices(frame.height):
        is_missing = ranks[chunk] == 0
        missing_rows = int(is_missing.sum())
        codes[chunk] = ranks[chunk]
        codes[chunk][is_missing] = next_code + np.arange(missing_rows)
        next_code += missing_rows
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
    with train.budget.in_new_folder() as budget:
        y = budget.empty((frame.height, train.y.shape[1]), np.float32)
        y[: len(train.y)] = train.y
        y[len(train.y) :] = valid.y
        weight = _joined_weights(train.table, valid.table)
        encoder = Encoder.fit(frame, schema, budget=budget)
        return encoder, encode_table(encoder, frame, y, weight, budget=budget)


def groups_together(train: SplitPart, valid: SplitPart, schema: Schema) -> np.ndarray | None:
    """The group of each training and validation row, as of `group_codes`, the training rows first."""
    if schema.grouping is None or schema.grouping not in train.frame.columns:
        return None
    frames = [part.frame.select(schema.grouping) for part in (train, valid)]
    return group_codes(pl.concat(frames, how="vertical_relaxed"), schema, budget=train.budget)


def _joined_weights(first: EncodedTable, second: EncodedTable) -> np.ndarray | None:
    """The row weights of two tables, where one without them has the other's mean; None if neither has any."""
    tables = (first, second)
    means = [np.float32(table.weight.mean()) for table in tables if table.weight is not None]
    if not means:
        return None
    return np.concatenate(
        [
            np.full(len(table), means[0]) if table.weight is None else table.weight
            for table in tables
        ]
    )


def encoded_by(encoder: Encoder, part: SplitPart, encoder_of_part: Encoder) -> EncodedTable:
    """A part's rows encoded by an encoder: `part.table` if `encoder_of_part`, the encoder of that, is equal."""
    if encoder is encoder_of_part or encoder.to_json() == encoder_of_part.to_json():
        return part.table
    with part.budget.in_new_folder() as budget:
        return encode_table(encoder, part.frame, part.table.y, part.table.weight, budget=budget)


def encode_table(
    encoder: Encoder,
    frame: pl.DataFrame,
    y: np.ndarray | None,
    weight: np.ndarray | None = None,
    folder: Path | None = None,
    chunks: Chunks | None = None,
    *,
    budget: MemoryBudget,
) -> EncodedTable:
    """The encoded rows of a table, from `chunks` if they are given: in `folder`, else in scratch files or memory."""
    folder = folder or budget.new_path()
    if folder is None:
        return replace(encoder.transform(frame, y=y), weight=weight)
    if chunks is None:  # each is encoded while the one before is written
        slices = budget.chunk_slices(frame.height)
        chunks = ahead(
            (chunk, encoder.transform(frame[chunk], first_row=chunk.start)) for chunk in slices
        )
    table = save_chunks(
        folder,
        encoder.layout,
        frame.height,
        _reporting(chunks, budget=budget),
        y,
        weight,
        budget=budget,
    )
    return table.with_matrices(encoder.matrices)


def _reporting(chunks: Chunks, *, budget: MemoryBudget) -> Iterator[tuple[slice, EncodedTable]]:
    """The chunks; the memory budget gets the rows of each that is done."""
    for rows, table in chunks:
        yield rows, table
        budget.on_rows(len(table))


def write_prepared(prepared: Prepared, folder: Path) -> None:
    """Write prepared data to a folder."""
    save_encoder(prepared.encoder, folder)
    write_facts(folder, prepared.counts, prepared.unseen, prepared.marks)
    for name in PARTS:
        part: SplitPart = getattr(prepared, name)
        part.table.save(folder / name)
        try:
            part.frame.write_ipc(folder / ROWS_FILE.format(name))
        except OSError as e:
            raise cannot_write(folder, e) from e
        except pl.exceptions.PolarsError as e:
            raise DataError(f"the {name} rows cannot be written as Arrow: {first_line(e)}") from e
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
    write_atomically(folder / FACTS, json.dumps(facts).encode())


def read_prepared(folder: Path) -> Prepared:
    """Prepared data from `write_prepared`; encoded rows are mapped, and raw rows are read when needed."""
    facts = json.loads((folder / FACTS).read_text("utf-8"))
    encoder = read_encoder(folder)
    parts = {name: read_part(folder, name, encoder) for name in PARTS}
    if any(part.table.layout != encoder.layout for part in parts.values()):
        raise DataError("the cache's encoder does not match its rows")
    return Prepared(
        encoder=encoder,
        counts=facts["counts"],
        unseen=facts["unseen"],
        marks=facts["marks"],
        **parts,
    )


def save_encoder(encoder: Encoder, folder: Path) -> None:
    """Write an encoder to a folder, with its matrices of vectors."""
    if encoder.matrices:
        with new_file(folder / VECTORS) as file:
            write_matrices(file, encoder.matrices)
    write_atomically(folder / ENCODER, encoder.to_json().encode())


def read_encoder(folder: Path) -> Encoder:
    """The encoder in a folder of prepared data; its matrices of vectors are mapped."""
    text = (folder / ENCODER).read_text("utf-8")
    encoder = Encoder.from_json(text, "the preparation's encoder")
    return encoder.with_matrices(map_matrices(folder / VECTORS)) if encoder.matrices else encoder


def read_part(folder: Path, name: str, encoder: Encoder) -> SplitPart:
    """A part in a folder of prepared data, which the encoder encoded; its raw rows are read when needed."""
    table = EncodedTable.open(folder / name).with_matrices(encoder.matrices)
    group_file = folder / GROUP.format(name)
    group = map_array(group_file) if group_file.exists() else None
    mapped = folder / ROWS_FOLDER.format(name)
    file = folder / ROWS_FILE.format(name)

    def mapped_rows() -> pl.DataFrame:
        return MappedRows.of_folder(mapped).frame

    def rows_of_file() -> pl.DataFrame:
        try:
            frame = pl.read_ipc(file)
        except (pl.exceptions.PolarsError, OSError) as e:
            raise DataError(
                f"the cache's raw rows can no longer be read: {first_line(e)}; start again"
            ) from e
        if frame.height != len(table):
            raise DataError(
                f"the cache's raw rows {file} must be {len(table)}, found {frame.height}; clear the cache"
            )
        return frame

    if mapped.is_dir():
        return SplitPart(mapped_rows, table, group, stored=mapped)
    return SplitPart(rows_of_file, table, group, stored=file)
