"""The encoder: fitted on training rows only, it converts tables with the schema's columns to ids and numbers.

Letters: N rows, S columns.
"""

import json
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import chain
from typing import Any, Literal

import numpy as np
import polars as pl
import torch

from fieldwise.config import to_plain
from fieldwise.data.encode import fitted_fields
from fieldwise.data.encode.columns import FLOAT32_MAX, as_number, cell_list, cell_text
from fieldwise.data.encode.fitted_fields import (
    MISSING,
    UNKNOWN,
    Bins,
    Counted,
    Entry,
    Fitted,
    Scaling,
    Vocabulary,
)
from fieldwise.data.encode.numbers import marked_numbers, marks_in
from fieldwise.data.read.chunked_table import counting_from
from fieldwise.data.read.tables import TableLike, as_table
from fieldwise.data.table import EncodedTable
from fieldwise.errors import DataError
from fieldwise.layout import Bags, Batch, FieldLayout, Layout
from fieldwise.schema import MISSING_MARKS, Field, Schema, text_columns
from fieldwise.storage import scratch
from fieldwise.storage.machine import each

BLOCK = 65_536  # rows
PROBE_ROWS = 10_000
MAX_ROWS = 2**31 - 1  # row ids are int32
Growths = tuple[tuple[int, ...], ...]
"""For each growth, how many values each field got."""


