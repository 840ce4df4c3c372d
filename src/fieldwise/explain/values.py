"""Fields' values as text, as in the raw data."""

import numpy as np
import polars as pl

from fieldwise.data.encode.columns import as_list, as_number, as_text
from fieldwise.data.encode.encoder import Encoder
from fieldwise.data.encode.fitted import UNKNOWN, Vocabulary

__all__ = ["ABSENT", "UNSEEN", "field_values", "number_levels"]

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


def number_levels(encoder: Encoder, frame: pl.DataFrame, others: pl.DataFrame) -> dict[str, list[str]]:
    """For every field of numbers, whether each row's is `low`, `medium` or `high` by thirds of other rows.

    It is empty for a missing number, or where the other rows have fewer than three different ones.

    >>> from fieldwise import Label, Numeric, Schema
    >>> log = pl.DataFrame({"price": [1.0, 2.0, 8.0, 9.0]})
    >>> encoder = Encoder.fit(log, Schema(fields=(Numeric("price"),), label=Label("click")))
    >>> number_levels(encoder, pl.DataFrame({"price": [0.39, 5.0, 8.5, None]}), log)
    {'price': ['low', 'medium', 'high', '']}
    """
    found = {}
    for field in (f for f in encoder.fields if f.cell == "number"):
        own, usual = (
            as_number(one.get_column(field.column), f"column {field.column!r}", form=field.number_format)
            for one in (frame, others)
        )
        known = usual.drop_nulls().sort().to_numpy()
        number = own.fill_null(np.nan).to_numpy()
        below = (np.searchsorted(known, number) + np.searchsorted(known, number, side="right")) / (
            2 * max(len(known), 1)
        )
        level = np.select([below < 1 / 3, below <= 2 / 3], ["low", "medium"], "high")
        shown = ~np.isnan(number) & (usual.n_unique() > 2)
        found[field.name] = np.where(shown, level, "").tolist()
    return found


def _listed(cell: list[str], known: set[str] | None) -> str:
    shown = [value if known is None or value in known else value + UNSEEN for value in cell[:LISTED]]
    more = [f"and {len(cell) - LISTED} more"] if len(cell) > LISTED else []
    return ", ".join([*shown, *more]) or ABSENT
