"""Metrics by the values of a field or column, and for users and items that are new or rare in training."""

import datetime
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import polars as pl
from markupsafe import Markup

from fieldwise.charts import interval_cell, wider
from fieldwise.config import nearest
from fieldwise.data.encode.columns import as_list, as_number, as_text, code_texts, coded
from fieldwise.display import Table
from fieldwise.errors import ConfigError, DataError
from fieldwise.evaluation.slices import (
    ABSENT,
    LEAST_OF_A_CLASS,
    LEAST_ROWS,
    Interval,
    Slice,
    SliceMetrics,
    binary_slices,
    by_code,
    by_quantile,
    regression_slices,
)
from fieldwise.report.page import Block, Note, Section, count, measured
from fieldwise.report.runs import Scored
from fieldwise.schema import Schema

__all__ = ["check_slices", "cold_section", "slice_names", "slices_of", "slices_section"]

FEW = 12  # up to this many distinct numbers are treated as categories
SEEN = ((0, 0), (1, 4), (5, 19), (20, 99), (100, None))
BINARY = {"auc": "AUC", "logloss": "logloss", "off": "prediction − rate"}
DRAWN = ("auc", "rmse", "off")
REGRESSION = {"rmse": "RMSE", "mae": "MAE", "off": "prediction − target"}


def slice_names(frame: pl.DataFrame, schema: Schema) -> tuple[str, ...]:
    """Names to slice a table by: fields, then other columns, without labels."""
    labels = {label.column for label in schema.labels}
    fields = [f.name for f in schema.fields]
    return tuple(dict.fromkeys([*fields, *(c for c in frame.columns if c not in labels)]))


def check_slices(names: Sequence[str], frame: pl.DataFrame, schema: Schema) -> None:
    """Check, before any work, that the fields or columns exist.

    Errors:
        ConfigError: no such field or column.
    """
    known = slice_names(frame, schema)
    for name in names:
        if name not in known:
            raise ConfigError(
                f"--slice must be a field or a column of the rows, found {name!r}: {nearest(name, known)}"
            )


def slices_of(name: str, frame: pl.DataFrame, schema: Schema) -> tuple[list[Slice], str]:
    """Slices of the rows by a field or column, and a note on how they were made.

    Categories are sliced by value, numbers with more than a dozen values by quantile bins, bags by each of their
    values, histories by length.
    """
    field = next((f for f in schema.fields if f.name == name), None)
    column = frame.get_column(name if field is None else field.column)
    if field is not None and field.cell == "category":
        return _by_text(column), ""
    if field is not None and field.cell == "list" and field.max_length is not None:
        lengths = as_list(column, field.separator).list.len().fill_null(0).cast(pl.Float64)
        slices = by_quantile(lengths.to_numpy(), word=lambda n: f"{n:,.0f}")
        return slices, "By the number of values, in bins of similar size."
    if (field is not None and field.cell == "list") or isinstance(column.dtype, (pl.List, pl.Array)):
        separator = field.separator if field is not None and field.cell == "list" else "|"
        return _by_member(as_list(column, separator)), "A row is in the slice of each of its values."
    if field is not None and field.cell == "number" and column.dtype == pl.String:
        column = as_number(column, f"column {column.name!r}", form=field.number_format)
    amounts = (field is not None and field.cell == "number") or column.dtype.is_numeric() or column.dtype.is_temporal()
    if amounts and column.n_unique() > FEW:
        numbers = as_number(column, f"column {column.name!r}").to_numpy()
        return by_quantile(numbers, word=_word(column)), "Bins of similar size, from low to high."
    if amounts and not column.dtype.is_temporal():
        return by_quantile(as_number(column, f"column {column.name!r}").to_numpy(), bins=column.len() or 1), ""
    return _by_text(column), ""


def _word(column: pl.Series) -> Callable[[float], str]:
    if isinstance(column.dtype, (pl.Date, pl.Datetime)):
        form = "%Y-%m-%d" if column.dtype == pl.Date else "%Y-%m-%d %H:%M"
        return lambda s: datetime.datetime.fromtimestamp(s, datetime.UTC).strftime(form)
    return lambda x: f"{x:.6g}" if x != round(x) or abs(x) >= 2**53 else f"{x:.0f}"


def _by_text(column: pl.Series) -> list[Slice]:
    cells = coded(column)
    return by_code(cells.codes, cells.texts.to_list())


def _by_member(cells: pl.Series) -> list[Slice]:
    lengths = cells.list.len().fill_null(0)
    row = np.repeat(np.arange(len(cells)), lengths.to_numpy())
    members = code_texts(cells.explode(empty_as_null=False, keep_nulls=False).cast(pl.String))
    found = [Slice(one.name, np.unique(row[one.rows])) for one in by_code(members.codes, members.texts.to_list())]
    empty = np.flatnonzero(lengths.to_numpy() == 0)
    return [*found, Slice(ABSENT, empty)] if len(empty) else found


def slices_section(names: Sequence[str], frame: pl.DataFrame, schema: Schema, rows: Scored, binary: bool) -> Section:
    """A table for each requested field."""
    if not names:
        known = ", ".join(slice_names(frame, schema))
        none = f"None requested: --slice FIELD evaluates by the values of a field, one of {known}."
        return Section(title="Slices", blocks=[Note(text=none)])
    blocks: list[Block] = []
    for name in names:
        slices, note = slices_of(name, frame, schema)
        blocks.append(_table(f"By {name}", name, slices, rows, binary, note))
    blocks.append(Note(text=_about(binary)))
    return Section(title="Slices", blocks=blocks)


