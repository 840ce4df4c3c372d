"""The encoder: fitted on training rows only, it converts tables with the schema's columns to ids and numbers."""

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import cycle

import numpy as np
import polars as pl
import torch

from fieldwise.data.encode.assemble import BLOCK, Room, interleave, rows_of
from fieldwise.data.encode.cells import Cells, bag_cells, single_cells
from fieldwise.data.encode.checks import check_rows, check_shared_values, column_of
from fieldwise.data.encode.entries import plain_entry, read_entry
from fieldwise.data.encode.fitted import UNKNOWN, Fitted, Hashing, Scaling, Vocabulary
from fieldwise.data.encode.learning import learn_field, learn_pieces
from fieldwise.data.encode.pieces import join_pieces
from fieldwise.data.read.tables import TableLike, as_table
from fieldwise.data.table import EncodedTable
from fieldwise.errors import DataError
from fieldwise.layout import Bags, FieldLayout, Layout
from fieldwise.schema import Field, Schema
from fieldwise.storage.scratch import IN_MEMORY, Scratch
from fieldwise.storage.threads import ahead, each

__all__ = ["Encoder", "encoded_pieces", "unseen_shares"]

MAX_ROWS = 2**31 - 1  # row ids are int32


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
    def fit(cls, train: TableLike, schema: Schema, *, scratch: Scratch = IN_MEMORY) -> "Encoder":
        """Fit vocabularies, scalers and bins on the training rows.

        Args:
            train: the training rows.
            schema: the table's schema.
            scratch: where numbers and many texts lie, and how many rows are processed at once.

        Errors:
            DataError: no rows, a missing column, a column without values, text in a numeric column, too many values, a
                field that shares rows but has none of their values.
        """
        train = as_table(train)
        check_rows(train)

        ends = np.linspace(0, train.height, len(schema.fields) + 1).astype(int)
        parts = dict(zip((f.name for f in schema.fields), np.diff(ends).tolist(), strict=True))

        def learn(f: Field) -> Fitted | None:
            found = None
            if not f.shares:
                column = column_of(train, f)
                several = scratch.several(train.height)
                found = learn_pieces(f, column, scratch) if several else learn_field(f, column)[0]
            scratch.told(parts[f.name])
            return found

        return cls.assembled(schema.fields, each(learn, schema.fields, rows=train.height), train, scratch)

    @classmethod
    def fit_transform(
        cls, train: TableLike, schema: Schema, *, y: np.ndarray | None = None, scratch: Scratch = IN_MEMORY
    ) -> tuple["Encoder", EncodedTable]:
        """`fit` and `transform` on the same rows, with only one lookup of every column's values.

        >>> from fieldwise import Categorical, Label
        >>> schema = Schema(fields=(Categorical("app"),), label=Label("click"))
        >>> encoder, table = Encoder.fit_transform(pl.DataFrame({"app": ["a", "b", "a"]}), schema)
        >>> table.ids.ravel().tolist()
        [2, 3, 2]
        """
        train = as_table(train)
        check_rows(train)
        if scratch.several(train.height):
            encoder = cls.fit(train, schema, scratch=scratch)
            return encoder, encoder.transform(train, y=y, scratch=scratch)

        def learn(f: Field) -> tuple[Fitted, Cells] | None:
            if f.shares:
                return None
            fitted, encode = learn_field(f, column_of(train, f))
            return fitted, encode()

        learned = each(learn, schema.fields, rows=train.height)
        encoder = cls.assembled(schema.fields, [None if found is None else found[0] for found in learned], train)
        cells = [
            _cells(f, fitted, train) if found is None else found[1]
            for f, fitted, found in zip(encoder.fields, encoder.fitted, learned, strict=True)
        ]
        return encoder, encoder._table(cells, train.height, y)

    @classmethod
    def assembled(
        cls,
        fields: tuple[Field, ...],
        own: Iterable[Fitted | None],
        train: TableLike,
        scratch: Scratch = IN_MEMORY,
    ) -> "Encoder":
        """The encoder of fields and what each has learned, None if it shares another's, checked on the training rows.

        Errors:
            DataError: too many values, a field that shares rows but has none of their values.
        """
        train = as_table(train)
        encoder = cls(fields, _with_shared(fields, own, "schema"))
        for f, fitted in zip(encoder.fields, encoder.fitted, strict=True):
            if f.cell == "list" and f.shares is not None:
                check_shared_values(f, fitted, column_of(train, f), scratch)
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

    def transform(
        self, frame: TableLike, *, y: np.ndarray | None = None, first_row: int = 0, scratch: Scratch = IN_MEMORY
    ) -> EncodedTable:
        """Encode a table's rows, in order.

        Args:
            frame: a table with the columns of the schema's fields; N rows.
            y: targets [N], or [N, T] for several labels, to store with the rows, as float32.
            first_row: number of its first row in the whole table, if it is a slice, for errors.
            scratch: where the encoded rows lie, and how many are encoded at once.

        Errors:
            DataError: a missing column, text in a numeric column, an infinity.
        """
        frame = as_table(frame)
        if scratch.several(frame.height):
            targets = None if y is None else y.astype(np.float32, copy=False)
            pieces = encoded_pieces(self, frame, scratch, first_row=first_row)
            return join_pieces(self.layout, frame.height, pieces, targets, scratch)
        return self._transform(frame, y, first_row)

    def _transform(
        self, frame: pl.DataFrame, y: np.ndarray | None, first_row: int, room: Room | None = None
    ) -> EncodedTable:
        pairs = zip(self.fields, self.fitted, strict=True)
        cells = each(lambda pair: _cells(pair[0], pair[1], frame, first_row), pairs, rows=frame.height)
        return self._table(cells, frame.height, y, room=room)

    def _table(
        self,
        cells: list[Cells],
        rows: int,
        y: np.ndarray | None,
        part: Layout | None = None,
        *,
        room: Room | None = None,
    ) -> EncodedTable:
        layout = self.layout if part is None else part
        offsets = [at.offset for at in layout.fields]
        single = [(c.ids, offset) for c, offset in zip(cells, offsets, strict=True) if c.lengths is None]
        ids = rows_of([local for local, _ in single], rows, np.int32, add=[offset for _, offset in single], room=room)
        numbers = [c.numbers for c in cells if c.numbers is not None]
        values = rows_of(numbers, rows, np.float32, room=room)
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
        return unseen_shares(self.unseen_counts(table))

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


def encoded_pieces(
    encoder: Encoder, frame: pl.DataFrame, scratch: Scratch, *, first_row: int = 0
) -> Iterator[tuple[slice, EncodedTable]]:
    """The encoded rows of a table, piece by piece, each with the rows that it holds; errors as of `transform`.

    The next piece is encoded while one is used. It takes the memory of the one before, which is not valid any more.
    """
    rooms = cycle((Room(), Room()))

    def encoded(at: slice) -> tuple[slice, EncodedTable]:
        return at, encoder._transform(frame[at], None, first_row + at.start, next(rooms))

    return ahead(map(encoded, scratch.pieces(frame.height)))


def unseen_shares(counts: Mapping[str, tuple[int, int]]) -> dict[str, float]:
    """Shares of unknown values from the counts of `Encoder.unseen_counts`."""
    return {name: unknown / values if values else 0.0 for name, (unknown, values) in counts.items()}


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


def _cells(f: Field, fitted: Fitted, frame: pl.DataFrame, first_row: int = 0) -> Cells:
    column = column_of(frame, f)
    if f.cell == "list" and isinstance(fitted, (Vocabulary, Hashing)):
        return bag_cells(f, fitted, column)
    return single_cells(f, fitted, column, first_row)
