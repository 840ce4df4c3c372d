"""Settings of the split, histories, target encoding and negatives; they need neither NumPy nor polars."""

from collections import Counter
from dataclasses import Field, dataclass, replace
from typing import Any, ClassVar, Literal, Self

from fieldwise.config import check_numbers, convert_settings
from fieldwise.errors import ConfigError
from fieldwise.schema import Schema

Part = Literal["train", "valid", "test"]
PARTS = ("train", "valid", "test")


class _IdColumns:
    """The base of settings that may name the columns of user and item ids, if not the schema's."""

    user: str | None
    item: str | None
    _section: ClassVar[str]
    """The settings' section of a recipe, for messages."""
    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]

    def of_schema(self, schema: Schema) -> Self:
        """The same with the schema's columns of users and items, where they were left out."""
        return replace(self, user=self.user or schema.user, item=self.item or schema.item)

    @property
    def text_columns(self) -> tuple[str, ...]:
        """The columns that these settings name and read as text."""
        return tuple(column for column in (self.user, self.item) if column is not None)

    @property
    def ids(self) -> tuple[str, str]:
        """The columns of users and of items."""
        if self.user is None or self.item is None:
            absent = "user" if self.user is None else "item"
            raise ConfigError(
                f"[{self._section}] needs the column of {absent} ids, which the schema does not have: set {absent} = "
                f"COLUMN in the schema, or in [{self._section}]"
            )
        return self.user, self.item


@dataclass(frozen=True, kw_only=True)
class HistorySettings(_IdColumns):
    """Settings of the column of histories that a Sequence field of the schema reads.

    A row's history holds the items of the same user's training rows that come strictly before it;
    rows with the same time are not before each other. No label of a validation or test row, of the
    row itself or of a later row is used. Rows that the label's rule drops are not events.

    Only recipes make histories. A `Recommender` does not, and neither do `predict` and
    `evaluate --data`: their tables must have the column.

    Args:
        column: name of the new column; a cell is a list of items, oldest first.
        user: column of users; the schema's `user` if omitted. A row without a user has an empty
            history.
        item: column of items; the schema's `item` if omitted. A training row without an item is not
            an event.
        order: column that orders a user's rows; the schema's time if omitted.
        positives_only: only use training rows with a positive label (above 0).
        max_length: maximum number of items; the newest are kept.
    """

    _section = "history"
    column: str = "history"
    user: str | None = None
    item: str | None = None
    order: str | None = None
    positives_only: bool = True
    max_length: int = 50

    def __post_init__(self) -> None:
        convert_settings(self)
        for name in ("column", "user", "item", "order"):
            if getattr(self, name) == "":
                raise ConfigError(f"a history's {name} must be a column name, found an empty one")
        if self.column in (self.user, self.item, self.order):
            raise ConfigError(
                f"a history's column must be a new one, but {self.column!r} is used twice: rename it"
            )
        if self.max_length < 1:
            raise ConfigError(f"a history's max_length must be at least 1, found {self.max_length}")


@dataclass(frozen=True, kw_only=True)
class TargetEncoding:
    """Settings of target encoding: a column `COLUMN_mean_label` with the mean main label of each category's rows.

    A validation or test row has the mean over the training rows; a training row has the mean over
    the other folds, so that its own label is not used. The value of a category without such rows is
    missing, as for a missing category. Means are weighted if rows have weights.

    Only recipes make these columns, as for histories: other tables to score must have them.

    Args:
        columns: categorical columns.
        folds: number of random folds of the training rows.
        prior_rows: number of rows with the overall mean that are added to every category
            (smoothing).
        source: `train`, or `own-part`: every part's means are over its own rows, so the test's are
            over the test labels; or `own-side`: the same, with training and validation rows as one
            part. Both leak the predicted labels; they only serve to reproduce published figures.
    """

    columns: tuple[str, ...]
    folds: int = 5
    prior_rows: float = 0.0
    source: Literal["train", "own-part", "own-side"] = "train"

    def __post_init__(self) -> None:
        convert_settings(self)
        if not self.columns or len(set(self.columns)) != len(self.columns):
            raise ConfigError(
                f"target_encoding.columns must name different columns, found {list(self.columns)}"
            )
        if self.folds < 2:
            raise ConfigError(f"target_encoding.folds must be at least 2, found {self.folds}")
        if self.prior_rows < 0:
            raise ConfigError(
                f"target_encoding.prior_rows must not be negative, found {self.prior_rows:g}"
            )

    @property
    def text_columns(self) -> tuple[str, ...]:
        """The columns that these settings name and read as text."""
        return self.columns

    @property
    def made(self) -> tuple[str, ...]:
        """The new columns."""
        return tuple(f"{column}_mean_label" for column in self.columns)


