"""Targets from the labels' columns and rules."""

import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import NoReturn

import numpy as np
import polars as pl

from fieldwise.data.encode.columns import as_number, as_text
from fieldwise.data.encode.numbers import is_mark, without_marked_numbers
from fieldwise.data.encode.portable import cell_text
from fieldwise.data.prepare.row_weights import TRIALS, WEIGHT, read_weights, rows_of_both_classes
from fieldwise.data.read.mapped_rows import take_rows
from fieldwise.data.read.row_numbers import counting_from
from fieldwise.data.read.text_types import PLAIN_OR_THOUSANDS
from fieldwise.errors import ConfigError, DataError, Row
from fieldwise.schema import Label, Schema
from fieldwise.schema.number_format import MISSING_MARKS
from fieldwise.storage.scratch import NO_LIMIT, MemoryBudget

SHOWN_VALUES = 5


@dataclass(frozen=True, eq=False)
class LabelledRows:
    """Rows with targets (float32), the number of rows dropped by the labels' rules, and row weights.

    Shape:
        y: [N, T], a column per label, the main one first.
        weight: [N] float64, or None.
        row_numbers: [N] int64, the rows' numbers in the table, or None if none was dropped.
    """

    frame: pl.DataFrame
    y: np.ndarray
    dropped: int = 0
    weight: np.ndarray | None = None
    row_numbers: np.ndarray | None = None

    @property
    def main(self) -> np.ndarray:
        """Targets of the main label [N]."""
        return np.asarray(self.y[:, 0])

    def take(self, rows: np.ndarray) -> "LabelledRows":
        """Some of the rows, by ascending number, with `dropped` 0."""
        weight = None if self.weight is None else self.weight[rows]
        return LabelledRows(self.frame[rows], self.y[rows], weight=weight)

    def of_one_class(self, schema: Schema, *, budget: MemoryBudget) -> "LabelledRows":
        """The rows, of which those of several trials become rows of one class each (`rows_of_both_classes`)."""
        if schema.label.trials is None:
            return self
        assert self.weight is not None, "trials are weights"
        rows, targets, weight = rows_of_both_classes(self.main, self.weight)
        frame = take_rows(self.frame, rows, budget=budget)
        return replace(self, frame=frame, y=targets[:, None], weight=weight, row_numbers=None)


def read_label(
    frame: pl.DataFrame,
    label: Label,
    *,
    all_negative: bool = False,
    missing: Sequence[str] = MISSING_MARKS,
    budget: MemoryBudget,
) -> LabelledRows:
    """`read_labels` for one label."""
    return read_labels(frame, (label,), all_negative=all_negative, missing=missing, budget=budget)


def positive_rows(frame: pl.DataFrame, label: Label) -> np.ndarray | None:
    """Which rows are positive by a label's rule [N]; a row without a label, or with a mark of a missing one, is not.

    A row of several trials is positive if one of them is. None if the table does not say: it lacks
    the column, or the label is a number.

    >>> positive_rows(pl.DataFrame({"rating": [5, None, 2]}), Label("rating", positive_above=3)).tolist()
    [True, False, False]
    """
    if label.task != "binary" or label.column not in frame.columns:
        return None
    if label.trials is not None:
        label = replace(label, trials=None, positive_above=0)
    cells = frame.select(label.column)
    texts = as_text(
        _LabelReader.of(cells, label, MISSING_MARKS, budget=NO_LIMIT)(cells.to_series())
    )
    labelled = np.flatnonzero(texts.is_not_null().to_numpy())
    is_positive = np.zeros(frame.height, dtype=bool)
    if len(labelled):
        rows = read_label(cells[labelled], label, all_negative=True, budget=NO_LIMIT)
        numbers = labelled if rows.row_numbers is None else labelled[rows.row_numbers]
        is_positive[numbers] = rows.main > 0
    return is_positive


def with_event_label(frame: pl.DataFrame, schema: Schema, has_negatives: bool) -> pl.DataFrame:
    """The table, with 1 in every row as its label if it has none and negatives will be sampled."""
    column = schema.label.column
    if not has_negatives or column in frame.columns:
        return frame
    return frame.with_columns(pl.repeat(1, frame.height, dtype=pl.Int8, eager=True).alias(column))


