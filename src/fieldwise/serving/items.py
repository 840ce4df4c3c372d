"""A catalogue of items: rows named by an id, in the order of a table."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import polars as pl
import torch
from torch import Tensor

from fieldwise.config import nearest
from fieldwise.data.encode.columns import as_text
from fieldwise.errors import DataError

__all__ = ["ItemTable", "checked_ids"]


@dataclass(frozen=True, eq=False, kw_only=True)
class ItemTable:
    """A catalogue's rows.

    Args:
        id_column: the column of item ids in `items`.
        items: the rows.

    >>> table = ItemTable(id_column="item", items=pl.DataFrame({"item": [3, 5], "title": ["a", "b"]}))
    >>> len(table), table.rows_of(["5"]).tolist()
    (2, [1])
    """

    id_column: str
    items: pl.DataFrame
    what: ClassVar[str] = "catalogue"  # its name in errors

    def __len__(self) -> int:
        return self.items.height

    @cached_property
    def ids(self) -> list[str]:
        """The items' ids as text."""
        return as_text(self.items.get_column(self.id_column)).to_list()

    @cached_property
    def places(self) -> Mapping[str, int]:
        """The row of each id."""
        return {name: row for row, name in enumerate(self.ids)}

    def rows_of(self, ids: Collection[str]) -> Tensor:
        """The rows of items by id, int64.

        Errors:
            DataError: an unknown id.
        """
        try:
            return torch.tensor([self.places[str(one)] for one in ids], dtype=torch.int64)
        except KeyError as e:
            raise DataError(self.unknown(e.args[0])) from None

    def unknown(self, one: str) -> str:
        """The message for an unknown id."""
        return f"an item must be one of the {self.what}'s {len(self):,}, found {one[:60]!r}"


def checked_ids(items: pl.DataFrame, column: str) -> list[str]:
    """The ids of a catalogue's rows as text, checked to be present and unique.

    Errors:
        DataError: no such column, no rows, a missing or duplicate id.
    """
    if column not in items.columns:
        raise DataError(f"the items must have the column {column!r} of ids: {nearest(column, items.columns)}")
    if not items.height:
        raise DataError("there must be items to recommend, found none")
    texts = as_text(items.get_column(column))
    if texts.null_count():
        row = int(texts.is_null().arg_max() or 0)
        raise DataError(f"every item needs an id: column {column!r} is empty in row {row} (counting from 0)")
    twice = texts.is_duplicated()
    if twice.any():
        row = int(twice.arg_max() or 0)
        raise DataError(f"every item id must be unique: {texts[row]!r} in column {column!r} occurs more than once")
    return [str(text) for text in texts.to_list()]
