"""Settings of the split, chosen by `kind`: one class each, which also assigns the rows.

Polars and NumPy are imported only to split rows, not for the settings.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Union

from fieldwise.data.prepare.split_kind import SplitKind, SplitRows
from fieldwise.errors import ConfigError, DataError

if TYPE_CHECKING:
    import numpy as np

__all__ = [
    "SPLITS",
    "ColumnSplit",
    "LeaveLastOutSplit",
    "RandomSplit",
    "SplitSettings",
    "TimeSplit",
]


@dataclass(frozen=True, kw_only=True)
class RandomSplit(SplitKind):
    """A random split; the sizes are shares of the rows, rounded half up.

    Args:
        valid: share of validation rows, within (0, 1).
        test: share of test rows, within (0, 1); with `valid` less than 1 in total.
        stratify: keep the share of every label value in each part, within a row or two.
    """

    valid: float = 0.1
    test: float = 0.1
    stratify: bool = False
    kind: Literal["random"] = "random"

    def __post_init__(self) -> None:
        _check_shares(self.valid, self.test)

    def assign(self, rows: SplitRows) -> "tuple[np.ndarray, int]":
        """See `SplitKind.assign`."""
        from fieldwise.data.prepare.drawing import classes_of, draw_parts

        classes = classes_of(rows.y, rows.scratch) if self.stratify else None
        return draw_parts(rows.frame.height, (self.valid, self.test), rows.seed, classes, rows.scratch), 0


@dataclass(frozen=True, kw_only=True)
class TimeSplit(SplitKind):
    """A split by time: the oldest rows are training rows, then validation rows, the latest are test rows.

    Rows of equal time are never separated. Each cut lies between two neighbouring times, and the pair of cuts is the
    closest to the shares (smallest sum of the two distances, in rows) without an empty part; of two equally close cuts
    the earlier one is used. The result does not depend on the order of the table's rows.

    Args:
        valid: share of validation rows, within (0, 1).
        test: share of test rows, within (0, 1); with `valid` less than 1 in total.
        column: numbers, dates, or text with either; the schema's `time` if omitted.
    """

    valid: float = 0.1
    test: float = 0.1
    column: str | None = None
    kind: Literal["time"] = "time"

    def __post_init__(self) -> None:
        _check_shares(self.valid, self.test)

    def assign(self, rows: SplitRows) -> "tuple[np.ndarray, int]":
        """See `SplitKind.assign`."""
        import numpy as np

        from fieldwise.data.prepare.cuts import few_values, time_cuts

        name = self.column or rows.columns.time
        if name is None:
            raise DataError("a time split needs a time column: give the split's column or the schema's time")
        values = rows.columns.order(name, rows, "time")
        ordered = rows.scratch.copy(values)
        ordered.sort()
        if few := few_values(ordered, 3):
            raise DataError(
                f"a time split needs at least 3 different times: column {name!r} holds {few}; choose another split"
            )
        first, second = time_cuts(ordered, (self.valid, self.test))
        part = rows.scratch.empty(len(values), np.int8)
        for at in rows.scratch.pieces(len(values)):
            part[at] = (values[at] >= first).astype(np.int8) + (values[at] >= second)
        return part, 0


@dataclass(frozen=True, kw_only=True)
class LeaveLastOutSplit(SplitKind):
    """Leave-last-out: each user's last rows are test rows, those before validation rows, the others training rows.

    A user's rows with equal order values keep the table's order. Users with fewer than
    `min_train + valid_rows + test_rows` rows stay in train, and are counted in `Split.users_kept_in_train`.

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
        for name, least in (("valid_rows", 1), ("test_rows", 1), ("min_train", 0)):
            if getattr(self, name) < least:
                raise ConfigError(f"{name} must be at least {least}, found {getattr(self, name)}")

    def assign(self, rows: SplitRows) -> "tuple[np.ndarray, int]":
        """See `SplitKind.assign`."""
        import numpy as np

        from fieldwise.data.prepare.grouping import group_rows, rank_texts

        frame = rows.frame
        user, order = self.user or rows.columns.user, self.order or rows.columns.time
        if user is None or order is None:
            missing = "user (or the schema's)" if user is None else "order (or the schema's time)"
            raise DataError(f"a leave-last-out split needs columns of users and order: give the split's {missing}")
        values = rows.columns.order(order, rows, "order")
        if user not in frame.columns:
            raise DataError(
                f"the split's user column {user!r} must be in the table, found only: {', '.join(frame.columns)}"
            )
        users = rank_texts(frame.get_column(user), rows.scratch)
        if users.missing:
            raise DataError(
                f"every row needs a user: column {user!r} has none in row {users.missing[0]} (counting from 0)"
            )
        part = rows.scratch.empty(frame.height, np.int8)
        kept = 0
        for some in group_rows(users, rows.scratch):
            some = some.sorted_by(values)
            enough = some.counts >= self.min_train + self.valid_rows + self.test_rows
            kept += int((~enough & (some.counts > 0)).sum())
            from_end = some.ends - 1 - np.arange(len(some.rows))
            held = np.where(from_end < self.test_rows, 2, np.where(from_end < self.test_rows + self.valid_rows, 1, 0))
            part[some.rows] = np.where(enough[some.codes], held, 0)
        return part, kept

    def advice(self, kept: int) -> str:
        """See `SplitKind.advice`."""
        return f"{kept} users have too few rows: lower valid_rows, test_rows or min_train, or choose another split"