def read_labels(
    frame: pl.DataFrame,
    labels: Sequence[Label],
    *,
    all_negative: bool = False,
    absent_allowed: bool = False,
    weight: np.ndarray | None = None,
    missing: Sequence[str] = MISSING_MARKS,
    budget: MemoryBudget,
) -> LabelledRows:
    """Rows with targets by the labels' rules, the main label first: 0 and 1 (binary) or numbers, without dropped rows.

    `all_negative` allows rows without any of a rule's positive_values (such as sampled negatives);
    `absent_allowed` allows rows without a label, whose target is NaN; `weight` are row weights of
    the table; `missing` are the schema's marks of missing numbers. The target of a label with trials
    is the share of positive ones, and the row's weight is multiplied by the trials
    (`trials_as_rows`). Errors count rows from 0 in `frame`.

    >>> labels = Label("rating", positive_above=3), Label("minutes", task="regression", drop_values=(0,))
    >>> table = pl.DataFrame({"rating": [5, 1, 2], "minutes": [90, 0, 7]})
    >>> read_labels(table, labels, budget=MemoryBudget()).y.tolist()
    [[1.0, 90.0], [0.0, 7.0]]
    """
    _check_label_columns(frame, labels)
    trials = None
    if labels[0].trials is not None:
        trials = read_weights(frame, labels[0].trials, TRIALS, missing, budget=budget)
        weight = _products(weight, trials, budget=budget)
    readers = [_LabelReader.of(frame, label, missing, budget=budget) for label in labels]
    is_kept, y = _targets_of_all_rows(
        frame,
        readers,
        trials,
        all_negative=all_negative,
        absent_allowed=absent_allowed,
        budget=budget,
    )
    rows = budget.where(frame.height, lambda chunk: is_kept[chunk])
    if not len(rows):
        dropping = [repr(label.column) for label in labels if label.drop_values]
        raise DataError(
            f"no row is left: all {frame.height} have a label in drop_values of column "
            f"{' or '.join(dict.fromkeys(dropping))}; drop fewer values"
        )
    if len(rows) == frame.height:
        return LabelledRows(frame, y, weight=weight)
    return LabelledRows(
        take_rows(frame, rows, budget=budget),
        budget.take(y, rows),
        dropped=frame.height - len(rows),
        weight=None if weight is None else budget.take(weight, rows),
        row_numbers=rows,
    )


def _targets_of_all_rows(
    frame: pl.DataFrame,
    readers: Sequence["_LabelReader"],
    trials: np.ndarray | None,
    *,
    all_negative: bool,
    absent_allowed: bool,
    budget: MemoryBudget,
) -> tuple[np.ndarray, np.ndarray]:
    """Which rows no label's rule drops [N], and the targets [N, T], where a dropped row's mean nothing."""
    labels = [reader.label for reader in readers]
    keep = budget.empty(frame.height, np.bool_)
    y = budget.empty((frame.height, len(labels)), np.float32)
    # how many rows have no label, and the first of them
    absent_rows: dict[str, tuple[int, int]] = {}
    lacks_positives = {
        label.name: label.positive_values is not None and not all_negative for label in labels
    }
    for chunk in budget.chunk_slices(frame.height):
        is_kept = pl.repeat(True, chunk.stop - chunk.start, eager=True)
        with counting_from(chunk.start):
            columns = [reader(frame.get_column(reader.label.column)[chunk]) for reader in readers]
            texts = [as_text(column) for column in columns]
            for label, column, text in zip(labels, columns, texts, strict=True):
                is_kept &= ~_is_dropped(label, column, text, frame.get_column(label.column)[chunk])
                if lacks_positives[label.name]:
                    positive_texts = _texts(label.positive_values or (), column)
                    lacks_positives[label.name] = not text.is_in(positive_texts).any()
            keep[chunk] = is_kept.to_numpy()

            for number, label in enumerate(labels):
                is_absent = texts[number].is_null() & is_kept
                if not absent_allowed:
                    _count_absent(absent_rows, label, is_absent, chunk.start)
                # Dropped labels become null instead of being removed, so that errors count the
                # table's rows.
                column = columns[number]
                column = column.zip_with(is_kept, column.clear(len(column)))
                y[chunk, number] = _targets(column, label, trials, chunk)

    for reader in readers:
        name = reader.label.name
        if name in absent_rows or lacks_positives[name]:
            _refuse(frame, reader, absent_rows.get(name), budget=budget)
    return keep, y


def labelled_rows(
    frame: pl.DataFrame,
    schema: Schema,
    *,
    weight: np.ndarray | None = None,
    budget: MemoryBudget,
) -> LabelledRows:
    """Rows with the targets of a schema's labels and their weights; each row has one class of a binary label.

    Weights are those of the schema's columns, or `weight` [N].

    Errors:
        ConfigError: both the schema and `weight` have weights.
        DataError: as of `read_labels`, or a weight is missing or not above 0.
    """
    weights = schema_weights(frame, schema, budget=budget)
    if weight is not None:
        if weights is not None:
            raise ConfigError(
                f"the schema names the rows' weights, column {schema.weight!r}: leave out sample_weight, or the "
                "schema's weight"
            )
        weights = weight
    rows = read_labels(frame, schema.labels, weight=weights, missing=schema.missing, budget=budget)
    return rows.of_one_class(schema, budget=budget)


