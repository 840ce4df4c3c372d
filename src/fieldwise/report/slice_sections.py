"""The sections on slices of the test rows: by values of requested fields, and by new users and items."""

import datetime
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import polars as pl
from markupsafe import Markup

from fieldwise.charts import wider
from fieldwise.config import nearest
from fieldwise.data.encode.columns import as_list, as_number, as_text, coded, field_numbers
from fieldwise.display import Table
from fieldwise.errors import Argument, ConfigError, DataError
from fieldwise.evaluation.slices import (
    ABSENT,
    LEAST_OF_A_CLASS,
    LEAST_ROWS,
    Slice,
    SliceMetrics,
    binary_slices,
    by_code,
    by_quantile,
    regression_slices,
)
from fieldwise.report.page import Block, Section, count, interval_cell, measured
from fieldwise.runs.records import LabelScores
from fieldwise.schema import Schema

MAX_CATEGORIES_OF_NUMBERS = 12
"""Up to this many distinct numbers are treated as categories."""
LARGEST_EXACT_INTEGER = 2**53
"""Above it, not every whole number is a float64."""


def slice_names(frame: pl.DataFrame, schema: Schema) -> tuple[str, ...]:
    """Names to slice a table by: fields, then other columns, without labels."""
    labels = {label.column for label in schema.labels}
    fields = [field.name for field in schema.fields]
    columns = [column for column in frame.columns if column not in labels]
    return tuple(dict.fromkeys([*fields, *columns]))


def check_slices(names: Sequence[str], frame: pl.DataFrame, schema: Schema) -> None:
    """Check, before any work, that the fields or columns exist; one that does not raises a ConfigError."""
    known = slice_names(frame, schema)
    for name in names:
        if name not in known:
            raise ConfigError(
                Argument("slices"),
                f" must be a field or a column of the rows, found {name!r}: {nearest(name, known)}",
            )


def slices_of(name: str, frame: pl.DataFrame, schema: Schema) -> tuple[list[Slice], str]:
    """Slices of the rows by a field or column, and a note on how they were made.

    Categories are sliced by value, numbers that have an order and more than a dozen values by quantile bins, bags by
    each of their values, histories by length.
    """
    field = next((field for field in schema.fields if field.name == name), None)
    column = frame.get_column(name if field is None else field.column)
    if field is None and isinstance(column.dtype, (pl.List, pl.Array)):
        return _slices_of_lists(as_list(column, "|"), is_history=False)
    if field is not None and field.cell == "list":
        cells = as_list(column, field.separator)
        return _slices_of_lists(cells, is_history=field.max_length is not None)

    if field is not None and field.cell == "vector":
        is_present = column.list.len().fill_null(0) > 0
        codes = np.where(is_present.to_numpy(), 0, 1)
        return by_code(codes, ["a vector"]), "By whether there is a vector."

    if field is not None and field.cell == "number" and column.dtype == pl.String:
        column = field_numbers(field, column, schema.missing)
    has_many_values = column.n_unique() > MAX_CATEGORIES_OF_NUMBERS
    is_ordered = column.dtype.is_numeric() or column.dtype.is_temporal()
    if field is not None:
        is_ordered = field.is_ordered
    is_short_calendar = column.dtype.is_temporal() and not has_many_values
    if not is_ordered or is_short_calendar:
        texts = coded(column)
        return by_code(texts.codes, texts.texts.to_list()), ""

    numbers = as_number(column, f"column {column.name!r}", missing=schema.missing).to_numpy()
    if not has_many_values:
        return by_quantile(numbers, bins=column.len() or 1), ""
    slices = by_quantile(numbers, word=_number_writer(column.dtype))
    return slices, "Bins of similar size, from low to high."


