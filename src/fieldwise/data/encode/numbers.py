"""Numbers as text: their formats with units, and the marks of missing values."""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import polars as pl

from fieldwise.data.encode.portable import marks_of, number_pattern
from fieldwise.display import listed
from fieldwise.schema.ids import WORDS
from fieldwise.schema.number_format import NUMBER_FORMATS

CURRENCIES = frozenset(WORDS["currencies"])
_UNITS = frozenset(WORDS["units"]) | CURRENCIES
_BEFORE = r"[+-]?\s*(?P<before>[^\d\s+\-.,']*)\s*[+-]?"
_AMOUNT = re.compile(
    rf"{_BEFORE}(?P<number>\d(?:[\d.,'’\s]*\d)?)(?P<space>\s*)(?P<after>[^\d\s]\D*)?\Z"
)

_ANY_UNIT = "|".join(re.escape(unit) for unit in sorted(_UNITS, key=len, reverse=True))
_ANY_CURRENCY = "|".join(re.escape(unit) for unit in sorted(CURRENCIES, key=len, reverse=True))
_NAMED_AMOUNT = (
    rf"(?i)^[+-]?\s*(?:(?:{_ANY_CURRENCY})\.?)?\s*[+-]?\d[\d.,'’\s]*(?:(?:{_ANY_UNIT})\.?)?$"
)


@dataclass(frozen=True, kw_only=True)
class Unit:
    """The unit of a column's cells, and how a format writes it; several units are the first of `others`."""

    unit: str = ""
    before: bool = False
    others: tuple[str, ...] = ()

    def format_of(self, plain: str) -> str:
        """The number format with this unit."""
        if not self.unit:
            return plain
        return f"{self.unit} {plain}" if self.before else f"{plain} {self.unit}"


def unit_of(cells: pl.Series) -> Unit | None:
    """The unit of cells that are numbers with a known unit; None if one of them is something else.

    >>> unit_of(pl.Series(["€ 9,90", "12 €"])), unit_of(pl.Series(["u1", "u2"]))
    (Unit(unit='€', before=True, others=()), None)
    """
    is_before: dict[str, bool] = {}  # of each unit, as it is written first
    always_spaced: dict[tuple[str, str], bool] = {}
    for cell in cells:
        parts = None if cell is None else _AMOUNT.match(cell.strip())
        if parts is None:
            return None
        before = (parts["before"] or "").strip()
        after = (parts["after"] or "").strip()
        unit = before or after
        known = CURRENCIES if before else _UNITS
        if (before and after) or (unit and _word(unit) not in known):
            return None
        is_before.setdefault(unit, bool(before))
        always_spaced[before, after] = always_spaced.get((before, after), True) and bool(
            parts["space"]
        )
    if any(
        _is_letter(before or after) and not spaced
        for (before, after), spaced in always_spaced.items()
    ):
        return None
    written = [unit for unit in is_before if unit]
    first = written[0] if written else ""
    units = {unit.lower(): unit for unit in reversed(written)}
    return Unit(
        unit=first,
        before=is_before.get(first, False),
        others=tuple(unit for unit in units.values() if unit.lower() != first.lower()),
    )


def _word(unit: str) -> str:
    """A unit in lower case, without the full stop of an abbreviation."""
    return unit.lower().rstrip(".") or unit


def _is_letter(unit: str) -> bool:
    """Whether a unit is one Latin letter, which needs a space before it: `5 m` is a length and `5m` may be a code."""
    word = _word(unit)
    return len(word) == 1 and word.isascii() and word.isalpha()


def plain_floats(texts: pl.Series) -> pl.Series:
    """Texts that are plain numbers as Float64, null where one is none."""
    return texts.str.strip_chars().cast(pl.Float64, strict=False)


def number_formats(text: pl.Series) -> list[str]:
    """The formats that fit every present cell; empty if there is none or if all cells are plain numbers.

    >>> number_formats(pl.Series(["$1,200.50", "$ 3"])), number_formats(pl.Series(["12,50", "3"]))
    (['$ 1,234.5'], ['1.234,5', '1 234,5'])
    """
    present = text.drop_nulls() if text.null_count() else text
    cells = present.str.strip_chars()
    if not len(cells) or not cells.cast(pl.Float64, strict=False).null_count():
        return []
    sample = cells.head(1000)
    unit = unit_of(sample)
    if unit is None or unit.others:
        return []
    forms = [unit.format_of(plain) for plain in NUMBER_FORMATS]
    return [form for form in forms if _fits(sample, form).all() and _fits(cells, form).all()]


