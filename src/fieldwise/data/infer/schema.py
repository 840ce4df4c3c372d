"""Inferring a schema from a table's names and contents, with the reason of every choice."""

import re
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from fieldwise.config import nearest
from fieldwise.data.encode.numbers import is_mark, mark_test, marks_in, number_formats, plain_floats
from fieldwise.data.infer.entities import Entities, find_entities
from fieldwise.data.infer.fields import FieldGuesser
from fieldwise.data.infer.guess import Guess
from fieldwise.data.infer.label import LabelCandidate, guess_label
from fieldwise.data.infer.label_choice import CLOSE, LEAST_ROWS, choose_label, label_by_place
from fieldwise.data.infer.leakage import known_after
from fieldwise.data.infer.profile import (
    ColumnProfile,
    Columns,
    is_plain,
    looks_like_dates,
    profile_columns,
)
from fieldwise.data.infer.time_column import TimeColumn, first_without_fault, time_columns
from fieldwise.data.prepare.labels import read_label
from fieldwise.data.read.row_numbers import renumbering_rows
from fieldwise.data.read.table_sample import MOST_ROWS, Sample, sample_table
from fieldwise.data.read.tables import TableLike, as_table
from fieldwise.data.read.text_types import TextTypes
from fieldwise.data.read.vectors import is_position, vector_length
from fieldwise.display import counted, listed
from fieldwise.errors import SchemaError
from fieldwise.schema import Field, Label, Numeric, Schema
from fieldwise.schema.ids import (
    LABELS,
    SIDES,
    TIMES,
    Who,
    is_label_name,
    name_matches,
    role_of,
    words_of,
)
from fieldwise.schema.number_format import MISSING_MARKS
from fieldwise.storage.scratch import NO_LIMIT

_OTHER_LABEL = (
    "omitted: another label, by its name, and not known before the label; it may be one of more_labels, or a field if "
    "it is known before"
)
_MANY = 50
_PROBE = 1000
_CELLS = 200
_FEW_TIMES = 10
_NAMES = 0.95  # a column with at least this many values per id is a name of it
_CALENDAR = (
    r"(?i)\b(?:mon|tue|wed|thu|fri|sat|sun|jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec|week|woche|semaine|semana|"
    r"kw|q[1-4]|day|month|am|pm)"
)
_PARTS = frozenset(
    ("train", "training", "valid", "validation", "val", "dev", "test", "testing", "eval", "holdout")
)
_NUMBER = re.compile(r"[+-]?\d+(?:\.\d+)?(?:_duplicated_\d+)?")
_NEVER = {
    "true_probability": "the simulated log's true probability, which no model may use",
    "split": "the part of the split, which is unknown for future rows",
}


def _and_others(columns: Sequence[str]) -> str:
    """What to add to a sentence on one column that holds for others too."""
    if not columns:
        return ""
    count = "1 other column" if len(columns) == 1 else f"{len(columns)} other columns"
    return f" (the same holds for {count}: {listed(columns)})"


