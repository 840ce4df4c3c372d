"""Settings of preparation: histories, target encoding, negatives. Polars is not loaded for them."""

from dataclasses import dataclass, replace
from typing import Literal

from fieldwise.errors import ConfigError
from fieldwise.schema import Schema

__all__ = ["HistorySettings", "NegativeSampling", "TargetEncoding"]

Part = Literal["train", "valid", "test"]


@dataclass(frozen=True, kw_only=True)
class HistorySettings:
    """How the column of histories is made that a Sequence field of the schema reads.

    A row's history holds the items of training rows of the same user that come strictly before it; rows of one moment
    are not before each other. No label of a validation or test row, nor any row's own, nor a later one enters it. Rows
    that the label's rule drops are no events.

    Recipes alone make histories. A `Recommender` does not, and rows that a bundle is to score later (`predict`,
    `evaluate --data`) come from elsewhere: such tables must hold the column themselves.

    Args:
        column: name of the new column; a cell is a list of items, oldest first.
        user: column of users; the schema's `user`, where left out. A row without a user has an empty history.
        item: column of items; the schema's `item`, where left out. A training row without an item is no event.
        order: column that orders a user's rows; the schema's time, where left out.
        positives_only: of the training rows count those with a positive label (above 0) alone.
        max_length: how many items are kept, the newest ones.
    """

    column: str = "history"
    user: str | None = None
    item: str | None = None
    order: str | None = None
    positives_only: bool = True
    max_length: int = 50

    def __post_init__(self) -> None:
        for name in ("column", "user", "item", "order"):
            if getattr(self, name) == "":
                raise ConfigError(f"a history's {name} must name a column, found an empty name")
        if self.column in (self.user, self.item, self.order):
            raise ConfigError(f"a history's column must be a new one, but {self.column!r} is named twice: rename it")
        if self.max_length < 1:
            raise ConfigError(f"a history's max_length must be at least 1, found {self.max_length}")

    def of_schema(self, schema: Schema) -> "HistorySettings":
        """The same with the schema's columns of users and items, where they were left out."""
        return replace(self, user=self.user or schema.user, item=self.item or schema.item)

    @property
    def ids(self) -> tuple[str, str]:
        """The columns of users and of items.

        Errors:
            ConfigError: neither the settings nor the schema say one of them.
        """
        return _ids("history", self.user, self.item)


@dataclass(frozen=True, kw_only=True)
class TargetEncoding:
    """Which columns' categories get a column `COLUMN_mean_label` of their rows' mean main label.

    A validation or test row reads the mean over the training rows; a training row the mean over those of the other
    folds, so that no row's own label enters. A category without such a row is missing, as is an absent one.

    Recipes alone make these columns, as those of histories: tables to be scored later must hold them themselves.

    Args:
        columns: of categories.
        folds: into how many random parts the training rows are dealt.
        prior_rows: number of rows of the overall mean that are added to every category.
        source: `train`, or `own-part`: every part's means are taken over its own rows, those of the test over the test
            labels. That leaks the labels that are predicted; published figures rest on it, and it is there to repeat
            them alone.
    """

    columns: tuple[str, ...]
    folds: int = 5
    prior_rows: float = 0.0
    source: Literal["train", "own-part"] = "train"

    def __post_init__(self) -> None:
        if not self.columns or len(set(self.columns)) != len(self.columns):
            raise ConfigError(f"target_encoding.columns must name different columns, found {list(self.columns)}")
        if self.folds < 2:
            raise ConfigError(f"target_encoding.folds must be at least 2, found {self.folds}")
        if self.prior_rows < 0:
            raise ConfigError(f"target_encoding.prior_rows must not be negative, found {self.prior_rows:g}")

    @property
    def made(self) -> tuple[str, ...]:
        """The new columns."""
        return tuple(f"{column}_mean_label" for column in self.columns)

    def caution(self) -> str | None:
        """What a person must know of figures by leaked labels; None where none leaks."""
        if self.source == "train":
            return None
        return (
            "warning: target_encoding.source = 'own-part' takes means over the labels of the rows that are scored: the "
            "figures are too good, and compare with published ones of the same leak alone"
        )


@dataclass(frozen=True, kw_only=True)
class NegativeSampling:
    """How negatives are drawn.

    Args:
        user: column of users; the schema's `user`, where left out.
        item: column of items; the schema's `item`, where left out.
        per_positive: negatives a positive row, at least 1.
        parts: the parts of the split that get them.
        only_where_missing: leave out parts that hold negatives already, such as published test files.
        item_columns: columns that describe the item; they become the drawn item's. All others keep the positive's.
    """

    user: str | None = None
    item: str | None = None
    per_positive: int = 2
    parts: tuple[Part, ...] = ("train",)
    only_where_missing: bool = False
    item_columns: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.per_positive < 1:
            raise ConfigError(f"per_positive must be at least 1, found {self.per_positive}")
        if not self.parts:
            raise ConfigError("negatives need at least one part: name some of train, valid and test in parts")
        if self.item is not None and self.item in (self.user, *self.item_columns):
            raise ConfigError(f"the item column {self.item!r} must not be named as user or in item_columns too")
        if self.user in self.item_columns:
            raise ConfigError(f"the user column {self.user!r} must not be named in item_columns")

    def of_schema(self, schema: Schema) -> "NegativeSampling":
        """The same with the schema's columns of users and items, where they were left out."""
        return replace(self, user=self.user or schema.user, item=self.item or schema.item)

    @property
    def ids(self) -> tuple[str, str]:
        """The columns of users and of items.

        Errors:
            ConfigError: neither the settings nor the schema say one of them.
        """
        return _ids("negatives", self.user, self.item)


def _ids(section: str, user: str | None, item: str | None) -> tuple[str, str]:
    if user is None or item is None:
        absent = "user" if user is None else "item"
        raise ConfigError(
            f"[{section}] needs to know which column names the {absent}, and the schema does not say: write {absent} = "
            f"COLUMN in the schema, or in [{section}]"
        )
    return user, item
