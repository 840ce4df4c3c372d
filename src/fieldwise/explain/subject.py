"""The rows to explain, encoded, with the network of one label and background rows.

Letters: N rows, F fields.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np
import polars as pl
from torch import nn

from fieldwise.bundle.bundle import Bundle
from fieldwise.config import nearest
from fieldwise.data.read.tables import TableLike, as_table
from fieldwise.data.table import EncodedTable
from fieldwise.errors import ConfigError, DataError
from fieldwise.evaluation.calibration import Calibration
from fieldwise.explain.gradients import has_gradients
from fieldwise.explain.mixing import Mixer
from fieldwise.explain.terms import PAIRWISE, Terms, terms_of
from fieldwise.explain.values import field_values, number_levels
from fieldwise.schema import Schema
from fieldwise.schema.label import Label
from fieldwise.scoring.batches import SCORING_BATCH, score_batches

__all__ = ["METHODS", "Method", "Subject"]

Method = Literal["terms", "integrated_gradients", "occlusion"]
METHODS: tuple[Method, ...] = ("terms", "integrated_gradients", "occlusion")


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Subject:
    """Encoded rows to explain, with the network of one label and background rows.

    Args:
        label, settings: the label's name, and the label, which says what its score is.
        schema: the bundle's schema.
        network: the network of this label.
        values: the fields' values as text, [N, F].
        levels: whether a number is low, medium or high among the background rows' ones, for N rows by field.
        table: N rows.
        background: background rows to compare with.
        calibration: calibration of the label's scores, if the bundle has one.
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
        cls, bundle: Bundle, frame: TableLike, *, background: TableLike | None = None, label: str | None = None
    ) -> "Subject":
        """A subject from raw rows and a bundle.

        Args:
            bundle: the bundle that scores.
            frame: N rows with the columns of the schema's fields.
            background: raw rows to compare with; the bundle's sample rows if omitted.
            label: the label's name; the main one if omitted.

        Errors:
            ConfigError: an unknown label.
            DataError: a missing column, an invalid cell, no background row.
        """
        rows = bundle.samples if background is None else as_table(background)
        frame = as_table(frame)
        if not rows.height:
            kept = "has no sample rows" if background is None else "was given none"
            raise DataError(f"an explanation compares with other rows, but the bundle {kept}: give background rows")
        names = [one.name for one in bundle.schema.labels]
        wanted = names[0] if label is None else label
        if wanted not in names:
            raise ConfigError(f"a label must be one of the bundle's, found {wanted!r}: {nearest(wanted, names)}")
        position = names.index(wanted)
        network = bundle.network
        if bundle.schema.more_labels:
            assert isinstance(network.heads, nn.ModuleList)
            network = network.heads[position]
        table = bundle.encoder.transform(frame)
        return cls(
            label=wanted,
            settings=bundle.schema.labels[position],
            schema=bundle.schema,
            network=network,
            values=field_values(bundle.encoder, frame),
            levels=number_levels(bundle.encoder, frame, rows),
            table=table,
            background=bundle.encoded_samples if background is None else bundle.encoder.transform(rows),
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

    @cached_property
    def logit(self) -> np.ndarray:
        """The scores [N]: logits, or predicted numbers over the label's scale."""
        return score_batches(self.network, self.table.batches(SCORING_BATCH))

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
        if isinstance(self.network, PAIRWISE):
            return "terms"
        return "integrated_gradients" if has_gradients(self.network) else "occlusion"

    def others(self, draws: int, seed: int) -> np.ndarray:
        """Background rows for every row [N, draws]: all of them if there are few, else a random sample."""
        known = len(self.background)
        if known <= draws:
            return np.broadcast_to(np.arange(known), (len(self.table), known))
        return np.random.default_rng(seed).integers(0, known, (len(self.table), draws))
