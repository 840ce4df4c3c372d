"""The encoder: fitted on training rows only, it converts tables with the schema's columns to ids and numbers."""

import json
from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace

import numpy as np
import polars as pl
import torch

from fieldwise.data.encode.assemble import BLOCK, interleave, rows_of
from fieldwise.data.encode.cells import Cells, bag_cells, single_cells
from fieldwise.data.encode.columns import as_number
from fieldwise.data.encode.entries import plain_entry, read_entry
from fieldwise.data.encode.fitted import MISSING, UNKNOWN, Fitted, Hashing, Scaling, Vocabulary
from fieldwise.data.encode.learning import learn_field
from fieldwise.data.read.tables import TableLike, as_table
from fieldwise.data.table import EncodedTable
from fieldwise.errors import DataError
from fieldwise.layout import Bags, FieldLayout, Layout
from fieldwise.schema import Field, Schema
from fieldwise.schema.fields import ListField
from fieldwise.storage.threads import each

__all__ = ["Encoder", "check_table"]

MAX_ROWS = 2**31 - 1  # row ids are int32
PROBE_ROWS = 10_000


def check_table(frame: pl.DataFrame, schema: Schema, *, made_later: Collection[str] = ()) -> None:
    """Check that a table has every column of the schema's fields, with numbers in numeric ones.

    Args:
        frame: the table.
        schema: its schema.
        made_later: columns to ignore, since they are made from the table later.

    Errors:
        DataError: names the column and, for a bad value, the row.
    """
    for f in schema.fields:
        if f.column in made_later:
            continue
        column = _column(frame, f)
        if f.cell == "number":
            as_number(column, f"column {f.column!r} (field {f.name!r})", form=f.number_format)


