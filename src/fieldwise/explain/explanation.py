"""Explanations of rows' scores by field and by pair of fields, with the model's own attention and gates.

Letters: N rows, F fields, P = F(F-1)/2 pairs, K background rows.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np
import polars as pl
from torch import nn

from fieldwise.bundle.bundle import Bundle
from fieldwise.config import nearest
from fieldwise.data.read.tables import TableLike, as_table
from fieldwise.data.table import EncodedTable
from fieldwise.errors import ConfigError, DataError
from fieldwise.evaluation import sigmoid
from fieldwise.evaluation.calibration import Calibration
from fieldwise.explain.gradients import has_gradients, integrated_gradients
from fieldwise.explain.mixing import Mixer
from fieldwise.explain.occlusion import occlusion
from fieldwise.explain.terms import PAIRWISE, Terms, terms_of
from fieldwise.explain.values import field_values
from fieldwise.schema.label import Label
from fieldwise.scoring.batches import SCORING_BATCH, score_batches

__all__ = ["METHODS", "Explanation", "Method", "Subject", "explain", "explain_subject"]

Method = Literal["terms", "integrated_gradients", "occlusion"]
METHODS: tuple[Method, ...] = ("terms", "integrated_gradients", "occlusion")
_OF_PAIRS = {"attention": "attention", "interaction": "interactions"}
DRAWS = 32  # background rows per row
SHOWN_FIELDS = 10


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Subject:
    """Encoded rows to explain, with the network of one label and background rows.

    Args:
        label, settings: the label's name, and the label, which says what its score is.
        network: the network of this label.
        values: the fields' values as text, [N, F].
        table: N rows.
        background: background rows to compare with.
        calibration: calibration of the label's scores, if the bundle has one.
    """

    label: str
    settings: Label
    network: nn.Module
    values: pl.DataFrame
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
            network=network,
            values=field_values(bundle.encoder, frame),
            table=table,
            background=bundle.encoder.transform(rows),
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


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Explanation:
    """Contributions of each field to the scores of N rows: `base + contributions.sum(1) + gap` is the logit.

    Args:
        subject: the rows, their values and their scores.
        method: `terms`: a field's first-order term and half of each of its pairs' (LR, FM, AFM), added to w0; exact.
            `integrated_gradients`: a field's part along the path from the background's average vectors; the gap is
            the quadrature error. `occlusion`: the logit's drop when the field has background rows' values, added to
            their mean logit; the gap is due to interactions of fields.
        contributions: [N, F].
        base: [N].
        gap: [N].
    """

    subject: Subject
    method: Method
    contributions: np.ndarray
    base: np.ndarray
    gap: np.ndarray

    @property
    def prediction(self) -> np.ndarray:
        """Probabilities or numbers [N], as `Bundle.predict` returns them."""
        number, calibration = self.subject.settings.predicted(self.subject.logit), self.subject.calibration
        number = number if calibration is None else calibration.logit(number)
        return sigmoid(number) if self.subject.settings.task == "binary" else number

    def row(self, row: int) -> dict[str, Any]:
        """One row's explanation as plain, JSON-compatible values: fields and pairs, strongest first.

        Errors:
            DataError: no such row.
        """
        subject, rows = self.subject, len(self.contributions)
        if not 0 <= row < rows:
            raise DataError(f"rows are numbered from 0 to {rows - 1}, found row {row}")
        values = list(subject.values.row(row))
        own = self.contributions[row]
        added = {name: term[row] for name, term in subject.terms.added.items()}
        shown = {name: part[row] for name, part in subject.terms.shown.items()}
        fields = [
            {"field": name, "value": values[f], "contribution": float(own[f])}
            | {term: float(added[term][f]) for term in ("first_order", "attended") if term in added}
            for f, name in enumerate(subject.fields)
        ]
        found: dict[str, Any] = {
            "label": subject.label,
            "score": float(subject.logit[row]),
            "prediction": float(self.prediction[row]),
            "calibrated": subject.calibration is not None,
            "method": self.method,
            "scale": self.subject.settings.scale or 1.0,
            "base": float(self.base[row]),
            "gap": float(self.gap[row]),
            "fields": sorted(fields, key=lambda f: -abs(f["contribution"])),
        }
        found |= {term: float(added[term]) for term in ("bias", "mlp") if term in added}
        if "pairs" in added:
            found["pairs"] = sorted(
                (
                    {
                        "fields": [subject.fields[i], subject.fields[j]],
                        "values": [values[i], values[j]],
                        "contribution": float(added["pairs"][p]),
                    }
                    | {name: float(shown[part][p]) for name, part in _OF_PAIRS.items() if part in shown}
                    for p, (i, j) in enumerate(subject.pairs)
                ),
                key=lambda pair: -abs(pair["contribution"]),
            )
        elif "attention" in shown:
            found["attention"] = shown["attention"].tolist()
        if "matches" in added:
            found |= self._matches(added["matches"], shown, values)
        return found

    def __repr__(self) -> str:
        rows, subject = len(self.contributions), self.subject
        about = f"Explanation of {rows:,} row{'' if rows == 1 else 's'}: label {subject.label!r}, by {self.method}"
        names = list(subject.fields)
        if rows == 1:
            score, prediction, base = subject.logit[0], self.prediction[0], self.base[0]
            about += f"; score {score:+.4f}, prediction {prediction:.4f}, base {base:+.4f}"
            names = [f"{name} = {value}" for name, value in zip(names, subject.values.row(0), strict=True)]
            sizes, shown = self.contributions[0], "+.4f"
        else:
            about += "; mean absolute contribution of each field"
            sizes, shown = np.abs(self.contributions).sum(0) / max(rows, 1), ".4f"
        order = sorted(range(len(sizes)), key=lambda f: -abs(sizes[f]))
        lines = [f"  {names[f]}: {sizes[f]:{shown}}" for f in order[:SHOWN_FIELDS]]
        more = [f"  and {len(order) - SHOWN_FIELDS} more fields"] if len(order) > SHOWN_FIELDS else []
        return "\n".join([about, *lines, *more])

    def to_pandas(self) -> Any:
        """A pandas frame with a row per row and field: row, field, value, contribution, score, prediction."""
        from fieldwise.notebook.frames import explanation_frame, to_pandas

        return to_pandas(explanation_frame(self))

    def plot(self, row: int | None = None, *, ax: Any = None) -> Any:
        """Plot one row's contributions, or all rows' mean absolute ones, on Matplotlib axes, and return the axes."""
        from fieldwise.notebook.plots import plot_explanation

        return plot_explanation(self, row, ax)

    def plot_attention(self, row: int | None = None, *, ax: Any = None) -> Any:
        """Plot AFM's or AutoInt's attention over fields, of one row or averaged, and return the Matplotlib axes.

        Errors:
            DataError: the model has no attention over fields.
        """
        from fieldwise.notebook.plots import plot_attention

        return plot_attention(self, row, ax)

    def _repr_html_(self) -> str:
        from fieldwise.notebook.html import explanation_html

        return explanation_html(self)

    def _matches(self, matches_LH: np.ndarray, shown: dict[str, np.ndarray], values: list[str]) -> dict[str, Any]:
        """IntTower's levels with the matched heads, and both sides' gates."""
        heads = shown["matched_head"]
        levels = [
            {
                "level": level + 1,
                "contribution": float(matches_LH[level].sum()),
                "heads": [
                    {"user_head": h, "item_head": int(heads[level, h]), "product": float(product)}
                    for h, product in enumerate(matches_LH[level])
                ],
            }
            for level in range(len(matches_LH))
        ]
        gates = {}
        for side in ("user", "item"):
            tower = self.subject.network.get_submodule(f"{side}_tower")
            gates[f"{side}_gates"] = [
                {"field": self.subject.fields[f], "value": values[f], "gate": float(gate), "effect": float(effect)}
                for f, gate, effect in zip(
                    tower.get_buffer("positions").tolist(),
                    shown[f"{side}_gates"],
                    shown[f"{side}_gate_effects"],
                    strict=True,
                )
            ]
        return {"levels": levels, **gates}


def explain(
    bundle: Bundle,
    frame: TableLike,
    *,
    background: TableLike | None = None,
    method: Method | None = None,
    label: str | None = None,
    seed: int = 0,
) -> Explanation:
    """Explain the scores of raw rows.

    Args:
        bundle: the bundle that scores them.
        frame: N rows with the columns of the schema's fields.
        background: background rows to compare with; the bundle's sample rows if omitted.
        method: the attribution method (`Explanation`); `Subject.usual_method` if omitted.
        label: the label of a multi-task bundle; the main one if omitted.
        seed: seed for sampling background rows, if there are more than 32 (`occlusion`).

    Errors:
        ConfigError: an unknown label or method, or a method that the model does not support.
        DataError: a missing column, an invalid cell, no background row.

    >>> from fieldwise import FM, Categorical, Label, Recommender, Schema, TrainingSettings, simulate
    >>> log = simulate(1000, users=50, items=30)
    >>> schema = Schema(fields=(Categorical("device"), Categorical("gender")), label=Label("liked"))
    >>> model = Recommender(schema, FM(embedding_dim=4), training=TrainingSettings(epochs=1)).fit(log)
    >>> row = explain(model.bundle_, log.head(5)).row(0)
    >>> sorted(row)
    ['base', 'bias', 'calibrated', 'fields', 'gap', 'label', 'method', 'pairs', 'prediction', 'scale', 'score']
    """
    subject = Subject.of(bundle, frame, background=background, label=label)
    return explain_subject(subject, subject.usual_method if method is None else method, seed=seed)


def explain_subject(subject: Subject, method: Method, *, seed: int = 0) -> Explanation:
    """`explain` for encoded rows."""
    if method not in METHODS:
        raise ConfigError(f"method must be a known method, found {method!r}: {nearest(method, METHODS)}")
    name = type(subject.network).__name__.removesuffix("Network")
    if method == "terms":
        if not isinstance(subject.network, PAIRWISE):
            raise ConfigError(
                f"method 'terms' needs a model of terms of fields and pairs (LR, FM, AFM), found {name}: use "
                f"{subject.usual_method!r}; its other terms are shown with every method"
            )
        return _by_terms(subject)
    if method == "integrated_gradients":
        if not has_gradients(subject.network):
            raise ConfigError(
                f"integrated gradients need a model that reads its fields' vectors from whole tables, found {name}: "
                f"use {subject.usual_method!r}"
            )
        found = integrated_gradients(subject.network, subject.table, subject.background)
        base = np.full(len(subject.table), found.base)
        return Explanation(subject=subject, method=method, contributions=found.contributions, base=base, gap=found.gap)
    others = subject.others(DRAWS, seed)
    contributions = occlusion(subject.mixer, subject.logit, others)
    usual = score_batches(subject.network, subject.background.batches(SCORING_BATCH))
    base = usual[others].mean(1)
    gap = subject.logit - base - contributions.sum(1)
    return Explanation(subject=subject, method=method, contributions=contributions, base=base, gap=gap)


def _by_terms(subject: Subject) -> Explanation:
    added = subject.terms.added
    contributions = added["first_order"].copy()
    for (i, j), pair_N in zip(subject.pairs, added.get("pairs", np.zeros((0, 0))).T, strict=False):
        contributions[:, i] += pair_N / 2
        contributions[:, j] += pair_N / 2
    gap = subject.logit - added["bias"] - contributions.sum(1)
    return Explanation(subject=subject, method="terms", contributions=contributions, base=added["bias"], gap=gap)
