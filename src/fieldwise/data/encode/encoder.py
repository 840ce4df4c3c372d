"""The encoder: fitted on training rows only, it converts tables with the schema's columns to ids and numbers.

Letters: N rows, S columns.
"""

import json
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import torch

from fieldwise.config import nearest
from fieldwise.data.encode.columns import field_numbers
from fieldwise.data.encode.kinds import (
    Cells,
    Counted,
    Fitted,
    count_column,
    fit_counted,
    kind_of,
)
from fieldwise.data.encode.numbers import marks_in
from fieldwise.data.encode.portable import MISSING, UNKNOWN, CellEncoder, encode_rows, marks_of
from fieldwise.data.encode.serialise import read_entry, write_entry
from fieldwise.data.encode.vector_files import read_vector_file
from fieldwise.data.encode.vector_table import VectorTable
from fieldwise.data.encode.vocabulary import Vocabulary
from fieldwise.data.read.row_numbers import counting_from
from fieldwise.data.read.tables import TableLike, as_table
from fieldwise.data.table import EncodedTable
from fieldwise.errors import DataError
from fieldwise.layout import Bags, Batch, FieldLayout, Layout
from fieldwise.schema import Field, Schema
from fieldwise.schema.fields import text_columns
from fieldwise.schema.number_format import MISSING_MARKS
from fieldwise.storage.machine import each
from fieldwise.storage.scratch import NO_LIMIT, MemoryBudget