@dataclass(frozen=True, kw_only=True)
class Inference:
    """An inferred schema, with the reason why each column was used or omitted.

    Args:
        schema: the inferred schema.
        notes: a sentence for every column, in the table's order.
        doubts: by column, what cannot be inferred and the user must check, such as which of two
            values of a label is positive.
        seen: how many rows of how many were looked at, if not all.
        labels: the columns that may be the label, the likeliest first; the first is the schema's.
        marks: by column that holds numbers or times, the marks of missing values in its cells, and
            how many hold each.
        possible_ids: by side, the column that may hold its ids by the rows alone: a doubt, and not
            in the schema.
        sides_not_found: the sides without any column that may hold their ids.
        only_positives: whether no column can be a label, and the rows are events that all happened.
            Then the schema's label is a column that the table lacks, with 1 in every row: a recipe
            with `[negatives]` adds it.
    """

    schema: Schema
    notes: dict[str, str]
    doubts: dict[str, str] = field(default_factory=dict)
    seen: str = ""
    labels: tuple[LabelCandidate, ...] = ()
    marks: dict[str, dict[str, int]] = field(default_factory=dict)
    possible_ids: dict[Who, str] = field(default_factory=dict)
    sides_not_found: tuple[Who, ...] = ()
    only_positives: bool = False

    def grouped_doubts(self) -> dict[str, str]:
        """The doubts, with one sentence for all columns whose doubts differ only in the column's name."""
        groups: dict[str, list[str]] = {}
        for column, doubt in self.doubts.items():
            groups.setdefault(doubt.replace(repr(column), "\0"), []).append(column)
        return {
            columns[0]: self.doubts[columns[0]] + _and_others(columns[1:])
            for columns in groups.values()
        }

    def to_toml(self) -> str:
        """The schema as TOML, with the reason in a comment above each field; omitted columns are listed at the top."""
        plain = self.schema.to_dict()
        fields = plain.pop("fields")
        label = plain.pop("label")
        if not plain["keys"]:
            del plain["keys"]

        # Table by table: otherwise short ones would be written inline, without comments.
        blocks = [self._toml_of_table(plain)]
        for f, table in zip(self.schema.fields, fields, strict=True):
            blocks.append(self._toml_of_column("[[fields]]", f.column, table))
        blocks.append(self._toml_of_column("[label]", self.schema.label.column, label))
        return "\n\n".join(blocks) + "\n"

    def _toml_of_table(self, plain: dict[str, Any]) -> str:
        """What the schema says of the whole table, below the columns that are no fields."""
        import tomli_w  # here, so that `doctor` can report that it is missing

        used = {f.column for f in self.schema.fields} | {self.schema.label.column}
        omitted = [
            f"#   {_plain(name)}: {one_line(note)}"
            for name, note in self.notes.items()
            if name not in used
        ]
        listed = " Columns that are not fields:" if omitted else ""
        lines = [f"# Inferred from {self.seen or 'the table'}: check and correct it.{listed}"]
        lines += omitted
        for name, doubt in self.doubts.items():
            if name not in used:
                lines.append(f"# CHECK: {one_line(doubt)}")

        sides = [side for side in SIDES if side in plain]
        if sides:
            ids = tomli_w.dumps({side: plain.pop(side) for side in sides})
            lines += ["", f"# Columns of {' and '.join(sides)} ids.", *ids.strip().splitlines()]
        for side, column in self.possible_ids.items():
            check = (
                f"# If it holds the {side} ids, with this role in the fields that describe them:"
            )
            lines += ["", check, f"# {tomli_w.dumps({side: column}).strip()}"]
        lines += ["", *tomli_w.dumps(plain).strip().splitlines()]
        return "\n".join(lines).rstrip()

    def _toml_of_column(self, header: str, column: str, table: dict[str, Any]) -> str:
        """The table of a field or the label, with the reason above it."""
        import tomli_w

        lines = [f"# {_plain(column)}: {one_line(self.notes[column])}"]
        if column in self.doubts:
            lines.append(f"# CHECK: {one_line(self.doubts[column])}")
        lines += [header, tomli_w.dumps(table).strip()]
        return "\n".join(lines)


def infer_schema(
    frame: TableLike | Sample,
    *,
    label: str | None = None,
    positive: Sequence[str] = (),
    user: str | None = None,
    item: str | None = None,
) -> Inference:
    """Infer a schema from a table's contents, with its column names as one more piece of evidence.

    Args:
        frame: the table. If it has more than 200,000 rows, a random sample of 200,000 is used, but
            all rows of the label's column. For files larger than about 1 GiB see `sample_table`.
        label: the label's column; inferred from names and values if omitted.
        positive: positive values of the label; if omitted, inferred from the meaning of words such
            as `yes` and `clicked`, else from frequency, which is reported as a doubt.
        user: the column of user ids; inferred if omitted. A column that only its rows tell is
            reported as a doubt, and the schema does not have it.
        item: the column of item ids, likewise.

    Errors:
        SchemaError: no column can be the label and the rows are no log of events either, or the
            label's values are unsuitable, or there is no field.

    >>> frame = pl.DataFrame({"user_id": [1, 1, 2], "price": [9.5, 3.2, 7.0], "day": ["mon", "tue", "tue"]})
    >>> guess = infer_schema(frame.with_columns(click=pl.Series([0, 1, 1])))
    >>> [(f.name, f.kind, f.role) for f in guess.schema.fields]
    [('user_id', 'categorical', 'user'), ('price', 'numeric', 'item'), ('day', 'categorical', 'context')]
    >>> Schema.from_toml(guess.to_toml()) == guess.schema
    True
    """
    if isinstance(frame, (str, Path)):
        path = frame
        frame = sample_table(frame)
        if not frame.frame.height:
            raise SchemaError(
                f"a schema is inferred from rows, but {path} has none; write the schema yourself"
            )
    if isinstance(frame, Sample):
        sample = frame
    else:
        whole = as_table(frame)
        sample = Sample(frame=whole, rows=whole.height)
    if isinstance(positive, str):
        positive = [positive]
    given: dict[Who, str] = {}
    if user is not None:
        given["user"] = user
    if item is not None:
        given["item"] = item
    with renumbering_rows(sample.kept):
        return _infer(sample, label, positive, given)


