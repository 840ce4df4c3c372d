"""The rows that an audit looks at: raw, with their targets, parts and times."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Literal

import numpy as np
import polars as pl

from fieldwise.auditing.association import Target, random_folds
from fieldwise.auditing.cells import codes_of, numbers_of, seconds_of
from fieldwise.auditing.finding import SHOWN_ROWS
from fieldwise.data.encode.columns import as_text
from fieldwise.data.infer.label import marks_of_no_label
from fieldwise.data.infer.profile import is_scalar
from fieldwise.data.infer.schema import infer_schema
from fieldwise.data.prepare.labels import LabelledRows, read_labels, with_event_label
from fieldwise.data.prepare.ordering import check_column, times_of
from fieldwise.data.prepare.settings import PARTS, ColumnSplit, SplitSettings
from fieldwise.data.prepare.splits import split_table
from fieldwise.data.sampling import drawn_keys, drawn_rows
from fieldwise.errors import DataError
from fieldwise.schema import Schema
from fieldwise.schema.number_format import MISSING_MARKS
from fieldwise.storage.scratch import NO_LIMIT

if TYPE_CHECKING:
    from fieldwise.data.prepare.preparation import Preparation
    from fieldwise.data.prepare.prepared import Prepared, SplitPart

ROW = "fieldwise_row_number"
"""A column with the row's number in the table."""
ANY_FIELD = "fieldwise_any_field"
TRAIN, VALID, TEST = range(3)
_MOST_CLASSES = 100
_FEW_NUMBERS = 15
"""The largest number of different whole numbers that are classes, as the label of a table without a schema."""
SECONDS_A_DAY = 86400
MOST_OF_KEYS = 0.95
VALID_SHARE = 0.1
LEAST_ROWS_PER_VALUE = 2.0
MOST_TARGETS = 3
"""The most classes whose labels are looked for in columns of numbers."""
MOST_PREPARED_ROWS = 60_000

Task = Literal["binary", "classes", "regression"]