ROWS_PER_BLOCK = 65_536
PROBE_ROWS = 10_000
MAX_ROWS = 2**31 - 1
"""Row ids are int32."""
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
        budget: MemoryBudget = NO_LIMIT,
    ) -> "Encoder":
        """Fit vocabularies, scalers and bins on the training rows.

        Args:
            train: the training rows.
            schema: the table's schema.
            counted: gives the counted chunks of a field's column, in order, if they are counted
                elsewhere.
            budget: how many rows are processed at once, and where arrays of numbers lie.

        Errors:
            DataError: no rows, a missing column, a column without values, text in a numeric column,
                too many values, a field that shares rows but has none of their values.
        """
        fields = schema.fields
        train = as_table(train, text_columns=text_columns(fields))
        if train.height == 0:
            raise DataError("an encoder needs training rows, found none")
        ends = np.linspace(0, train.height, len(fields) + 1).astype(int)
        rows_to_report = dict(zip((f.name for f in fields), np.diff(ends).tolist(), strict=True))

        def fit_field(f: Field) -> Fitted | None:
            fitted = None
            if not f.shares:
                if counted is not None:
                    chunks = counted(f)
                else:
                    column = column_of(train, f)
                    chunks = count_column(f, column, missing=schema.missing, budget=budget)
                fitted = fit_counted(f, chunks, budget=budget)
            if counted is None:
                budget.on_rows(rows_to_report[f.name])
            return fitted

        fitted = each(fit_field, fields, rows=train.height)
        encoder = cls._assemble(fields, fitted, missing=schema.missing)
        encoder._check_shared_values(train, budget=budget)
        return encoder

    @classmethod
    def _assemble(
        cls,
        fields: tuple[Field, ...],
        fitted: Iterable[Fitted | None],
        growths: Growths = (),
        where: str = "schema",
        *,
        missing: tuple[str, ...],
    ) -> "Encoder":
        """The encoder of each field's fitted part, None for one that shares another's rows."""
        part_of_field = {
            f.name: part for f, part in zip(fields, fitted, strict=True) if not f.shares
        }
        parts = []
        for f in fields:
            part = part_of_field.get(f.shares or f.name)
            if part is None:
                raise DataError(
                    f"{where} has no fitted values for field {f.name!r}; save the bundle again"
                )
            parts.append(part)

        encoder = cls(fields, tuple(parts), growths, missing)
        rows = encoder.layout.num_rows
        if rows > MAX_ROWS:
            raise DataError(
                f"all fields together may take {MAX_ROWS} embedding rows, found {rows}; lower hash_buckets or raise "
                "min_count"
            )
        return encoder

    def _check_shared_values(self, train: pl.DataFrame, *, budget: MemoryBudget) -> None:
        """Check that each list that shares another field's rows holds one of its values in some training row."""
        for f, fitted in self.fitted_fields:
            if f.cell != "list" or f.shares is None:
                continue
            first_known_id = UNKNOWN + 1 if isinstance(fitted, Vocabulary) else MISSING + 1
            column = column_of(train, f)
            chunks = (column[rows] for rows in budget.chunk_slices(len(column)))
            # The first rows are nearly always sufficient, and a whole column of histories is long.
            for cells in chain([column.head(PROBE_ROWS)], chunks):
                ids = kind_of(f).column(f, fitted, cells, self.missing).ids
                if (ids >= first_known_id).any():
                    break
            else:
                raise DataError(
                    f"a field that shares rows needs values of the shared field: no training row's column {f.column!r} "
                    f"(field {f.name!r}) holds a value of field {f.shares!r}; check the column and its separator "
                    f"{f.separator!r}"
                )

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

        def grow_field(pair: tuple[Field, Fitted]) -> Fitted | None:
            f, fitted = pair
            if f.shares:
                return None
            if not isinstance(fitted, Vocabulary):
                return fitted
            counted = count_column(f, column_of(table, f), budget=NO_LIMIT)
            return kind_of(f).grow(f, fitted, (chunk.values for chunk in counted))

        grown = each(grow_field, self.fitted_fields, rows=table.height)
        new_rows = []
        added = {}
        for f, before, after in zip(self.fields, self.fitted, grown, strict=True):
            count = 0 if after is None else after.rows - before.rows
            new_rows.append(count)
            if isinstance(after, Vocabulary):
                added[f.name] = count

        if not any(new_rows):
            return self, added
        growths = (*self.growths, tuple(new_rows))
        return Encoder._assemble(self.fields, grown, growths, missing=self.missing), added

    def before_growth(self) -> "Encoder":
        """The encoder before its last `grow`."""
        parts: list[Fitted] = []
        for fitted, new_rows in zip(self.fitted, self.growths[-1], strict=True):
            if isinstance(fitted, Vocabulary):
                known = len(fitted.values) - new_rows
                fitted = replace(fitted, values=fitted.values[:known])
            parts.append(fitted)
        return Encoder._assemble(self.fields, parts, self.growths[:-1], missing=self.missing)

    @property
    def fitted_fields(self) -> list[tuple[Field, Fitted]]:
        """Each field with what was fitted of it."""
        return list(zip(self.fields, self.fitted, strict=True))

    @cached_property
    def layout(self) -> Layout:
        """The layout of the fields in the shared embedding table."""
        runs = self._runs_of_rows()
        layouts = []
        for f, fitted in self.fitted_fields:
            (_, offset), *extents = runs[f.shares or f.name]
            layout = FieldLayout(
                name=f.name,
                kind="id",
                role=f.role,
                offset=offset,
                rows=fitted.rows,
                unknown=isinstance(fitted, Vocabulary),
                extents=tuple(extents),
            )
            layouts.append(kind_of(f).layout(f, fitted, layout))
        return Layout(tuple(layouts))

    def _runs_of_rows(self) -> dict[str, list[tuple[int, int]]]:
        """By field, its runs of rows: the first row of each, within the field and in the shared table.

        A field has a run for its rows when it was fitted, and one for each growth that gave it
        rows. One that shares another's has none.
        """
        first_rows = []
        for index, (f, fitted) in enumerate(self.fitted_fields):
            grown_rows = sum(counts[index] for counts in self.growths)
            first_rows.append(0 if f.shares else fitted.rows - grown_rows)

        runs: dict[str, list[tuple[int, int]]] = {f.name: [] for f in self.fields}
        rows_of_field = dict.fromkeys(runs, 0)
        end = 0
        for counts in (first_rows, *self.growths):
            for name, count in zip(runs, counts, strict=True):
                if count:
                    runs[name].append((rows_of_field[name], end))
                    rows_of_field[name] += count
                    end += count
        return runs

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
        layouts = {f.name: f for f in part.fields}
        fields = [(f, fitted) for f, fitted in self.fitted_fields if f.name in layouts]
        rows = frame.height

        def encode_field(pair: tuple[Field, Fitted]) -> Cells:
            f, fitted = pair
            column = column_of(frame, f)
            return kind_of(f).column(f, fitted, column, self.missing)

        with counting_from(first_row):
            encoded = each(encode_field, fields, rows=rows)

        single_ids = []
        numbers = []
        bags = []
        vectors = []
        for (f, _), cells in zip(fields, encoded, strict=True):
            layout = layouts[f.name]
            if cells.lengths is None:
                single_ids.append((layout, cells.ids))
            else:
                ids_in_table = torch.from_numpy(layout.to_table(cells.ids))
                bags.append(Bags.of(ids_in_table, torch.from_numpy(cells.lengths)))
            if cells.numbers is not None:
                numbers.append(cells.numbers)
            if cells.vectors is not None:
                vectors.append(cells.vectors)

        ids, values = _row_major(single_ids, numbers, rows)
        all_bags = _bags_row_by_row(bags, rows)
        targets = None if y is None else np.ascontiguousarray(y, dtype=np.float32)
        return EncodedTable(
            part,
            ids,
            values,
            all_bags.ids.numpy(),
            all_bags.offsets.numpy(),
            targets,
            vectors=tuple(vectors),
        )

    def unseen_in(self, table: EncodedTable) -> dict[str, float]:
        """For each field with a vocabulary, the share of unknown values in `table`; missing ones are not unknown."""
        shares = {}
        for name, (unknown, values) in self.unseen_counts(table).items():
            shares[name] = unknown / values if values else 0.0
        return shares

    def unseen_counts(self, table: EncodedTable) -> dict[str, tuple[int, int]]:
        """For each field with a vocabulary, the number of unknown values in `table`, and of all, missing ones too."""
        single = table.layout.single_fields
        bags = table.layout.bag_fields
        unknown_ids = np.array([f.offset + UNKNOWN for f in single], dtype=np.int32)
        unknown = np.zeros(len(single), dtype=np.int64)
        for start in range(0, len(table), ROWS_PER_BLOCK):
            block = table.ids[start : start + ROWS_PER_BLOCK]
            unknown += (block == unknown_ids).sum(axis=0)

        counts = {}
        for f, count in zip(single, unknown.tolist(), strict=True):
            counts[f.name] = (count, len(table))
        for index, f in enumerate(bags):
            ids = table.bag(index).ids
            counts[f.name] = (int((ids == f.offset + UNKNOWN).sum()), len(ids))
        return {f.name: counts[f.name] for f in self.layout.fields if f.unknown}

    def unknown_fields(self, table: EncodedTable) -> list[list[str]]:
        """For each row, the fields with a vocabulary that have an unknown value, lists also if only one value is.

        >>> from fieldwise import Categorical, Label
        >>> known = pl.DataFrame({"flag": [0, 1]})
        >>> encoder = Encoder.fit(known, Schema(fields=(Categorical("flag"),), label=Label("y")))
        >>> encoder.unknown_fields(encoder.transform(pl.DataFrame({"flag": ["1", "true"]})))
        [[], ['flag']]
        """
        is_unknown: dict[str, np.ndarray] = {}
        for index, f in enumerate(table.layout.single_fields):
            is_unknown[f.name] = table.ids[:, index] == f.offset + UNKNOWN
        for index, f in enumerate(table.layout.bag_fields):
            bags = table.bag(index)
            is_unknown_id = (bags.ids == f.offset + UNKNOWN).numpy()
            is_unknown[f.name] = np.zeros(len(table), dtype=bool)
            is_unknown[f.name][bags.segments.numpy()[is_unknown_id]] = True

        names_of_row: list[list[str]] = [[] for _ in range(len(table))]
        for f in self.layout.fields:
            if f.unknown:
                for row in np.flatnonzero(is_unknown[f.name]):
                    names_of_row[row].append(f.name)
        return names_of_row

    @property
    def matrices(self) -> dict[str, np.ndarray]:
        """The matrices of vectors by id, by field; they are no part of the JSON (`with_matrices`)."""
        return {
            f.name: fitted.matrix
            for f, fitted in self.fitted_fields
            if isinstance(fitted, VectorTable)
        }

    @property
    def vector_digests(self) -> dict[str, str]:
        """By field with vectors by id, the digest of its ids and numbers."""
        return {
            f.name: fitted.whole_digest
            for f, fitted in self.fitted_fields
            if isinstance(fitted, VectorTable)
        }

    def with_matrices(self, matrices: Mapping[str, np.ndarray]) -> "Encoder":
        """The encoder with the matrices of its vectors by id."""
        if not self.matrices:
            return self
        fitted = [
            replace(part, matrix=matrices[f.name]) if isinstance(part, VectorTable) else part
            for f, part in self.fitted_fields
        ]
        return replace(self, fitted=tuple(fitted))

    def with_vectors(self, field: str, path: Path) -> "Encoder":
        """The encoder with the vectors of another file for a field that has vectors by id.

        Errors:
            DataError: no such field, vectors of another length, or as of `read_vector_file`.
        """
        parts = {f.name: fitted for f, fitted in self.fitted_fields}
        part = parts.get(field)
        if not isinstance(part, VectorTable):
            known = [name for name, other in parts.items() if isinstance(other, VectorTable)]
            raise DataError(
                f"a field needs vectors by id, found {field!r}: {nearest(field, known)}"
            )
        file = read_vector_file(path)
        if file.matrix.shape[1] != part.width:
            raise DataError(
                f"vectors must have the length of those in training: field {field!r} has {part.width} numbers, and "
                f"{path} {file.matrix.shape[1]}; make them with the same model"
            )
        parts[field] = part.with_vectors(file)
        return replace(self, fitted=tuple(parts.values()))

    def to_json(self) -> str:
        """The encoder as JSON text for `from_json`; shared vocabularies are stored once."""
        fields = [write_entry(f, fitted) for f, fitted in self.fitted_fields]
        content: dict[str, Any] = {"fields": fields}
        if self.growths:
            content["growths"] = self.growths
        content["missing"] = self.missing
        return json.dumps(content, ensure_ascii=False)

    @classmethod
    def from_json(cls, text: str, where: str = "encoder") -> "Encoder":
        """The inverse of `to_json`.

        Errors:
            DataError: not an encoder's JSON.
        """
        try:
            data = json.loads(text)
            entries = [
                read_entry(entry, f"{where}.fields[{index}]")
                for index, entry in enumerate(data["fields"])
            ]
            fields = tuple(f for f, _ in entries)
            fitted = [part for _, part in entries]
            growths = tuple(map(tuple, data.get("growths", ())))
            missing = tuple(map(str, data.get("missing", MISSING_MARKS)))
            _check_growths(growths, fitted)
        except (json.JSONDecodeError, KeyError, TypeError, ValueError, RecursionError) as e:
            raise DataError(f"{where} is not an encoder: {e}; save the bundle again") from None
        return cls._assemble(fields, fitted, growths, where, missing=missing)