def _infer(
    sample: Sample, label: str | None, positive: Sequence[str], given: Mapping[Who, str]
) -> Inference:
    whole = _in_64_bits(sample.frame)
    _check_given(whole, given)
    raw = _drawn_rows(whole)
    frame, marks = _marks_as_null(raw)
    columns = profile_columns(frame)
    never = {name: f"omitted: {why}" for name, why in _never(frame).items() if name != label}
    no_ids = {*never, label} if label else {*never}
    times = time_columns(columns, {*no_ids, *given.values()})
    entities = find_entities(columns, no_ids, [*times], given)

    settled = {*never, *times, *entities.settled()}
    raw_columns = columns | {name: ColumnProfile(raw.get_column(name)) for name in marks}
    labels = choose_label(raw_columns, label, positive, settled)
    labels = labels or label_by_place(raw_columns, settled, len(entities.ids) == 2)
    if label is None:
        _check_header(columns)
    if not labels:
        _check_events(frame, entities)
    elif raw is not whole:
        exact = guess_label(whole.get_column(labels[0].label.column), positive)
        labels[0] = replace(exact, doubt=labels[0].doubt or exact.doubt)
    target = labels[0] if labels else _of_events(columns)

    name = target.label.column
    if name in entities.ids.values() or name in times:
        other_times = [column for column in times if column != name]
        entities = find_entities(columns, {*never, name}, other_times, given)
    described = entities.settled()
    other_labels = [c for c in columns if c != name and is_label_name(c) and c not in described]
    notes = {name: f"label: {target.reason}", **never, **dict.fromkeys(other_labels, _OTHER_LABEL)}
    doubts = {name: target.doubt, **entities.doubts}
    y = _targets(raw, target.label) if labels else None
    marks.pop(name, None)
    notes |= known_after(columns, name, y, notes)
    if label is None and target.doubt and not is_label_name(name):
        no_rivals = {*notes, *times, *entities.ids.values()}
        doubts |= _rivals(columns, name, labels, settled, no_rivals)

    times = {
        column: time
        for column, time in times.items()
        if column not in notes and (column not in described or name_matches(column, TIMES))
    }
    time = first_without_fault(times)
    doubts |= _mark_times(columns, times, time, notes)
    guesser = FieldGuesser(columns, entities, y, frame.height / max(1, sample.rows))
    fields, reasons = _fields(guesser, notes, doubts)

    likely_ids = {
        side: column for side, column in entities.ids.items() if column in fields or side in given
    }
    ids = {side: column for side, column in likely_ids.items() if side in entities.sure}
    doubted_ids = entities.ids.keys() - entities.sure
    _leave_out_displays(columns, fields, notes, reasons, entities)
    for side, column in likely_ids.items():
        notes[column] += f"; the {side} id" if side in ids else f"; it may be the {side} id"
    for column, counts in marks.items():
        notes[column] += f"; {_marks_note(counts, fields.get(column))}"
    if time is not None:
        doubt = "" if likely_ids else _no_ids_doubt(columns, fields.values())
        doubts[time] = times[time].doubt or doubts.get(time, doubt)

    drawn = "" if raw is whole else f"{raw.height:,} of {whole.height:,} rows, drawn at random"
    return Inference(
        schema=Schema(
            fields=tuple(fields.values()),
            label=target.label,
            time=time,
            time_format=None if time is None else times[time].format,
            user=ids.get("user"),
            item=ids.get("item"),
        ),
        notes={column: notes[column] for column in (*columns, name) if column in notes},
        doubts={column: doubt for column, doubt in doubts.items() if doubt},
        seen=sample.origin or drawn,
        labels=tuple(labels) or (target,),
        marks={
            column: counts for column, counts in marks.items() if _reads_marks(fields.get(column))
        },
        possible_ids={side: column for side, column in likely_ids.items() if side not in ids},
        sides_not_found=tuple(
            side for side in SIDES if side not in likely_ids and side not in doubted_ids
        ),
        only_positives=not labels,
    )


