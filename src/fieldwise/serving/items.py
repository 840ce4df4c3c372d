"""A catalogue of items: rows named by an id, in the order of a table."""

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from typing import ClassVar

import numpy as np
import polars as pl
import torch
from torch import Tensor

from fieldwise.config import nearest
from fieldwise.data.encode.columns import as_text
from fieldwise.errors import DataError
from fieldwise.serving.places import places_of
from fieldwise.storage.shared import SharedArrays

__all__ = ["ItemTable", "checked_ids"]


@dataclass(frozen=True, eq=False, kw_only=True)
class ItemTable:
    """A catalogue's rows.

    Args:
        id_column: the column of item ids in `items`.
        items: the rows.
        name: determines the rows where processes share what is made of them.
        shared: where they do; None if each has its own.

    >>> table = ItemTable(id_column="item", items=pl.DataFrame({"item": [3, 5], "title": ["a", "b"]}))
    >>> len(table), table.rows_of(["5"]).tolist()
    (2, [1])
    """

    id_column: str
    items: pl.DataFrame
    name: str = "catalogue"
    shared: SharedArrays | None = None
    what: ClassVar[str] = "catalogue"  # its name in errors

    def __len__(self) -> int:
        return self.items.height

    @property
    def ids(self) -> list[str]:
        """The items' ids as text."""
        return self.texts.to_list()

    @cached_property
    def texts(self) -> pl.Series:
        """The items' ids as a column of text, which processes can share."""
        column = self.items.get_column(self.id_column)
        if self.shared is None or column.dtype == pl.String:
            return as_text(column)
        return self.shared.frame(f"ids-{self.name}", lambda: as_text(column).to_frame("id")).get_column("id")

    @cached_property
    def places(self) -> Mapping[str, int]:
        """The row of each id."""
        return places_of(self.texts, self.name, self.shared)

    def arrays(
        self, what: str, names: Iterable[str], make: Callable[[], Mapping[str, np.ndarray]], *, of: str = ""
    ) -> Mapping[str, np.ndarray]:
        """Arrays that are made of the rows: one copy of all processes that share them.

        Args:
            what: what they are; a part of file names.
            names: the arrays' names.
            make: the arrays by name.
            of: what else determines them, such as a bundle's digest.
        """
        if self.shared is None:
            return make()
        made: dict[str, np.ndarray] = {}

        def one(name: str) -> np.ndarray:
            made.update({} if made else make())
            return made[name]

        owner = f"{of[:32]}+{self.name}" if of else self.name
        return {name: self.shared.array(f"{what}_{name}-{owner}", partial(one, name)) for name in names}

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


def checked_ids(items: pl.DataFrame, column: str) -> pl.Series:
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
    return texts