def _row_major(
    single_ids: Sequence[tuple[FieldLayout, np.ndarray]], numbers: Sequence[np.ndarray], rows: int
) -> tuple[np.ndarray, np.ndarray]:
    """Columns of ids within their fields as ids in the shared table [N, S], and the fields' numbers as [N, V]."""
    ids = np.empty((rows, len(single_ids)), np.int32)
    ends = np.cumsum([columns.shape[1] for columns in numbers], dtype=int)
    values = np.empty((rows, ends[-1] if numbers else 0), np.float32)

    def write_block(start: int) -> None:
        block = slice(start, start + ROWS_PER_BLOCK)
        for index, (layout, local_ids) in enumerate(single_ids):
            layout.to_table(local_ids[block], ids[block, index])
        for end, columns in zip(ends, numbers, strict=True):
            values[block, end - columns.shape[1] : end] = columns[block]

    each(write_block, range(0, rows, ROWS_PER_BLOCK), rows=rows)
    return ids, values


def _bags_row_by_row(bags: Sequence[Bags], rows: int) -> Bags:
    """The bags of several fields in one, row by row, and within a row field by field."""
    if not bags:
        return Bags.of(torch.empty(0, dtype=torch.int32), torch.empty(0, dtype=torch.int64))
    field_by_field = Bags.joined(bags)
    if len(bags) == 1:
        return field_by_field
    return field_by_field.take(torch.arange(len(bags) * rows).view(len(bags), rows).t())


