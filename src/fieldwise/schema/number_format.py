"""How a table writes numbers, and which texts stand for a missing one."""

from fieldwise.errors import SchemaError

NumberFormat = str
"""One of `NUMBER_FORMATS`, or one with a unit: `€ 1.234,5`."""
NUMBER_FORMATS = ("1,234.5", "1.234,5", "1 234,5", "1'234.5")
_MARKS_AS_WORDS = "NA N/A #N/A <NA> n.a. NaN NaT None nil NULL \\N - -- – — ? . missing empty"
MISSING_MARKS = tuple(_MARKS_AS_WORDS.split())
"""Texts that stand for a missing number, in upper or lower case."""


def split_number_format(form: str) -> tuple[str, str]:
    """A number format's way of writing numbers, one of `NUMBER_FORMATS`, and its unit.

    >>> split_number_format("€ 1.234,5"), split_number_format("1,234.5")
    (('1.234,5', '€'), ('1,234.5', ''))

    Errors:
        ValueError: it holds none of them, or more than a unit beside it.
    """
    for plain in NUMBER_FORMATS:
        before, found, after = form.partition(plain)
        unit = before.strip() or after.strip()
        has_one_unit = not (before.strip() and after.strip()) and not any(
            c.isdigit() or c.isspace() for c in unit
        )
        if found and has_one_unit:
            return plain, unit
    raise ValueError("no number format")


def check_number_format(form: object, what: str) -> None:
    """Check a setting `number_format`, which may be None."""
    if form is None:
        return
    try:
        split_number_format(str(form))
    except ValueError:
        ways = ", ".join(repr(plain) for plain in NUMBER_FORMATS)
        raise SchemaError(
            f"{what}: number_format must be one of {ways}, or one with a unit before or after it, such as '€ 1.234,5' "
            f"and '1,234.5 %', found {form!r}"
        ) from None
