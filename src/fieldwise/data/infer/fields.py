"""Inferring the kind of field from a column's contents, with a reason."""

from dataclasses import dataclass, replace

import numpy as np
import polars as pl

from fieldwise.data.encode.columns import as_list, as_text
from fieldwise.data.infer.evidence import bins_lead, collision_ratio, is_round
from fieldwise.data.infer.time import looks_like_dates
from fieldwise.data.read.number_format import number_formats
from fieldwise.data.read.vectors import MOST_POSITIONS, vector_length
from fieldwise.schema import Bag, Categorical, Field, Numeric, Role, Sequence
from fieldwise.schema.names import HISTORIES, MOMENTARY, id_rank, kind_of_name, words_of

__all__ = ["Known", "guess_field"]

_SEPARATORS = ("|", ";", ",", "/")
_MANY_CELLS = 0.2  # a separator in at least this share of the cells makes a bag
_BAG_VOCABULARY = 2_000
_LOW_CARDINALITY = 50
_FEW = 10
_REPEATS = 4  # with fewer rows a value, how often values repeat tells little
_LONGEST_CYCLE = 366
_MANY_ROWS = 30  # minimum rows from which cells that are all different count as running numbers or keys
_MOST_TESTED = 50_000
_MOST_BAD = 0.01  # share of cells of a column of numbers that may be none
_PROSE = 20  # different texts
_WORDS = 5  # words of a text on average, from which it is prose
_UNIT = r"^\s*(?:[€$£] ?)?[+-]?\d[\d.,]* ?(?:[%€$£°]|[a-zA-Z]{1,3}\.?)?\s*$"
_IN_BINS = "in quantile bins, which are robust to outliers (encoding 'value' keeps the number itself)"
_NEAR_UNIQUE = 0.9
_UNIQUE_FLOOR = 1_000
_FEWER = "project it to fewer, for example by PCA, or write a column for each number"
_LISTS = "write them with a separator, as a|b|c, or keep the table as Parquet, where a list is a list"


@dataclass(frozen=True, kw_only=True)
class Known:
    """What is known of the table beside a column, when its kind is inferred.

    Args:
        is_id: whether it is the user or item id.
        first: the rows that show each value of the id that determines the column once; None if none does.
        functions: how many columns are functions of its numbers, and no mere groups of them.
        target: the label's targets, null where a row is dropped; None if there is no label.
        sampled: the share of the table's rows that the column has, if it is a random sample of them.
    """

    is_id: bool = False
    first: pl.Series | None = None
    functions: int = 0
    target: pl.Series | None = None
    sampled: float = 1.0


NOTHING = Known()


def guess_field(column: pl.Series, role: Role, known: Known = NOTHING) -> tuple[Field | None, str, str]:
    """The field inferred from a column, or None; the reason; and what the user must check, or "".

    Args:
        column: the cells.
        role: the field's role.
        known: what is known of the table beside it.

    >>> guess_field(pl.Series("tags", ["a|b", "b", "b|a", "a"]), "item")[0].kind
    'bag'
    """
    name, kind = column.name, column.dtype
    if kind in (pl.List, pl.Array):
        return *_from_lists(column, role), ""
    if kind.is_nested() or kind in (pl.Object, pl.Binary):
        return None, f"no field reads its type {kind}", ""
    present = as_text(column).drop_nulls()
    distinct = present.n_unique()
    if not distinct:
        return None, "every cell is empty", ""
    if distinct == 1:
        return None, "it is constant", ""
    if kind == pl.Duration:
        return _binned(name, role, len(column)), "durations, in seconds, cut into bins", ""
    if kind.is_temporal():
        return None, "a date or time must be converted first (to its hour, its weekday)", ""
    if not kind.is_numeric() and kind != pl.Boolean:
        return _from_text(present, role, distinct, known)
    if kind == pl.Boolean:
        return Categorical(name, role=role), "it is true or false", ""
    number = column.drop_nulls()
    number = number.filter(number.is_finite()) if kind.is_float() else number
    whole = not kind.is_float() or bool((number % 1 == 0).all())
    if whole and max(number.max() or 0, -(number.min() or 0)) > 2**53:  # type: ignore[operator]
        if _nearly_unique(distinct, len(number), known.sampled) or distinct == len(number) > _MANY_ROWS:
            return None, _unique(distinct, len(number)), ""
        return Categorical(name, role=role), f"whole numbers too great for a measure, {distinct} of them", ""
    if not whole:
        return _binned(name, role, len(column)), f"numbers with fractions, {_IN_BINS}", ""
    return _from_whole(column, number.cast(pl.Int64), role, distinct, known)