def cold_section(
    train: pl.DataFrame, test: pl.DataFrame, columns: Mapping[str, str | None], rows: Scored, binary: bool
) -> Section:
    """Metrics of test rows with new and rare users and items."""
    blocks: list[Block] = []
    new: dict[str, np.ndarray] = {}
    for role, column in columns.items():
        if column is None:
            blocks.append(Note(text=f"The schema has no column of {role}s: set {role} = COLUMN in it."))
            continue
        seen = _seen(train, test, column)
        new[role] = seen == 0
        slices = []
        for low, high in SEEN:
            inside = (seen >= low) & (seen <= (np.inf if high is None else high))
            name = "none (new)" if high == 0 else (f"{low} or more" if high is None else f"{low} to {high}")
            slices.append(Slice(name, np.flatnonzero(inside)))
        known = np.unique(as_text(test.get_column(column)).fill_null("").to_numpy()[seen == 0])
        note = f"Every {column} of the test rows is in the training rows."
        if len(known):
            rows_of = f"{count(int((seen == 0).sum()))} test rows"
            note = f"{rows_of} have one of {count(len(known))} values of {column} that are not in the training rows."
        title = f"{role.capitalize()}s ({column}) by their training rows"
        blocks.append(_table(title, "training rows", slices, rows, binary, note))
    if len(new) == 2 and any(rows_of.any() for rows_of in new.values()):
        user, item = new["user"], new["item"]
        cases = {
            "both known": ~user & ~item,
            "new user, known item": user & ~item,
            "known user, new item": ~user & item,
            "both new": user & item,
        }
        slices = [Slice(name, np.flatnonzero(inside)) for name, inside in cases.items()]
        blocks.append(_table("New users and items together", "rows of", slices, rows, binary, ""))
    text = "New: not in the training rows; validation rows do not count, since they are not trained on."
    return Section(title="Cold start", blocks=[*blocks, Note(text=text)])


def _seen(train: pl.DataFrame, test: pl.DataFrame, column: str) -> np.ndarray:
    """The number of training rows with each test row's value [N]; missing is treated as one value."""
    try:
        cells = coded(pl.concat([frame.get_column(column).to_frame() for frame in (train, test)]).to_series())
    except DataError as e:
        raise ConfigError(f"user and item ids must be single values: {e}") from None
    here, there = cells.codes[: train.height], cells.codes[train.height :]
    found: np.ndarray = np.bincount(here, minlength=len(cells.texts) + 1)[there]
    return found


def _table(title: str, what: str, slices: Sequence[Slice], rows: Scored, binary: bool, note: str) -> Table:
    every = Slice("", np.arange(len(rows.y)))
    *found, all_rows = (binary_slices if binary else regression_slices)(rows.y, rows.score, [*slices, every])
    whole = all_rows.metrics
    words = BINARY if binary else REGRESSION
    columns = [what, "rows", "positive rate" if binary else "mean target"]
    spans = {name: _span([m.metrics[name] for m in found if name in m.metrics], whole.get(name)) for name in DRAWN}
    for name, word in words.items():
        columns += [word, ""] if spans.get(name) is not None else [word]
    cells: list[list[str | Markup]] = []
    for one in found:
        row: list[str | Markup] = [one.name, count(one.rows), _text(one, "positive_rate" if binary else "mean_target")]
        for name in words:
            row.append(_text(one, name))
            if (span := spans.get(name)) is not None:
                row.append(_drawing(one, name, span, whole.get(name)))
        cells.append(row)
    return Table(title=title, columns=columns, rows=cells, note=note)


def _text(one: SliceMetrics, name: str) -> str | Markup:
    found = one.metrics.get(name)
    if found is None:
        return "too small" if one.rows else ""
    return measured(found.value, found.low, found.high, "+" if name == "off" else "")


def _drawing(one: SliceMetrics, name: str, span: tuple[float, float], whole: Interval | None) -> str | Markup:
    found = one.metrics.get(name)
    rule = 0.0 if name == "off" else (None if whole is None else whole.value)
    return "" if found is None else interval_cell(found.value, found.low, found.high, span, rule=rule)


def _span(found: Sequence[Interval], whole: Interval | None) -> tuple[float, float] | None:
    every = [*found, *([whole] if whole is not None else [])]
    if not found:
        return None
    return wider(min(f.low for f in every), max(f.high for f in every), 0.01)


def _about(binary: bool) -> str:
    if binary:
        return (
            f"Too small: fewer than {LEAST_ROWS} rows, or for AUC fewer than {LEAST_OF_A_CLASS} of a class. "
            "Prediction − rate is calibration: below 0 the model predicts too little there. Dashed: the AUC of all "
            "rows, and 0. Intervals are 95 %, for each slice separately (Wilson, DeLong, normal); among many "
            "slices some differ by sampling error only."
        )
    return f"Too small: fewer than {LEAST_ROWS} rows. Intervals are 95 %, normal, for each slice separately."