def _slices_of_lists(cells: pl.Series, *, is_history: bool) -> tuple[list[Slice], str]:
    """Slices by length for a history, else by each value, with a note."""
    lengths = cells.list.len().fill_null(0).to_numpy()
    if is_history:
        slices = by_quantile(lengths, word=lambda length: f"{length:,.0f}")
        return slices, "By the number of values, in bins of similar size."

    row_of_value = np.repeat(np.arange(len(cells)), lengths)
    values = coded(cells.explode(empty_as_null=False, keep_nulls=False).cast(pl.String))
    slices = []
    for by_value in by_code(values.codes, values.texts.to_list()):
        slices.append(Slice(by_value.name, np.unique(row_of_value[by_value.rows])))
    empty = np.flatnonzero(lengths == 0)
    if len(empty):
        slices.append(Slice(ABSENT, empty))
    return slices, "A row is in the slice of each of its values."


def _number_writer(dtype: pl.DataType) -> Callable[[float], str]:
    """A function that writes a number of a column, or the date that it stands for."""

    def write_date(seconds: float) -> str:
        form = "%Y-%m-%d" if dtype == pl.Date else "%Y-%m-%d %H:%M"
        return datetime.datetime.fromtimestamp(seconds, datetime.UTC).strftime(form)

    def write_number(value: float) -> str:
        is_whole = value == round(value) and abs(value) < LARGEST_EXACT_INTEGER
        return f"{value:.0f}" if is_whole else f"{value:.6g}"

    return write_date if isinstance(dtype, (pl.Date, pl.Datetime)) else write_number


def slices_section(
    names: Sequence[str], frame: pl.DataFrame, schema: Schema, rows: LabelScores, binary: bool
) -> Section:
    """A table for each requested field."""
    if not names:
        known = ", ".join(slice_names(frame, schema))
        none = f"None requested: --slice FIELD evaluates by the values of a field, one of {known}."
        return Section("Slices", [none])

    blocks: list[Block] = []
    for name in names:
        slices, note = slices_of(name, frame, schema)
        blocks.append(_slices_table(f"By {name}", name, slices, rows, binary, note))
    if binary:
        text = (
            f"Too small: fewer than {LEAST_ROWS} rows, or for AUC fewer than {LEAST_OF_A_CLASS} of a class. "
            "Prediction − rate is calibration: below 0 the model predicts too little there. Dashed: the AUC of all "
            "rows, and 0. Intervals are 95 %, for each slice separately (Wilson, DeLong, normal); among many "
            "slices some differ by sampling error only."
        )
    else:
        text = f"Too small: fewer than {LEAST_ROWS} rows. Intervals are 95 %, normal, for each slice separately."
    blocks.append(text)
    return Section("Slices", blocks)


TRAINING_ROW_RANGES = {
    "none (new)": (0, 0),
    "1 to 4": (1, 4),
    "5 to 19": (5, 19),
    "20 to 99": (20, 99),
    "100 or more": (100, np.inf),
}
"""Of a user or an item, by the name of the slice."""


def cold_section(
    train: pl.DataFrame,
    test: pl.DataFrame,
    columns: Mapping[str, str | None],
    rows: LabelScores,
    binary: bool,
) -> Section:
    """Metrics of test rows with new and rare users and items."""
    blocks: list[Block] = []
    new: dict[str, np.ndarray] = {}
    for role, column in columns.items():
        if column is None:
            blocks.append(f"The schema has no column of {role}s: set {role} = COLUMN in it.")
            continue
        training_rows = _training_rows(train, test, column)
        new[role] = training_rows == 0
        slices = []
        for name, (low, high) in TRAINING_ROW_RANGES.items():
            is_within = (training_rows >= low) & (training_rows <= high)
            slices.append(Slice(name, np.flatnonzero(is_within)))
        title = f"{role.capitalize()}s ({column}) by their training rows"
        note = _new_ids_note(test.get_column(column), new[role])
        blocks.append(_slices_table(title, "training rows", slices, rows, binary, note))

    if len(new) == 2 and any(is_new.any() for is_new in new.values()):
        user = new["user"]
        item = new["item"]
        cases = {
            "both known": ~user & ~item,
            "new user, known item": user & ~item,
            "known user, new item": ~user & item,
            "both new": user & item,
        }
        slices = [Slice(name, np.flatnonzero(is_case)) for name, is_case in cases.items()]
        title = "New users and items together"
        blocks.append(_slices_table(title, "rows of", slices, rows, binary, ""))
    blocks.append(
        "New: not in the training rows; validation rows do not count, since they are not trained on."
    )
    return Section("Cold start", blocks)