def _check_given(whole: pl.DataFrame, given: Mapping[Who, str]) -> None:
    """Check that a table has rows, and the columns of ids that are given."""
    if whole.height == 0:
        raise SchemaError(
            "a schema is inferred from rows: the table has none; write the schema yourself"
        )
    for side, column in given.items():
        if column not in whole.columns:
            raise SchemaError(
                f"the {side} ids must be a column: {column!r} is not; {nearest(column, whole.columns)}"
            )
        dtype = whole.schema[column]
        if not is_plain(dtype):
            raise SchemaError(
                f"a cell of {side} ids must hold one id: column {column!r} is of type {dtype}; give another column"
            )


def _in_64_bits(frame: pl.DataFrame) -> pl.DataFrame:
    """A table whose integers beyond Int64, such as ids of 20 digits, are the text of their digits."""
    wide = frame.select(pl.col(pl.UInt64, pl.Int128, pl.UInt128))
    narrow = wide.cast(pl.Int64, strict=False)
    fits = [
        cells.null_count() == wide.get_column(cells.name).null_count()
        for cells in narrow.iter_columns()
    ]
    dtypes = [pl.Int64 if fit else pl.String for fit in fits]
    return frame.cast(dict(zip(wide.columns, dtypes, strict=True)))


def _drawn_rows(whole: pl.DataFrame) -> pl.DataFrame:
    """A table, or rows of a great one, drawn at random, in its order: more rows add no evidence."""
    if whole.height <= MOST_ROWS:
        return whole
    drawn = np.random.default_rng(0).permutation(whole.height)[:MOST_ROWS]
    return whole[np.sort(drawn)]


def _check_events(frame: pl.DataFrame, entities: Entities) -> None:
    """Refuse a table without a label that is no log of users' events with items either."""
    if frame.height >= LEAST_ROWS and len(entities.sure) == 2:
        return
    ask = ""
    if len(entities.ids) == 2:
        named = ", ".join(f"{side} may be {column!r}" for side, column in entities.ids.items())
        ask = f"; or, if every row is an event that happened, give the columns of ids as user and item ({named})"
    raise SchemaError(
        f"no column looks like a label ({', '.join(LABELS)}) among {', '.join(frame.columns)}: give it as label{ask}"
    )


def _rivals(
    columns: Columns,
    label: str,
    labels: Sequence[LabelCandidate],
    settled: Set[str],
    skip: Set[str],
) -> dict[str, str]:
    """A doubt for every column that may be the label instead: about as likely ones, and the last column."""
    rivals = {list(columns)[-1]} - settled
    for candidate in labels[1:3]:
        if candidate.score > labels[0].score - CLOSE:
            rivals.add(candidate.label.column)
    return {
        column: f"column {column!r} may be the label instead of {label!r}: give the right one as label"
        for column in columns
        if column in rivals - skip
    }


def _no_ids_doubt(columns: Columns, fields: Iterable[Field]) -> str:
    """What the user must check of a table with times and without ids, if some field of categories has many values."""
    if not any(columns[f.column].distinct > _MANY for f in fields if f.cell == "category"):
        return ""
    return (
        "the rows have times, as a log has, but no column of user or item ids was found: write user and item in the "
        "schema if there are any"
    )


def _check_header(columns: Columns) -> None:
    """Refuse a table whose columns of numbers all have a number as their name: the file has no header line."""
    names = [name for name, column in columns.items() if column.dtype.is_numeric()]
    if names and all(_NUMBER.fullmatch(name) for name in names):
        raise SchemaError(
            f"the names of columns look like a row ({', '.join(columns)}): give the label if they are names, or, if "
            "the file has no header line, write one or give the names of its columns"
        )


def _leave_out_displays(
    columns: Columns,
    fields: dict[str, Field],
    notes: dict[str, str],
    reasons: Mapping[str, str],
    entities: Entities,
) -> None:
    """Remove fields that only rename an id or an earlier field of many values, and complete the notes."""
    by_grouping: dict[bytes, str] = {}  # of the rows, the first field with many values
    for column, f in list(fields.items()):
        values = columns[column].distinct if f.cell == "category" else 0
        why = _display_of_id(columns, column, values, entities) if values else ""
        if values > _MANY and not why:
            other = by_grouping.setdefault(_grouping(columns[column].cells), column)
            why = "" if other == column else f"it is one to one with {other!r}"
        if why:
            del fields[column]
            notes[column] = f"omitted: {why}"
            continue
        notes[column] = f"{f.kind}: {notes[column]}; role {f.role}: {reasons[column]}"
    if not fields:
        raise SchemaError(
            f"a schema needs at least one field: none of the columns {', '.join(columns)} can be one"
        )


