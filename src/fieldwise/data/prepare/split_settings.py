"""How rows are divided, as settings: five ways told apart by `kind`, in Python or TOML."""

from collections import Counter
from dataclasses import dataclass
from typing import Literal

from fieldwise.errors import ConfigError

__all__ = ["ColumnSplit", "LeaveLastOutSplit", "RandomSplit", "SplitSettings", "TimeSplit"]


@dataclass(frozen=True, kw_only=True)
class RandomSplit:
    """Rows drawn without regard to anything; sizes are the shares of the rows, rounded half up.

    Args:
        valid: share of validation rows, within (0, 1).
        test: share of test rows, within (0, 1); with `valid` less than 1 in all.
        stratify: every value of the label keeps its share in each part, to within a row or two.
    """

    valid: float = 0.1
    test: float = 0.1
    stratify: bool = False
    kind: Literal["random"] = "random"

    def __post_init__(self) -> None:
        _check_shares(self.valid, self.test)


@dataclass(frozen=True, kw_only=True)
class TimeSplit:
    """A global time cut: the oldest rows train, then come the validation rows, the latest rows are the test.

    Rows of equal time are never parted. Each cut stands between two neighbouring times, and the pair of cuts is the one
    that comes nearest to the shares (least sum of the two distances, in rows) with no part empty; of two equally
    near cuts the earlier one is taken. The result does not depend on the order of the table's rows.

    Args:
        valid: share of validation rows, within (0, 1).
        test: share of test rows, within (0, 1); with `valid` less than 1 in all.
        column: numbers, dates, or text that holds either; the schema's `time` where left out.
    """

    valid: float = 0.1
    test: float = 0.1
    column: str | None = None
    kind: Literal["time"] = "time"

    def __post_init__(self) -> None:
        _check_shares(self.valid, self.test)


@dataclass(frozen=True, kw_only=True)
class LeaveLastOutSplit:
    """Each user's last rows are the test, those before them the validation rows, all earlier ones train.

    Rows of one user with equal order are taken in the table's order. Users with fewer than
    `min_train + valid_rows + test_rows` rows stay in train, and are counted in `Split.users_kept_in_train`.

    Args:
        valid_rows: validation rows a user, at least 1.
        test_rows: test rows a user, at least 1.
        user: column of users; the schema's `user`, or its `group`, where left out.
        order: column that orders a user's rows; the schema's `time` where left out.
        min_train: training rows that a user must keep to be held out at all.
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
    """A column names each row's part.

    Args:
        column: the column; it must be no field of the schema.
        train: values (as text) that name training rows.
        valid: values that name validation rows.
        test: values that name test rows.
        valid_share: for tables without validation rows: this share of the training rows, drawn by the seed, becomes
            them.
        stratify: draw them with the label's shares kept.
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
                f"a value names one part only: {twice[0]!r} stands more than once in train, valid and test"
            )
        if self.valid_share is not None and not 0 < self.valid_share < 1:
            raise ConfigError(f"valid_share must lie between 0 and 1, both excluded, found {self.valid_share}")
        if self.stratify and self.valid_share is None:
            raise ConfigError("stratify is for drawing validation rows: give valid_share too, or leave stratify out")


SplitSettings = RandomSplit | TimeSplit | LeaveLastOutSplit | ColumnSplit


def _check_shares(valid: float, test: float) -> None:
    for name, share in (("valid", valid), ("test", test)):
        if not 0 < share < 1:
            raise ConfigError(f"{name} must be a share between 0 and 1, both excluded, found {share}")
    if valid + test >= 1:
        raise ConfigError(
            f"valid and test must leave rows to train on: their sum must be below 1, found {valid + test:g}"
        )