def _from_whole(
    column: pl.Series, number: pl.Series, role: Role, distinct: int, known: Known
) -> tuple[Field | None, str, str]:
    """The field of whole numbers: categories if they are ids or codes, bins if they count or measure something."""
    name, rows = column.name, len(number)
    if known.is_id:
        return Categorical(name, role=role), f"whole numbers used as ids, {distinct} of them", ""
    called = kind_of_name(name)
    low, high = number.min(), number.max()
    assert isinstance(low, int)
    assert isinstance(high, int)
    numbering = high - low < 1.05 * distinct and distinct > _MANY_ROWS
    unique = _nearly_unique(distinct, rows, known.sampled) or (distinct == rows > _MANY_ROWS)
    if unique and (called == "code" or (distinct == rows and (numbering or _never_collide(number.to_numpy())))):
        return None, _unique(distinct, rows), ""
    if known.first is None and distinct > _MANY_ROWS and _is_running(number.to_numpy()):
        return None, "a running number: it only grows with the rows, so future ones do not occur in training rows", ""
    if distinct == 2:
        return Categorical(name, role=role), "whole numbers with 2 values", ""
    score, why = _leaning(column, number, known, called)
    category = score > 0 or (score == 0 and distinct <= 3)
    against = {"code": not category, "quantity": category}.get(called, False)
    doubt = ""
    if abs(score) < 1 or against or (abs(score) < 2 and not called and rows < _REPEATS * distinct):
        kind, other = ("categories", "numeric") if category else ("numbers in bins", "categorical")
        doubt = (
            f"the whole numbers of column {name!r} were taken for {kind}, as {why or 'nothing tells'}"
            f'{f", although its name tells a {called}" if against else ""}: write kind = "{other}" if they are not'
        )
    if category:
        return Categorical(name, role=role), f"whole numbers used as codes, {distinct} of them ({why})", doubt
    return _binned(name, role, len(column)), f"whole numbers that count or measure ({why}), {_IN_BINS}", doubt


def _leaning(column: pl.Series, number: pl.Series, known: Known, called: str) -> tuple[float, str]:
    """Whether whole numbers are codes (above 0) or quantities (below), and the strongest reasons.

    What counts: values that stand out among their neighbours, gaps, rounding, signs, functions of the numbers, and
    whether categories or bins predict the label better on held-out rows. The name is one vote.
    """
    votes: list[tuple[float, str]] = []
    if called:
        named = 3.0 if id_rank(column.name) else 2.0
        votes.append((named if called == "code" else -1.5, f"its name tells a {called}"))
    if not MOMENTARY.isdisjoint(words_of(column.name)[-1:]) and column.n_unique() <= _LONGEST_CYCLE:
        votes.append((3.0, "its name tells a part of a cycle"))
    once = number if known.first is None else column.filter(known.first).drop_nulls().cast(pl.Int64)
    if len(once) > _MOST_TESTED:
        once = once.sample(_MOST_TESTED, seed=0)
    values, counts = np.unique(once.to_numpy(), return_counts=True)
    step = int(np.gcd.reduce(np.diff(values))) if len(values) > 1 else 1
    span = int(values[-1] - values[0]) // max(1, step) + 1
    if values[0] < 0:
        votes.append((-2.5, "some are below 0"))
    ratio = collision_ratio(once.to_numpy())
    if ratio > 3:
        votes.append((2.5, "some values are used much more than their neighbours, with gaps between them"))
    elif ratio > 1.6:
        votes.append((1.0, "some values are used more than their neighbours"))
    elif 0 < ratio < 1.35 and len(values) >= 6 and ratio != 1:
        votes.append((-1.5, "neighbouring numbers are about as frequent"))
    if is_round(values):
        votes.append((-1.5, "many are round"))
    if len(values) <= _FEW and span > 3 * len(values):
        votes.append((1.5, "few values with gaps"))
    elif span <= 1.25 * len(values) and values[0] in (0, 1) and int(np.argmax(counts)) <= len(values) // 2:
        votes.append((-1.0, "they begin near 0 without gaps"))
    if len(once) < 1.6 * len(values) and ratio <= 1.6 and _is_bent(values):
        votes.append((-1.0, "they crowd around a middle or one end"))
    if known.functions and (known.first is None or len(values) < 0.8 * len(once)):
        votes.append((1.5, f"{known.functions} columns are functions of it"))
    if known.first is None and known.target is not None and len(values) > _FEW:
        lead = bins_lead(*_paired(column, known.target))
        if abs(lead) > 3:
            votes.append(
                (-1.0 if lead > 0 else 1.5, f"{'bins' if lead > 0 else 'categories'} predict the label better")
            )
    score = sum(vote for vote, _ in votes)
    said = [why for vote, why in sorted(votes, key=lambda vote: -abs(vote[0])) if vote * score > 0]
    return score, "; ".join(said[:2])


def _never_collide(numbers: np.ndarray) -> bool:
    """Whether all are different though amounts would coincide, or would crowd: they number something."""
    values = np.sort(numbers)
    coincide = len(values) ** 2 / (2 * max(1, int(values[-1] - values[0]))) > _MANY_ROWS
    return (coincide or not _is_bent(values)) and not is_round(values)