@dataclass(frozen=True, kw_only=True)
class NegativeSampling(_IdColumns):
    """Settings of negative sampling.

    Args:
        user: column of users; the schema's `user` if omitted.
        item: column of items; the schema's `item` if omitted.
        per_positive: negatives per positive row, at least 1.
        kind: how items are drawn: `uniform`, `popularity` (in proportion to their positive rows to
            the power of `exponent`), or `mixed`: half of each.
        exponent: of `popularity` and `mixed`, from 0 (uniform) to 1 (in proportion).
        parts: the parts of the split that get negatives.
        only_where_missing: skip parts that already have negatives, such as published test files.
        item_columns: columns that describe the item, which get the sampled item's values: of a
            column that changes within an item the latest one at or before the row's time, or none
            (counted). All others keep the positive's.
    """

    _section = "negatives"
    user: str | None = None
    item: str | None = None
    per_positive: int = 2
    kind: Literal["uniform", "popularity", "mixed"] = "uniform"
    exponent: float = 0.75
    parts: tuple[Part, ...] = ("train",)
    only_where_missing: bool = False
    item_columns: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        convert_settings(self)
        check_numbers(self, "be at least 1", lambda count: count >= 1, "per_positive")
        check_numbers(self, "be from 0 to 1", lambda power: 0 <= power <= 1, "exponent")
        if not self.parts:
            raise ConfigError(
                "negatives need at least one part: give some of train, valid and test as parts"
            )
        if self.item is not None and self.item in (self.user, *self.item_columns):
            raise ConfigError(
                f"the item column {self.item!r} must not be the user column or in item_columns too"
            )
        if self.user in self.item_columns:
            raise ConfigError(f"the user column {self.user!r} must not be in item_columns")


@dataclass(frozen=True, kw_only=True)
class _Shares:
    """The shares of validation and test rows."""

    valid: float = 0.1
    test: float = 0.1

    def __post_init__(self) -> None:
        convert_settings(self)
        rule = "be a share between 0 and 1, both excluded"
        check_numbers(self, rule, lambda share: 0 < share < 1, "valid", "test")
        total = self.valid + self.test
        if total >= 1:
            raise ConfigError(
                f"valid and test must leave rows to train on: their sum must be below 1, found {total:g}"
            )


@dataclass(frozen=True, kw_only=True)
class RandomSplit(_Shares):
    """A random split; the sizes are shares of the rows, rounded half up.

    Args:
        valid: share of validation rows, within (0, 1).
        test: share of test rows, within (0, 1); with `valid` less than 1 in total.
        stratify: keep the share of every label value in each part, within a row or two.
        drop_without_positive: column, such as that of users: a test row is dropped if no test row
            with its value is positive (above 0), and another row if no other one is. Rows are then
            chosen by their labels, also in the test: it only serves to reproduce published figures.
        valid_last_by: column of numbers or dates: the validation rows are not drawn, but the last
            of the rows without the test rows, by this column (equal ones in the table's order), as
            many as `valid` is of `1 - test`. By the column of an id, these are ids that the
            training rows do not have; it only serves to reproduce published figures.
    """

    stratify: bool = False
    drop_without_positive: str | None = None
    valid_last_by: str | None = None
    kind: Literal["random"] = "random"

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("drop_without_positive", "valid_last_by"):
            if getattr(self, name) == "":
                raise ConfigError(f"{name} must be a column name, found an empty one")
        if self.stratify and self.valid_last_by is not None:
            raise ConfigError(
                "stratify keeps the label's shares in each part, which validation rows by valid_last_by do not: omit "
                "one of the two"
            )

    @property
    def text_columns(self) -> tuple[str, ...]:
        """The columns that these settings name and read as text."""
        return () if self.drop_without_positive is None else (self.drop_without_positive,)