def likely_formats(text: pl.Series, most_bad: float) -> tuple[list[str], pl.Series]:
    """The formats that fit all but a share of the present cells, and the cells that they do not fit.

    No format if all but that share are plain numbers.

    >>> forms, rest = likely_formats(pl.Series(["12,50 €"] * 99 + ["on request"]), 0.01)
    >>> forms, rest.to_list()
    (['1.234,5 €', '1 234,5 €'], ['on request'])
    """
    cells = text.drop_nulls().str.strip_chars()
    none = cells.clear()
    sample = cells.head(1000)
    if not len(sample) or float(sample.str.contains(_NAMED_AMOUNT).mean()) < 0.9:  # type: ignore[arg-type]
        return [], none
    most = most_bad * len(cells)
    amounts = cells.filter(cells.str.contains(_NAMED_AMOUNT))
    has_format = cells.cast(pl.Float64, strict=False).is_null()
    unit = unit_of(amounts) if len(cells) - len(amounts) <= most < has_format.sum() else None
    if unit is None or unit.others:
        return [], none
    unread = {
        form: cells.filter(~_fits(cells, form)) for form in map(unit.format_of, NUMBER_FORMATS)
    }
    fewest = min(unread.values(), key=len)
    if len(fewest) > most:
        return [], none
    return [form for form, rest in unread.items() if rest.equals(fewest)], fewest


def plain_numbers(text: pl.Series, form: str) -> pl.Series:
    """Cells as plain numbers; those that do not fit the format become a text that is not a number."""
    pattern, separator = number_pattern(form)
    parts = text.str.extract_groups(pattern).struct.unnest()
    whole = pl.col("whole").str.replace_all(separator, "")
    fraction = pl.concat_str(pl.lit("."), pl.col("fraction")).fill_null("")
    plain = parts.select(
        pl.concat_str("sign", "sign_after", whole, fraction).fill_null("?")
    ).to_series()
    return plain.zip_with(text.is_not_null(), text).rename(text.name)


def _fits(text: pl.Series, form: str) -> pl.Series:
    pattern, _ = number_pattern(form)
    return text.str.contains(pattern).fill_null(True)


def is_mark(cells: pl.Series, missing: Sequence[str]) -> pl.Series:
    """Whether text cells are marks of a missing value, in upper or lower case.

    >>> is_mark(pl.Series(["NULL", "7", " n/a ", None]), ("null", "N/A")).to_list()
    [True, False, True, False]
    """
    return (
        cells.to_frame("cell")
        .select(mark_test(pl.col("cell"), missing))
        .to_series()
        .rename(cells.name)
    )


def mark_test(cells: pl.Expr, missing: Sequence[str]) -> pl.Expr:
    """`is_mark` of the columns of text that an expression names."""
    texts = list(marks_of(tuple(missing)).texts)
    return cells.str.strip_chars().str.to_lowercase().is_in(texts).fill_null(False)


def marked_numbers(missing: tuple[str, ...]) -> list[float]:
    """The marks that are numbers, such as -999."""
    return list(marks_of(missing).numbers)


def without_marked_numbers(number: pl.Series, missing: Sequence[str]) -> pl.Series:
    """Numbers, null where they are marks of a missing value, such as -999."""
    marked = marked_numbers(tuple(missing))
    if not marked:
        return number
    return number.set(number.cast(pl.Float64).is_in(marked).fill_null(False), None)


def marks_in(column: pl.Series, missing: Sequence[str]) -> dict[str, int]:
    """The marks of missing values in a column that is read as numbers, and how many cells hold each.

    >>> marks_in(pl.Series(["NULL", "7", "NULL", "-"]), ("null", "-"))
    {'NULL': 2, '-': 1}
    """
    if column.dtype == pl.String:
        found = column.filter(is_mark(column, missing)).str.strip_chars()
    elif column.dtype.is_numeric():
        marked = marked_numbers(tuple(missing))
        found = column.filter(column.cast(pl.Float64).is_in(marked)).cast(pl.String)
    else:
        return {}
    counts = found.alias("mark").value_counts().rows()
    return dict(sorted(counts, key=lambda row: (-row[1], row[0])))


def marks_sentences(marks: Mapping[str, Mapping[str, int]]) -> list[str]:
    """Which marks of each column are read as missing, and in how many cells; one sentence for equal marks.

    >>> for sentence in marks_sentences({"age": {"?": 2}, "price": {"-": 3, "NA": 1}, "size": {"?": 1}}):
    ...     print(sentence)
    2 columns ('age', 'size'): '?' in 3 cells read as missing
    column 'price': '-' in 3, 'NA' in 1 cells read as missing
    """
    columns_by_marks: dict[tuple[str, ...], list[str]] = {}
    for column, counts in marks.items():
        columns_by_marks.setdefault(tuple(sorted(counts)), []).append(column)

    sentences = []
    for columns in columns_by_marks.values():
        counts = Counter[str]()
        for column in columns:
            counts.update(marks[column])
        cells = ", ".join(f"{mark!r} in {count:,}" for mark, count in counts.most_common())
        noun = "cell" if counts.total() == 1 else "cells"
        sentences.append(f"{_named_columns(columns)}: {cells} {noun} read as missing")
    return sentences


def _named_columns(columns: Sequence[str]) -> str:
    """The only column, or how many there are and the first of them."""
    if len(columns) == 1:
        return f"column {columns[0]!r}"
    return f"{len(columns):,} columns ({listed(columns)})"
