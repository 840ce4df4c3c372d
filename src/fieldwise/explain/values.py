"""Fields' values as text, as in the raw data."""

import polars as pl

from fieldwise.data.encode.columns import as_list, as_number, as_text
from fieldwise.data.encode.encoder import Encoder
from fieldwise.data.encode.fitted import UNKNOWN, Vocabulary

__all__ = ["ABSENT", "UNSEEN", "field_values"]

ABSENT = "(absent)"
UNSEEN = " (not in the vocabulary)"
LISTED = 8  # maximum number of a bag's values shown


def field_values(encoder: Encoder, frame: pl.DataFrame) -> pl.DataFrame:
    """The fields' values as text [N, F], with the fields' names as columns.

    A value not in the vocabulary is marked, and a missing one is shown as absent. A history shows its latest values,
    as far as the model reads them; a long cell ends with the number of further values.

    >>> from fieldwise import Categorical, Label, Schema
    >>> schema = Schema(fields=(Categorical("app"),), label=Label("click"))
    >>> encoder = Encoder.fit(pl.DataFrame({"app": ["a", "b"]}), schema)
    >>> field_values(encoder, pl.DataFrame({"app": ["b", "c", None]}))["app"].to_list()
    ['b', 'c (not in the vocabulary)', '(absent)']
    """
    columns = []
    for field, fitted in zip(encoder.fields, encoder.fitted, strict=True):
        column = frame.get_column(field.column)
        if field.cell == "list":
            known = set(fitted.values) if isinstance(fitted, Vocabulary) else None
            cells = as_list(column, field.separator, newest=field.max_length)
            texts = [_listed(cell, known) for cell in cells.to_list()]
        elif field.cell == "category":
            text = as_text(column)
            texts = [ABSENT if value is None else str(value) for value in text.to_list()]
            if isinstance(fitted, Vocabulary):
                unseen = (fitted.ids(text) == UNKNOWN).tolist()
                texts = [value + UNSEEN * new for value, new in zip(texts, unseen, strict=True)]
        elif column.dtype.is_temporal() or column.dtype == pl.String:
            texts = [ABSENT if value is None else str(value) for value in column.to_list()]
        else:
            numbers = as_number(column, f"column {field.column!r}").to_list()
            texts = [ABSENT if value is None else f"{value:.12g}" for value in numbers]
        columns.append(pl.Series(field.name, texts, dtype=pl.String))
    return pl.DataFrame(columns)


def _listed(cell: list[str], known: set[str] | None) -> str:
    shown = [value if known is None or value in known else value + UNSEEN for value in cell[:LISTED]]
    more = [f"and {len(cell) - LISTED} more"] if len(cell) > LISTED else []
    return ", ".join([*shown, *more]) or ABSENT
