"""The rows to explain, encoded and as text, with the network of one label, its terms and background rows.

Letters: N rows, F fields.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, Literal

import numpy as np
import polars as pl
from torch import nn

from fieldwise.bundle.bundle import Bundle
from fieldwise.data.encode.columns import as_list, as_number, as_text, vector_texts
from fieldwise.data.encode.encoder import Encoder
from fieldwise.data.encode.numbers import is_mark
from fieldwise.data.encode.portable import UNKNOWN
from fieldwise.data.encode.vocabulary import Vocabulary
from fieldwise.data.read.tables import TableLike, as_table
from fieldwise.data.table import EncodedTable
from fieldwise.errors import DataError
from fieldwise.evaluation.calibration import Calibration
from fieldwise.evaluation.slices import ABSENT
from fieldwise.explain.attribution import Mixer, has_gradients
from fieldwise.explain.terms import TermGroup, Terms, field_pairs, groups_of, terms_of
from fieldwise.models.trees import TreesNetwork
from fieldwise.schema import Label, Schema
from fieldwise.scoring.batches import SCORING_BATCH, finite, score_batches

UNSEEN = " (not in the vocabulary)"
MAX_LISTED_VALUES = 8
"""Of a bag, in its text."""


def field_values(encoder: Encoder, frame: pl.DataFrame) -> pl.DataFrame:
    """The fields' values as text [N, F], with the fields' names as columns.

    A value not in the vocabulary is marked, and a missing one is shown as absent. A history shows
    its latest values, as far as the model reads them; a long cell ends with the number of further
    values.
    """
    columns = []
    for field, fitted in encoder.fitted_fields:
        column = frame.get_column(field.column)
        vocabulary = fitted if isinstance(fitted, Vocabulary) else None
        if field.cell == "list":
            cells = as_list(column, field.separator, newest=field.max_length)
            texts = _list_texts(cells, vocabulary)
        elif field.cell == "category":
            texts = _category_texts(as_text(column), vocabulary)
        elif field.cell == "vector":
            texts = vector_texts(column).fill_null(ABSENT).to_list()
        else:
            texts = _number_texts(column, encoder.missing)
        columns.append(pl.Series(field.name, texts, dtype=pl.String))
    return pl.DataFrame(columns)


def _list_texts(cells: pl.Series, vocabulary: Vocabulary | None) -> list[str]:
    """The first values of each cell, and how many more it has."""
    known = None if vocabulary is None else set(vocabulary.values)
    texts = []
    for cell in cells.to_list():
        parts = []
        for value in cell[:MAX_LISTED_VALUES]:
            is_known = known is None or value in known
            parts.append(value if is_known else value + UNSEEN)
        if len(cell) > MAX_LISTED_VALUES:
            parts.append(f"and {len(cell) - MAX_LISTED_VALUES} more")
        texts.append(", ".join(parts) or ABSENT)
    return texts


def _category_texts(column: pl.Series, vocabulary: Vocabulary | None) -> list[str]:
    """The value of each cell, marked if it is not in the vocabulary."""
    texts = _texts(column.to_list())
    if vocabulary is None:
        return texts
    for row in np.flatnonzero(vocabulary.ids(column) == UNKNOWN):
        texts[row] += UNSEEN
    return texts


def _number_texts(column: pl.Series, missing: Sequence[str]) -> list[str]:
    """The number of each cell; a time or a number in text as it is written."""
    if column.dtype == pl.String:
        written = column.set(is_mark(column, missing), None)
        return _texts(written.to_list())
    if column.dtype.is_temporal():
        return _texts(column.to_list())
    numbers = as_number(column, f"column {column.name!r}", missing=missing)
    return _texts(numbers.to_list(), "{:.12g}")


def _texts(cells: Sequence[Any], form: str = "{}") -> list[str]:
    """Each cell in a format, and a word for an absent one."""
    return [ABSENT if cell is None else form.format(cell) for cell in cells]


def number_levels(
    encoder: Encoder, frame: pl.DataFrame, others: pl.DataFrame
) -> dict[str, list[str]]:
    """For every field of ordered numbers, whether each row's is `low`, `medium` or `high` by thirds of other rows.

    It is empty for a missing number, or where the other rows have fewer than three different ones.

    >>> from fieldwise import Label, Numeric, Schema
    >>> log = pl.DataFrame({"price": [1.0, 2.0, 8.0, 9.0]})
    >>> encoder = Encoder.fit(log, Schema(fields=(Numeric("price"),), label=Label("click")))
    >>> number_levels(encoder, pl.DataFrame({"price": [0.39, 5.0, 8.5, None]}), log)
    {'price': ['low', 'medium', 'high', '']}
    """
    levels = {}
    for field in encoder.fields:
        if field.cell != "number" or not field.is_ordered:
            continue
        number_of = partial(
            as_number,
            what=f"column {field.column!r}",
            form=field.number_format,
            missing=encoder.missing,
        )
        numbers = number_of(frame.get_column(field.column)).fill_null(np.nan).to_numpy()
        other_numbers = number_of(others.get_column(field.column))
        sorted_others = other_numbers.drop_nulls().sort().to_numpy()
        # Equal numbers count half.
        twice_below = np.searchsorted(sorted_others, numbers) + np.searchsorted(
            sorted_others, numbers, side="right"
        )
        share_below = twice_below / (2 * max(len(sorted_others), 1))
        level = np.select([share_below < 1 / 3, share_below <= 2 / 3], ["low", "medium"], "high")
        has_level = ~np.isnan(numbers) & (other_numbers.n_unique() > 2)
        levels[field.name] = np.where(has_level, level, "").tolist()
    return levels


Method = Literal["terms", "tree_shap", "integrated_gradients", "occlusion"]
METHODS: tuple[Method, ...] = ("terms", "tree_shap", "integrated_gradients", "occlusion")


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Subject:
    """Encoded rows to explain, with the network of one label and background rows.

    Args:
        label, settings: the label's name, and the label, which says what its score is.
        values: the fields' values as text, [N, F].
        levels: whether a number is low, medium or high among the background rows' ones, for N rows
            by field.
        table: N rows.
    """

    label: str
    settings: Label
    schema: Schema
    network: nn.Module
    values: pl.DataFrame
    levels: Mapping[str, Sequence[str]]
    table: EncodedTable
    background: EncodedTable
    calibration: Calibration | None = None

    @classmethod
    def of(
        cls,
        bundle: Bundle,
        frame: TableLike,
        *,
        background: TableLike | None = None,
        label: str | None = None,
    ) -> "Subject":
        """A subject from raw rows and a bundle; arguments and errors are those of `fieldwise.explain.explain`."""
        schema = bundle.schema
        others = bundle.samples
        no_rows = "has no sample rows"
        if background is not None:
            others = as_table(background, text_columns=schema.text_columns)
            no_rows = "was given none"
        frame = as_table(frame, text_columns=schema.text_columns)
        if not others.height:
            raise DataError(
                f"an explanation compares with other rows, but the bundle {no_rows}: give background rows"
            )
        position = schema.label_number(label)
        settings = schema.labels[position]
        network = bundle.network
        if schema.more_labels:
            assert isinstance(network.heads, nn.ModuleList)
            network = network.heads[position]

        table = bundle.encoder.transform(frame)  # first, since it names a column that is missing
        values = field_values(bundle.encoder, frame)
        levels = number_levels(bundle.encoder, frame, others)
        return cls(
            table=table,
            label=settings.name,
            settings=settings,
            schema=schema,
            network=network,
            values=values,
            levels=levels,
            background=bundle.encoded_samples
            if background is None
            else bundle.encoder.transform(others),
            calibration=bundle.calibration.get(settings.name),
        )

    def __repr__(self) -> str:
        return f"Subject({len(self.table):,} rows, label {self.label!r}, fields {', '.join(self.fields)})"

    @cached_property
    def fields(self) -> tuple[str, ...]:
        """The fields' names."""
        return tuple(f.name for f in self.table.layout.fields)

    @cached_property
    def pairs(self) -> tuple[tuple[int, int], ...]:
        """Both fields of each pair, in the order of `fieldwise.ops.pair_indices`."""
        return field_pairs(len(self.fields))

    @cached_property
    def logit(self) -> np.ndarray:
        """The scores [N]: logits, or predicted numbers over the label's scale."""
        return finite(score_batches(self.network, self.table.batches(SCORING_BATCH)))

    @cached_property
    def mixer(self) -> Mixer:
        """The mixer of its rows and background."""
        return Mixer(self.network, self.table, self.background)

    @cached_property
    def terms(self) -> Terms:
        """The exact terms, if the model can be decomposed."""
        return terms_of(self.network, self.table)

    @cached_property
    def term_groups(self) -> tuple[TermGroup, ...]:
        """The exact terms by sort, with what belongs to them."""
        return groups_of(self.terms, self.fields, self.network)

    @cached_property
    def background_terms(self) -> Terms:
        """The exact terms of the background rows."""
        return terms_of(self.network, self.background)

    @property
    def usual_method(self) -> Method:
        """The default method: exact terms if all are of fields and pairs, else the first of those that follow it."""
        if self.terms.pairwise:
            return "terms"
        if isinstance(self.network, TreesNetwork):
            return "tree_shap"
        return "integrated_gradients" if has_gradients(self.network) else "occlusion"

    def others(self, draws: int, seed: int) -> np.ndarray:
        """Background rows for every row [N, draws]: all of them if there are few, else a random sample."""
        known = len(self.background)
        if known <= draws:
            return np.broadcast_to(np.arange(known), (len(self.table), known))
        return np.random.default_rng(seed).integers(0, known, (len(self.table), draws))
