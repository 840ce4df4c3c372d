"""Preparing a raw table: encoded training, validation and test rows.

The order is: label, split, histories, negatives, encoder.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np
import polars as pl

from fieldwise.data.encode.encoder import Encoder
from fieldwise.data.prepare.grouping import rank_texts
from fieldwise.data.prepare.labels import LabelledRows
from fieldwise.data.prepare.parts import NOTHING, Plan, complete, divide
from fieldwise.data.prepare.settings import PreparationSettings
from fieldwise.data.prepare.split_settings import SplitSettings
from fieldwise.data.read.pieces import table_bytes
from fieldwise.data.table import EncodedTable
from fieldwise.schema import Schema
from fieldwise.storage.scratch import IN_MEMORY, Bound, Scratch

__all__ = ["EncodedParts", "Part", "Prepared", "encode_parts", "group_codes", "prepare", "unseen_shares"]


@dataclass(frozen=True, eq=False)
class Part:
    """The rows of one part: raw (or a function that reads them), encoded, and their groups (or None).

    Args:
        bound: how they are processed if they are larger than memory.
        stored: file or folder of the raw rows in the cache, if they were read from there.
    """

    rows: pl.DataFrame | Callable[[], pl.DataFrame]
    table: EncodedTable
    group: np.ndarray | None
    bound: Bound | None = None
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
        assert self.table.y is not None, "prepared parts have targets"
        return self.table.y

    @property
    def main(self) -> np.ndarray:
        """Targets of the main label [N]."""
        column: np.ndarray = self.y[:, 0]
        return column


@dataclass(frozen=True, kw_only=True, eq=False)
class EncodedParts:
    """Parts by name (`train`, `valid` and optionally `test`), with the encoder fitted on `train`.

    Args:
        counts: rows of each part, sampled negatives, and rows that equal a training row (`count_repeats`).
    """

    encoder: Encoder
    parts: Mapping[str, Part]
    counts: Mapping[str, int]


@dataclass(frozen=True, kw_only=True, eq=False)
class Prepared:
    """Data prepared for training.

    Args:
        encoder: fitted on the training rows only.
        counts: rows of each part, rows dropped by the label's rule, sampled negatives, and rows that equal a training
            row (`count_repeats`).
        unseen: for each part but train and each field with a vocabulary, the share of unknown values.
    """

    encoder: Encoder
    train: Part
    valid: Part
    test: Part
    counts: Mapping[str, int]
    unseen: Mapping[str, Mapping[str, float]]


def prepare(
    frame: pl.DataFrame,
    schema: Schema,
    *,
    split: SplitSettings,
    seed: int,
    add: PreparationSettings = NOTHING,
    scratch: Scratch = IN_MEMORY,
) -> Prepared:
    """Prepared data from a table: targets, split, histories, target encoding, negatives and encoding.

    Args:
        frame: the raw table.
        schema: its schema.
        split: settings of the split.
        seed: seed of the split, the negatives and the folds; the same seed, table and settings give the same result.
        add: negatives, histories and target encoding.
        scratch: where prepared rows lie, and how many rows are processed at once; the result is the same for all.

    Errors:
        SchemaError: the table lacks the schema's time, user, item, group or key columns, or no field reads a new
            column.
        DataError: the table does not fit the schema, a part is empty or, for a binary label, has one class.
        ConfigError: the history has no order; target encoding together with sampled negatives.
    """
    parts, dropped = divide(frame, Plan(schema=schema, split=split, seed=seed, add=add), scratch)
    encoded = encode_parts(parts, schema, seed=seed, add=add, scratch=scratch)
    return Prepared(
        encoder=encoded.encoder,
        counts={"dropped_by_label": dropped, **encoded.counts},
        unseen=unseen_shares(encoded.encoder, {name: part.table for name, part in encoded.parts.items()}),
        **encoded.parts,
    )


def unseen_shares(encoder: Encoder, tables: Mapping[str, EncodedTable]) -> dict[str, dict[str, float]]:
    """For each part but train and each field with a vocabulary, the share of unknown values."""
    return {name: encoder.unseen_in(table) for name, table in tables.items() if name != "train"}


def encode_parts(
    labelled: Mapping[str, LabelledRows],
    schema: Schema,
    *,
    seed: int,
    add: PreparationSettings = NOTHING,
    scratch: Scratch = IN_MEMORY,
) -> EncodedParts:
    """Encoded parts: with histories, sampled negatives and an encoder fitted on the training rows.

    Args:
        labelled: `train`, `valid` and optionally `test`.
        schema: the tables' schema.
        seed: seed of the negatives and of the folds of target encoding.
        add: negatives, histories and target encoding.
        scratch: see `prepare`.

    Errors:
        DataError: a table does not fit the schema, a part is empty or, for a binary label, has one class.
    """
    rows = complete(labelled, schema, seed=seed, add=add, scratch=scratch)
    encoder, train = Encoder.fit_transform(rows.frames["train"], schema, y=rows.targets["train"], scratch=scratch)
    tables = {
        name: train if name == "train" else encoder.transform(frame, y=rows.targets[name], scratch=scratch)
        for name, frame in rows.frames.items()
    }
    tables |= {name: replace(tables[name], weight=w.astype(np.float32)) for name, w in rows.weights.items()}
    parts = {name: Part(part, tables[name], group_codes(part, schema, scratch)) for name, part in rows.frames.items()}
    return EncodedParts(encoder=encoder, parts=parts, counts=rows.counts)


def group_codes(frame: pl.DataFrame, schema: Schema, scratch: Scratch = IN_MEMORY) -> np.ndarray | None:
    """An integer per row for its group [N] (`Schema.grouping`), or None without such a column.

    A row without a group is its own group, so that group AUC skips and counts it like every group of one class. Codes
    of two tables are unrelated.
    """
    if schema.grouping is None or schema.grouping not in frame.columns:
        return None
    ranks = rank_texts(frame.get_column(schema.grouping), scratch)
    codes, end = scratch.empty(frame.height, np.int64), len(ranks.counts)
    for at in scratch.pieces(frame.height):
        absent = ranks.ranks[at] == 0
        codes[at] = ranks.ranks[at]
        codes[at][absent] = end + np.arange(absent.sum())
        end += int(absent.sum())
    return codes
