"""Settings of the split: five kinds, chosen by `kind`."""

from collections import Counter
from dataclasses import dataclass
from typing import Literal

from fieldwise.errors import ConfigError

__all__ = ["ColumnSplit", "LeaveLastOutSplit", "RandomSplit", "SplitSettings", "TimeSplit"]


@dataclass(frozen=True, kw_only=True)
class RandomSplit:
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


@dataclass(frozen=True, kw_only=True)
class TimeSplit:
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


@dataclass(frozen=True, kw_only=True)
class LeaveLastOutSplit:
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


@dataclass(frozen=True, kw_only=True)
class ColumnSplit:
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


SplitSettings = RandomSplit | TimeSplit | LeaveLastOutSplit | ColumnSplit


def _check_shares(valid: float, test: float) -> None:
    for name, share in (("valid", valid), ("test", test)):
        if not 0 < share < 1:
            raise ConfigError(f"{name} must be a share between 0 and 1, both excluded, found {share}")
    if valid + test >= 1:
        raise ConfigError(
            f"valid and test must leave rows to train on: their sum must be below 1, found {valid + test:g}"
        )