def _is_running(numbers: np.ndarray) -> bool:
    """Whether numbers grow with the rows, about as fast everywhere, such as the orders of a log."""
    return bool((np.diff(numbers) >= 0).all()) and not _is_bent(numbers)


def _is_bent(values: np.ndarray) -> bool:
    """Whether different numbers are far from evenly spread over their range, as amounts are and ids are not."""
    place = (values - values[0]) / max(1, int(values[-1] - values[0]))
    return float(np.abs(place - np.linspace(0, 1, len(values))).max()) > 0.12


def _paired(column: pl.Series, target: pl.Series) -> tuple[np.ndarray, np.ndarray]:
    both = column.is_not_null() & target.is_not_null()
    return column.filter(both).cast(pl.Float64).to_numpy(), target.filter(both).to_numpy()


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


def _from_text(present: pl.Series, role: Role, distinct: int, known: Known) -> tuple[Field | None, str, str]:
    name, words = present.name, present.cast(pl.String)
    if words.str.contains(r"^\s*\[.*\]\s*$").all():
        return None, f"CHECK: its cells are lists written as text, {words[0][:40]!r}: {_LISTS}", ""
    numbers = None if known.is_id else _written_numbers(words, role)
    if numbers is not None:
        return *numbers, ""
    for separator in _SEPARATORS if not known.is_id else ():
        share = float(words.str.contains(separator, literal=True).mean() or 0.0)  # type: ignore[arg-type]
        if share < _MANY_CELLS or words.str.contains("://", literal=True).any():
            continue
        vocabulary = as_list(words, separator).explode().n_unique()
        found = f"{share:.0%} of its cells hold {separator!r}, {vocabulary} values in total"
        if _is_history(name):
            return Sequence(name, role="user", separator=separator), f"{found}, and its name suggests a history", ""
        if vocabulary <= _BAG_VOCABULARY and vocabulary < distinct:
            return Bag(name, role=role, separator=separator), found, ""
    if distinct > _LOW_CARDINALITY and not known.is_id:
        if looks_like_dates(words):
            return None, "its text is dates, which must be converted first (to an age, a weekday)", ""
        if (found_numbers := _numbers_in_text(words, role)) is not None:
            return found_numbers
    if _nearly_unique(distinct, len(words), known.sampled) or distinct == len(words) > _MANY_ROWS:
        return None, _unique(distinct, len(words)), ""
    if distinct > _LOW_CARDINALITY and not known.is_id and words.str.contains(_UNIT).all():
        doubt = (
            f"the cells of column {name!r} look like numbers with a unit, such as {words[0]!r}: write the numbers alone"
        )
        return Categorical(name, role=role), f"text with {distinct} values", doubt
    if distinct > _PROSE and not known.is_id and _words_a_cell(words) > _WORDS:
        return None, f"it is prose ({distinct} texts), which no field reads", ""
    return Categorical(name, role=role), f"text with {distinct} values", ""


def _words_a_cell(words: pl.Series) -> float:
    return float(words.unique().head(1000).str.count_matches(r"\S+").mean() or 0)  # type: ignore[arg-type]


def _numbers_in_text(words: pl.Series, role: Role) -> tuple[Field, str, str] | None:
    """The numeric field of text of which all but a few cells are numbers."""
    number = words.str.strip_chars().cast(pl.Float64, strict=False)
    padded = words.str.contains(r"^0\d").any()  # leading zeros mean a code, not a number
    bad = words.filter(number.is_null())
    if padded or len(bad) > _MOST_BAD * len(words) or kind_of_name(words.name) == "code":
        return None
    field = _binned(words.name, role, len(words))
    if not len(bad):
        return field, "text with only numbers", ""
    shown = ", ".join(map(repr, bad.unique(maintain_order=True).head(3)))
    doubt = (
        f"{len(bad):,} of {len(words):,} cells of column {words.name!r} are no numbers ({shown}): correct them or "
        'leave them empty before training, or write kind = "categorical"'
    )
    return field, f"text with numbers in all but {len(bad):,} cells", doubt


def _binned(name: str, role: Role, rows: int) -> Numeric:
    """A numeric field with 8 to 128 quantile bins (a power of 2) of about 400 rows each."""
    bins = min(128, max(8, 1 << (max(1, rows // 400).bit_length() - 1)))
    return Numeric(name, role=role, encoding="quantile", transform="none", bins=bins, point_masses=True)


def _written_numbers(words: pl.Series, role: Role) -> tuple[Field | None, str] | None:
    """The field for text cells that are numbers with decimal commas or thousands separators, if they are."""
    forms = [] if kind_of_name(words.name) == "code" or _is_history(words.name) else number_formats(words)
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