def _check_growths(growths: Growths, fitted: Sequence[Fitted | None]) -> None:
    """Check that each growth has a count for each field, and that a field has as many values as they add."""
    if not all(type(count) is int and count >= 0 for counts in growths for count in counts):
        raise ValueError("its growths do not fit its fields")
    counts_by_field = zip(*growths, [0] * len(fitted), strict=True)
    for counts, part in zip(counts_by_field, fitted, strict=True):
        values = len(part.values) if isinstance(part, Vocabulary) else 0
        if sum(counts) > values:
            raise ValueError("its growths do not fit its fields")


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
    layouts = {f.name: f for f in part.fields}
    marks = marks_of(encoder.missing)
    cell_encoders = []
    for field, fitted in encoder.fitted_fields:
        layout = layouts.get(field.name)
        if layout is None:
            continue
        kind = kind_of(field)
        value = values[field.column]
        if not kind.encodes_cell(value):
            return None
        runs = ((0, layout.offset), *layout.extents)
        is_bag = layout.kind == "bag"
        cell_encoders.append(CellEncoder(field, fitted, marks, kind.cell, is_bag, runs))
    try:
        arrays = encode_rows([values], cell_encoders)
    except ValueError:  # which a table explains
        return None
    return Batch(**{name: torch.from_numpy(array) for name, array in arrays.items()})


