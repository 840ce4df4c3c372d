"""Raw requests: one context and its candidates, each with some of the schema's columns."""

from collections.abc import Collection, Mapping
from typing import Any

import polars as pl
from polars.exceptions import PolarsError

from fieldwise.data.encode.encoder import Encoder
from fieldwise.errors import DataError
from fieldwise.layers.candidates import Split
from fieldwise.layout import Batch, Layout

__all__ = ["context_row", "encode_request", "split_columns"]


def context_row(context: Mapping[str, Any] | pl.DataFrame, columns: Collection[str]) -> pl.DataFrame:
    """A context as a table of one row, with those of its columns that are in `columns`.

    Errors:
        DataError: a table without a row or with several; a value that no column can hold.

    >>> context_row({"user": "u1", "tags": ["a", "b"], "note": 1}, ["user", "tags", "item"]).row(0)
    ('u1', ['a', 'b'])
    """
    if isinstance(context, pl.DataFrame):
        if context.height != 1:
            raise DataError(f"candidates are scored in one context, found {context.height} context rows: give one row")
        return context.select([c for c in context.columns if c in columns])
    try:
        return pl.DataFrame({c: [value] for c, value in context.items() if c in columns})
    except (PolarsError, TypeError, ValueError, OverflowError) as e:
        reason = str(e).splitlines()[0]
        raise DataError(f"a context's values must be plain: text, numbers, lists of one type; {reason}") from None


def split_columns(encoder: Encoder, layout: Layout, context: Collection[str], candidates: Collection[str]) -> Split:
    """The split of fields by columns: a field belongs to the side that has its column.

    Errors:
        DataError: a column of the schema is on both sides or on neither, or all are on one.
    """
    for f in encoder.fields:
        if f.column in context and f.column in candidates:
            raise DataError(
                f"a column must be the context's or the candidates', found {f.column!r} (field {f.name!r}) in both: "
                "remove it from one"
            )
        if f.column not in context and f.column not in candidates:
            side = "candidates" if f.role == "item" else "context"
            raise DataError(
                "context and candidates together must hold every column of the schema's fields, found "
                f"{f.column!r} (field {f.name!r}, role {f.role}) in neither: give it to the {side}"
            )
    own = [i for i, f in enumerate(encoder.fields) if f.column in context]
    if not own or len(own) == len(encoder.fields):
        side = "candidates" if own else "context"
        raise DataError(
            f"context and candidates must each hold columns of the schema's fields, found none in the {side}: to score "
            "whole rows, use score"
        )
    return Split.at(layout, own)


def encode_request(
    encoder: Encoder, split: Split, context: pl.DataFrame, candidates: pl.DataFrame
) -> tuple[Batch, Batch]:
    """The context's one row and the candidates' rows, encoded.

    Errors:
        DataError: text in a numeric column, an infinity.
    """
    encoded = [
        encoder.transform_part(frame, side.layout)
        for frame, side in ((context, split.context), (candidates, split.candidates))
    ]
    one, many = (table.batch(slice(0, len(table)))[0] for table in encoded)
    return one, many