@dataclass(frozen=True, kw_only=True)
class TimeSplit(_Shares):
    """A split by time: the oldest rows are training rows, then validation rows, the latest are test rows.

    Rows of equal time are never separated. Each cut lies between two neighbouring times, and the
    pair of cuts is the closest to the shares (smallest sum of the two distances, in rows) without
    an empty part; of two equally close cuts the earlier one is used. The result does not depend on
    the order of the table's rows.

    Args:
        valid: share of validation rows, within (0, 1).
        test: share of test rows, within (0, 1); with `valid` less than 1 in total.
        column: numbers, dates, or text with either; the schema's `time` if omitted.
    """

    column: str | None = None
    kind: Literal["time"] = "time"

    @property
    def text_columns(self) -> tuple[str, ...]:
        """The columns that these settings name and read as text: none."""
        return ()


@dataclass(frozen=True, kw_only=True)
class LeaveLastOutSplit:
    """Leave-last-out: each user's last rows are test rows, those before validation rows, the others training rows.

    A user's rows with equal order values keep the table's order. Users with fewer than
    `min_train + valid_rows + test_rows` rows stay in train, and are counted in
    `Split.users_kept_in_train`.

    Args:
        valid_rows: validation rows per user, at least 1.
        test_rows: test rows per user, at least 1.
        user: column of users; the schema's `user`, or its `group`, if omitted.
        order: column that orders a user's rows; the schema's `time` if omitted.
        min_train: minimum number of training rows that a user must keep for rows to be held out.
    """

    valid_rows: int = 1
    test_rows: int = 1
    user: str | None = None
    order: str | None = None
    min_train: int = 1
    kind: Literal["leave-last-out"] = "leave-last-out"

    def __post_init__(self) -> None:
        convert_settings(self)
        check_numbers(self, "be at least 1", lambda count: count >= 1, "valid_rows", "test_rows")
        check_numbers(self, "be at least 0", lambda count: count >= 0, "min_train")

    @property
    def text_columns(self) -> tuple[str, ...]:
        """The columns that these settings name and read as text."""
        return () if self.user is None else (self.user,)


@dataclass(frozen=True, kw_only=True)
class ColumnSplit:
    """A split by a column with each row's part.

    Args:
        column: the column; it must not be a field of the schema.
        train: values (as text) of training rows.
        valid: values of validation rows.
        test: values of test rows.
        valid_share: for tables without validation rows: share of the training rows, sampled by the
            seed, to use as validation rows.
        stratify: keep the label's shares when sampling them.
    """

    column: str
    train: tuple[str, ...] = ("train",)
    valid: tuple[str, ...] = ("valid", "val")
    test: tuple[str, ...] = ("test",)
    valid_share: float | None = None
    stratify: bool = False
    kind: Literal["column"] = "column"

    def __post_init__(self) -> None:
        convert_settings(self)
        counts = Counter((*self.train, *self.valid, *self.test))
        twice = [value for value, count in counts.items() if count > 1]
        if twice:
            raise ConfigError(
                f"a value must belong to one part only: {twice[0]!r} occurs more than once in train, valid and test"
            )
        rule = "lie between 0 and 1, both excluded"
        check_numbers(self, rule, lambda share: 0 < share < 1, "valid_share")
        if self.stratify and self.valid_share is None:
            raise ConfigError(
                "stratify is for sampling validation rows: also give valid_share, or omit stratify"
            )

    @property
    def text_columns(self) -> tuple[str, ...]:
        """The columns that these settings name and read as text."""
        return (self.column,)


SplitSettings = RandomSplit | TimeSplit | LeaveLastOutSplit | ColumnSplit
