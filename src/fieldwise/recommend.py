"""The best items for one user: every item of a table scored with that user's and context's own values."""

from dataclasses import dataclass

import numpy as np
import polars as pl

from fieldwise.bundle import Bundle
from fieldwise.data.columns import as_text
from fieldwise.data.ordering import order_values
from fieldwise.errors import DataError

__all__ = ["Catalogue", "recommend"]

SCORE = "score"


@dataclass(frozen=True, kw_only=True)
class Catalogue:
    """Which columns name users and items.

    Args:
        user: column of users.
        item: column of items.
        title: column with an item's readable name; the item column where left out.
    """

    user: str
    item: str
    title: str | None = None


def recommend(
    bundle: Bundle, log: pl.DataFrame, catalogue: Catalogue, user: str, *, n: int = 10, exclude_seen: bool = True
) -> pl.DataFrame:
    """The n items of highest score (by the main label) for a user, in the context of the user's last row in the log.

    Args:
        bundle: scores the rows.
        log: raw rows with the columns of the bundle's schema; every item in it is a candidate.
        catalogue: the columns of users, items and titles.
        user: whom to recommend to, as text.
        n: how many items, or fewer where the log has no more.
        exclude_seen: leave out items that the log has for this user.

    Returns:
        Item, title (where there is one) and score, best first; ties in the order of the items' ids.

    Errors:
        DataError: a column is missing, the log does not know the user, or a row of the log has no time.
    """
    shown = [catalogue.item, *([catalogue.title] if catalogue.title else [])]
    for column in (catalogue.user, *shown, *bundle.schema.columns):
        if column not in log.columns:
            raise DataError(f"the log must have the column {column!r}, found {', '.join(log.columns)}")
    rows_of_user = (as_text(log.get_column(catalogue.user)) == user).arg_true().to_numpy()
    if not len(rows_of_user):
        raise DataError(f"the log has no row of user {user!r} in column {catalogue.user!r}; choose a user of the log")
    own, last = log[rows_of_user], log[[_last(log, rows_of_user, bundle.schema.time)]]
    items = log.drop_nulls(catalogue.item).unique(catalogue.item, keep="first", maintain_order=True)
    if exclude_seen:
        items = items.join(own.select(catalogue.item).unique(), on=catalogue.item, how="anti")
    taken = {f.column for f in bundle.schema.with_role("item")} | {catalogue.item, catalogue.title}
    others = [c for c in bundle.schema.columns if c not in taken]
    rows = items.select([c for c in items.columns if c in taken]).join(last.select(others), how="cross")
    score = bundle.score(rows)
    main = score if score.ndim == 1 else score[:, 0]
    scored = rows.select(shown).with_columns(pl.Series(SCORE, bundle.main_prediction(main)))
    # A calibration may give several scores one probability.
    order = pl.DataFrame({"prediction": scored[SCORE], "score": main, "item": scored[catalogue.item]})
    best = order.select(pl.arg_sort_by("prediction", "score", "item", descending=[True, True, False])).to_series()
    return scored[best.head(n)]


def _last(log: pl.DataFrame, rows: np.ndarray, time: str | None) -> int:
    """Which of the rows is the latest: by time where the log has it, else the last one; so too among equal times."""
    if time is None or time not in log.columns:
        return int(rows[-1])
    moments = order_values(log, time, "time")[rows]
    return int(rows[len(rows) - 1 - np.argmax(moments[::-1])])