@dataclass(frozen=True)
class Encoder:
    """An encoder: a schema's fields with their vocabularies, scalers and bins from the training rows.

    Unseen categories are encoded as the field's unknown row, missing ones as its missing row. A field that shares
    another's rows uses the other's vocabulary; its own column is not used for fitting.

    >>> from fieldwise import Categorical, Label
    >>> schema = Schema(fields=(Categorical("app"),), label=Label("click"))
    >>> encoder = Encoder.fit(pl.DataFrame({"app": ["a", "b", "a"]}), schema)
    >>> encoder.transform(pl.DataFrame({"app": ["b", "new", None]})).ids.ravel().tolist()
    [3, 1, 0]
    """

    fields: tuple[Field, ...]
    fitted: tuple[Fitted, ...]

    @classmethod
    def fit(cls, train: TableLike, schema: Schema) -> "Encoder":
        """Fit vocabularies, scalers and bins on the training rows.

        Errors:
            DataError: no rows, a missing column, a column without values, text in a numeric column, too many values, a
                field that shares rows but has none of their values.
        """
        train = as_table(train)
        _check_rows(train)
        learned = each(
            lambda f: None if f.shares else learn_field(f, _column(train, f))[0], schema.fields, rows=train.height
        )
        return cls._of(schema.fields, learned, train)

    @classmethod
    def fit_transform(
        cls, train: TableLike, schema: Schema, *, y: np.ndarray | None = None
    ) -> tuple["Encoder", EncodedTable]:
        """`fit` and `transform` on the same rows, with only one lookup of every column's values.

        >>> from fieldwise import Categorical, Label
        >>> schema = Schema(fields=(Categorical("app"),), label=Label("click"))
        >>> encoder, table = Encoder.fit_transform(pl.DataFrame({"app": ["a", "b", "a"]}), schema)
        >>> table.ids.ravel().tolist()
        [2, 3, 2]
        """
        train = as_table(train)
        _check_rows(train)

        def learn(f: Field) -> tuple[Fitted, Cells] | None:
            if f.shares:
                return None
            fitted, encode = learn_field(f, _column(train, f))
            return fitted, encode()

        learned = each(learn, schema.fields, rows=train.height)
        encoder = cls._of(schema.fields, [None if found is None else found[0] for found in learned], train)
        cells = [
            _cells(f, fitted, train) if found is None else found[1]
            for f, fitted, found in zip(encoder.fields, encoder.fitted, learned, strict=True)
        ]
        return encoder, encoder._table(cells, train.height, y)

    @classmethod
    def _of(cls, fields: tuple[Field, ...], own: Iterable[Fitted | None], train: pl.DataFrame) -> "Encoder":
        """The encoder, after checking it on the rows that it was fitted on."""
        encoder = cls(fields, _with_shared(fields, own, "schema"))
        for f, fitted in zip(encoder.fields, encoder.fitted, strict=True):
            if f.cell == "list" and f.shares is not None:
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
        """The layout of the fields in the shared embedding table."""
        offsets, end = {}, 0
        for f, fitted in zip(self.fields, self.fitted, strict=True):
            if f.shares is None:
                offsets[f.name] = end
                end += fitted.rows
        fields = []
        for f, fitted in zip(self.fields, self.fitted, strict=True):
            offset = offsets[f.shares or f.name]
            unknown = isinstance(fitted, Vocabulary)
            entry = FieldLayout(name=f.name, kind="id", role=f.role, offset=offset, rows=fitted.rows, unknown=unknown)
            if isinstance(fitted, Scaling):
                entry = replace(entry, kind="value")
            elif f.cell == "list":
                ordered = f.max_length is not None
                entry = replace(entry, kind="bag", pooling=f.pooling, ordered=ordered, shares=f.shares)
            fields.append(entry)
        return Layout(tuple(fields))

    def transform(self, frame: TableLike, *, y: np.ndarray | None = None, first_row: int = 0) -> EncodedTable:
        """Encode a table's rows, in order.

        Args:
            frame: a table with the columns of the schema's fields; N rows.
            y: targets [N], or [N, T] for several labels, to store with the rows, as float32.
            first_row: number of its first row in the whole table, if it is a slice, for errors.

        Errors:
            DataError: a missing column, text in a numeric column, an infinity.
        """
        frame = as_table(frame)
        pairs = zip(self.fields, self.fitted, strict=True)
        cells = each(lambda pair: _cells(pair[0], pair[1], frame, first_row), pairs, rows=frame.height)
        return self._table(cells, frame.height, y)

    def _table(self, cells: list[Cells], rows: int, y: np.ndarray | None, part: Layout | None = None) -> EncodedTable:
        layout = self.layout if part is None else part
        offsets = [at.offset for at in layout.fields]
        single = [(c.ids, offset) for c, offset in zip(cells, offsets, strict=True) if c.lengths is None]
        ids = rows_of([local for local, _ in single], rows, np.int32, add=[offset for _, offset in single])
        numbers = [c.numbers for c in cells if c.numbers is not None]
        values = rows_of(numbers, rows, np.float32)
        bags = [
            Bags.of(torch.from_numpy(c.ids + np.int32(at)), torch.from_numpy(c.lengths))
            for c, at in zip(cells, offsets, strict=True)
            if c.lengths is not None
        ]
        several = interleave(bags, rows)
        targets = None if y is None else np.ascontiguousarray(y, dtype=np.float32)
        return EncodedTable(layout, ids, values, several.ids.numpy(), several.offsets.numpy(), targets)

    def unseen_in(self, table: EncodedTable) -> dict[str, float]:
        """For each field with a vocabulary, the share of unknown values in `table`.

        Missing values count as values, but not as unknown.
        """
        counts = self.unseen_counts(table)
        return {name: unknown / values if values else 0.0 for name, (unknown, values) in counts.items()}

    def unseen_counts(self, table: EncodedTable) -> dict[str, tuple[int, int]]:
        """For each field with a vocabulary, the number of unknown values in `table`, and of all values."""
        fields = table.layout.fields
        single, bags = ([f for f in fields if (f.kind == "bag") == bag] for bag in (False, True))
        rows = np.array([f.offset + UNKNOWN for f in single], dtype=np.int32)
        blocks = (table.ids[start : start + BLOCK] for start in range(0, len(table), BLOCK))
        unknown = sum(((block == rows).sum(axis=0) for block in blocks), np.zeros(len(single), dtype=np.int64))
        counts = {f.name: (int(n), len(table)) for f, n in zip(single, unknown, strict=True)}
        for g, f in enumerate(bags):
            ids = table.bag(g).ids
            counts[f.name] = int((ids == f.offset + UNKNOWN).sum()), len(ids)
        vocabularies = (f.name for f, s in zip(self.fields, self.fitted, strict=True) if isinstance(s, Vocabulary))
        return {name: counts[name] for name in vocabularies}

    def to_json(self) -> str:
        """The encoder as JSON text for `from_json`; shared vocabularies are stored once."""
        own = [None if f.shares else s for f, s in zip(self.fields, self.fitted, strict=True)]
        entries = [plain_entry(f, fitted) for f, fitted in zip(self.fields, own, strict=True)]
        return json.dumps({"fields": entries}, ensure_ascii=False)

    @classmethod
    def from_json(cls, text: str, where: str = "encoder") -> "Encoder":
        """The inverse of `to_json`.

        Errors:
            DataError: not an encoder's JSON.
        """
        try:
            data = json.loads(text)
            entries = [read_entry(e, f"{where}.fields[{i}]") for i, e in enumerate(data["fields"])]
        except (json.JSONDecodeError, KeyError, TypeError, RecursionError) as e:
            raise DataError(f"{where} is not an encoder: {e}; save the bundle again") from None
        fields = tuple(e.field for e in entries)
        return cls(fields, _with_shared(fields, [e.fitted for e in entries], where))

    def transform_part(self, frame: TableLike, part: Layout) -> EncodedTable:
        """Encode only some fields: `part` has those of `layout`, in its order.

        Row ids are those of the whole layout. The table needs the columns of these fields only.

        Errors:
            DataError: as `transform`.
        """
        frame = as_table(frame)
        names = {f.name for f in part.fields}
        pairs = [(f, s) for f, s in zip(self.fields, self.fitted, strict=True) if f.name in names]
        cells = each(lambda pair: _cells(pair[0], pair[1], frame), pairs, rows=frame.height)
        return self._table(cells, frame.height, None, part)