def _display_of_id(columns: Columns, column: str, values: int, entities: Entities) -> str:
    """Why a column only displays another column's id, and so is no field; an empty text if it does not."""
    for side, key in entities.ids.items():
        is_one_to_one = key in entities.determined.get(column, ())
        if key != entities.key_of(column) or not is_one_to_one:
            continue
        keys = columns[key].distinct
        if keys > _MANY and values >= _NAMES * keys:
            return (
                f"a display name of the {side}, nearly one to one ({values:,} values for {keys:,} of {key!r}), "
                "which already has a field"
            )
    return ""


def _grouping(column: pl.Series) -> bytes:
    """A digest of which rows have the same cell: equal for two columns that are one to one.

    >>> words, copy, other = (pl.Series(list(cells)) for cells in ("abac", "xyxz", "xxyz"))
    >>> _grouping(words) == _grouping(copy), _grouping(words) == _grouping(other)
    (True, False)
    """
    rows = column.to_frame("cell").with_row_index("row")
    first_row_of_cell = rows.select(pl.col("row").first().over("cell")).to_series()
    return sha256(first_row_of_cell.to_numpy().tobytes()).digest()


def _marks_as_null(frame: pl.DataFrame) -> tuple[pl.DataFrame, dict[str, dict[str, int]]]:
    """The table with null for marks of missing values among numbers or times, and the marks by column.

    Such a column of text gets the type that it would have without them.
    """
    texts = frame.select(pl.col(pl.String))
    is_blank_or_mark = (pl.all().str.strip_chars() == "") | mark_test(pl.all(), MISSING_MARKS)
    has_marks = texts.select(is_blank_or_mark.any()).row(0) if texts.width else ()
    cleaned: list[pl.Series] = []
    marks: dict[str, dict[str, int]] = {}
    for column, has_some in zip(texts.iter_columns(), has_marks, strict=True):
        if not has_some:
            continue
        is_blank = (column != "") & (column.str.strip_chars() == "")
        is_missing = is_blank | is_mark(column, MISSING_MARKS)
        found = marks_in(column, MISSING_MARKS)
        if is_blank.any():
            found[" "] = int(is_blank.sum())
        cells = column.set(is_missing.fill_null(value=False), None)
        if found and _are_numbers_or_times(cells):
            cleaned.append(cells)
            marks[column.name] = found
    typed = TextTypes().add(pl.DataFrame(cleaned)) if cleaned else pl.DataFrame()
    return frame.with_columns(typed.iter_columns()), marks


def _are_numbers_or_times(column: pl.Series) -> bool:
    """Whether the cells that are not null are numbers, all but a few, or dates."""
    cells = column.drop_nulls().str.strip_chars()
    if not len(cells):
        return False
    numbers = len(cells) - plain_floats(cells).null_count()
    return numbers >= 0.99 * len(cells) or bool(number_formats(cells)) or looks_like_dates(cells)


def _reads_marks(f: Field | None) -> bool:
    """Whether marks of missing values become missing cells: not in a field of categories."""
    return f is None or f.cell == "number"


def _marks_note(marks: Mapping[str, int], f: Field | None) -> str:
    """What is made of the marks of missing values in a column."""
    shown = ", ".join(f"{mark!r} ({counted(many, 'cell')})" for mark, many in marks.items())
    return f"{shown} read as missing" if _reads_marks(f) else f"{shown} a category of its own"


def _targets(frame: pl.DataFrame, label: Label) -> np.ndarray:
    """The label's targets by row, NaN where a row is dropped."""
    rows = read_label(frame.select(label.column).with_row_index("_row"), label, budget=NO_LIMIT)
    targets = np.full(frame.height, np.nan)
    targets[rows.frame.get_column("_row").to_numpy()] = rows.main
    return targets


def _of_events(columns: Columns) -> LabelCandidate:
    """The label of a log of positives: a column that it lacks."""
    name = "event"
    while name in columns:
        name += "_"
    return LabelCandidate(
        label=Label(name),
        rate=1.0,
        reason="no column can be one, so every row is an event that happened (1); negatives are sampled",
        doubt="no column can be the label, so every row was taken for a positive event: the recipe needs [negatives], "
        "which draw items that the user never used; if a column tells the outcome, give it as label",
    )


