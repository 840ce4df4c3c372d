"""Sampling negatives for implicit logs: items that the user never used."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import polars as pl

from fieldwise.data.prepare.raw_rows import join_rows
from fieldwise.data.prepare.settings import NegativeSampling
from fieldwise.errors import DataError
from fieldwise.storage.scratch import IN_MEMORY, Scratch

__all__ = ["mark_negative", "sample_negatives"]


def sample_negatives(
    positives: pl.DataFrame,
    *,
    log: pl.DataFrame,
    settings: NegativeSampling,
    seed: int,
    label: tuple[str, bool | int | float | str],
    scratch: Scratch = IN_MEMORY,
) -> pl.DataFrame:
    """Sample negatives: for each positive row, n copies with items that its user never used anywhere in the log.

    Items are sampled uniformly from the log's catalogue, without replacement among one positive's n. "Never used"
    refers to the whole log, including test rows: otherwise a negative could be a test positive. So the sample depends
    on the test rows' items, as in every evaluation with such negatives.

    Args:
        positives: rows of one part, all of them also in `log`.
        log: all positive rows of all parts; its items are the catalogue.
        settings: columns and number, including the columns of users and items (`NegativeSampling.of_schema`).
        seed: the same seed, rows and settings give the same negatives on every machine.
        label: the label's column and its value for "not used"; the column is appended if the positives have none.
        scratch: where the negatives lie, and how many rows are processed at once.

    Returns:
        The negatives, n times the positives' rows, with their columns and types, those of one positive together.

    Errors:
        DataError: a column is missing or has nulls, a positive is not in the log, an item has two descriptions,
            a user has fewer than n unused items.
        ConfigError: the settings lack the column of users or of items.

    >>> log = pl.DataFrame({"user": [1, 1, 2], "app": ["a", "b", "c"], "used": [1, 1, 1]})
    >>> ask = NegativeSampling(user="user", item="app", per_positive=1)
    >>> sample_negatives(log.head(1), log=log, settings=ask, seed=0, label=("used", 0)).rows()
    [(1, 'c', 0)]
    """
    user_column, item_column = _check(positives, log, settings)
    n = settings.per_positive
    items, users = (_distinct_values(log.get_column(name), scratch) for name in (item_column, user_column))
    used = _pairs(log, settings, users, items, scratch)
    used = used[: _drop_repeats(used, scratch)]
    used_by = np.zeros(len(users), dtype=np.int64)
    for at in scratch.pieces(len(used)):
        used_by += np.bincount(used[at] // len(items), minlength=len(users))
    unused = len(items) - used_by
    asking = _asking(positives, settings, users, items, used, scratch)
    _check_unused(positives[user_column], asking, used_by, unused, n, scratch)
    drawn = _distinct(unused, asking, n, np.random.default_rng(seed), scratch)
    start, searched = np.cumsum(used_by) - used_by, _unused_before(used, used_by, len(items), scratch)

    def sampled() -> Iterator[pl.DataFrame]:
        for at in scratch.pieces(len(asking)):
            user, rank = asking[at].repeat(n), drawn[at].reshape(-1)
            found = np.searchsorted(searched, user * (len(items) + 1) + rank, side="right")
            yield describe(positives[at], items.gather(rank + found - start[user]))

    describe = _Description.of(log, positives, settings, label, scratch)
    return join_rows(sampled(), scratch)


def _distinct_values(column: pl.Series, scratch: Scratch) -> pl.Series:
    """The sorted different values of a column, in memory."""
    found = column.clear()
    for at in scratch.pieces(len(column)):
        found = pl.concat([found, column[at].unique()]).unique()
    return found.sort()


def _pairs(
    rows: pl.DataFrame, settings: NegativeSampling, users: pl.Series, items: pl.Series, scratch: Scratch
) -> np.ndarray:
    """One number for the user and the item of each row [N], sorted."""
    user_column, item_column = settings.ids
    found = scratch.empty(rows.height, np.int64)
    for at in scratch.pieces(rows.height):
        user, item = _codes(rows[user_column][at], users), _codes(rows[item_column][at], items)
        found[at] = user * len(items) + item
    found.sort()
    return found


def _drop_repeats(ordered: np.ndarray, scratch: Scratch) -> int:
    """Move the different values of a sorted array to its beginning, and return their number."""
    kept = 0
    for at in scratch.pieces(len(ordered)):
        piece = ordered[at].copy()
        new = np.append(kept == 0 or piece[:1] != ordered[kept - 1], piece[1:] != piece[:-1])[: len(piece)]
        values = piece[new]
        ordered[kept : kept + len(values)] = values
        kept += len(values)
    return kept


def _asking(
    positives: pl.DataFrame,
    settings: NegativeSampling,
    users: pl.Series,
    items: pl.Series,
    used: np.ndarray,
    scratch: Scratch,
) -> np.ndarray:
    """The user of each positive [N], after checking that all positives are in the log."""
    user_column, item_column = settings.ids
    asking = scratch.empty(positives.height, np.int64)
    for at in scratch.pieces(positives.height):
        asking[at] = _codes(positives[user_column][at], users)
        item = _codes(positives[item_column][at], items)
        pair = asking[at] * len(items) + item
        place = np.searchsorted(used, pair).clip(max=max(len(used) - 1, 0))
        inside = (item < len(items)) & (used[place] == pair if len(used) else False)
        if not inside.all():
            row = at.start + int(np.argmin(inside))
            raise DataError(
                f"every positive must be in the log: row {row} (counting from 0), user "
                f"{positives[user_column][row]!r} with item {positives[item_column][row]!r}, is not; pass all positive "
                "rows as log"
            )
    return asking


def _check_unused(
    users: pl.Series, asking: np.ndarray, used_by: np.ndarray, unused: np.ndarray, n: int, scratch: Scratch
) -> None:
    for at in scratch.pieces(len(asking)):
        own = unused[asking[at]]
        if len(own) and own.min() < n:
            row = at.start + int(np.argmin(own))
            used, items = used_by[asking[row]], used_by[asking[row]] + unused[asking[row]]
            raise DataError(
                f"each user needs at least {n} unused items for {n} negatives per positive: user {users[row]!r} used "
                f"{used} of {items}; lower per_positive"
            )


def _distinct(unused: np.ndarray, asking: np.ndarray, n: int, rng: np.random.Generator, scratch: Scratch) -> np.ndarray:
    """For each asking user n different numbers below its `unused`, uniformly (Floyd's algorithm): [N, n] int64."""
    chosen = scratch.empty((len(asking), n), np.int64)
    for k in range(n):
        for at in scratch.pieces(len(asking)):
            last = unused[asking[at]] - n + k
            number = rng.integers(0, last + 1, dtype=np.int64)
            taken = (chosen[at, :k] == number[:, None]).any(axis=1)
            chosen[at, k] = np.where(taken, last, number)
    return chosen


def _unused_before(used: np.ndarray, used_by: np.ndarray, items: int, scratch: Scratch) -> np.ndarray:
    """For each used item of each user, the number of unused ones before it, as one increasing number [M].

    The j-th used item s_j of a user has s_j - j unused ones below it. These numbers increase within a user, so one
    search over all users counts the used items below a wanted unused one. There is no rejection sampling, so users with
    few unused items cost no more than others.
    """
    start, found = np.cumsum(used_by) - used_by, scratch.empty(len(used), np.int64)
    for at in scratch.pieces(len(used)):
        owner = used[at] // items
        below = used[at] % items - (np.arange(at.start, at.stop) - start[owner])
        found[at] = owner * (items + 1) + below
    return found


@dataclass(frozen=True, eq=False)
class _Description:
    """Makes negatives of positives: copies with other items, what describes these, and the negative label."""

    settings: NegativeSampling
    label: tuple[str, bool | int | float | str]
    items: pl.DataFrame | None

    @classmethod
    def of(
        cls,
        log: pl.DataFrame,
        positives: pl.DataFrame,
        settings: NegativeSampling,
        label: tuple[str, bool | int | float | str],
        scratch: Scratch,
    ) -> "_Description":
        """With the description of every item of the log.

        Errors:
            DataError: an item has two descriptions.
        """
        if not settings.item_columns:
            return cls(settings, label, None)
        _, item = settings.ids
        about = log.select(item, *settings.item_columns).clear()
        for at in scratch.pieces(log.height):
            about = pl.concat([about, log[at].select(about.columns).unique()]).unique()
        if about.height > about.get_column(item).n_unique():
            twice = about.filter(about.get_column(item).is_duplicated()).sort(item)
            raise DataError(
                f"an item needs one description: item {twice[item][0]!r} has several different values in "
                f"{', '.join(settings.item_columns)}; fix the log, or remove columns that change from item_columns"
            )
        kinds = positives.schema
        return cls(settings, label, about.with_columns(pl.col(c).cast(kinds[c]) for c in about.columns))

    def __call__(self, positives: pl.DataFrame, drawn: pl.Series) -> pl.DataFrame:
        """The negatives of some positives."""
        _, item = self.settings.ids
        copies = positives.select(pl.all().repeat_by(self.settings.per_positive).explode(empty_as_null=False))
        copies = copies.with_columns(drawn.cast(positives.schema[item]).alias(item))
        if self.items is not None:
            copies = copies.drop(self.settings.item_columns)
            copies = copies.join(self.items, on=item, how="left", maintain_order="left")
        copies = mark_negative(copies, *self.label)
        return copies.select(*positives.columns, *([] if self.label[0] in positives.columns else [self.label[0]]))


def mark_negative(frame: pl.DataFrame, label_column: str, negative_value: bool | int | float | str) -> pl.DataFrame:
    """The rows with `negative_value` in the label's column, in its type; a new last column if it is missing.

    Errors:
        DataError: the column's type does not hold such a value.
    """
    kind = frame.schema.get(label_column)
    label = pl.lit(negative_value) if kind is None else pl.lit(negative_value).cast(kind)
    try:
        return frame.with_columns(label.alias(label_column))
    except pl.exceptions.PolarsError as e:
        raise DataError(
            f"the negatives' label must fit its column: {negative_value!r} is not of type {kind}, as {label_column!r} "
            "is"
        ) from e


def _check(positives: pl.DataFrame, log: pl.DataFrame, settings: NegativeSampling) -> tuple[str, str]:
    """The columns of users and items, after checking that both tables have them without nulls."""
    ids = settings.ids
    for what, frame in (("positives", positives), ("log", log)):
        for name in (*ids, *settings.item_columns):
            if name not in frame.columns:
                raise DataError(f"the {what} must have column {name!r}, found only: {', '.join(frame.columns)}")
        for name in ids:
            missing = frame.get_column(name).is_null()
            if missing.any():
                row = int(missing.arg_max() or 0)
                raise DataError(
                    f"every row needs a user and an item: column {name!r} of the {what} is empty in row {row} "
                    "(counting from 0); remove or fill such rows"
                )
    return ids


def _codes(column: pl.Series, known: pl.Series) -> np.ndarray:
    """Index of each value in the sorted `known`, which has all of them; [N] int64 (missing values: len(known))."""
    place = pl.DataFrame({"value": known, "code": np.arange(len(known), dtype=np.int64)})
    joined = pl.DataFrame({"value": column.cast(known.dtype)}).join(
        place, on="value", how="left", maintain_order="left"
    )
    return joined.get_column("code").fill_null(len(known)).to_numpy()