@dataclass(frozen=True)
class Encoder:
    """An encoder: a schema's fields with their vocabularies, scalers and bins from the training rows.

    Unseen categories are encoded as the field's unknown row, missing ones as its missing row. A
    field that shares another's rows uses the other's vocabulary; its own column is not used for
    fitting.

    >>> from fieldwise import Categorical, Label
    >>> schema = Schema(fields=(Categorical("app"),), label=Label("click"))
    >>> encoder = Encoder.fit(pl.DataFrame({"app": ["a", "b", "a"]}), schema)
    >>> encoder.transform(pl.DataFrame({"app": ["b", "new", None]})).ids.ravel().tolist()
    [3, 1, 0]

    Args:
        fields: the schema's fields.
        fitted: the fitted part of each; one that shares rows has the other's.
        growths: for each `grow`, how many values each field got.
        missing: the schema's marks of missing numbers.
    """

    fields: tuple[Field, ...]
    fitted: tuple[Fitted, ...]
    growths: Growths = ()
    missing: tuple[str, ...] = MISSING_MARKS

    @classmethod
    def fit(
        cls,
        train: TableLike,
        schema: Schema,
        *,
        counted: Callable[[Field], Iterable[Counted]] | None = None,
    ) -> "Encoder":
        """Fit vocabularies, scalers and bins on the training rows.

        Args:
            train: the training rows.
            schema: the table's schema.
            counted: gives the counted chunks of a field's column, in order, if they are counted
                elsewhere.

        Errors:
            DataError: no rows, a missing column, a column without values, text in a numeric column,
                too many values, a field that shares rows but has none of their values.
        """
        fields = schema.fields
        train = as_table(train, text_columns=text_columns(fields))
        if train.height == 0:
            raise DataError("an encoder needs training rows, found none")
        ends = np.linspace(0, train.height, len(fields) + 1).astype(int)
        parts = dict(zip((f.name for f in fields), np.diff(ends).tolist(), strict=True))

        def fit_one(f: Field) -> Fitted | None:
            fitted = None
            if not f.shares:
                own = partial(fitted_fields.count_column, f, missing=schema.missing)
                chunks = counted(f) if counted else own(column_of(train, f))
                fitted = fitted_fields.fit_counted(f, chunks)
            if counted is None:
                scratch.budget().on_rows(parts[f.name])
            return fitted

        encoder = cls._of(fields, each(fit_one, fields, rows=train.height), missing=schema.missing)
        for f, fitted in zip(encoder.fields, encoder.fitted, strict=True):
            if f.cell != "list" or f.shares is None:
                continue
            known = UNKNOWN + 1 if isinstance(fitted, Vocabulary) else MISSING + 1
            column = column_of(train, f)
            # The first rows are nearly always sufficient, and a whole column of histories is long.
            some = chain(
                [column.head(PROBE_ROWS)], (column[at] for at in scratch.chunk_slices(len(column)))
            )
            if not any(
                (fitted_fields.encode_column(f, fitted, rows).ids >= known).any() for rows in some
            ):
                raise DataError(
                    f"a field that shares rows needs values of the shared field: no training row's column {f.column!r} "
                    f"(field {f.name!r}) holds a value of field {f.shares!r}; check the column and its separator "
                    f"{f.separator!r}"
                )
        return encoder

    @classmethod
    def _of(
        cls,
        fields: tuple[Field, ...],
        own: Iterable[Fitted | None],
        growths: Growths = (),
        where: str = "schema",
        *,
        missing: tuple[str, ...],
    ) -> "Encoder":
        """The encoder of each field's own fitted part, None for one that shares another's rows."""
        parts = {f.name: fitted for f, fitted in zip(fields, own, strict=True) if f.shares is None}
        fitted = [parts.get(f.shares or f.name) for f in fields]
        if None in fitted:
            name = fields[fitted.index(None)].name
            raise DataError(
                f"{where} has no fitted values for field {name!r}; save the bundle again"
            )
        encoder = cls(fields, tuple(one for one in fitted if one is not None), growths, missing)
        if (rows := encoder.layout.num_rows) > MAX_ROWS:
            raise DataError(
                f"all fields together may take {MAX_ROWS} embedding rows, found {rows}; lower hash_buckets or raise "
                "min_count"
            )
        return encoder

    def grow(self, rows: TableLike) -> tuple["Encoder", dict[str, int]]:
        """The encoder with the new values of some rows, and how many values each field with a vocabulary got.

        Values and rows that were there keep their ids: new values follow a field's last one, most
        frequent first, and their rows follow the last row of the shared table. A value is new if at
        least `min_count` of these rows have it; others stay unknown, as does everything but true
        and false in a field of these. Hashed fields, scalers and bins do not change. A field that
        shares rows gets what the other field gets.

        Args:
            rows: a table with the columns of the fields that have a vocabulary.

        Errors:
            DataError: a missing column, too many values.

        >>> from fieldwise import Categorical, Label
        >>> schema = Schema(fields=(Categorical("app"), Categorical("day")), label=Label("click"))
        >>> encoder = Encoder.fit(pl.DataFrame({"app": ["a", "b", "a"], "day": ["mo", "mo", "tu"]}), schema)
        >>> grown, added = encoder.grow(pl.DataFrame({"app": ["c", "a"], "day": ["we", "mo"]}))
        >>> added, grown.transform(pl.DataFrame({"app": ["b", "c"], "day": ["tu", "we"]})).ids.tolist()
        ({'app': 1, 'day': 1}, [[3, 7], [8, 9]])
        """
        table = as_table(rows, text_columns=text_columns(self.fields))

        def grown(pair: tuple[Field, Fitted]) -> Fitted | None:
            f, fitted = pair
            if f.shares or not isinstance(fitted, Vocabulary):
                return None if f.shares else fitted
            chunks = fitted_fields.count_column(f, column_of(table, f))
            return replace(
                fitted, values=fitted.values + fitted_fields.new_values(f, fitted, chunks)
            )

        own = each(grown, zip(self.fields, self.fitted, strict=True), rows=table.height)
        more = tuple(
            0 if new is None else new.rows - old.rows
            for old, new in zip(self.fitted, own, strict=True)
        )
        sizes = zip(self.fields, own, more, strict=True)
        added = {f.name: count for f, new, count in sizes if isinstance(new, Vocabulary)}
        if not any(more):
            return self, added
        return Encoder._of(self.fields, own, (*self.growths, more), missing=self.missing), added

    def before_growth(self) -> "Encoder":
        """The encoder before its last `grow`."""
        own = list(self.fitted)
        for i, (fitted, more) in enumerate(zip(self.fitted, self.growths[-1], strict=True)):
            if isinstance(fitted, Vocabulary):
                own[i] = replace(fitted, values=fitted.values[: len(fitted.values) - more])
        return Encoder._of(self.fields, own, self.growths[:-1], missing=self.missing)

    @cached_property
    def layout(self) -> Layout:
        """The layout of the fields in the shared embedding table."""
        pairs = list(zip(self.fields, self.fitted, strict=True))
        former = [sum(counts) for counts in zip(*self.growths, strict=True)] or [0] * len(pairs)
        first = [
            0 if f.shares else s.rows - later for (f, s), later in zip(pairs, former, strict=True)
        ]
        runs: dict[str, list[tuple[int, int]]] = {f.name: [] for f in self.fields}
        rows = dict.fromkeys(runs, 0)
        end = 0
        for counts in (first, *self.growths):
            for name, more in zip(runs, counts, strict=True):
                if more:
                    runs[name].append((rows[name], end))
                    rows[name] = rows[name] + more
                    end = end + more
        fields = []
        for f, fitted in pairs:
            (_, offset), *extents = runs[f.shares or f.name]
            known: dict[str, Any] = {
                "unknown": isinstance(fitted, Vocabulary),
                "extents": tuple(extents),
            }
            if f.cell == "list":
                known |= {
                    "pooling": f.pooling,
                    "ordered": f.max_length is not None,
                    "shares": f.shares,
                }
            kind: Literal["id", "value", "bag"] = "bag" if f.cell == "list" else "id"
            kind = "value" if isinstance(fitted, Scaling) else kind
            fields.append(
                FieldLayout(
                    name=f.name, kind=kind, role=f.role, offset=offset, rows=fitted.rows, **known
                )
            )
        return Layout(tuple(fields))

    def transform(
        self,
        frame: TableLike,
        *,
        part: Layout | None = None,
        y: np.ndarray | None = None,
        first_row: int = 0,
    ) -> EncodedTable:
        """Encode a table's rows, in order.

        Args:
            frame: a table with the columns of the schema's fields, or of those of `part`; N rows.
            part: some of the fields of `layout`, in its order, to encode alone; row ids are those
                of the whole layout.
            y: targets [N], or [N, T] for several labels, to store with the rows, as float32.
            first_row: number of its first row in the whole table, if it is a slice, for errors.

        Errors:
            DataError: a missing column, text in a numeric column, an infinity.
        """
        frame = as_table(frame, text_columns=text_columns(self.fields))
        part = part or self.layout
        places = {f.name: f for f in part.fields}
        chosen = [
            (f, fitted)
            for f, fitted in zip(self.fields, self.fitted, strict=True)
            if f.name in places
        ]
        rows = frame.height
        with counting_from(first_row):
            result = each(lambda pair: self._cells(*pair, frame), chosen, rows=rows)
        cells = [(places[f.name], one) for (f, _), one in zip(chosen, result, strict=True)]
        singles = [(at, c.ids) for at, c in cells if c.lengths is None]
        numbers = [c.numbers for _, c in cells if c.numbers is not None]
        ids = np.empty((rows, len(singles)), np.int32)
        values = np.empty((rows, len(numbers)), np.float32)

        def write(start: int) -> None:  # in row-major order
            some = slice(start, start + BLOCK)
            for k, (at, local) in enumerate(singles):
                at.to_table(local[some], ids[some, k])
            for k, number in enumerate(numbers):
                values[some, k] = number[some]

        each(write, range(0, rows, BLOCK), rows=rows)
        bags = [
            Bags.of(torch.from_numpy(at.to_table(c.ids)), torch.from_numpy(c.lengths))
            for at, c in cells
            if c.lengths is not None
        ]
        several = Bags.of(torch.empty(0, dtype=torch.int32), torch.empty(0, dtype=torch.int64))
        if bags:
            several = Bags.joined(bags)
        if len(bags) > 1:  # row by row, and within a row field by field
            several = several.take(torch.arange(len(bags) * rows).view(len(bags), rows).t())
        targets = None if y is None else np.ascontiguousarray(y, dtype=np.float32)
        return EncodedTable(
            part, ids, values, several.ids.numpy(), several.offsets.numpy(), targets
        )

    def _cells(self, f: Field, fitted: Fitted, frame: pl.DataFrame) -> fitted_fields.Cells:
        return fitted_fields.encode_column(f, fitted, column_of(frame, f), missing=self.missing)

    def unseen_in(self, table: EncodedTable) -> dict[str, float]:
        """For each field with a vocabulary, the share of unknown values in `table`; missing ones are not unknown."""
        counts = self.unseen_counts(table)
        return {
            name: unknown / values if values else 0.0 for name, (unknown, values) in counts.items()
        }

    def unseen_counts(self, table: EncodedTable) -> dict[str, tuple[int, int]]:
        """For each field with a vocabulary, the number of unknown values in `table`, and of all, missing ones too."""
        fields = table.layout.fields
        single, bags = ([f for f in fields if (f.kind == "bag") == bag] for bag in (False, True))
        rows = np.array([f.offset + UNKNOWN for f in single], dtype=np.int32)
        blocks = (table.ids[start : start + BLOCK] for start in range(0, len(table), BLOCK))
        unknown = sum(
            ((block == rows).sum(axis=0) for block in blocks), np.zeros(len(single), dtype=np.int64)
        )
        counts = {f.name: (int(n), len(table)) for f, n in zip(single, unknown, strict=True)}
        for g, f in enumerate(bags):
            ids = table.bag(g).ids
            counts[f.name] = int((ids == f.offset + UNKNOWN).sum()), len(ids)
        vocabularies = (
            f.name
            for f, s in zip(self.fields, self.fitted, strict=True)
            if isinstance(s, Vocabulary)
        )
        return {name: counts[name] for name in vocabularies}

    def unknown_fields(self, table: EncodedTable) -> list[list[str]]:
        """For each row, the fields with a vocabulary that have an unknown value, lists also if only one value is.

        >>> from fieldwise import Categorical, Label
        >>> known = pl.DataFrame({"flag": [0, 1]})
        >>> encoder = Encoder.fit(known, Schema(fields=(Categorical("flag"),), label=Label("y")))
        >>> encoder.unknown_fields(encoder.transform(pl.DataFrame({"flag": ["1", "true"]})))
        [[], ['flag']]
        """
        layout = table.layout.fields
        single = [f for f in layout if f.kind != "bag"]
        unknown: dict[str, np.ndarray] = {}
        for place, f in enumerate(single):
            unknown[f.name] = table.ids[:, place] == f.offset + UNKNOWN
        for place, f in enumerate(f for f in layout if f.kind == "bag"):
            bags = table.bag(place)
            is_unknown = np.zeros(len(table), dtype=bool)
            is_unknown[bags.segments.numpy()[(bags.ids == f.offset + UNKNOWN).numpy()]] = True
            unknown[f.name] = is_unknown
        results: list[list[str]] = [[] for _ in range(len(table))]
        for field, fitted in zip(self.fields, self.fitted, strict=True):
            if isinstance(fitted, Vocabulary):
                for row in np.flatnonzero(unknown[field.name]):
                    results[row].append(field.name)
        return results

    def to_json(self) -> str:
        """The encoder as JSON text for `from_json`; shared vocabularies are stored once."""
        entries = []
        for f, fitted in zip(self.fields, self.fitted, strict=True):
            # Millions of values bypass the general code, which processes each separately.
            short = replace(fitted, values=()) if isinstance(fitted, Vocabulary) else fitted
            plain: dict[str, Any] = to_plain(Entry(field=f, fitted=None if f.shares else short))
            if isinstance(fitted, Vocabulary) and not f.shares:
                plain["fitted"]["values"] = fitted.values
            entries.append(plain)
        grown = {"growths": self.growths} if self.growths else {}
        return json.dumps({"fields": entries, **grown, "missing": self.missing}, ensure_ascii=False)

    @classmethod
    def from_json(cls, text: str, where: str = "encoder") -> "Encoder":
        """The inverse of `to_json`.

        Errors:
            DataError: not an encoder's JSON.
        """
        try:
            data = json.loads(text)
            entries = [
                fitted_fields.read_entry(e, f"{where}.fields[{i}]")
                for i, e in enumerate(data["fields"])
            ]
            growths = tuple(map(tuple, data.get("growths", ())))
            missing = tuple(map(str, data.get("missing", MISSING_MARKS)))
            most = [
                len(e.fitted.values) if isinstance(e.fitted, Vocabulary) else 0 for e in entries
            ]
            whole = all(type(n) is int and n >= 0 for counts in growths for n in counts)
            counts = map(sum, zip(*growths, [0] * len(most), strict=True))
            if not whole or any(n > own for n, own in zip(counts, most, strict=True)):
                raise ValueError("its growths do not fit its fields")
        except (json.JSONDecodeError, KeyError, TypeError, ValueError, RecursionError) as e:
            raise DataError(f"{where} is not an encoder: {e}; save the bundle again") from None
        return cls._of(
            tuple(e.field for e in entries),
            (e.fitted for e in entries),
            growths,
            where,
            missing=missing,
        )