def _never(frame: pl.DataFrame) -> dict[str, str]:
    """Columns that are no fields, labels or times, with the reason."""
    results = {name: why for name, why in _NEVER.items() if name in frame.columns}
    # `read_libfm`
    if frame.schema == {
        "label": pl.Float64,
        "ids": pl.List(pl.Int64),
        "values": pl.List(pl.Float64),
    }:
        is_other = frame.get_column("values").list.eval(pl.element() != 1).list.any()
        other = is_other.fill_null(False)
        if other.any():
            raise SchemaError(
                f"libFM values other than 1 cannot be read as a bag, whose values have no weights: line "
                f"{int(other.arg_max() or 0) + 1} holds one; convert the file to a table with a column per number"
            )
        results["values"] = "every libFM value is 1, so only the ids matter"
    texts = frame.select(pl.col(pl.String))
    for column in texts.iter_columns():
        if column.name not in results and column.head(_PROBE).n_unique() <= len(_PARTS):
            some = column.drop_nulls().unique(maintain_order=True).head(len(_PARTS))
            words = {str(word).strip().lower() for word in some}
            if len(words) > 1 and words <= _PARTS and words & {"train", "training"}:
                results[column.name] = _NEVER["split"]
    return results


def _fields(
    guesser: FieldGuesser, notes: dict[str, str], doubts: dict[str, str]
) -> tuple[dict[str, Field], dict[str, str]]:
    """Fields from columns without a note and the reasons of their roles, by column; every column gets a note."""
    fields: dict[str, Field] = {}
    reasons: dict[str, str] = {}
    columns = guesser.columns
    for name, column in columns.items():
        if name in notes:
            continue
        vector = is_position(name, columns)
        guess = _guess_field(guesser, column, vector)
        notes[name] = guess.note if guess.field is not None else f"omitted: {guess.note}"
        if guess.doubt:
            doubts[name] = guess.doubt
        if guess.field is None:
            continue

        first_position = f"{vector}[0]"
        if first_position in fields:  # the numbers of a vector have the same role
            role = fields[first_position].role
            reasons[name] = reasons[first_position]
        else:
            role, reasons[name], doubt = guesser.entities.role(column.cells, guess.field)
            if doubt:
                doubts.setdefault(name, doubt)
        is_guessed_role = role == guess.field.role
        fields[name] = guess.field if is_guessed_role else replace(guess.field, role=role)
    return fields, reasons


def _guess_field(guesser: FieldGuesser, column: ColumnProfile, vector: str | None) -> Guess:
    """The field of a column, which may be one number of a vector."""
    name = column.name
    if vector is not None and column.dtype.is_float():
        note = f"one number of the vector {vector!r}, whose scale is learned from the training rows"
        return Guess(Numeric(name, role=role_of(vector).role), note)
    if f"{name}[0]" in guesser.columns and vector_length(column.cells) is not None:
        return Guess(None, "a vector, each number of which is a field below")
    return guesser.guess(column, role_of(name).role)


def _mark_times(
    columns: Columns, times: Mapping[str, TimeColumn], time: str | None, notes: dict[str, str]
) -> dict[str, str]:
    """Note the columns of times, the one that orders rows and others; returns the doubts."""
    doubts = {}
    for name, column in columns.items():
        if name == time:
            notes[name] = times[name].note
        elif name in notes:
            continue
        elif name in times:
            why = times[name].fault or "another time besides the one that orders rows"
            notes[name] = f"omitted: {why}; future times do not occur in training rows"
        elif not {"ts", "timestamp", "datetime"}.isdisjoint(words_of(name)):
            notes[name] = (
                "omitted: another time, by its name; future times do not occur in training rows"
            )
        elif time is None and column.dtype == pl.String and column.distinct_present > _FEW_TIMES:
            some = column.present.unique(maintain_order=True).head(_CELLS)
            named = some.str.contains(_CALENDAR) & some.str.contains(r"\d")  # such as `Week 3, Tue`
            if float(named.mean() or 0) > 0.9:  # type: ignore[arg-type]
                doubts[name] = (
                    f"the cells of column {name!r} look like times that cannot be read, such as "
                    f"{column.present[0]!r}: write a column of dates or numbers as time to order rows"
                )
    return doubts


def _plain(name: str) -> str:
    """A column's name on one line of a comment."""
    return name if name.isprintable() else repr(name)


def one_line(text: str) -> str:
    """Text as one line: TOML's comments hold no control characters."""
    return "".join(letter if letter.isprintable() else " " for letter in text)