def check_table(
    frame: pl.DataFrame, schema: Schema, *, made_later: Collection[str] = (), budget: MemoryBudget
) -> None:
    """Check that a table has every column of the schema's fields, with numbers in numeric ones.

    Columns of `made_later` are ignored.
    """
    for f in schema.fields:
        if f.column in made_later:
            continue
        column = column_of(frame, f)
        if f.cell == "number" and not column.dtype.is_integer():
            for chunk in budget.chunk_slices(len(column)):
                with counting_from(chunk.start):
                    field_numbers(f, column[chunk], schema.missing)


def missing_marks(
    frame: pl.DataFrame, schema: Schema, *, budget: MemoryBudget
) -> dict[str, dict[str, int]]:
    """By column that is read as numbers, the marks of missing values in its cells, and how many cells hold each."""
    number_columns = dict.fromkeys(
        f.column for f in schema.fields if f.cell == "number" and f.column in frame.columns
    )
    marks = {}
    for name in number_columns:
        counts: Counter[str] = Counter()
        for chunk in budget.chunk_slices(frame.height):
            counts.update(marks_in(frame.get_column(name)[chunk], schema.missing))
        if counts:
            marks[name] = dict(counts.most_common())
    return marks


def column_of(frame: pl.DataFrame, f: Field) -> pl.Series:
    """A field's column."""
    if f.column not in frame.columns:
        raise DataError(
            f"the table must hold every column of the schema: {f.column!r} (field {f.name!r}) is missing among "
            f"{', '.join(frame.columns)}"
        )
    return frame.get_column(f.column)
