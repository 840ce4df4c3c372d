"""Inferring a schema from a table's names and contents, with the reason of every choice."""

import re
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import polars as pl

from fieldwise.config import nearest
from fieldwise.data.infer.displays import MANY_VALUES, displays
from fieldwise.data.infer.entities import Entities, find_entities
from fieldwise.data.infer.fields import FieldGuesser
from fieldwise.data.infer.findings import THIS_COLUMN, Findings, Note
from fieldwise.data.infer.inference import Inference
from fieldwise.data.infer.label import LabelCandidate, guess_label
from fieldwise.data.infer.label_choice import (
    LEAST_ROWS,
    choose_label,
    label_by_place,
    label_of_events,
    rival_doubts,
)
from fieldwise.data.infer.leakage import known_after
from fieldwise.data.infer.missing_marks import marks_as_null, marks_note, reads_marks
from fieldwise.data.infer.partial_residuals import PartialResiduals
from fieldwise.data.infer.profile import ColumnProfile, Columns, is_scalar, profile_columns
from fieldwise.data.infer.time_column import TimeColumn, first_without_fault, time_columns
from fieldwise.data.prepare.labels import read_label
from fieldwise.data.read.row_numbers import renumbering_rows
from fieldwise.data.read.table_sample import MOST_ROWS, Sample, sample_table
from fieldwise.data.read.tables import TableLike, as_table
from fieldwise.errors import SchemaError
from fieldwise.schema import Field, Label, Schema
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
from fieldwise.storage.scratch import NO_LIMIT

_OTHER_LABEL = (
    "another label, by its name, and not known before the label; it may be one of more_labels, or a field if "
    "it is known before"
)
_PROBE = 1000
_CELLS = 200
_FEW_TIMES = 10
_CALENDAR = (
    r"(?i)\b(?:mon|tue|wed|thu|fri|sat|sun|jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec|week|woche|semaine|semana|"
    r"kw|q[1-4]|day|month|am|pm)"
)
_NO_FUTURE_TIMES = "future times do not occur in training rows"
_PARTS = frozenset(
    ("train", "training", "valid", "validation", "val", "dev", "test", "testing", "eval", "holdout")
)
_NUMBER = re.compile(r"[+-]?\d+(?:\.\d+)?(?:_duplicated_\d+)?")
_NEVER = {
    "true_probability": "the simulated log's true probability, which no model may use",
    "split": "the part of the split, which is unknown for future rows",
}


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
    with renumbering_rows(sample.row_numbers):
        return _infer(sample, label, positive, given)


@dataclass(frozen=True, kw_only=True)
class _Rows:
    """The rows of a table that a schema is inferred from.

    Args:
        whole: all rows, with their integers in 64 bits.
        raw: all of them, or those drawn at random from a great table.
        marks: by column of numbers or times, the marks of missing values and how many cells hold each.
        columns: of `raw`, with null for these marks.
    """

    whole: pl.DataFrame
    raw: pl.DataFrame
    marks: dict[str, dict[str, int]]
    columns: Columns

    @property
    def are_drawn(self) -> bool:
        """Whether they are a part of the table."""
        return self.raw is not self.whole


@dataclass(frozen=True, kw_only=True)
class _Roles:
    """The columns of a table by what is no field: never used ones, the label, ids and times.

    Args:
        never: the columns that are never used, each with the reason.
        labels: the columns that may be the label, the likeliest first; none in a log of positives.
        label: the first of these, or the label of a log of positives.
        settled: columns that are no label by these roles.
        entities: the ids, and the columns that they determine.
        times: the columns that look like times.
    """

    never: Mapping[str, str]
    labels: Sequence[LabelCandidate]
    label: LabelCandidate
    settled: Set[str]
    entities: Entities
    times: Mapping[str, TimeColumn]

    @property
    def label_column(self) -> str:
        """The label's column."""
        return self.label.label.column


def _infer(
    sample: Sample, label: str | None, positive: Sequence[str], given: Mapping[Who, str]
) -> Inference:
    rows = _rows(sample, given)
    roles = _find_roles(rows, label, positive, given)
    targets = _targets(rows.raw, roles.label.label) if roles.labels else None
    findings = Findings()
    _find_unused(findings, rows.columns, roles, targets, is_label_given=label is not None)
    time = _find_times(findings, rows.columns, roles)
    sampled = rows.raw.height / max(1, sample.rows)
    residuals = None
    if targets is not None:
        may_be_fields = {
            name: column for name, column in rows.columns.items() if name not in findings.notes
        }
        residuals = PartialResiduals(may_be_fields, targets)
    guesser = FieldGuesser(rows.columns, roles.entities, residuals, sampled)
    _find_fields(findings, guesser)
    return _inference(findings, rows, roles, time, given, sample.origin)