def schema_weights(
    frame: pl.DataFrame, schema: Schema, *, budget: MemoryBudget
) -> np.ndarray | None:
    """The weights in the schema's column of them, [N]; None if it names none."""
    if schema.weight is None:
        return None
    return read_weights(frame, schema.weight, WEIGHT, schema.missing, budget=budget)


def _products(weight: np.ndarray | None, trials: np.ndarray, *, budget: MemoryBudget) -> np.ndarray:
    """The product of each row's weight, if it has one, and its trials, [N]."""
    if weight is None:
        return trials
    return budget.fill(len(trials), np.float64, lambda chunk: weight[chunk] * trials[chunk])


def _check_label_columns(frame: pl.DataFrame, labels: Sequence[Label]) -> None:
    """Check that a table has rows, and the columns of all labels."""
    for label in labels:
        if label.column not in frame.columns:
            raise DataError(
                f"the label's column {label.column!r} must be in the table, found only: {', '.join(frame.columns)}; in "
                "a log of positive events alone the recipe's [negatives] add it"
            )
    if frame.height == 0:
        raise DataError(
            f"a table needs rows, found none below its columns {', '.join(frame.columns)}"
        )


def _count_absent(
    absent_rows: dict[str, tuple[int, int]], label: Label, is_absent: pl.Series, first_row: int
) -> None:
    """Add the rows of a chunk without a label to how many there are, and which is the first."""
    if not is_absent.any():
        return
    first_here = first_row + int(is_absent.arg_max() or 0)
    count, first = absent_rows.get(label.name, (0, first_here))
    absent_rows[label.name] = count + int(is_absent.sum()), first


def _is_dropped(label: Label, column: pl.Series, text: pl.Series, raw: pl.Series) -> pl.Series:
    """Which rows a label's rule drops, by its cells as read (also as text) and as they are in the table."""
    dropped_texts = _texts(label.drop_values, column)
    is_dropped = text.is_in(dropped_texts).fill_null(False)
    if label.drop_values:  # marks of missing numbers have become null
        is_dropped |= as_text(raw).is_in(dropped_texts).fill_null(False)
    return is_dropped


def _refuse(
    frame: pl.DataFrame,
    reader: "_LabelReader",
    absent: tuple[int, int] | None,
    *,
    budget: MemoryBudget,
) -> NoReturn:
    """Raise, since rows have no label, or since no positive value occurs: every row would silently be negative."""
    label = reader.label
    if absent is not None:
        raise DataError(
            f"every row needs a label: {absent[0]} of {frame.height} rows have none in column {label.column!r}, the "
            "first is ",
            Row(absent[1]),
            f"{_shown_mark(frame, label, absent[1])}; remove or fill them",
        )
    smallest = pl.Series(dtype=pl.String)
    for chunk in budget.chunk_slices(frame.height):
        texts = as_text(reader(frame.get_column(label.column)[chunk])).alias("")
        smallest = pl.concat([smallest, texts]).unique().sort().head(SHOWN_VALUES)
    raise DataError(
        f"the label's positive_values {list(label.positive_values or ())} must occur in column {label.column!r}, "
        f"found only {', '.join(map(repr, smallest.to_list()))}; correct the rule or the column"
    )


def _shown_mark(frame: pl.DataFrame, label: Label, row: int) -> str:
    """The mark of a missing number in a row, and how its rows are dropped; empty if the cell is empty."""
    cell = frame.get_column(label.column)[row]
    is_number = isinstance(cell, int | float) and math.isfinite(cell)
    is_text = isinstance(cell, str) and bool(cell.strip())
    if not (is_number or is_text):
        return ""
    return f", which holds {cell!r}: write drop_values = [{json.dumps(cell, ensure_ascii=False)}] to drop such rows"


@dataclass(frozen=True, kw_only=True)
class _LabelReader:
    """A label's cells, null where a mark stands for a missing number; numbers if they have a format.

    Args:
        label: the label.
        missing: the marks of missing numbers; none where the label's values are named
            (`positive_values`).
        has_fractions: whether the column is text since its numbers may have a thousands separator
            (1.000 and 4.500). Without a `number_format` they are fractions.
    """

    label: Label
    missing: tuple[str, ...]
    has_fractions: bool

    @classmethod
    def of(
        cls, frame: pl.DataFrame, label: Label, missing: Sequence[str], *, budget: MemoryBudget
    ) -> "_LabelReader":
        """The reader of a label in a table."""
        names_values = label.positive_values is not None and label.number_format is None
        marks = () if names_values else tuple(missing)
        has_fractions = label.number_format is None and may_be_thousands(
            frame.get_column(label.column), marks, budget=budget
        )
        return cls(label=label, missing=marks, has_fractions=has_fractions)

    def __call__(self, cells: pl.Series) -> pl.Series:
        if cells.dtype.is_numeric():
            return without_marked_numbers(cells, self.missing)
        if cells.dtype != pl.String:
            return cells
        if self.label.number_format is not None:
            what = f"label column {self.label.column!r}"
            return as_number(cells, what, form=self.label.number_format, missing=self.missing)
        present = cells.set(is_mark(cells, self.missing), None) if self.missing else cells
        return present.cast(pl.Float64) if self.has_fractions else present