def _training_rows(train: pl.DataFrame, test: pl.DataFrame, column: str) -> np.ndarray:
    """The number of training rows with the id of each test row; missing counts as one id."""
    both = pl.concat([train.get_column(column).to_frame(), test.get_column(column).to_frame()])
    try:
        ids = coded(both.to_series())
    except DataError as e:
        raise ConfigError("user and item ids must be single values: ", *e.args) from None
    train_codes = ids.codes[: train.height]
    test_codes = ids.codes[train.height :]
    rows_by_code = np.bincount(train_codes, minlength=len(ids.texts) + 1)
    training_rows: np.ndarray = rows_by_code[test_codes]
    return training_rows


def _new_ids_note(ids: pl.Series, is_new: np.ndarray) -> str:
    """How many test rows have how many ids that no training row has."""
    new_ids = np.unique(as_text(ids).fill_null("").to_numpy()[is_new])
    if not len(new_ids):
        return f"Every {ids.name} of the test rows is in the training rows."
    rows = f"{count(int(is_new.sum()))} test rows"
    return f"{rows} have one of {count(len(new_ids))} values of {ids.name} that are not in the training rows."


BINARY_COLUMNS = {"auc": "AUC", "logloss": "logloss", "off": "prediction − rate"}
REGRESSION_COLUMNS = {"rmse": "RMSE", "mae": "MAE", "off": "prediction − target"}
DRAWN_METRICS = ("auc", "rmse", "off")
"""Those with a column of intervals on one scale."""


def _slices_table(
    title: str, what: str, slices: Sequence[Slice], rows: LabelScores, binary: bool, note: str
) -> Table:
    """A row of metrics for each slice; `what` heads their names."""
    metrics_of = binary_slices if binary else regression_slices
    titles = BINARY_COLUMNS if binary else REGRESSION_COLUMNS
    mean_label = "positive_rate" if binary else "mean_target"
    all_rows = Slice("", np.arange(len(rows.y)))
    *by_slice, of_all_rows = metrics_of(rows.y, rows.score, [*slices, all_rows], rows.weight)

    scales = _scales(by_slice, of_all_rows, titles)
    columns = [what, "rows", mean_label.replace("_", " ")]
    for name, metric_title in titles.items():
        columns.append(metric_title)
        if name in scales:
            columns.append("")

    table_rows: list[list[str | Markup]] = []
    for part in by_slice:
        row: list[str | Markup] = [part.name, count(part.rows)]
        for name in (mean_label, *titles):
            value = part.metrics.get(name)
            if value is None:
                row.append("too small" if part.rows else "")
            else:
                row.append(measured(value, "+" if name == "off" else ""))
            if name not in scales:
                continue
            if value is None:
                row.append("")
            else:
                row.append(interval_cell(value, scales[name], rule=_rule(name, of_all_rows)))
        table_rows.append(row)
    return Table(columns, table_rows, title=title, note=note)


def _scales(
    by_slice: Sequence[SliceMetrics], of_all_rows: SliceMetrics, names: Mapping[str, str]
) -> dict[str, tuple[float, float]]:
    """The ends of each drawn metric's scale, if any slice has it."""
    scales = {}
    for name in names:
        if name not in DRAWN_METRICS or not any(name in part.metrics for part in by_slice):
            continue
        intervals = [
            part.metrics[name] for part in (*by_slice, of_all_rows) if name in part.metrics
        ]
        lowest = min(interval.low for interval in intervals)
        highest = max(interval.high for interval in intervals)
        scales[name] = wider(lowest, highest, 0.01)
    return scales


def _rule(name: str, of_all_rows: SliceMetrics) -> float | None:
    """Where the dashed line of a scale is: 0 for a difference, else the value of all rows."""
    if name == "off":
        return 0.0
    if name in of_all_rows.metrics:
        return of_all_rows.metrics[name].value
    return None