def encode_row(encoder: Encoder, part: Layout, values: Mapping[str, Any]) -> Batch | None:
    """A row with these values by column as a batch of one, or None if a table is needed.

    `part` has all or some fields of the layout, in its order; `values` has each field's column,
    None is missing.

    >>> from fieldwise import Categorical, Label, Schema
    >>> schema = Schema(fields=(Categorical("app"),), label=Label("click"))
    >>> encoder = Encoder.fit(pl.DataFrame({"app": ["a", "b"]}), schema)
    >>> encode_row(encoder, encoder.layout, {"app": "b"}).ids
    tensor([[3]], dtype=torch.int32)
    """
    own = {f.name: f for f in part.fields}
    marked = marked_numbers(encoder.missing)
    ids: list[int] = []
    numbers: list[float] = []
    bags: list[np.ndarray] = []
    lengths: list[int] = []
    weights: list[float] = []
    for field, fitted in zip(encoder.fields, encoder.fitted, strict=True):
        if (at := own.get(field.name)) is None:
            continue
        value = values[field.column]
        if isinstance(fitted, (Scaling, Bins)):
            is_number = value is None or (type(value) in (int, float) and abs(value) <= FLOAT32_MAX)
            if not is_number or value in marked:
                return None
            cells = fitted_fields.number_cells(
                field, fitted, np.array([np.nan if value is None else float(value)])
            )
            ids.append(at.row(int(cells.ids[0])))
            numbers += [] if cells.numbers is None else [float(cells.numbers[0])]
            continue
        try:
            if field.cell == "list":
                texts: Sequence[str | None] = cell_list(
                    value, field.separator, newest=field.max_length
                )
            else:
                texts = [cell_text(value)]
        except TypeError:
            return None
        local = fitted.ids_of(texts or [None])  # an empty list is missing
        if field.cell == "list":
            bags.append(at.to_table(local))
            lengths.append(len(local))
            weights.append(1 / len(local) if at.pooling == "mean" else 1.0)
        else:
            ids.append(at.row(int(local[0])))
    return Batch(
        torch.tensor([ids], dtype=torch.int32),
        torch.tensor([numbers], dtype=torch.float32),
        torch.from_numpy(np.concatenate(bags)) if bags else torch.empty(0, dtype=torch.int32),
        torch.from_numpy(np.repeat(np.arange(len(lengths)), lengths)),
        torch.from_numpy(np.repeat(np.array(weights, np.float32), lengths)),
    )


