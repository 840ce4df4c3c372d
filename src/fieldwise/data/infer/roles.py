"""Inferring roles from rows: a column whose value is determined by the item is an item column, whatever its name."""

from collections.abc import Iterable, Mapping
from dataclasses import replace

import polars as pl

from fieldwise.schema import Field, Role
from fieldwise.schema.ids import Who, ids_by_name
from fieldwise.schema.names import MOMENTARY, words_of

__all__ = ["AGREEMENT", "display_of", "id_of", "settled_role"]

AGREEMENT = 0.99  # minimum share of cells equal to their id's most frequent one, in rows with repeated ids
_LIFT = 0.1  # maximum error relative to that of the column's most frequent value
_REPEATED = 0.5  # minimum share of rows with repeated ids, else the role cannot be inferred
_LEAST_ROWS = 20
_ENOUGH = 200_000  # maximum number of rows to use
_MANY = 50
_NAMES = 0.95  # a column with at least this many values per id is a name of it


def id_of(frame: pl.DataFrame, fields: Iterable[Field], role: Who) -> str | None:
    """The column of user or item ids: by the categories' names, and among equals the one with the most values.

    >>> films = pl.DataFrame({"genre_id": [1, 1, 2], "sku": ["a", "b", "c"]})
    >>> from fieldwise import Categorical
    >>> id_of(films, [Categorical(name, role="item") for name in films.columns], "item")
    'sku'
    """
    likely = [equals for rank, equals in ids_by_name(role, fields) if rank]
    return max(likely[0], key=lambda c: frame.get_column(c).n_unique()) if likely else None


def settled_role(frame: pl.DataFrame, found: Field, ids: Mapping[Role, str]) -> tuple[Field, str]:
    """The field with the role inferred from the rows, and the reason; the field unchanged and "" if there is none.

    Args:
        frame: the table.
        found: a field, with the role inferred from its name.
        ids: the columns of user and item ids, as far as there are any.

    >>> rows = pl.DataFrame({"item": [1, 1, 2, 2] * 10, "shade": ["red", "red", "blue", "blue"] * 10})
    >>> from fieldwise import Categorical
    >>> settled_role(rows, Categorical("shade"), {"item": "item"})[0].role
    'item'
    """
    of_the_moment = not MOMENTARY.isdisjoint(words_of(found.column))
    if found.column in ids.values() or found.max_length is not None or of_the_moment:
        return found, ""
    agreed = {role: _agreement(frame, key, found.column) for role, key in ids.items()}
    settled = {role: share for role, share in agreed.items() if share is not None}
    if not settled:
        return found, ""
    # A column may be determined by both, such as a language: its name decides, else the better agreement.
    best = max(settled, key=lambda role: (role == found.role, settled[role]))
    share = settled[best]
    how = "every" if share == 1 else f"{share:.1%} of"
    reason = f"determined by the {best}: the same in {how} row{'' if share == 1 else 's'} of one {ids[best]!r}"
    return replace(found, role=best), reason


def display_of(frame: pl.DataFrame, found: Field, ids: Mapping[Role, str], *, sampled: bool = False) -> str:
    """The reason why a categorical field only is a display name of the user or item, or an empty text.

    >>> films = pl.DataFrame({"film": list(range(60)) * 2, "title": [f"film {k}" for k in range(60)] * 2})
    >>> from fieldwise import Categorical
    >>> display_of(films, Categorical("title", role="item"), {"item": "film"})
    "a display name of the item, nearly one to one (60 values for 60 of 'film'), which already has a field"
    """
    key = ids.get(found.role)
    if key is None or key == found.column or found.cell != "category":
        return ""
    if sampled:  # a key that occurs once tells nothing: any column of many values looks like its name
        frame = frame.filter(pl.col(key).is_duplicated())
    values, keys = frame.get_column(found.column).n_unique(), frame.get_column(key).n_unique()
    pairs = frame.select(found.column, key).n_unique()
    if keys <= _MANY or values < _NAMES * keys or pairs > keys / _NAMES:
        return ""
    return (
        f"a display name of the {found.role}, nearly one to one ({values:,} values for {keys:,} of {key!r}), which "
        "already has a field"
    )


def _agreement(frame: pl.DataFrame, key: str, column: str) -> float | None:
    """The share of rows that agree with the others of their key, or None if the key does not determine the column."""
    rows = frame.select(key=pl.col(key), cell=pl.col(column)).drop_nulls()
    if rows.height > _ENOUGH:  # a sample of the keys with all of their rows is enough
        rows = rows.filter(pl.col("key").hash(seed=0) % (rows.height // _ENOUGH + 1) == 0)
    counts = rows.group_by("key", "cell").len().group_by("key").agg(pl.col("len").sum(), most=pl.col("len").max())
    several = counts.filter(pl.col("len") > 1)
    told = int(several.get_column("len").sum())
    if told < max(_LEAST_ROWS, _REPEATED * rows.height):
        return None
    agreed = int(several.get_column("most").sum()) / told
    usual = rows.group_by("cell").len().select(pl.col("len").max()).item() / rows.height
    return agreed if agreed >= AGREEMENT and 1 - agreed <= _LIFT * (1 - usual) else None
