"""The encoder: fitted on training rows only, it turns any table of the schema's columns into integers and numbers."""

import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import polars as pl

from fieldwise.config import parse, to_plain
from fieldwise.data.columns import as_number, as_text
from fieldwise.data.encoded import EncodedTable
from fieldwise.data.fitted import MISSING, UNKNOWN, Bins, Fitted, Hashing, Scaling, Vocabulary, bag_cells, fit_field
from fieldwise.errors import DataError
from fieldwise.layout import FieldLayout, Layout
from fieldwise.schema import Bag, Field, Numeric, Schema, Sequence

__all__ = ["Encoder", "check_table"]

MAX_ROWS = 2**31 - 1  # row ids are int32
PROBE_ROWS = 10_000


def check_table(frame: pl.DataFrame, schema: Schema, *, made_later: Collection[str] = ()) -> None:
    """Check that a table has every column of the schema's fields, with numbers where numbers belong.

    Args:
        frame: the table.
        schema: what its columns mean.
        made_later: columns that are not looked for, since they are made from the table afterwards.

    Errors:
        DataError: names the column and, for a bad value, the row.
    """
    for f in schema.fields:
        if f.column in made_later:
            continue
        column = _column(frame, f)
        if isinstance(f, Numeric):
            as_number(column, f"column {f.column!r} (field {f.name!r})")


@dataclass(frozen=True)
class Encoder:
    """A schema's fields with what was learned of each from the training rows.

    Unseen categories take their field's unknown row, absent ones its missing row: no value crashes it. A field that
    shares another's rows has what was learned of that one from that one's column; its own column teaches nothing.

    >>> from fieldwise import Categorical, Label
    >>> schema = Schema(fields=(Categorical("app"),), label=Label("click"))
    >>> encoder = Encoder.fit(pl.DataFrame({"app": ["a", "b", "a"]}), schema)
    >>> encoder.transform(pl.DataFrame({"app": ["b", "new", None]})).ids.ravel().tolist()
    [3, 1, 0]
    """

    fields: tuple[Field, ...]
    fitted: tuple[Fitted, ...]

    @classmethod
    def fit(cls, train: pl.DataFrame, schema: Schema) -> "Encoder":
        """Learn vocabularies, scales and bins from the training rows alone.

        Errors:
            DataError: no rows, a missing column, a column without values, text in a numeric column, too many values, a
                field that shares rows and has no value that these are for.
        """
        if train.height == 0:
            raise DataError("an encoder needs training rows, found none")
        own = [None if _shares(f) else fit_field(f, _column(train, f)) for f in schema.fields]
        encoder = cls(schema.fields, _with_shared(schema.fields, own, "schema"))
        for f, fitted in zip(encoder.fields, encoder.fitted, strict=True):
            if isinstance(f, (Bag, Sequence)) and f.shares is not None:
                _check_shared_values(f, fitted, _column(train, f))
        rows = encoder.layout.num_rows
        if rows > MAX_ROWS:
            raise DataError(
                f"all fields together may take {MAX_ROWS} embedding rows, found {rows}; lower hash_buckets or raise "
                "min_count"
            )
        return encoder

    @property
    def layout(self) -> Layout:
        """Where each field stands in the shared embedding table."""
        offsets, end = {}, 0
        for f, fitted in zip(self.fields, self.fitted, strict=True):
            if _shares(f) is None:
                offsets[f.name] = end
                end += fitted.rows
        fields = []
        for f, fitted in zip(self.fields, self.fitted, strict=True):
            offset = offsets[_shares(f) or f.name]
            entry = FieldLayout(name=f.name, kind="id", role=f.role, offset=offset, rows=fitted.rows)
            if isinstance(fitted, Scaling):
                entry = replace(entry, kind="value")
            elif isinstance(f, (Bag, Sequence)):
                ordered = isinstance(f, Sequence)
                entry = replace(entry, kind="bag", pooling=f.pooling, ordered=ordered, shares=f.shares)
            fields.append(entry)
        return Layout(tuple(fields))

    def transform(self, frame: pl.DataFrame, *, y: np.ndarray | None = None) -> EncodedTable:
        """Encode a table's rows in their order.

        Args:
            frame: holds the columns of the schema's fields; N rows.
            y: targets [N], or [N, T] of several labels, to keep beside the rows, as float32.

        Errors:
            DataError: a missing column, text in a numeric column, an infinity.
        """
        layout = self.layout
        single = [
            (f, s, at) for f, s, at in zip(self.fields, self.fitted, layout.fields, strict=True) if at.kind != "bag"
        ]
        ids = np.empty((frame.height, len(single)), dtype=np.int32)
        values: list[np.ndarray] = []
        for position, (f, fitted, at) in enumerate(single):
            local, number = _encode_single(f, fitted, _column(frame, f))
            ids[:, position] = local + at.offset
            if number is not None:
                values.append(number)
        bags = []
        for f, fitted, at in zip(self.fields, self.fitted, layout.fields, strict=True):
            if isinstance(f, (Bag, Sequence)) and isinstance(fitted, (Vocabulary, Hashing)):
                within, lengths = bag_cells(f, fitted, _column(frame, f))
                bags.append((within + at.offset, lengths))
        bag_ids, bag_offsets = _interleave(bags, frame.height)
        stacked = np.stack(values, axis=1) if values else np.empty((frame.height, 0), dtype=np.float32)
        targets = None if y is None else np.ascontiguousarray(y, dtype=np.float32)
        return EncodedTable(layout, ids, stacked, bag_ids, bag_offsets, targets)

    def unseen(self, frame: pl.DataFrame) -> dict[str, float]:
        """For each field with a vocabulary, the share of its values in `frame` that fall on the unknown row.

        Absent values count among the values, and fall on the missing row.
        """
        shares: dict[str, float] = {}
        for f, fitted in zip(self.fields, self.fitted, strict=True):
            if not isinstance(fitted, Vocabulary):
                continue
            column = _column(frame, f)
            ids = bag_cells(f, fitted, column)[0] if isinstance(f, (Bag, Sequence)) else fitted.ids(as_text(column))
            shares[f.name] = float((ids == UNKNOWN).mean()) if ids.size else 0.0
        return shares

    def to_json(self) -> str:
        """JSON text that `from_json` reads back; what fields share stands in it once."""
        own = [None if _shares(f) else s for f, s in zip(self.fields, self.fitted, strict=True)]
        entries = [to_plain(_Entry(field=f, fitted=s)) for f, s in zip(self.fields, own, strict=True)]
        return json.dumps({"fields": entries}, ensure_ascii=False, indent=1)

    @classmethod
    def from_json(cls, text: str, where: str = "encoder") -> "Encoder":
        """The inverse of `to_json`.

        Errors:
            DataError: not an encoder's JSON.
        """
        try:
            data = json.loads(text)
            entries = [_read_entry(e, f"{where}.fields[{i}]") for i, e in enumerate(data["fields"])]
        except (json.JSONDecodeError, KeyError, TypeError) as e:
            raise DataError(f"{where} is not an encoder: {e}; save the bundle again") from None
        fields = tuple(e.field for e in entries)
        return cls(fields, _with_shared(fields, [e.fitted for e in entries], where))