def _with_shared(fields: Iterable[Field], own: Iterable[Fitted | None], where: str) -> tuple[Fitted, ...]:
    """The fitted part of each field: its own, or that of the field whose rows it shares."""
    learned = {f.name: fitted for f, fitted in zip(fields, own, strict=True) if f.shares is None}
    found = []
    for f in fields:
        fitted = learned.get(f.shares or f.name)
        if fitted is None:
            raise DataError(f"{where} has no fitted values for field {f.name!r}; save the bundle again")
        found.append(fitted)
    return tuple(found)


def _check_shared_values(f: ListField, fitted: Fitted, column: pl.Series) -> None:
    """Check that some value of a history is one of the shared field's, which else would go unnoticed."""
    assert isinstance(fitted, (Vocabulary, Hashing)), "only a Categorical field's rows are shared"
    known = UNKNOWN + 1 if isinstance(fitted, Vocabulary) else MISSING + 1
    # The first rows are nearly always sufficient, and a whole column of histories is long.
    if not any((bag_cells(f, fitted, rows).ids >= known).any() for rows in (column.head(PROBE_ROWS), column)):
        raise DataError(
            f"a field that shares rows needs values of the shared field: no training row's column {f.column!r} (field "
            f"{f.name!r}) holds a value of field {f.shares!r}; check the column and its separator {f.separator!r}"
        )


def _column(frame: pl.DataFrame, f: Field) -> pl.Series:
    if f.column not in frame.columns:
        raise DataError(
            f"the table must hold every column of the schema: {f.column!r} (field {f.name!r}) is missing among "
            f"{', '.join(frame.columns)}"
        )
    return frame.get_column(f.column)


def _check_rows(train: pl.DataFrame) -> None:
    if train.height == 0:
        raise DataError("an encoder needs training rows, found none")


def _cells(f: Field, fitted: Fitted, frame: pl.DataFrame, first_row: int = 0) -> Cells:
    column = _column(frame, f)
    if f.cell == "list" and isinstance(fitted, (Vocabulary, Hashing)):
        return bag_cells(f, fitted, column)
    return single_cells(f, fitted, column, first_row)