def _rows(sample: Sample, given: Mapping[Who, str]) -> _Rows:
    """The rows of a table to look at, which has the columns of ids that are given."""
    whole = _in_64_bits(sample.frame)
    _check_given(whole, given)
    raw = _drawn_rows(whole)
    frame, marks = marks_as_null(raw)
    return _Rows(whole=whole, raw=raw, marks=marks, columns=profile_columns(frame))


def _find_roles(
    rows: _Rows, label: str | None, positive: Sequence[str], given: Mapping[Who, str]
) -> _Roles:
    """The label, the ids and the times of a table."""
    columns = rows.columns
    never = {name: why for name, why in _never(rows.raw).items() if name != label}
    no_ids = {*never, label} if label else {*never}
    times = time_columns(columns, {*no_ids, *given.values()})
    entities = find_entities(columns, no_ids, [*times], given)

    settled = {*never, *times, *entities.settled()}
    labels = _find_labels(rows, label, positive, settled, entities)
    target = labels[0] if labels else label_of_events(columns)
    name = target.label.column
    if name in entities.ids.values() or name in times:
        other_times = [column for column in times if column != name]
        entities = find_entities(columns, {*never, name}, other_times, given)
    return _Roles(
        never=never, labels=labels, label=target, settled=settled, entities=entities, times=times
    )


def _find_labels(
    rows: _Rows,
    label: str | None,
    positive: Sequence[str],
    settled: Set[str],
    entities: Entities,
) -> list[LabelCandidate]:
    """The columns that may be the label, the likeliest first; none in a log of users' events with items."""
    raw_columns = {name: ColumnProfile(rows.raw.get_column(name)) for name in rows.marks}
    columns = {**rows.columns, **raw_columns}
    labels = choose_label(columns, label, positive, settled)
    labels = labels or label_by_place(columns, settled, len(entities.ids) == 2)
    if label is None:
        _check_header(rows.columns)
    if not labels:
        _check_events(rows.raw, entities)
    elif rows.are_drawn:
        exact = guess_label(rows.whole.get_column(labels[0].label.column), positive)
        labels[0] = replace(exact, doubt=labels[0].doubt or exact.doubt)
    return labels


def _find_unused(
    findings: Findings,
    columns: Columns,
    roles: _Roles,
    targets: np.ndarray | None,
    *,
    is_label_given: bool,
) -> None:
    """Note the label, the columns that are no fields beside it, and the doubts about it and the ids."""
    name = roles.label_column
    findings.notes[name] = Note("label", roles.label.reason)
    findings.doubts[name] = roles.label.doubt
    findings.doubts |= roles.entities.doubts
    for column, why in roles.never.items():
        findings.omit(column, why)
    described = roles.entities.settled()
    for column in columns:
        if column != name and is_label_name(column) and column not in described:
            findings.omit(column, _OTHER_LABEL)
    for column, why in known_after(columns, name, targets, findings.notes).items():
        findings.omit(column, why)
    if not is_label_given and roles.label.doubt and not is_label_name(name):
        no_rivals = {*findings.notes, *roles.times, *roles.entities.ids.values()}
        findings.doubts |= rival_doubts(columns, name, roles.labels, roles.settled, no_rivals)


def _find_times(findings: Findings, columns: Columns, roles: _Roles) -> str | None:
    """Note the columns of times; returns the one that orders rows."""
    described = roles.entities.settled()
    times = {
        column: time
        for column, time in roles.times.items()
        if column not in findings.notes and (column not in described or name_matches(column, TIMES))
    }
    ordering = first_without_fault(times)
    for name, column in columns.items():
        if name == ordering:
            findings.notes[name] = Note("time", times[name].note)
        elif name in findings.notes:
            continue
        elif name in times:
            why = times[name].fault or "another time besides the one that orders rows"
            findings.omit(name, f"{why}; {_NO_FUTURE_TIMES}")
            if ordering is None and times[name].doubt:
                findings.doubts[name] = times[name].doubt
        elif not {"ts", "timestamp", "datetime"}.isdisjoint(words_of(name)):
            findings.omit(name, f"another time, by its name; {_NO_FUTURE_TIMES}")
        elif ordering is None and _may_be_unread_times(column):
            findings.doubts[name] = (
                f"the cells of column {THIS_COLUMN} look like times that cannot be read, such as "
                f"{column.present[0]!r}: write a column of dates or numbers as time to order rows"
            )
    return ordering


def _may_be_unread_times(column: ColumnProfile) -> bool:
    """Whether text cells tell days or months and numbers, such as `Week 3, Tue`."""
    if column.dtype != pl.String or column.distinct_present <= _FEW_TIMES:
        return False
    cells = column.present.unique(maintain_order=True).head(_CELLS)
    are_times = cells.str.contains(_CALENDAR) & cells.str.contains(r"\d")
    return float(are_times.mean() or 0) > 0.9  # type: ignore[arg-type]