@dataclass(frozen=True, kw_only=True)
class _Entry:
    field: Field
    fitted: Fitted | None = None


def _read_entry(data: Mapping[str, Any], where: str) -> _Entry:
    return parse(_Entry, data, where, DataError)


def _shares(f: Field) -> str | None:
    return f.shares if isinstance(f, (Bag, Sequence)) else None


def _with_shared(fields: Iterable[Field], own: Iterable[Fitted | None], where: str) -> tuple[Fitted, ...]:
    """What was learned of each field: its own, or that of the field whose rows it shares."""
    learned = {f.name: fitted for f, fitted in zip(fields, own, strict=True) if _shares(f) is None}
    found = []
    for f in fields:
        fitted = learned.get(_shares(f) or f.name)
        if fitted is None:
            raise DataError(f"{where} holds nothing learned for field {f.name!r}; save the bundle again")
        found.append(fitted)
    return tuple(found)


def _check_shared_values(f: Bag | Sequence, fitted: Fitted, column: pl.Series) -> None:
    """A history none of whose values is one of the shared field's would teach nothing, and silently."""
    assert isinstance(fitted, (Vocabulary, Hashing)), "only a Categorical field's rows are shared"
    known = UNKNOWN + 1 if isinstance(fitted, Vocabulary) else MISSING + 1
    # The first rows tell nearly always, and a whole column of histories is long.
    if not any((bag_cells(f, fitted, rows)[0] >= known).any() for rows in (column.head(PROBE_ROWS), column)):
        raise DataError(
            f"a field that shares rows needs values that they are for: no training row's column {f.column!r} (field "
            f"{f.name!r}) holds a value of field {f.shares!r}; check the column and its separator {f.separator!r}"
        )


def _column(frame: pl.DataFrame, f: Field) -> pl.Series:
    if f.column not in frame.columns:
        raise DataError(
            f"the table must hold every column of the schema: {f.column!r} (field {f.name!r}) is missing among "
            f"{', '.join(frame.columns)}"
        )
    return frame.get_column(f.column)


def _encode_single(f: Field, fitted: Fitted, column: pl.Series) -> tuple[np.ndarray, np.ndarray | None]:
    if isinstance(fitted, (Vocabulary, Hashing)):
        return fitted.ids(as_text(column)), None
    number = as_number(column, f"column {f.column!r} (field {f.name!r})").fill_null(float("nan")).to_numpy()
    if isinstance(fitted, Bins):
        return fitted.ids(number), None
    absent = np.isnan(number)
    fill = 1.0 if isinstance(f, Numeric) and f.missing == "vector" else 0.0
    scaled = np.where(absent, fill, fitted.values(number)).astype(np.float32)
    return np.where(absent, MISSING, 1).astype(np.int32), scaled


def _interleave(bags: list[tuple[np.ndarray, np.ndarray]], rows: int) -> tuple[np.ndarray, np.ndarray]:
    """Order the bags' ids row by row, within a row field by field; offsets [rows * G + 1]."""
    if not bags:
        return np.empty(0, dtype=np.int32), np.zeros(1, dtype=np.int64)
    lengths = np.stack([n for _, n in bags], axis=1)
    offsets = np.zeros(lengths.size + 1, dtype=np.int64)
    np.cumsum(lengths.ravel(), out=offsets[1:])
    flat = np.empty(int(offsets[-1]), dtype=np.int32)
    starts = offsets[:-1].reshape(rows, len(bags))
    for g, (ids, n) in enumerate(bags):
        within = np.arange(ids.size) - np.repeat(np.cumsum(n) - n, n)
        flat[np.repeat(starts[:, g], n) + within] = ids
    return flat, offsets