@dataclass(frozen=True, kw_only=True, eq=False)
class AuditedTable:
    """The labelled rows of a table, raw.

    Args:
        frame: the rows of all parts.
        rows: their numbers in the table [N].
        y: their targets [N]: 0 and 1, numbers of classes, or numbers.
        task: what the targets are.
        columns: the columns to audit.
        label: the label's column.
        part: 0, 1 or 2 for training, validation and test rows [N]; None without a split.
        user: the column of users, if any.
        item: the column of items, if any.
        time: the column of times, if any.
        times: sortable times [N].
        split: how the rows were split.
        trusted: columns made by this package from training rows alone.
        drawn_negatives: whether negatives were drawn.
        dropped: how many rows the label's rule drops, which are not audited.
        left_out: how many columns are not audited, since their cells are lists, bytes or objects.
        missing: marks of missing numbers.
        seed: seed of everything random.
    """

    frame: pl.DataFrame
    rows: np.ndarray
    y: np.ndarray
    task: Task
    columns: tuple[str, ...]
    label: str
    part: np.ndarray | None = None
    user: str | None = None
    item: str | None = None
    time: str | None = None
    times: np.ndarray | None = None
    split: SplitSettings | None = None
    trusted: tuple[str, ...] = ()
    drawn_negatives: bool = False
    dropped: int = 0
    left_out: int = 0
    missing: tuple[str, ...] = MISSING_MARKS
    seed: int = 0

    def __len__(self) -> int:
        return len(self.y)

    def shown_rows(self, positions: np.ndarray) -> tuple[int, ...]:
        """The numbers in the table of the first rows of some positions [M], which a finding shows."""
        return tuple(self.rows[positions[:SHOWN_ROWS]].tolist())

    @cached_property
    def targets(self) -> list[Target]:
        """The target, or for several classes one target for each."""
        if self.task != "classes":
            return [Target(self.y, binary=self.task == "binary")]
        return [Target(self.y == k, binary=True) for k in range(int(self.y.max()) + 1)]

    @cached_property
    def main_target(self) -> Target:
        """The target, of several classes the one that is nearest to half of the rows."""
        return min(
            self.targets, key=lambda target: abs(target.mean - 0.5) if target.is_binary else 0.0
        )

    @cached_property
    def folds(self) -> np.ndarray:
        """A random fold of each row [N]."""
        return random_folds(len(self), self.seed)

    def repeating_columns(self) -> list[str]:
        """Users, items, and columns of names or whole numbers whose values repeat."""
        found = list(self.ids)
        for column in self.columns:
            cells = self.frame.get_column(column)
            if column in (*found, self.time) or cells.dtype.is_float():
                continue
            if 2 < cells.n_unique() <= len(self) / LEAST_ROWS_PER_VALUE:
                found.append(column)
        return found

    def of_one_target(self) -> Iterator["AuditedTable"]:
        """The table itself, or of several classes one with their numbers, else one for each of the largest classes."""
        if self.task != "classes":
            yield self
            return
        labels = self.frame.get_column(self.label)
        if labels.dtype.is_numeric():
            numbers = labels.cast(pl.Float64).to_numpy()
            yield replace(self, y=numbers, task="regression")
            return
        rows = np.bincount(self.y.astype(np.int64))
        for k in np.argsort(-rows, kind="stable")[:MOST_TARGETS].tolist():
            yield replace(self, y=(self.y == k).astype(np.float64), task="binary")

    @property
    def measure(self) -> str:
        """What a separation is called."""
        measures = {"binary": "AUC", "classes": "mean AUC", "regression": ".5 + rho/2"}
        return measures[self.task]

    @property
    def ids(self) -> tuple[str, ...]:
        """The columns of users and items."""
        return tuple(column for column in (self.user, self.item) if column is not None)

    def take(self, rows: np.ndarray) -> "AuditedTable":
        """Some of the rows, by ascending number."""
        return replace(
            self,
            frame=self.frame[rows],
            rows=self.rows[rows],
            y=self.y[rows],
            part=None if self.part is None else self.part[rows],
            times=None if self.times is None else self.times[rows],
        )

    def with_column(self, column: str, values: np.ndarray) -> "AuditedTable":
        """The table with another column, of numbers that are NaN where missing."""
        return replace(self, frame=self.frame.with_columns(pl.Series(column, values)))

    def rows_of(self, part: int) -> np.ndarray:
        """The places of the rows of one part, of which there are none without a split."""
        if self.part is None:
            return np.arange(0)
        return np.flatnonzero(self.part == part)

    def sample(self, most: int) -> "AuditedTable":
        """The table, or `most` random rows of it, in order."""
        if len(self) <= most:
            return self
        return self.take(drawn_rows(len(self), most, self.seed))

    def sample_keys(self, most: int) -> "AuditedTable":
        """The table, or `most` rows of it that are all rows of random users (else items); all rows without either."""
        if len(self) <= most or not self.ids:
            return self
        return self.take(drawn_keys(self.frame.get_column(self.ids[0]), most, self.seed))

    def text(self, column: str) -> pl.Series:
        """The cells of a column as text; lists are joined."""
        cells = self.frame.get_column(column)
        if cells.dtype.is_nested():
            cells = cells.cast(pl.List(pl.String), strict=False).list.join("\x1f")
        return as_text(cells)

    def codes(self, column: str) -> np.ndarray:
        """The number of each row's value [N], of which a missing cell is one."""
        return codes_of(self.text(column))

    def numbers(self, column: str) -> pl.Series | None:
        """The numbers of a column, null where missing; None if it has other cells."""
        return numbers_of(self.frame.get_column(column), self.missing)

    @property
    def seconds(self) -> np.ndarray | None:
        """The time of each row in seconds since 1970 [N]; None without such times."""
        return None if self.time is None else seconds_of(self.frame.get_column(self.time))

    def describes(self, column: str, key: str) -> bool:
        """Whether nearly every value of a key has one value of a column, as a user has one age."""
        pairs = self.frame.select(key, column).unique()
        values = pairs.group_by(key).len()
        return float((values.get_column("len") == 1).mean() or 0) >= MOST_OF_KEYS  # type: ignore[arg-type]

    def strata(self) -> np.ndarray | None:
        """A number for each row's user, or else its day [N], within which labels vary; None without either."""
        choices = []
        if self.user is not None:
            choices.append(self.codes(self.user))
        seconds = self.seconds
        if seconds is not None and np.isfinite(seconds).all():
            choices.append((seconds // SECONDS_A_DAY).astype(np.int64))
        for strata in choices:
            if _share_in_mixed(strata, self.y) >= 0.5:
                return strata
        return None


def _share_in_mixed(strata: np.ndarray, y: np.ndarray) -> float:
    """The share of rows in strata whose targets differ."""
    pairs = pl.DataFrame({"stratum": strata, "y": y})
    by_stratum = pairs.group_by("stratum").agg(pl.len(), pl.col("y").n_unique().alias("values"))
    mixed = by_stratum.filter(pl.col("values") > 1).get_column("len").sum()
    return float(mixed) / max(len(y), 1)


def of_schema(
    frame: pl.DataFrame,
    schema: Schema,
    split: SplitSettings | None,
    *,
    preparation: "Preparation | None",
    seed: int,
) -> AuditedTable:
    """The rows of a table by a schema, split if there are settings of a split.

    A recipe's preparation adds its columns and negatives, as for training.
    """
    negatives = None if preparation is None else preparation.negatives
    numbered = with_event_label(frame, schema, negatives is not None).with_row_index(ROW)
    labelled = read_labels(numbered, schema.labels, missing=schema.missing, budget=NO_LIMIT)
    dropped = labelled.dropped
    part = None
    trusted: tuple[str, ...] = ()
    if split is not None:
        settings = split if preparation is not None else _with_validation(split, frame)
        found = split_table(
            labelled.frame, settings, schema, seed=seed, y=labelled.main, budget=NO_LIMIT
        )
        by_part = {name: labelled.take(getattr(found, name)) for name in PARTS}
        if preparation is not None:
            by_part, _ = preparation.derived(by_part, budget=NO_LIMIT)
            encoding = preparation.target_encoding
            if encoding is not None and encoding.source == "train":
                trusted = encoding.made
        part = np.repeat(np.arange(len(PARTS)), [rows.frame.height for rows in by_part.values()])
        labelled = LabelledRows(
            pl.concat([rows.frame for rows in by_part.values()], how="diagonal_relaxed"),
            np.concatenate([rows.y for rows in by_part.values()]),
        )
    rows = labelled.frame.get_column(ROW).to_numpy()
    return replace(
        by_schema(labelled.frame, rows, labelled.main, schema),
        part=part,
        time=schema.time,
        times=times_of(labelled.frame, schema),
        split=split,
        trusted=trusted,
        drawn_negatives=negatives is not None,
        dropped=dropped,
        seed=seed,
    )


def by_schema(frame: pl.DataFrame, rows: np.ndarray, y: np.ndarray, schema: Schema) -> AuditedTable:
    """Rows with their numbers [N] and targets [N], of which the columns of the schema are audited."""
    return AuditedTable(
        frame=frame,
        rows=rows,
        y=y,
        task=schema.label.task,
        columns=tuple(c for c in schema.columns if c in frame.columns),
        label=schema.label.column,
        user=_present(schema.user, frame),
        item=_present(schema.item, frame),
        missing=schema.missing,
    )


def _with_validation(split: SplitSettings, frame: pl.DataFrame) -> SplitSettings:
    """The split, which samples validation rows where a column names training and test rows alone."""
    if not isinstance(split, ColumnSplit) or split.valid_share is not None:
        return split
    if split.column not in frame.columns:
        return split
    parts = frame.get_column(split.column).cast(pl.String)
    return split if parts.is_in(split.valid).any() else replace(split, valid_share=VALID_SHARE)


def of_prepared(prepared: "Prepared", schema: Schema, split: SplitSettings) -> AuditedTable:
    """Some of the rows that a recipe trains on, as they were prepared; their numbers are those within the parts.

    Of many rows they are all of random users (else items): a mean of labels is told by all rows of its key.
    """
    parts: list[SplitPart] = [getattr(prepared, name) for name in PARTS]
    rows = _drawn_of_parts([part.frame for part in parts], schema)
    frame = pl.concat(
        [part.frame[drawn] for part, drawn in zip(parts, rows, strict=True)],
        how="diagonal_relaxed",
    )
    y = np.concatenate([part.main[drawn] for part, drawn in zip(parts, rows, strict=True)])
    return replace(
        by_schema(frame, np.concatenate(rows), y, schema),
        part=np.repeat(np.arange(len(PARTS)), [len(drawn) for drawn in rows]),
        time=_present(schema.time, frame),
        split=split,
    )


def _drawn_of_parts(frames: Sequence[pl.DataFrame], schema: Schema) -> list[np.ndarray]:
    """The numbers of the drawn rows within each part."""
    starts = np.cumsum([0, *(frame.height for frame in frames)])
    key = _present(schema.user, frames[0]) or _present(schema.item, frames[0])
    if key is None:
        drawn = drawn_rows(int(starts[-1]), MOST_PREPARED_ROWS)
    else:
        keys = pl.concat([frame.select(key) for frame in frames], how="vertical_relaxed")
        drawn = drawn_keys(keys.get_column(key), MOST_PREPARED_ROWS)
    bounds = np.searchsorted(drawn, starts)
    return [
        drawn[bounds[number] : bounds[number + 1]] - starts[number] for number in range(len(frames))
    ]


def of_table(
    frame: pl.DataFrame,
    label: str | None,
    positive: Sequence[str],
    split: SplitSettings | None,
    *,
    seed: int,
) -> AuditedTable:
    """The rows of a table without a schema: users, items and times are inferred, and every column is audited.

    Of a label of several classes each class is looked at. A row without a label is refused. Rows with a
    mark of a missing label are dropped where inference drops them, and counted.
    """
    if label is not None:
        check_column(frame, label, "the label's column")
    scalars = [name for name, dtype in frame.schema.items() if is_scalar(dtype) or name == label]
    left_out = frame.width - len(scalars)
    frame = frame.select(scalars)
    # A schema needs a field, also where inference leaves all columns out.
    any_field = (pl.int_range(pl.len()) % 7).alias(ANY_FIELD)
    rows = frame.with_columns(pl.selectors.float().fill_nan(None)).with_columns(any_field)
    if label is not None:
        rows = rows.with_columns(_without_blank_texts(rows.get_column(label)))
    if label is None or positive or not _has_several_classes(_labels_of(rows.get_column(label))):
        inferred = infer_schema(rows, label=label, positive=positive)
        if inferred.only_positives:
            raise DataError(
                "an audit needs labels, but every row of this table is an event that happened: name the label's "
                "column, or audit the recipe that draws negatives"
            )
        table = of_schema(rows, inferred.schema, split, preparation=None, seed=seed)
        return replace(table, columns=_other_columns(frame, table.label, split), left_out=left_out)

    cells = rows.get_column(label)
    of_two_values = rows.with_columns(_first_class_or_not(cells))
    schema = infer_schema(of_two_values, label=label).schema
    table = of_schema(of_two_values, schema, split, preparation=None, seed=seed)
    labels = cells[table.rows]
    return replace(
        table,
        frame=table.frame.with_columns(labels),
        y=codes_of(labels).astype(np.float64),
        task="classes",
        columns=_other_columns(frame, label, split),
        left_out=left_out,
    )


def _without_blank_texts(cells: pl.Series) -> pl.Series:
    """A label's cells, null where they are blank texts."""
    if cells.dtype != pl.String:
        return cells
    return cells.set(cells.str.strip_chars() == "", None)


def _is_mark_of_no_label(cells: pl.Series) -> pl.Series:
    """Which cells of a label inference drops as marks of a missing one [N]."""
    marks = marks_of_no_label(cells) if cells.dtype == pl.String else {}
    if not marks:
        return pl.repeat(False, len(cells), dtype=pl.Boolean, eager=True)
    return cells.str.strip_chars().is_in(list(marks)).fill_null(False)


def _labels_of(cells: pl.Series) -> pl.Series:
    """The cells of a label that hold one."""
    return cells.filter(~_is_mark_of_no_label(cells)).drop_nulls()


def _first_class_or_not(cells: pl.Series) -> pl.Series:
    """A label of two values in place of one of several classes; a row without a label stays one."""
    is_first = cells == _labels_of(cells).first()
    is_mark = _is_mark_of_no_label(cells)
    words = pl.when(is_mark).then(pl.lit("?")).when(is_first).then(pl.lit("yes"))
    return pl.select(words.when(~is_first).then(pl.lit("no"))).to_series().alias(cells.name)


def _has_several_classes(present: pl.Series) -> bool:
    """Whether the cells of a label without a rule are of several classes: texts, or few whole numbers without gaps."""
    distinct = present.n_unique()
    if not 2 < distinct <= min(_MOST_CLASSES, len(present) // 2):
        return False
    if not present.dtype.is_numeric():
        return True
    numbers = present.cast(pl.Float64)
    is_whole = bool((numbers == numbers.round()).all())
    lowest = float(numbers.min())  # type: ignore[arg-type]
    has_gaps = float(numbers.max()) - lowest + 1 != distinct  # type: ignore[arg-type]
    return (
        is_whole
        and not has_gaps
        and lowest in (0.0, 1.0)
        and (distinct <= _FEW_NUMBERS or distinct >= 50)
    )


def _other_columns(frame: pl.DataFrame, label: str, split: SplitSettings | None) -> tuple[str, ...]:
    """The columns of a table but the label's and that of the parts."""
    part = split.column if isinstance(split, ColumnSplit) else None
    return tuple(column for column in frame.columns if column not in (label, part))


def _present(column: str | None, frame: pl.DataFrame) -> str | None:
    """The column, if the table has it."""
    return column if column in frame.columns else None
