"""The rows to explain, encoded and as text, with the network of one label, its terms and background rows.

Letters: N rows, F fields, P = F(F-1)/2 pairs, L levels or layers, H heads, K item heads, U and V
fields of a tower.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np
import polars as pl
import torch
from torch import nn

from fieldwise.bundle.bundle import Bundle
from fieldwise.config import nearest
from fieldwise.data.encode.columns import as_list, as_number, as_text
from fieldwise.data.encode.encoder import Encoder
from fieldwise.data.encode.numbers import is_mark
from fieldwise.data.encode.vocabulary import UNKNOWN, Vocabulary
from fieldwise.data.read.tables import TableLike, as_table
from fieldwise.data.table import EncodedTable
from fieldwise.errors import ConfigError, DataError
from fieldwise.evaluation.calibration import Calibration
from fieldwise.evaluation.slices import ABSENT
from fieldwise.explain.attribution import Mixer, device_batches, has_gradients
from fieldwise.schema import Label, Schema
from fieldwise.scoring.batches import SCORING_BATCH, finite, score_batches, scoring_mode


@dataclass(frozen=True, kw_only=True, eq=False)
class Terms:
    """The terms of a network's logits; both parts are empty for networks without a decomposition.

    Args:
        added: terms by name, float64; their sum over all names and all axes but the first is the
            logit: `bias` [N]; `first_order` [N, F]; `pairs` [N, P] (FM, AFM), in the order of
            `fieldwise.ops.pair_indices`; `attended` [N, F], the last unit's part for each field
            after AutoInt's layers, and `mlp` [N] (AutoInt+); `matches` [N, L, H], each user head's
            inner product with the item head that it matches best (IntTower, level by level).
        shown: parts of the terms: AFM's `attention` [N, P] and `interactions` [N, P], whose product
            is `pairs`; AutoInt's `attention` [N, L, H, F, F], from query field (second last axis)
            to key field (last); IntTower's `matched_head` [N, L, H], and for either side's fields
            `user_gates` [N, U], `item_gates` [N, V] (Light-SE's weights, which sum to 1) with
            `user_gate_effects` and `item_gate_effects`, the logit minus that with this gate at
            zero. In a mean with LR they are those of the network, before its share.
    """

    added: Mapping[str, np.ndarray]
    shown: Mapping[str, np.ndarray]

    @property
    def pairwise(self) -> bool:
        """Whether all terms belong to fields and pairs of fields, as those of LR, FM and AFM do."""
        return bool(self.added) and self.added.keys() <= {"bias", "first_order", "pairs"}

    @property
    def logit(self) -> np.ndarray:
        """The sum of all terms [N]."""
        total: np.ndarray = sum(
            term.sum(tuple(range(1, term.ndim))) for term in self.added.values()
        )
        return total


def terms_of(network: nn.Module, table: EncodedTable) -> Terms:
    """The terms of every row for a network of one label, computed in evaluation mode and in batches."""
    take_apart = vars(type(network)).get("logit_terms")  # its own: a subclass may add to the score
    if take_apart is None:
        return Terms(added={}, shown={})
    with scoring_mode(network):
        results = [take_apart(network, batch) for batch in device_batches(network, table)]
    added, shown = (
        {
            name: torch.cat([part[i][name] for part in results]).detach().cpu().numpy()
            for name in results[0][i]
        }
        for i in (0, 1)
    )
    return Terms(added={name: term.astype(np.float64) for name, term in added.items()}, shown=shown)


UNSEEN = " (not in the vocabulary)"
LISTED = 8  # maximum number of a bag's values shown


def field_values(encoder: Encoder, frame: pl.DataFrame) -> pl.DataFrame:
    """The fields' values as text [N, F], with the fields' names as columns.

    A value not in the vocabulary is marked, and a missing one is shown as absent. A history shows
    its latest values, as far as the model reads them; a long cell ends with the number of further
    values.
    """
    columns = []
    for field, fitted in zip(encoder.fields, encoder.fitted, strict=True):
        column = frame.get_column(field.column)
        if field.cell == "list":
            known = set(fitted.values) if isinstance(fitted, Vocabulary) else None
            texts = []
            for cell in as_list(column, field.separator, newest=field.max_length).to_list():
                shown = [
                    value if known is None or value in known else value + UNSEEN
                    for value in cell[:LISTED]
                ]
                more = [f"and {len(cell) - LISTED} more"] if len(cell) > LISTED else []
                texts.append(", ".join([*shown, *more]) or ABSENT)
        elif field.cell == "category":
            text = as_text(column)
            texts = [ABSENT if value is None else str(value) for value in text.to_list()]
            if isinstance(fitted, Vocabulary):
                unseen = (fitted.ids(text) == UNKNOWN).tolist()
                texts = [value + UNSEEN * new for value, new in zip(texts, unseen, strict=True)]
        else:
            if column.dtype == pl.String:
                column = column.set(is_mark(column, encoder.missing), None)
            written = column.dtype.is_temporal() or column.dtype == pl.String
            cells = (
                column
                if written
                else as_number(column, f"column {field.column!r}", missing=encoder.missing)
            )
            texts = [
                ABSENT if cell is None else f"{cell}" if written else f"{cell:.12g}"
                for cell in cells.to_list()
            ]
        columns.append(pl.Series(field.name, texts, dtype=pl.String))
    return pl.DataFrame(columns)


def number_levels(
    encoder: Encoder, frame: pl.DataFrame, others: pl.DataFrame
) -> dict[str, list[str]]:
    """For every field of numbers, whether each row's is `low`, `medium` or `high` by thirds of other rows.

    It is empty for a missing number, or where the other rows have fewer than three different ones.

    >>> from fieldwise import Label, Numeric, Schema
    >>> log = pl.DataFrame({"price": [1.0, 2.0, 8.0, 9.0]})
    >>> encoder = Encoder.fit(log, Schema(fields=(Numeric("price"),), label=Label("click")))
    >>> number_levels(encoder, pl.DataFrame({"price": [0.39, 5.0, 8.5, None]}), log)
    {'price': ['low', 'medium', 'high', '']}
    """
    results = {}
    for field in (f for f in encoder.fields if f.cell == "number"):
        own, usual = (
            as_number(
                one.get_column(field.column),
                f"column {field.column!r}",
                form=field.number_format,
                missing=encoder.missing,
            )
            for one in (frame, others)
        )
        known = usual.drop_nulls().sort().to_numpy()
        number = own.fill_null(np.nan).to_numpy()
        twice = np.searchsorted(known, number) + np.searchsorted(known, number, side="right")
        below = twice / (2 * max(len(known), 1))
        level = np.select([below < 1 / 3, below <= 2 / 3], ["low", "medium"], "high")
        shown = ~np.isnan(number) & (usual.n_unique() > 2)
        results[field.name] = np.where(shown, level, "").tolist()
    return results


Method = Literal["terms", "integrated_gradients", "occlusion"]
METHODS: tuple[Method, ...] = ("terms", "integrated_gradients", "occlusion")


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
        texts = bundle.schema.text_columns
        rows = bundle.samples if background is None else as_table(background, text_columns=texts)
        frame = as_table(frame, text_columns=texts)
        if not rows.height:
            kept = "has no sample rows" if background is None else "was given none"
            raise DataError(
                f"an explanation compares with other rows, but the bundle {kept}: give background rows"
            )
        names = [one.name for one in bundle.schema.labels]
        wanted = names[0] if label is None else label
        if wanted not in names:
            raise ConfigError(
                f"a label must be one of the bundle's, found {wanted!r}: {nearest(wanted, names)}"
            )
        position = names.index(wanted)
        network = bundle.network
        if bundle.schema.more_labels:
            assert isinstance(network.heads, nn.ModuleList)
            network = network.heads[position]
        return cls(
            table=bundle.encoder.transform(frame),  # first, since it names a column that is missing
            label=wanted,
            settings=bundle.schema.labels[position],
            schema=bundle.schema,
            network=network,
            values=field_values(bundle.encoder, frame),
            levels=number_levels(bundle.encoder, frame, rows),
            background=bundle.encoded_samples
            if background is None
            else bundle.encoder.transform(rows),
            calibration=bundle.calibration.get(wanted),
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
        left, right = np.triu_indices(len(self.fields), 1)
        return tuple(zip(left.tolist(), right.tolist(), strict=True))

    def by_field(self, pairs_NP: np.ndarray) -> np.ndarray:
        """The sum over the pairs of each field [N, F]."""
        member = np.zeros((len(self.pairs), len(self.fields)))
        for number, pair in enumerate(self.pairs):
            member[number, pair] = 1.0
        return pairs_NP @ member

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
    def background_terms(self) -> Terms:
        """The exact terms of the background rows."""
        return terms_of(self.network, self.background)

    @property
    def usual_method(self) -> Method:
        """The default method: exact terms if all are of fields and pairs, else integrated gradients, else occlusion."""
        if self.terms.pairwise:
            return "terms"
        return "integrated_gradients" if has_gradients(self.network) else "occlusion"

    def tower_fields(self, side: str) -> list[int]:
        """The numbers of the fields of IntTower's user or item side."""
        positions: list[int] = (
            self.network.get_submodule(f"{side}_tower").get_buffer("positions").tolist()
        )
        return positions

    def others(self, draws: int, seed: int) -> np.ndarray:
        """Background rows for every row [N, draws]: all of them if there are few, else a random sample."""
        known = len(self.background)
        if known <= draws:
            return np.broadcast_to(np.arange(known), (len(self.table), known))
        return np.random.default_rng(seed).integers(0, known, (len(self.table), draws))
