"""Sampling negatives for implicit logs: items that the user never used."""

from typing import NoReturn

import numpy as np
import polars as pl

from fieldwise.data.prepare.settings import NegativeSampling
from fieldwise.errors import DataError

__all__ = ["mark_negative", "sample_negatives"]


def sample_negatives(
    positives: pl.DataFrame,
    *,
    log: pl.DataFrame,
    settings: NegativeSampling,
    seed: int,
    label_column: str,
    negative_value: bool | int | float | str,
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
        label_column: set to `negative_value` in the result; appended if the positives have no such column.
        negative_value: the label's value for "not used".

    Returns:
        The negatives, n times the positives' rows, with their columns and types, those of one positive together.

    Errors:
        DataError: a column is missing or has nulls, a positive is not in the log, an item has two descriptions,
            a user has fewer than n unused items.
        ConfigError: the settings lack the column of users or of items.

    >>> log = pl.DataFrame({"user": [1, 1, 2], "app": ["a", "b", "c"], "used": [1, 1, 1]})
    >>> ask = NegativeSampling(user="user", item="app", per_positive=1)
    >>> sample_negatives(log.head(1), log=log, settings=ask, seed=0, label_column="used", negative_value=0).rows()
    [(1, 'c', 0)]
    """
    user_column, item_column = _check(positives, log, settings)
    n = settings.per_positive
    items = log.get_column(item_column).unique().sort()
    users = log.get_column(user_column).unique().sort()
    user = _codes(log.get_column(user_column), users)
    used = np.unique(user * len(items) + _codes(log.get_column(item_column), items))
    asking = _codes(positives.get_column(user_column), users)
    item = _codes(positives.get_column(item_column), items)
    inside = (item < len(items)) & np.isin(asking * len(items) + item, used)
    if not inside.all():
        row = int(np.argmin(inside))
        raise DataError(
            f"every positive must be in the log: row {row} (counting from 0), user {positives[user_column][row]!r} "
            f"with item {positives[item_column][row]!r}, is not; pass all positive rows as log"
        )
    used_by = np.bincount(used // len(items), minlength=len(users))
    unused = len(items) - used_by
    if len(asking) and unused[asking].min() < n:
        row = int(np.argmin(unused[asking]))
        _refuse_busy(positives[user_column][row], int(used_by[asking[row]]), len(items), n)
    rank = _distinct(unused[asking], n, np.random.default_rng(seed))
    drawn = _unused_item(asking.repeat(n), rank.reshape(-1), used, used_by, len(items))
    return _described(positives, log, settings, items.gather(drawn), label_column, negative_value)


def _refuse_busy(user: object, used: int, items: int, n: int) -> NoReturn:
    raise DataError(
        f"each user needs at least {n} unused items for {n} negatives per positive: user {user!r} used {used} of "
        f"{items}; lower per_positive"
    )


def _distinct(bound: np.ndarray, n: int, rng: np.random.Generator) -> np.ndarray:
    """For each row n different numbers below its bound, uniformly (Floyd's algorithm): [N, n] int64."""
    chosen = np.empty((len(bound), n), dtype=np.int64)
    for k in range(n):
        last = bound - n + k
        number = rng.integers(0, last + 1, dtype=np.int64)
        taken = (chosen[:, :k] == number[:, None]).any(axis=1)
        chosen[:, k] = np.where(taken, last, number)
    return chosen


def _unused_item(user: np.ndarray, rank: np.ndarray, used: np.ndarray, used_by: np.ndarray, items: int) -> np.ndarray:
    """The item with number `rank` among those that `user` never used.

    The j-th used item s_j of a user has s_j - j unused ones below it. These numbers increase within a user, so one
    search over all users counts the used items below the wanted one. There is no rejection sampling, so users with few
    unused items cost no more than others.
    """
    start = np.cumsum(used_by) - used_by
    owner = used // items
    below = used % items - (np.arange(len(used)) - start[owner])
    found = np.searchsorted(owner * (items + 1) + below, user * (items + 1) + rank, side="right")
    item: np.ndarray = rank + found - start[user]
    return item


def _described(
    positives: pl.DataFrame,
    log: pl.DataFrame,
    settings: NegativeSampling,
    drawn: pl.Series,
    label_column: str,
    negative_value: bool | int | float | str,
) -> pl.DataFrame:
    _, item = settings.ids
    copies = positives.select(pl.all().repeat_by(settings.per_positive).explode(empty_as_null=False))
    copies = copies.with_columns(drawn.cast(positives.schema[item]).alias(item))
    if settings.item_columns:
        about = log.select(item, *settings.item_columns).unique()
        if about.height > about.get_column(item).n_unique():
            twice = about.filter(about.get_column(item).is_duplicated()).sort(item)
            raise DataError(
                f"an item needs one description: item {twice[item][0]!r} has several different values in "
                f"{', '.join(settings.item_columns)}; fix the log, or remove columns that change from item_columns"
            )
        about = about.with_columns(pl.col(c).cast(positives.schema[c]) for c in (item, *settings.item_columns))
        copies = copies.drop(settings.item_columns).join(about, on=item, how="left", maintain_order="left")
    copies = mark_negative(copies, label_column, negative_value)
    return copies.select(*positives.columns, *([] if label_column in positives.columns else [label_column]))


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
