"""Tables most of whose user or item ids a bundle does not know, as when their leading zeros are lost."""

from typing import get_args

import polars as pl

from fieldwise.bundle.bundle import Bundle
from fieldwise.data.encode.columns import as_text
from fieldwise.data.encode.portable import UNKNOWN
from fieldwise.data.encode.vocabulary import Vocabulary
from fieldwise.schema.ids import Who, named_id

MOST_ROWS_CHECKED = 10_000
LEAST_IDS = 10
"""Of fewer ids most may be new by chance, such as those of one user."""
LARGE_SHARE = 0.5
USUAL_SHARE = 0.25
"""A model whose validation rows have more unknown ids is meant for new ones."""


def unknown_id_doubts(bundle: Bundle, frame: pl.DataFrame) -> list[str]:
    """A sentence for the columns of user and of item ids of a table, if most of the ids are unknown to the bundle.

    Nothing is said of a table with fewer than ten ids, and where many ids of the validation rows
    were unknown too. Of long tables some rows are checked.

    >>> from fieldwise import FM, Categorical, Label, Recommender, Schema, TrainingSettings, simulate
    >>> log = simulate(500, users=50, items=30)
    >>> schema = Schema(fields=(Categorical("user_id", role="user"),), label=Label("liked"), user="user_id")
    >>> model = Recommender(schema, FM(embedding_dim=4), training=TrainingSettings(epochs=1)).fit(log)
    >>> lost = log.with_columns(pl.col("user_id").str.strip_chars_start("u0"))
    >>> unknown_id_doubts(model.bundle_, log), unknown_id_doubts(model.bundle_, lost)[0].partition(",")[0]
    ([], "100 % of the user ids in column 'user_id' are unknown to the model")
    """
    doubts = []
    for role in get_args(Who):
        column = named_id(role, bundle.schema)
        vocabulary = _vocabulary(bundle, column)
        if column is None or vocabulary is None or column not in frame.columns:
            continue
        ids = _distinct_ids(frame, column)
        unknown = _unknown(ids, vocabulary)
        usual_ids = _distinct_ids(bundle.samples, column)
        usual_share = len(_unknown(usual_ids, vocabulary)) / max(1, len(usual_ids))
        share = len(unknown) / max(1, len(ids))
        if len(ids) >= LEAST_IDS and share > LARGE_SHARE and usual_share <= USUAL_SHARE:
            doubts.append(
                f"{100 * share:.0f} % of the {role} ids in column {column!r} are unknown to the model, such as "
                f"{unknown[0]!r} (of its validation rows {100 * usual_share:.0f} %): {_cause(unknown, vocabulary)}"
            )
    return doubts


def _vocabulary(bundle: Bundle, column: str | None) -> Vocabulary | None:
    """The values that the bundle has learned of a column's categories, if it has learned any."""
    for field, fitted in bundle.encoder.fitted_fields:
        if field.column == column and field.cell == "category" and isinstance(fitted, Vocabulary):
            return fitted
    return None


def _distinct_ids(frame: pl.DataFrame, column: str) -> pl.Series:
    """The ids of a table's rows as text, each once, in the table's order."""
    cells = frame.get_column(column)
    every = max(1, len(cells) // MOST_ROWS_CHECKED)
    return as_text(cells.gather_every(every)).drop_nulls().unique(maintain_order=True)


def _unknown(ids: pl.Series, vocabulary: Vocabulary) -> pl.Series:
    """The ids that a vocabulary does not have."""
    return ids.filter(pl.Series(vocabulary.ids(ids) == UNKNOWN))


def _cause(unknown: pl.Series, vocabulary: Vocabulary) -> str:
    """Why ids may be unknown: the training rows have the same numbers in another spelling, or they are new."""
    learned = pl.DataFrame({"text": pl.Series(vocabulary.values, dtype=pl.String)})
    learned = learned.with_columns(
        number=pl.col("text").cast(pl.Float64, strict=False)
    ).drop_nulls()
    numbers = unknown.cast(pl.Float64, strict=False)
    same = (
        pl.DataFrame({"given": unknown, "number": numbers}).drop_nulls().join(learned, on="number")
    )
    if not same.height:
        if not vocabulary.values:
            return "the training rows had none that occurs often enough"
        return f"the training rows have ids such as {vocabulary.values[0]!r}. If these are not new, write them as there"
    given, learned_text = same.select("given", "text").row(0)
    return (
        f"the training rows have {learned_text!r} where this table has {given!r}. Text that was read as numbers loses "
        "its leading zeros, and numbers beside empty cells get a fraction: read the column as text, or give the path"
    )