def may_be_thousands(
    column: pl.Series, missing: Sequence[str] = (), *, budget: MemoryBudget
) -> bool:
    """Whether a column is text since each of its numbers may have a thousands separator, as 3.768 beside 768.

    `missing` are marks that may stand among them.

    >>> budget = MemoryBudget()
    >>> may_be_thousands(pl.Series(["768", "3.768"]), budget=budget)
    True
    >>> may_be_thousands(pl.Series(["768", "3.7"]), budget=budget)
    False
    """
    if column.dtype != pl.String:
        return False
    has_point = False
    for chunk in budget.chunk_slices(len(column)):
        cells = column[chunk].drop_nulls()
        if missing:
            cells = cells.filter(~is_mark(cells, missing))
        if not cells.str.contains(PLAIN_OR_THOUSANDS).all():
            return False
        has_point = has_point or bool(cells.str.contains(".", literal=True).any())
    return has_point


def _texts(values: Iterable[object], column: pl.Series) -> list[str]:
    """Values of a rule as text: `True`, as written by pandas, is true in a column of booleans."""
    texts = [cell_text(v) or "" for v in values]
    if column.dtype == pl.Boolean:
        return [text.lower() for text in texts]
    if column.dtype.is_float():  # 5.000, as the file has it, is 5 in a column of numbers
        as_written = pl.Series(texts, dtype=pl.String)
        numbers = as_text(as_written.cast(pl.Float64, strict=False))
        return numbers.zip_with(numbers.is_not_null(), as_written).to_list()
    return texts


def _target(column: pl.Series, label: Label) -> pl.Series:
    """The cells' numbers, or whether they are positive by the label's rule."""
    if label.task != "binary":
        return _number_in_range(column, label)
    if label.positive_values is not None:
        return as_text(column).is_in(_texts(label.positive_values, column))
    if label.positive_above is not None:
        return as_number(column, f"label column {label.column!r}") > label.positive_above

    text = as_text(column)
    if not column.dtype.is_numeric():  # as written by JSON and pandas
        text = text.str.to_lowercase().replace({"true": "1", "false": "0"})
    is_outside = ~text.is_in(["0", "1"])
    if is_outside.any():
        row = int(is_outside.arg_max() or 0)
        raise DataError(
            f"a binary label without a rule must be 0 or 1: column {label.column!r} holds {column[row]!r} in ",
            Row(row),
            "; give positive_above or positive_values, and drop_values for rows to drop",
        )
    return text == "1"


def _targets(
    column: pl.Series, label: Label, trials: np.ndarray | None, chunk: slice
) -> np.ndarray:
    """The targets of a chunk of rows, [N]."""
    if trials is not None:
        return _share_of_trials(column, trials[chunk], label)
    targets: np.ndarray = _target(column, label).cast(pl.Float32).to_numpy()
    return targets


def _share_of_trials(column: pl.Series, trials: np.ndarray, label: Label) -> np.ndarray:
    """The share of positive ones among each row's trials [N]; NaN where the label is missing."""
    positives = as_number(column, f"label column {label.column!r}").to_numpy()
    is_outside = (positives < 0) | (positives > trials)
    if is_outside.any():
        row = int(is_outside.argmax())
        raise DataError(
            f"a label must lie between 0 and its trials: column {label.column!r} holds {column[row]!r} of "
            f"{trials[row]:g} in column {label.trials!r} in ",
            Row(row),
            "; correct or remove the row",
        )
    share: np.ndarray = positives / trials
    return share


def _number_in_range(column: pl.Series, label: Label) -> pl.Series:
    """The cells' numbers, which lie in the label's range."""
    numbers = as_number(column, f"label column {label.column!r}")
    if label.range is not None:
        low, high = label.range
        is_outside = (numbers < low) | (numbers > high)
        if is_outside.any():
            row = int(is_outside.arg_max() or 0)
            raise DataError(
                f"the label must lie in its range [{low:g}, {high:g}]: column {label.column!r} holds {column[row]!r} "
                "in ",
                Row(row),
                "; widen the range or remove the row",
            )
    return numbers
