"""A catalogue of items: rows named by an id, in the order of a table; with the heads of an IntTower, an index.

Filters find rows by the values of columns; the index of a column is built when it is first used.
"""

from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property, partial
from threading import Lock
from typing import Any, ClassVar
from zlib import crc32

import numpy as np
import polars as pl
import torch
from numpy.typing import ArrayLike, NDArray
from polars.exceptions import PolarsError

from fieldwise.config import nearest
from fieldwise.data.encode.columns import as_list, as_text
from fieldwise.data.read.tables import TableLike, as_table
from fieldwise.errors import DataError
from fieldwise.ops.stored_items import StoredItems
from fieldwise.storage.arrays import SharedArrays

TEXTS_HASHED_AT_ONCE = 1 << 14
CACHED_ROWS_PER_ITEM = 4
"""The largest size of the cache of filters' results."""
MAX_CACHED_FILTERS = 256
MAX_CACHED_VALUES = 100
"""Of a filter whose result is cached."""
NO_ROWS = np.empty(0, np.int64)


def top_k_indices(score: ArrayLike, k: int, position: ArrayLike | None = None) -> NDArray[np.int64]:
    """The k best of N rows, best first: by score, and for equal scores in the catalogue's order.

    `recommend`, the server, both stages of a cascade, similar items and the ranking metrics use
    this function. Scores are network outputs (logits or numbers): a calibration and a label's range
    never reverse the order, but may map several scores to one prediction, among which the scores
    decide. NaN comes last.

    Args:
        score: score of each row, [N].
        k: number of rows; all if there are fewer.
        position: position of each row in the catalogue, [N]; the rows' own order if omitted.

    Returns:
        Row numbers [min(k, N)].

    >>> top_k_indices([1.0, 3.0, float("nan"), 1.0, 3.0], 4).tolist()
    [1, 4, 0, 3]
    >>> top_k_indices([1.0, 3.0, 1.0, 3.0], 3, position=[7, 6, 5, 4]).tolist()
    [3, 1, 2]
    """
    falling = -np.asarray(score)
    rows = np.arange(len(falling))
    if 0 < k < len(rows):
        # a full sort of a large catalogue takes ten times as long
        last = np.partition(falling, k - 1)[k - 1]
        rows = rows if np.isnan(last) else np.flatnonzero(falling <= last)
    tie = rows if position is None else np.asarray(position)[rows]
    best: NDArray[np.int64] = rows[np.lexsort((tie, falling[rows]))[: max(k, 0)]]
    return best


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

    @cached_property
    def texts(self) -> pl.Series:
        """The items' ids as a column of text, which processes can share."""
        column = self.items.get_column(self.id_column)
        if self.shared is None or column.dtype == pl.String:
            return as_text(column)
        return self.shared.frame(
            f"ids-{self.name}", lambda: as_text(column).to_frame("id")
        ).get_column("id")

    @cached_property
    def places(self) -> Mapping[str, int]:
        """The row of each id."""
        if self.shared is None:  # a dictionary is faster, and takes 150 MB for a million ids
            return {text: row for row, text in enumerate(self.texts.to_list())}
        table = self.arrays("places", ("hashes", "rows"), lambda: SharedPlaces.table(self.texts))
        return SharedPlaces(self.texts, **table)

    def arrays(
        self,
        what: str,
        names: Iterable[str],
        make: Callable[[], Mapping[str, np.ndarray]],
        of: Callable[[], str] = str,
    ) -> Mapping[str, np.ndarray]:
        """Arrays that are made of the rows: one copy of all processes that share them.

        `what` they are is a part of file names; `of` returns what else determines them, such as a
        bundle's digest.
        """
        if self.shared is None:
            return make()
        computed: dict[str, np.ndarray] = {}

        def array(name: str) -> np.ndarray:
            if not computed:
                computed.update(make())
            return computed[name]

        owner = "+".join(filter(None, (of()[:32], self.name)))
        return {
            name: self.shared.array(f"{what}_{name}-{owner}", partial(array, name))
            for name in names
        }

    def rows_of(self, ids: Iterable[Any]) -> np.ndarray:
        """The rows of items by id, int64; a DataError if one is unknown."""
        try:
            return np.array([self.places[str(item)] for item in ids], np.int64)
        except KeyError as e:
            raise DataError(self.unknown(e.args[0])) from None

    def known_rows(self, ids: Iterable[Any]) -> np.ndarray:
        """The rows of those items whose ids are known, int64."""
        rows = map(self.places.get, ids)
        return np.array([row for row in rows if row is not None], np.int64)

    def unknown(self, item: str) -> str:
        """The message for an unknown id."""
        return f"an item must be one of the {self.what}'s {len(self):,}, found {item[:60]!r}"


