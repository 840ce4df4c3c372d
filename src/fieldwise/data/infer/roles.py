"""Whom a column describes, by what the rows say: what is settled by the item is the item's, whatever its name."""

from collections.abc import Iterable, Mapping
from dataclasses import replace

import polars as pl

from fieldwise.schema import Categorical, Field, Role, Sequence
from fieldwise.schema.ids import Who, ids_by_name
from fieldwise.schema.names import MOMENTARY, words_of

__all__ = ["AGREEMENT", "display_of", "id_of", "settled_role"]

AGREEMENT = 0.99  # of the rows whose id comes more than once: cells that equal their id's most frequent one
_LIFT = 0.1  # and at most this share of the error that the column's most frequent value makes
_REPEATED = 0.5  # of the rows must have an id that comes more than once, else nothing can be told
_LEAST_ROWS = 20
_ENOUGH = 200_000  # rows
_MANY = 50
_NAMES = 0.95  # a column with so many values for each id names it


def id_of(frame: pl.DataFrame, fields: Iterable[Field], role: Who) -> str | None:
    """The column that names the user or the item: by the categories' names, and of equals the one with most values.

    >>> films = pl.DataFrame({"genre_id": [1, 1, 2], "sku": ["a", "b", "c"]})
    >>> id_of(films, [Categorical(name, role="item") for name in films.columns], "item")
    'sku'
    """
    likely = [equals for rank, equals in ids_by_name(role, fields) if rank]
    return max(likely[0], key=lambda c: frame.get_column(c).n_unique()) if likely else None


def settled_role(frame: pl.DataFrame, found: Field, ids: Mapping[Role, str]) -> tuple[Field, str]:
    """The field with the role that the rows settle, and the reason; the field as it is and "" where they do not.

    Args:
        frame: the table.
        found: a field, with the role that its name tells.
        ids: the column that names the user, the item, where there is one.

    >>> rows = pl.DataFrame({"item": [1, 1, 2, 2] * 10, "shade": ["red", "red", "blue", "blue"] * 10})
    >>> settled_role(rows, Categorical("shade"), {"item": "item"})[0].role
    'item'
    """
    of_the_moment = not MOMENTARY.isdisjoint(words_of(found.column))
    if found.column in ids.values() or isinstance(found, Sequence) or of_the_moment:
        return found, ""
    agreed = {role: _agreement(frame, key, found.column) for role, key in ids.items()}
    settled = {role: share for role, share in agreed.items() if share is not None}
    if not settled:
        return found, ""
    # A column may be settled by both, such as a language: its name decides, else the better agreement.
    best = max(settled, key=lambda role: (role == found.role, settled[role]))
    share = settled[best]
    how = "every" if share == 1 else f"{share:.1%} of"
    reason = f"the {best} settles it: it is the same in {how} row{'' if share == 1 else 's'} of one {ids[best]!r}"
    return replace(found, role=best), reason


def display_of(frame: pl.DataFrame, found: Field, ids: Mapping[Role, str]) -> str:
    """Why a categorical field merely renames the user or item, so that it is for people's eyes, or nothing.

    >>> films = pl.DataFrame({"film": list(range(60)) * 2, "title": [f"film {k}" for k in range(60)] * 2})
    >>> display_of(films, Categorical("title", role="item"), {"item": "film"})
    "it names the item nearly one to one (60 values for 60 of 'film'), which has a field already; it is shown to people"
    """
    key = ids.get(found.role)
    if key is None or key == found.column or not isinstance(found, Categorical):
        return ""
    values, keys = frame.get_column(found.column).n_unique(), frame.get_column(key).n_unique()
    pairs = frame.select(found.column, key).n_unique()
    if keys <= _MANY or values < _NAMES * keys or pairs > keys / _NAMES:
        return ""
    return (
        f"it names the {found.role} nearly one to one ({values:,} values for {keys:,} of {key!r}), which has a field "
        "already; it is shown to people"
    )


def _agreement(frame: pl.DataFrame, key: str, column: str) -> float | None:
    """The share of rows that agree with the others of their key, or None where they do not settle the column."""
    rows = frame.select(key=pl.col(key), cell=pl.col(column)).drop_nulls()
    if rows.height > _ENOUGH:  # some of the keys with all of their rows tell as well
        rows = rows.filter(pl.col("key").hash(seed=0) % (rows.height // _ENOUGH + 1) == 0)
    counts = rows.group_by("key", "cell").len().group_by("key").agg(pl.col("len").sum(), most=pl.col("len").max())
    several = counts.filter(pl.col("len") > 1)
    told = int(several.get_column("len").sum())
    if told < max(_LEAST_ROWS, _REPEATED * rows.height):
        return None
    agreed = int(several.get_column("most").sum()) / told
    usual = rows.group_by("cell").len().select(pl.col("len").max()).item() / rows.height
    return agreed if agreed >= AGREEMENT and 1 - agreed <= _LIFT * (1 - usual) else None
