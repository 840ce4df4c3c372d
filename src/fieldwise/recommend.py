"""The best items for one user: every item of a table scored with that user's and context's own values."""

from dataclasses import dataclass

import polars as pl

from fieldwise.bundle import Bundle
from fieldwise.data.columns import as_text
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
    """The n items of highest score for a user, in the context of the user's last row in the log.

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
        DataError: a column is missing, or the log does not know the user.
    """
    shown = [catalogue.item, *([catalogue.title] if catalogue.title else [])]
    for column in (catalogue.user, *shown, *bundle.schema.columns):
        if column not in log.columns:
            raise DataError(f"the log must have the column {column!r}, found {', '.join(log.columns)}")
    own = log.filter(as_text(log.get_column(catalogue.user)) == user)
    if own.height == 0:
        raise DataError(f"the log has no row of user {user!r} in column {catalogue.user!r}; choose a user of the log")
    time = bundle.schema.time
    last = (own.sort(time, maintain_order=True) if time in own.columns else own).tail(1)
    items = log.drop_nulls(catalogue.item).unique(catalogue.item, keep="first", maintain_order=True)
    if exclude_seen:
        items = items.join(own.select(catalogue.item).unique(), on=catalogue.item, how="anti")
    taken = {f.column for f in bundle.schema.with_role("item")} | {catalogue.item, catalogue.title}
    others = [c for c in bundle.schema.columns if c not in taken]
    rows = items.select([c for c in items.columns if c in taken]).join(last.select(others), how="cross")
    scored = rows.select(shown).with_columns(pl.Series(SCORE, bundle.predict(rows)))
    return scored.sort([SCORE, catalogue.item], descending=[True, False]).head(n)
