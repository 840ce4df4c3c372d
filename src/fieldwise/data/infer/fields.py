"""Inferring the kind of field from a column's contents, with a reason."""

from dataclasses import replace

import polars as pl

from fieldwise.data.encode.columns import as_list, as_text
from fieldwise.data.infer.time import looks_like_dates
from fieldwise.data.read.number_format import number_formats
from fieldwise.data.read.vectors import MOST_POSITIONS, vector_length
from fieldwise.schema import Bag, Categorical, Field, Numeric, Role, Sequence
from fieldwise.schema.names import HISTORIES, words_of

__all__ = ["guess_field"]

_SEPARATORS = ("|", ";", ",")
_MANY_CELLS = 0.2  # a separator in at least this share of the cells makes a bag
_BAG_VOCABULARY = 2_000
_LOW_CARDINALITY = 50
_NEAR_UNIQUE = 0.9
_UNIQUE_FLOOR = 1_000
_FEWER = "project it to fewer, for example by PCA, or write a column for each number"
_LISTS = "write them with a separator, as a|b|c, or keep the table as Parquet, where a list is a list"
_NAMING = frozenset(("id", "code", "zip", "zipcode", "postcode", "isbn", "user", "item", "movie", "product"))


def guess_field(column: pl.Series, role: Role, sampled: float = 1.0) -> tuple[Field | None, str]:
    """The field inferred from a column, or None, and the reason.

    Args:
        column: the cells.
        role: the field's role.
        sampled: the share of the table's rows that the column has, if it is a random sample of them.

    >>> guess_field(pl.Series("tags", ["a|b", "b", "b|a", "a"]), "item")[0].kind
    'bag'
    """
    name, kind = column.name, column.dtype
    if kind in (pl.List, pl.Array):
        return _from_lists(column, role)
    if kind.is_nested() or kind in (pl.Object, pl.Binary):
        return None, f"no field reads its type {kind}"
    present = as_text(column).drop_nulls()
    distinct = present.n_unique()
    if not distinct:
        return None, "every cell is empty"
    if distinct == 1:
        return None, "it is constant"
    if kind == pl.Duration:
        return _binned(name, role, len(column)), "durations, in seconds, cut into bins"
    if kind.is_temporal():
        return None, "a date or time must be converted first (to its hour, its weekday)"
    if not kind.is_numeric() and kind != pl.Boolean:
        return _from_text(present, role, distinct, sampled)
    if kind == pl.Boolean:
        return Categorical(name, role=role), "it is true or false"
    whole = not kind.is_float() or bool((column.drop_nans().drop_nulls() % 1 == 0).all())
    if whole and _is_name(name):
        if _nearly_unique(distinct, len(present), sampled):
            return None, _unique(distinct, len(present))
        return Categorical(name, role=role), f"whole numbers used as ids, {distinct} of them"
    if whole and distinct <= _LOW_CARDINALITY:
        return Categorical(name, role=role), f"whole numbers with {distinct} values"
    what = "wide-ranging whole numbers" if whole else "numbers with fractions"
    reason = f"{what}, in quantile bins, which are robust to outliers (encoding 'value' keeps the number itself)"
    return _binned(name, role, len(column)), reason


def _from_lists(column: pl.Series, role: Role) -> tuple[Field | None, str]:
    inner = column.dtype.inner  # type: ignore[attr-defined]
    if inner.is_nested() or inner in (pl.Object, pl.Binary):
        return None, f"no field reads its type {column.dtype}"
    if inner.is_float():
        length = vector_length(column)
        if length is not None and length > MOST_POSITIONS:
            return (
                None,
                f"CHECK: a vector of {length:,} numbers; at most {MOST_POSITIONS} can become fields: {_FEWER}",
            )
        return None, "its cells are lists of fractional numbers, which are neither categories nor of equal length"
    distinct = as_list(column, "|").explode().n_unique()
    if not column.list.len().fill_null(0).sum():
        return None, "every cell is empty"
    if _is_history(column.name):
        return Sequence(column.name, role="user"), "its cells are lists, and its name suggests a history"
    return Bag(column.name, role=role), f"its cells are lists, {distinct} values in total"


