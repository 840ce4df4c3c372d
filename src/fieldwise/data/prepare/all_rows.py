"""Training rows and validation rows together, for a network that is trained again once its settings are chosen."""

from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace

import numpy as np
import polars as pl

from fieldwise.data.encode.encoder import Encoder
from fieldwise.data.prepare.prepared import Part
from fieldwise.data.table import EncodedTable
from fieldwise.errors import DataError
from fieldwise.schema import Schema
from fieldwise.storage.scratch import IN_MEMORY, Scratch

__all__ = ["encoded_by", "encoded_together"]


def encoded_together(train: Part, valid: Part, schema: Schema) -> tuple[Encoder, EncodedTable]:
    """An encoder fitted on training and validation rows, and these rows encoded by it, the training rows first.

    If only one part has row weights, each row of the other gets their mean.

    Errors:
        DataError: a column has other types of values in the two parts.
    """
    columns = [c for c in dict.fromkeys(schema.columns) if c in train.frame.columns]
    try:
        frame = pl.concat([train.frame.select(columns), valid.frame.select(columns)], how="vertical_relaxed")
    except pl.exceptions.PolarsError as e:
        raise DataError(
            f"training again on validation rows needs the same types of values in both tables: {e}; convert one of "
            "them, or set training.refit = false"
        ) from None
    with scratch_of(train) as scratch:
        y = scratch.empty((frame.height, train.y.shape[1]), np.float32)
        y[: len(train.y)], y[len(train.y) :] = train.y, valid.y
        encoder, table = Encoder.fit_transform(frame, schema, y=y, scratch=scratch)
    return encoder, replace(table, weight=_weights(train.table, valid.table))


def encoded_by(encoder: Encoder, part: Part, own: Encoder) -> EncodedTable:
    """A part's rows encoded by an encoder.

    Args:
        encoder: the encoder.
        part: the rows.
        own: the encoder of `part.table`, which is returned if the two are equal.
    """
    if encoder is own or encoder.to_json() == own.to_json():
        return part.table
    with scratch_of(part) as scratch:
        return replace(encoder.transform(part.frame, y=part.table.y, scratch=scratch), weight=part.table.weight)


def scratch_of(part: Part) -> AbstractContextManager[Scratch]:
    """A context with the place of arrays for a part's rows."""
    return nullcontext(IN_MEMORY) if part.bound is None else part.bound.scratch()


def _weights(train: EncodedTable, valid: EncodedTable) -> np.ndarray | None:
    given = [table.weight for table in (train, valid) if table.weight is not None]
    if not given:
        return None
    mean = np.float32(given[0].mean())
    return np.concatenate(
        [np.full(len(table), mean, np.float32) if table.weight is None else table.weight for table in (train, valid)]
    )
