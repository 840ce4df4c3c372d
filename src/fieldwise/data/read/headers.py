"""Detection of header lines that look like rows: the file has no header, or was joined from several."""

import math
import warnings
from collections.abc import Mapping
from pathlib import Path

import polars as pl

__all__ = ["looks_like_row", "names_among_values", "warn_of_header", "warn_of_names"]


def warn_of_header(frame: pl.DataFrame, path: Path) -> None:
    """Warn if the column names of a text file look like one of its rows, which would then be missing."""
    _warn(path, looks_like_row(frame))


def warn_of_names(empty: pl.DataFrame, first: Path, names: Mapping[str, Path]) -> None:
    """The same for a table that was read in pieces.

    Args:
        empty: the table without its rows.
        first: its first file.
        names: columns one of whose values is the column's name, with the file.
    """
    found = next((name for name in empty.columns if name in names and empty.schema[name] == pl.String), None)
    reason = looks_like_row(empty)
    if reason or found is None:
        _warn(first, reason)
    else:
        _warn(names[found], _among_values(found))


def _warn(path: Path, reason: str) -> None:
    """Warn that the column names of a text file look like a row, if there is a reason."""
    if reason:
        warnings.warn(
            f"the first line of {path} was read as the column names, but it looks like a row ({reason}); if the file "
            "has no header, give its column names: --columns user,item,... on the command line, data.columns in a "
            "recipe",
            UserWarning,
            stacklevel=2,
        )


def looks_like_row(frame: pl.DataFrame) -> str:
    """The reason why a table's column names look like a row, or an empty text.

    >>> looks_like_row(pl.DataFrame({"u1": ["u2", "u1"], "0.5": [0.25, 1.0]}))
    "'u1' is a value of its column too"
    """
    names = frame.columns
    numbers = [name for name in names if _number(name) is not None]
    counted = [str(k) for k in range(len(names))], [str(k + 1) for k in range(len(names))]
    if numbers == names and names not in counted and all(kind.is_numeric() for kind in frame.dtypes):
        return f"all its names are numbers, such as {names[0]!r}"
    found = names_among_values(frame)
    return _among_values(found[0]) if found else ""


def names_among_values(frame: pl.DataFrame) -> list[str]:
    """The columns of text one of whose values is the column's name."""
    text = [name for name, kind in frame.schema.items() if kind == pl.String and name.strip()]
    return [name for name in text if (frame.get_column(name) == name).any()]


def _among_values(name: str) -> str:
    """The reason that a column's name is one of its values."""
    return f"{name!r} is a value of its column too"


def _number(name: str) -> float | None:
    try:
        value = float(name)
    except ValueError:
        return None
    return value if math.isfinite(value) else None