def _find_fields(findings: Findings, guesser: FieldGuesser) -> None:
    """Add the field of every column without a note, or note why it has none."""
    columns = guesser.columns
    for name, column in columns.items():
        if name in findings.notes:
            continue
        guess = guesser.guess(column, role_of(name).role)
        if guess.doubt:
            findings.doubts[name] = guess.doubt
        if guess.field is None:
            findings.omit(name, guess.note)
            continue

        role, reason, doubt = guesser.entities.role(column.cells, guess.field)
        if doubt:
            findings.doubts.setdefault(name, doubt)
        is_guessed_role = role == guess.field.role
        f = guess.field if is_guessed_role else replace(guess.field, role=role)
        findings.add_field(f, guess.note, reason)


def _inference(
    findings: Findings,
    rows: _Rows,
    roles: _Roles,
    time: str | None,
    given: Mapping[Who, str],
    origin: str,
) -> Inference:
    """The schema of what was found, without the fields that only rename others."""
    columns = rows.columns
    entities = roles.entities
    likely_ids = {
        side: column
        for side, column in entities.ids.items()
        if column in findings.fields or side in given
    }
    ids = {side: column for side, column in likely_ids.items() if side in entities.sure}
    for column, why in displays(columns, findings.fields, entities).items():
        findings.omit(column, why)
    if not findings.fields:
        raise SchemaError(
            f"a schema needs at least one field: none of the columns {', '.join(columns)} can be one"
        )
    for side, column in likely_ids.items():
        findings.add_to_note(
            column, f"the {side} id" if side in ids else f"it may be the {side} id"
        )
    marks = {name: counts for name, counts in rows.marks.items() if name != roles.label_column}
    for column, counts in marks.items():
        findings.add_to_note(column, marks_note(counts, findings.fields.get(column)))
    if time is not None:
        doubt = "" if likely_ids else _no_ids_doubt(columns, findings.fields.values())
        findings.doubts[time] = roles.times[time].doubt or findings.doubts.get(time, doubt)

    drawn = f"{rows.raw.height:,} of {rows.whole.height:,} rows, drawn at random"
    doubted_ids = entities.ids.keys() - entities.sure
    return Inference(
        schema=Schema(
            fields=tuple(findings.fields.values()),
            label=roles.label.label,
            time=time,
            time_format=None if time is None else roles.times[time].format,
            user=ids.get("user"),
            item=ids.get("item"),
        ),
        column_notes={
            column: findings.notes[column]
            for column in (*columns, roles.label_column)
            if column in findings.notes
        },
        column_doubts={column: doubt for column, doubt in findings.doubts.items() if doubt},
        seen=origin or (drawn if rows.are_drawn else ""),
        labels=tuple(roles.labels) or (roles.label,),
        marks={
            column: counts
            for column, counts in marks.items()
            if reads_marks(findings.fields.get(column))
        },
        possible_ids={side: column for side, column in likely_ids.items() if side not in ids},
        sides_not_found=tuple(
            side for side in SIDES if side not in likely_ids and side not in doubted_ids
        ),
        only_positives=not roles.labels,
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
        if not is_scalar(dtype):
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


def _check_header(columns: Columns) -> None:
    """Refuse a table whose columns of numbers all have a number as their name: the file has no header line."""
    names = [name for name, column in columns.items() if column.dtype.is_numeric()]
    if names and all(_NUMBER.fullmatch(name) for name in names):
        raise SchemaError(
            f"the names of columns look like a row ({', '.join(columns)}): give the label if they are names, or, if "
            "the file has no header line, write one or give the names of its columns"
        )


def _no_ids_doubt(columns: Columns, fields: Iterable[Field]) -> str:
    """What the user must check of a table with times and without ids, if some field of categories has many values."""
    if not any(columns[f.column].distinct > MANY_VALUES for f in fields if f.cell == "category"):
        return ""
    return (
        "the rows have times, as a log has, but no column of user or item ids was found: write user and item in the "
        "schema if there are any"
    )


def _targets(frame: pl.DataFrame, label: Label) -> np.ndarray:
    """The label's targets by row, NaN where a row is dropped."""
    rows = read_label(frame.select(label.column).with_row_index("_row"), label, budget=NO_LIMIT)
    targets = np.full(frame.height, np.nan)
    targets[rows.frame.get_column("_row").to_numpy()] = rows.main
    return targets


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
            cells = column.drop_nulls().unique(maintain_order=True).head(len(_PARTS))
            words = {str(word).strip().lower() for word in cells}
            if len(words) > 1 and words <= _PARTS and words & {"train", "training"}:
                results[column.name] = _NEVER["split"]
    return results
