"""Text cells that are numbers with units, decimal commas or thousands separators, or nearly."""

import json
from dataclasses import replace

import polars as pl

from fieldwise.data.encode.numbers import CURRENCIES, likely_formats, number_formats, unit_of
from fieldwise.data.infer.findings import THIS_COLUMN
from fieldwise.data.infer.guess import IN_BINS, Guess, binned, is_history, omitted
from fieldwise.data.infer.profile import TextFacts
from fieldwise.schema import Role
from fieldwise.schema.ids import kind_of_name
from fieldwise.schema.number_format import split_number_format

MOST_BAD = 0.01
"""The share of cells of a column of numbers that may be none."""
_MOST_STRAY = 0.5
"""The share of cells that may be something else in a column that looks like numbers in a form that is not read."""
_MOST_STRAY_TEXTS = 10
"""Different texts beside numbers; more are values, such as lists of numbers."""
_SHOWN_TEXTS = 3
_SIGN = "[+\\-−–]"
_DIGIT_GROUPS = (
    r"\d+(?:[.,]\d+)?",
    r"\d{1,3}(?:[.'’\s]\d{3})+(?:,\d+)?",
    r"\d{1,3}(?:[,'’]\d{3})+(?:\.\d+)?",
    r"\d{1,2}(?:,\d{2})+,\d{3}(?:\.\d+)?",  # as in India
)
_NUMBER_WITH_UNIT = r"^\s*(?:[€$£] ?)?[+-]?\d[\d.,]* ?(?:[%€$£°]|[a-zA-Z]{1,3}\.?)?\s*$"
_DIGITS = f"(?:{'|'.join(_DIGIT_GROUPS)})"
_WRITTEN_NUMBER = (
    rf"^\s*\(?{_SIGN}?\s?(?:\p{{Sc}}\s?)?{_SIGN}?{_DIGITS}\s?(?:\p{{Sc}}|%)?\)?{_SIGN}?\s*$"
)


def written_numbers(texts: pl.Series, role: Role, facts: TextFacts) -> Guess | None:
    """The field for text cells that are numbers with decimal commas or thousands separators, if they are."""
    name = texts.name
    if kind_of_name(name) == "code" or is_history(name):
        return None
    if facts.may_be_thousands:
        field = binned(name, role, len(texts))
        return Guess(
            field,
            f"numbers with fractions, {IN_BINS}",
            thousands_doubt(texts, f"column {THIS_COLUMN}"),
        )

    formats = number_formats(texts)
    unread = texts.clear()
    if not formats:
        formats, unread = likely_formats(texts, MOST_BAD)
    if not formats:
        unit = unit_of(texts)
        if unit is None or not unit.others:
            return None
        units = ", ".join(map(repr, (unit.unit, *unit.others)))
        return omitted(f"its numbers have different units ({units}): convert them to one")
    return _in_format(texts, role, formats, unread)


def _in_format(texts: pl.Series, role: Role, formats: list[str], unread: pl.Series) -> Guess:
    """The field for numbers that all of these formats fit, but for the cells `unread`."""
    name = texts.name
    read = texts.filter(~texts.str.strip_chars().is_in(unread.implode()))
    with_mark = read.filter(read.str.contains(r"\d[,.' ]\d"))
    example = with_mark[0] if len(with_mark) else read[0]
    format_of_plain = {split_number_format(form)[0]: form for form in formats}
    form = next(iter(format_of_plain.values()))
    _, unit = split_number_format(form)

    doubts = []
    is_ambiguous = {"1,234.5", "1.234,5"} <= format_of_plain.keys()
    if is_ambiguous and read.str.contains(r"\d[,.]\d").any():
        if unit.lower().rstrip(".") not in CURRENCIES:
            return omitted(
                f"{example!r} is a number with either a thousands separator or a decimal comma, which is ambiguous: "
                'add a numeric field for it with number_format = "1,234.5" or "1.234,5"',
            )
        form = format_of_plain["1,234.5"]
        other = format_of_plain["1.234,5"]
        if "," not in example:
            form, other = other, form
        doubts.append(
            f"the amounts of column {THIS_COLUMN} were read with a thousands separator, such as {example!r}: write "
            f'number_format = "{other}" if it is a decimal mark'
        )
    if len(unread):
        doubts.append(unread_doubt(unread, len(texts), f" such as {example!r}"))

    bins = binned(name, role, len(texts))
    without_unit = f", read without the unit {unit!r}" if unit else ""
    note = f"text with numbers such as {example!r}{without_unit}, in quantile bins"
    return Guess(replace(bins, number_format=form), note, "; ".join(doubts))


def thousands_doubt(texts: pl.Series, where: str) -> str:
    """What the user must check of numbers that may have a thousands separator, as 3.768 beside 768."""
    example = texts.filter(texts.str.contains(".", literal=True))[0]
    return (
        f"the numbers of {where} may have a thousands separator, and were taken for fractions, as {example!r} alone "
        f'is: write number_format = "1.234,5" if it is {example.replace(".", "")}'
    )


def unread_numbers(texts: pl.Series, bad: pl.Series) -> str:
    """What to check of text that is numbers in a form that is not read, or beside other texts; `bad` are unread."""
    stray = texts.filter(~texts.str.contains(_WRITTEN_NUMBER))
    if len(stray) > _MOST_STRAY * len(texts) or stray.n_unique() > _MOST_STRAY_TEXTS:
        return ""
    if not len(stray):
        return (
            f"the cells of column {THIS_COLUMN} look like numbers in a form that is not read, such as {bad[0]!r}: "
            "write them as 1234.5 or -1234.5"
        )
    counts = stray.alias("cell").value_counts().sort(["count", "cell"], descending=[True, False])
    common = counts.get_column("cell").head(_SHOWN_TEXTS).to_list()
    return (
        f"{len(stray):,} of {len(texts):,} cells of column {THIS_COLUMN} are no numbers "
        f"({', '.join(map(repr, common))}), the others are: if these stand for missing values, write "
        f"missing = {json.dumps(common, ensure_ascii=False)} at the top of the schema, and "
        'kind = "numeric" for the column'
    )


def unread_doubt(cells: pl.Series, rows: int, such_as: str = "") -> str:
    """What the user must check where a few of many cells cannot be read as numbers."""
    shown = ", ".join(map(repr, cells.unique(maintain_order=True).head(_SHOWN_TEXTS)))
    return (
        f"{len(cells):,} of {rows:,} cells of column {THIS_COLUMN} are no numbers{such_as} ({shown}): correct them or "
        'leave them empty before training, or write kind = "categorical"'
    )


def unit_doubt(texts: pl.Series) -> str:
    """What the user must do about numbers with units that are not known, or an empty text."""
    if not texts.str.contains(_NUMBER_WITH_UNIT).all():
        return ""
    return (
        f"the cells of column {THIS_COLUMN} look like numbers with a unit, such as {texts[0]!r}: write the numbers "
        "alone"
    )