def _from_text(present: pl.Series, role: Role, distinct: int, sampled: float) -> tuple[Field | None, str]:
    name, words = present.name, present.cast(pl.String)
    if words.str.contains(r"^\s*\[.*\]\s*$").all():
        return None, f"CHECK: its cells are lists written as text, {words[0][:40]!r}: {_LISTS}"
    numbers = _written_numbers(words, role)
    if numbers is not None:
        return numbers
    for separator in _SEPARATORS:
        share = float(words.str.contains(separator, literal=True).mean() or 0.0)  # type: ignore[arg-type]
        if share < _MANY_CELLS:
            continue
        vocabulary = as_list(words, separator).explode().n_unique()
        found = f"{share:.0%} of its cells hold {separator!r}, {vocabulary} values in total"
        if _is_history(name):
            return Sequence(name, role="user", separator=separator), f"{found}, and its name suggests a history"
        if vocabulary <= _BAG_VOCABULARY and vocabulary < distinct:
            return Bag(name, role=role, separator=separator), found
    if _nearly_unique(distinct, len(words), sampled):
        return None, _unique(distinct, len(words))
    if distinct > _LOW_CARDINALITY and looks_like_dates(words):
        return None, "its text is dates, which must be converted first (to an age, a weekday)"
    number = words.str.strip_chars().cast(pl.Float64, strict=False)
    padded = words.str.contains(r"^0\d").any()  # leading zeros mean a code, not a number
    if distinct > _LOW_CARDINALITY and not number.null_count() and not padded and not _is_name(name):
        return _binned(name, role, len(words)), "text with only numbers"
    return Categorical(name, role=role), f"text with {distinct} values"


def _binned(name: str, role: Role, rows: int) -> Numeric:
    """A numeric field with 8 to 128 quantile bins (a power of 2) of about 400 rows each."""
    bins = min(128, max(8, 1 << (max(1, rows // 400).bit_length() - 1)))
    return Numeric(name, role=role, encoding="quantile", transform="none", bins=bins, point_masses=True)


def _written_numbers(words: pl.Series, role: Role) -> tuple[Field | None, str] | None:
    """The field for text cells that are numbers with decimal commas or thousands separators, if they are."""
    forms = [] if _is_name(words.name) or _is_history(words.name) else number_formats(words)
    if not forms:
        return None
    decimal, *_ = words.filter(words.str.contains("[,.' ]")).head(1).to_list() or [words[0]]
    if "1,234.5" in forms and "1.234,5" in forms:
        return None, (
            f"CHECK: {decimal!r} is a number with either a thousands separator or a decimal comma, which is "
            'ambiguous: add a numeric field for it with number_format = "1,234.5" or "1.234,5"'
        )
    field = replace(_binned(words.name, role, len(words)), number_format=forms[0])
    return field, f"text with numbers such as {decimal!r}, in quantile bins"


def _is_name(name: str) -> bool:
    """Whether a column of this name holds ids rather than measurements."""
    words = words_of(name)
    return words[-1] in _NAMING if words else False


def _is_history(name: str) -> bool:
    return any(w in HISTORIES for w in words_of(name))


def _nearly_unique(distinct: int, rows: int, sampled: float) -> bool:
    """Whether nearly every cell of a table is different, from a random sample of its rows.

    The two rows of a pair of equal cells are both in a sample of share f with probability f^2, so that the share of
    cells with an equal one before them is f times that of the table.
    """
    return distinct > (1 - (1 - _NEAR_UNIQUE) * sampled) * rows and distinct > _UNIQUE_FLOOR


def _unique(distinct: int, rows: int) -> str:
    return f"nearly every cell is different ({distinct} values in {rows} rows), so there is nothing to learn from it"