@dataclass(frozen=True, eq=False, kw_only=True)
class ItemIndex(ItemTable):
    """A catalogue's item heads, in the order of its rows.

    Args:
        id_column: the column of item ids in `items`.
        items: the catalogue's rows.
        model: the digest of the bundle that made the heads (`Bundle.digest`).
        stored: their heads.
        generation: the checksum of its manifest, which changes with every update.
    """

    model: str
    stored: StoredItems
    generation: str = ""
    what: ClassVar[str] = "index"

    def similar(self, row: int, k: int) -> tuple[np.ndarray, np.ndarray]:
        """The k items nearest to one by position, the nearest first, and the mean over its heads of the best cosine."""
        heads = self.directions.floats(slice(row, row + 1))[0]
        scores = self.directions.scores(heads).numpy() / len(heads)
        scores[row] = -np.inf
        best = top_k_indices(scores, min(k, len(self) - 1))
        return best, scores[best].astype(np.float64)

    @cached_property
    def directions(self) -> StoredItems:
        """The heads with length 1, stored like the heads."""
        stored = self.stored
        is_bfloat16 = stored.storage == "bfloat16"  # which NumPy lacks: its bits are int16

        def make() -> dict[str, np.ndarray]:
            normalized = torch.nn.functional.normalize(stored.floats(), dim=2)
            arrays = {}
            for name, tensor in StoredItems.of(normalized, stored.storage).tensors().items():
                if is_bfloat16:
                    tensor = tensor.view(torch.int16)
                arrays[name] = tensor.numpy()
            return arrays

        tensors = {}
        for name, array in self.arrays("directions", stored.tensors(), make).items():
            tensors[name] = torch.from_numpy(array)
            if is_bfloat16:
                tensors[name] = tensors[name].view(torch.bfloat16)
        return StoredItems.from_tensors(tensors)


def item_table(items: TableLike, id_column: str) -> ItemTable:
    """The catalogue of a table with one row per item.

    Errors:
        DataError: no rows, no column of ids, a missing id, or one that occurs twice.
    """
    table = as_table(items, text_columns=(id_column,))
    checked_ids(table, id_column)
    if not table.height:
        raise DataError("there must be items to recommend, found none")
    return ItemTable(id_column=id_column, items=table)


def checked_ids(
    rows: pl.DataFrame, column: str, of: str = "items", option: str = "--item-id"
) -> pl.Series:
    """A table's column of ids as text; a DataError if it is absent, or an id is missing or occurs twice.

    `of` says what the rows are, and `option` which option names another column, for errors.
    """
    if column not in rows.columns:
        raise DataError(
            f"the {of} must have the column {column!r} of ids: {nearest(column, rows.columns)} ({option} names another)"
        )
    texts = as_text(rows.get_column(column))
    wrong = texts.is_duplicated() | texts.is_null()
    if wrong.any():
        row = int(wrong.arg_max() or 0)
        fault = "is missing" if texts[row] is None else "occurs twice"
        raise DataError(
            f"every id must be present and unique, found {texts[row]!r} in column {column!r} (row {row}, counting "
            f"from 0), which {fault}: give a table with one row per id, not a log"
        )
    return texts


class SharedPlaces(Mapping[str, int]):
    """The rows of different texts by their sorted hashes: arrays that processes map, where each has its own dictionary.

    >>> texts = pl.Series(["b", "a"])
    >>> places = SharedPlaces(texts, **SharedPlaces.table(texts))
    >>> places["a"], places.get("c"), "b" in places, list(places)
    (1, None, True, ['b', 'a'])
    """

    def __init__(self, texts: pl.Series, hashes: np.ndarray, rows: np.ndarray) -> None:
        # memory views are read faster than arrays, one number at a time
        self._texts = texts
        self._hashes = memoryview(hashes.data)
        self._rows = memoryview(rows.data)

    @staticmethod
    def table(texts: pl.Series) -> dict[str, np.ndarray]:
        """The sorted hashes of texts, equal in all processes, and their rows."""

        def hashes_of_texts() -> Iterator[int]:
            for start in range(0, len(texts), TEXTS_HASHED_AT_ONCE):
                yield from map(_hash, texts[start : start + TEXTS_HASHED_AT_ONCE].to_list())

        hashes = np.fromiter(hashes_of_texts(), np.uint32, len(texts))
        rows = np.argsort(hashes).astype(np.int32)
        return {"hashes": hashes[rows], "rows": rows}

    def __getitem__(self, text: str) -> int:
        text_hash = _hash(text) if isinstance(text, str) else 0
        position = bisect_left(self._hashes, text_hash)
        while position < len(self._rows) and self._hashes[position] == text_hash:
            if self._texts[self._rows[position]] == text:
                return int(self._rows[position])
            position += 1
        raise KeyError(text)

    def __iter__(self) -> Iterator[str]:
        return iter(self._texts)

    def __len__(self) -> int:
        return len(self._texts)


