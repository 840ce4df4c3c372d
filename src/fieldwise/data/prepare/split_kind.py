"""What a kind of split is: its settings, and the part that it gives each row."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fieldwise.schema import Schema

if TYPE_CHECKING:
    import numpy as np
    import polars as pl

    from fieldwise.storage.scratch import Scratch

__all__ = ["SplitColumns", "SplitKind", "SplitRows"]


@dataclass(frozen=True, kw_only=True)
class SplitColumns:
    """The schema's columns that a split goes by where its settings name none.

    Args:
        time: column that orders rows.
        user: column of users.
        time_format: of the time, where it is text of dates.
    """

    time: str | None = None
    user: str | None = None
    time_format: str | None = None

    @classmethod
    def of(cls, schema: Schema) -> "SplitColumns":
        """Those of a schema; its group stands for users where it does not say who they are."""
        return cls(time=schema.time, user=schema.user or schema.group, time_format=schema.time_format)

    def order(self, name: str, rows: "SplitRows", what: str) -> "np.ndarray":
        """The numbers by which a column orders rows [N]."""
        from fieldwise.data.prepare.ordering import order_numbers

        form = self.time_format if name == self.time else None
        return order_numbers(rows.frame, name, what, form, scratch=rows.scratch)


@dataclass(frozen=True, kw_only=True, eq=False)
class SplitRows:
    """What a split divides.

    Args:
        frame: the rows, N.
        columns: of the schema.
        seed: of those that draw.
        y: targets [N], where they are known.
        scratch: where arrays of N numbers lie, and how many rows are processed at once.
    """

    frame: "pl.DataFrame"
    columns: SplitColumns
    seed: int
    y: "np.ndarray | None"
    scratch: "Scratch"


@dataclass(frozen=True, kw_only=True)
class SplitKind(ABC):
    """Base of the settings of a split: a field `kind`, the name in recipes, and how rows are divided."""

    if TYPE_CHECKING:
        kind: str

    @abstractmethod
    def assign(self, rows: SplitRows) -> "tuple[np.ndarray, int]":
        """The part of each row [N], int8 (0 train, 1 valid, 2 test), and how many users have too few to be held out.

        Errors:
            DataError: a column is missing or has nulls, a value names no part, a class has too few rows.
        """

    def advice(self, kept: int) -> str:
        """What to do where a part is empty; `kept` users were kept in train."""
        return "give more rows or change the shares valid and test"