def check_table(frame: pl.DataFrame, schema: Schema, *, made_later: Collection[str] = ()) -> None:
    """Check that a table has every column of the schema's fields, with numbers in numeric ones.

    Columns of `made_later` are ignored.
    """
    for f in schema.fields:
        if f.column in made_later:
            continue
        column = column_of(frame, f)
        if f.cell == "number" and not column.dtype.is_integer():
            what = f"column {f.column!r} (field {f.name!r})"
            for at in scratch.chunk_slices(len(column)):
                with counting_from(at.start):
                    as_number(column[at], what, form=f.number_format, missing=schema.missing)


def missing_marks(frame: pl.DataFrame, schema: Schema) -> dict[str, dict[str, int]]:
    """By column that is read as numbers, the marks of missing values in its cells, and how many cells hold each."""
    results = {}
    columns = dict.fromkeys(
        f.column for f in schema.fields if f.cell == "number" and f.column in frame.columns
    )
    for name in columns:
        counts: Counter[str] = Counter()
        for at in scratch.chunk_slices(frame.height):
            counts.update(marks_in(frame.get_column(name)[at], schema.missing))
        if counts:
            results[name] = dict(counts.most_common())
    return results


def column_of(frame: pl.DataFrame, f: Field) -> pl.Series:
    """A field's column."""
    if f.column not in frame.columns:
        raise DataError(
            f"the table must hold every column of the schema: {f.column!r} (field {f.name!r}) is missing among "
            f"{', '.join(frame.columns)}"
        )
    return frame.get_column(f.column)