def _hash(text: str) -> int:
    return crc32(text.encode(errors="surrogatepass"))


class ItemFilters:
    """Rows of items by the values of their columns.

    Args:
        items: the catalogue.
        separators: delimiters by column, for text columns with several values per cell.

    >>> filters = ItemFilters(pl.DataFrame({"item": ["a", "b", "c"], "genres": ["x|y", "y", None]}), {"genres": "|"})
    >>> filters.rows({"genres": ("y", "z")})
    array([0, 1])
    >>> filters.rows({"genres": ("y",), "item": ("b", "c")})
    array([1])
    """

    def __init__(self, items: pl.DataFrame, separators: Mapping[str, str]) -> None:
        self.items = items
        self.separators = separators
        # the places of values; the rows at each place
        self._columns: dict[str, tuple[dict[str, int], pl.Series]] = {}
        self._texts: dict[str, pl.Series] = {}
        self._answers: OrderedDict[tuple[tuple[str, frozenset[str]], ...], np.ndarray] = (
            OrderedDict()
        )
        self._lock = Lock()

    def rows(self, where: Mapping[str, Sequence[str]]) -> np.ndarray:
        """The rows that have one of the given values in every column, ascending, int64; any value of a list counts.

        A cached filter returns the same array: it must not be modified.
        """
        key = tuple((column, frozenset(where[column])) for column in sorted(where))
        with self._lock:
            if key in self._answers:
                self._answers.move_to_end(key)
                return self._answers[key]
            rows: np.ndarray | None = None
            for column, values in where.items():
                passing = self._passing(column, values)
                if rows is not None:
                    passing = np.intersect1d(rows, passing, assume_unique=True)
                rows = passing
            if rows is None:
                rows = np.arange(self.items.height)
            if sum(map(len, where.values())) <= MAX_CACHED_VALUES:
                self._answers[key] = rows
                while len(self._answers) > 1 and self._cache_is_full():
                    self._answers.popitem(last=False)  # the least recently used
            return rows

    def _cache_is_full(self) -> bool:
        cached_rows = sum(map(len, self._answers.values()))
        most_rows = CACHED_ROWS_PER_ITEM * len(self.items)
        return len(self._answers) > MAX_CACHED_FILTERS or cached_rows > most_rows

    def texts(self, column: str) -> pl.Series:
        """A column as texts, or lists of texts; a DataError if there is none, or its type is not supported."""
        if column not in self._texts:
            if column not in self.items.columns:
                hint = nearest(column[:60], self.items.columns)
                raise DataError(
                    f"filters and limits must name a column of the items, found {column[:60]!r}: {hint}"
                )
            cells = self.items.get_column(column)
            separator = self.separators.get(column)
            is_list = isinstance(cells.dtype, (pl.List, pl.Array)) or separator is not None
            try:
                # responses show it in words, which models do not read
                if cells.dtype == pl.Duration:
                    raise DataError(f"column {column!r} holds durations")
                self._texts[column] = (
                    as_list(cells, separator or "|") if is_list else as_text(cells)
                )
            except (DataError, PolarsError):
                raise DataError(
                    f"filter columns must have text, numbers, times or lists of these, found column {column!r} of type "
                    f"{cells.dtype}: filter by another"
                ) from None
        return self._texts[column]

    @property
    def prepared(self) -> list[str]:
        """The columns that have been used."""
        return list(self._columns)

    def prepare(self, columns: Sequence[str]) -> None:
        """Build the index of columns; unsupported ones are skipped, and raise when used."""
        for column in columns:
            with self._lock, suppress(DataError):
                self._passing(column, ())

    def _passing(self, column: str, values: Iterable[str]) -> np.ndarray:
        """The rows with one of some values in a column, ascending."""
        if column not in self._columns:
            texts = self.texts(column)
            cells = pl.DataFrame({"value": texts, "row": np.arange(len(texts))})
            if texts.dtype == pl.List(pl.String):
                cells = cells.explode("value", empty_as_null=True, keep_nulls=True)
                cells = cells.unique(maintain_order=True)  # a list may have a value twice
            groups = cells.drop_nulls().group_by("value", maintain_order=True).agg("row")
            groups_by_value = {
                value: group for group, value in enumerate(groups["value"].to_list())
            }
            self._columns[column] = groups_by_value, groups["row"]
        groups_by_value, rows = self._columns[column]
        known_groups = {groups_by_value[value] for value in values if value in groups_by_value}
        parts: list[np.ndarray] = [rows[group].to_numpy(writable=True) for group in known_groups]
        if len(parts) == 1:
            return parts[0]
        return np.unique(np.concatenate([*parts, NO_ROWS]))  # a list may have several of the values