@dataclass(frozen=True, kw_only=True)
class ColumnSplit(SplitKind):
    """A split by a column with each row's part.

    Args:
        column: the column; it must not be a field of the schema.
        train: values (as text) of training rows.
        valid: values of validation rows.
        test: values of test rows.
        valid_share: for tables without validation rows: share of the training rows, sampled by the seed, to use as
            validation rows.
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
        twice = [v for v, n in Counter((*self.train, *self.valid, *self.test)).items() if n > 1]
        if twice:
            raise ConfigError(
                f"a value must belong to one part only: {twice[0]!r} occurs more than once in train, valid and test"
            )
        if self.valid_share is not None and not 0 < self.valid_share < 1:
            raise ConfigError(f"valid_share must lie between 0 and 1, both excluded, found {self.valid_share}")
        if self.stratify and self.valid_share is None:
            raise ConfigError("stratify is for sampling validation rows: also give valid_share, or omit stratify")

    def assign(self, rows: SplitRows) -> "tuple[np.ndarray, int]":
        """See `SplitKind.assign`."""
        import numpy as np

        from fieldwise.data.encode.columns import as_text
        from fieldwise.data.prepare.drawing import classes_of, draw_parts

        frame = rows.frame
        if self.column not in frame.columns:
            found = ", ".join(frame.columns)
            raise DataError(f"the split's column {self.column!r} must be in the table, found only: {found}")
        part = rows.scratch.empty(frame.height, np.int8)
        for at in rows.scratch.pieces(frame.height):
            text = as_text(frame[self.column][at])
            own = np.full(len(text), -1, dtype=np.int8)
            for k, names in enumerate((self.train, self.valid, self.test)):
                own[text.is_in(list(names)).fill_null(False).to_numpy()] = k
            if (own < 0).any():
                row = int(np.argmax(own < 0))
                raise DataError(
                    f"every value of the split's column must belong to a part: column {self.column!r} holds "
                    f"{text[row]!r} in row {at.start + row} (counting from 0); add it to train, valid or test, or "
                    "remove such rows"
                )
            part[at] = own
        if self.valid_share is None:
            return part, 0
        if valid := int(np.count_nonzero(part == 1)):
            raise DataError(
                f"valid_share is for tables without validation rows: column {self.column!r} has {valid}; omit "
                "valid_share, or add their values to train"
            )
        train = rows.scratch.where(part, 0)
        classes = None
        if self.stratify:
            classes = classes_of(None if rows.y is None else rows.scratch.take(rows.y, train), rows.scratch)
        part[train] = draw_parts(len(train), (self.valid_share, 0.0), rows.seed, classes, rows.scratch)
        return part, 0

    def advice(self, kept: int) -> str:
        """See `SplitKind.advice`."""
        if self.valid_share is None:
            return f"give their values in column {self.column!r}, or valid_share to sample validation rows from train"
        return f"give their values in column {self.column!r}, or change valid_share"


SPLITS: Mapping[str, type[SplitKind]] = {
    "random": RandomSplit,
    "time": TimeSplit,
    "leave-last-out": LeaveLastOutSplit,
    "column": ColumnSplit,
}
"""All of them by the `kind` that recipes name them by."""

if TYPE_CHECKING:
    SplitSettings = SplitKind
else:
    SplitSettings = Union[tuple(SPLITS.values())]  # noqa: UP007, what recipes are read by, and the settings' page


def _check_shares(valid: float, test: float) -> None:
    for name, share in (("valid", valid), ("test", test)):
        if not 0 < share < 1:
            raise ConfigError(f"{name} must be a share between 0 and 1, both excluded, found {share}")
    if valid + test >= 1:
        raise ConfigError(
            f"valid and test must leave rows to train on: their sum must be below 1, found {valid + test:g}"
        )
