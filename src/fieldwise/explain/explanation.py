"""Explanations of rows' scores by field and by pair of fields, in figures and as sentences, with attention and gates.

Letters: N rows, F fields.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fieldwise.bundle.bundle import Bundle
from fieldwise.charts import Chart, dot_chart, heat_map, wider
from fieldwise.config import nearest
from fieldwise.data.read.tables import TableLike
from fieldwise.display import SHOWN_ROWS, Table, pandas_frame
from fieldwise.errors import ConfigError, DataError
from fieldwise.evaluation.calibration import predictions
from fieldwise.explain.attention import darkest, uniform_text
from fieldwise.explain.attribution import (
    device_batches,
    has_gradients,
    integrated_gradients,
    occlusion,
    pair_interactions,
)
from fieldwise.explain.sentence import Part, reasons_sentence
from fieldwise.explain.subject import METHODS, Method, Subject
from fieldwise.explain.terms import TERMS_OF_FIELDS, TERMS_OF_ROWS, by_field
from fieldwise.models.mean_with_lr import part_of_mean
from fieldwise.models.trees import TreesNetwork
from fieldwise.scoring.batches import SCORING_BATCH, score_batches

BACKGROUND_ROWS_PER_ROW = 32
FIELDS_IN_REPR = 10
MAX_PAIRED_FIELDS = 12
"""Fields whose pairs are measured: 66 pairs."""


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Explanation:
    """Contributions of each field to the scores of N rows: `base + contributions.sum(1) + gap` is the logit.

    Args:
        subject: the rows, their values and their scores.
        method: `terms`: a field's first-order term and half of each of its pairs' (LR, FM, AFM),
            added to w0; exact. `tree_shap` (LightGBM, CatBoost): a field's SHAP value by the library,
            added to the trees' mean over training rows; exact. `integrated_gradients`: a field's
            part along the path from the background's average vectors; the gap is the quadrature
            error. `occlusion`: the logit's drop when the field has background rows' values, added to
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
        subject = self.subject
        return predictions(subject.logit, subject.settings, subject.calibration)

    def row(self, row: int, *, pairs: bool = False) -> dict[str, Any]:
        """One row's explanation as plain, JSON-compatible values: a sentence, fields and pairs, strongest first.

        Args:
            row: number of the row.
            pairs: also measure pairs of fields if the model has no pair terms (`measured_pairs`),
                so that the sentence names them too.

        Errors:
            DataError: no such row.
        """
        self._check_row(row)
        subject = self.subject
        values = list(subject.values.row(row))
        added = subject.terms.added
        plain: dict[str, Any] = {
            "label": subject.label,
            "sentence": "",
            "score": float(subject.logit[row]),
            "prediction": float(self.prediction[row]),
            "calibrated": subject.calibration is not None,
            "method": self.method,
            "scale": subject.settings.scale or 1.0,
            "base": float(self.base[row]),
            "gap": float(self.gap[row]),
            "fields": self._plain_fields(row, values),
        }
        for term in TERMS_OF_ROWS:
            if term in added:
                plain[term] = float(added[term][row])
        for group in subject.term_groups:
            plain |= group.row(row, values)

        measured = []
        if pairs and "pairs" not in added:
            measured = self.measured_pairs(row)
        plain["sentence"] = sentence(self, row, measured)
        if measured:
            plain["measured_pairs"] = measured
        return plain

    def _check_row(self, row: int) -> None:
        """Raise a DataError if there is no such row."""
        rows = len(self.contributions)
        if not 0 <= row < rows:
            raise DataError(f"rows are numbered from 0 to {rows - 1}, found row {row}")

    def _plain_fields(self, row: int, values: Sequence[str]) -> list[dict[str, Any]]:
        """Each field's value, contribution and terms in a row, the largest contribution first."""
        added = self.subject.terms.added
        fields = []
        for f, name in enumerate(self.subject.fields):
            contribution = float(self.contributions[row, f])
            field: dict[str, Any] = {
                "field": name,
                "value": values[f],
                "contribution": contribution,
            }
            for term in TERMS_OF_FIELDS:
                if term in added:
                    field[term] = float(added[term][row, f])
            fields.append(field)
        return sorted(fields, key=lambda field: -abs(field["contribution"]))

    def measured_pairs(self, row: int, *, seed: int = 0) -> list[dict[str, Any]]:
        """The pairs among the row's twelve strongest fields by interaction effect, strongest first, in any model.

        `effect` is the mean over background rows of
        `f(x) - f(x without i) - f(x without j) + f(x without both)`, where "without" means with the
        background row's value (`fieldwise.explain.attribution`): effects of single fields cancel.
        Effects need not add up to the score.

        Args:
            row: number of the row.
            seed: seed for sampling background rows, if there are more than 32.
        """
        subject = self.subject
        rows = np.array([row])
        strongest_first = np.argsort(-np.abs(self.contributions[row]), kind="stable")
        fields = np.sort(strongest_first[:MAX_PAIRED_FIELDS])
        others = subject.others(BACKGROUND_ROWS_PER_ROW, seed)[rows]
        effects_MKP = pair_interactions(subject.mixer, subject.logit, others, rows, fields)
        effects = effects_MKP[0].mean(0)

        values = subject.values.row(row)
        left, right = np.triu_indices(len(fields), 1)
        pairs = []
        for p in np.argsort(-np.abs(effects), kind="stable"):
            pair = (fields[left[p]], fields[right[p]])
            pairs.append(
                {
                    "fields": [subject.fields[f] for f in pair],
                    "values": [values[f] for f in pair],
                    "effect": float(effects[p]),
                }
            )
        return pairs

    def __repr__(self) -> str:
        subject = self.subject
        rows = len(self.contributions)
        is_single = rows == 1
        about = f"Explanation of {rows:,} row{'' if is_single else 's'}: label {subject.label!r}, by {self.method}"
        if is_single:
            about += (
                f"; score {subject.logit[0]:+.4f}, prediction {self.prediction[0]:.4f}, "
                f"base {self.base[0]:+.4f}"
            )
        else:
            about += "; mean absolute contribution of each field"

        sizes = self._sizes(0 if is_single else None)
        sign = "+" if is_single else ""
        lines = [about]
        for name, size in sizes[:FIELDS_IN_REPR]:
            lines.append(f"  {name}: {size:{sign}.4f}")
        if len(sizes) > FIELDS_IN_REPR:
            lines.append(f"  and {len(sizes) - FIELDS_IN_REPR} more fields")
        return "\n".join(lines)

    def _sizes(self, row: int | None) -> list[tuple[str, float]]:
        """The contributions of a row by `FIELD = VALUE`, or all rows' mean absolute ones by field, largest first."""
        names = list(self.subject.fields)
        if row is None:
            sizes = np.abs(self.contributions).sum(0) / max(len(self.contributions), 1)
        else:
            sizes = self.contributions[row]
            values = self.subject.values.row(row)
            names = [f"{name} = {value}" for name, value in zip(names, values, strict=True)]
        largest_first = np.argsort(-np.abs(sizes), kind="stable")
        return [(names[f], float(sizes[f])) for f in largest_first]

    def to_pandas(self) -> Any:
        """A pandas frame with a row per row and field: row, field, value, contribution, score, prediction."""
        rows, fields = self.contributions.shape
        cells = {
            "row": np.repeat(np.arange(rows), fields),
            "field": list(self.subject.fields) * rows,
            "value": [value for row in self.subject.values.iter_rows() for value in row],
            "contribution": self.contributions.ravel(),
            "score": np.repeat(self.subject.logit, fields),
            "prediction": np.repeat(self.prediction, fields),
        }
        return pandas_frame(cells, {"value": str})

    def plot(self, row: int | None = None) -> Chart:
        """A chart of one row's contributions, or of all rows' mean absolute ones, the largest on top."""
        rows = len(self.contributions)
        if row is None and rows == 1:
            row = 0
        title = f"mean absolute contribution, {rows:,} rows"
        if row is not None:
            plain = self.row(row)
            title = f"contribution to the score of {plain['score']:.3g} (base {plain['base']:.3g})"
        names, sizes = zip(*self._sizes(row)[:SHOWN_ROWS], strict=True)
        low = np.minimum(sizes, 0.0)
        high = np.maximum(sizes, 0.0)
        colours = np.less(sizes, 0)
        span = wider(low.min(), high.max())
        return dot_chart(
            names, sizes, span, title=title, low=low, high=high, colours=colours, rule=0.0
        )

    def plot_attention(self, row: int | None = None) -> Chart:
        """A heat map of AFM's or AutoInt's attention over fields, of one row or averaged over rows, layers and heads.

        Errors:
            DataError: the model has no attention over fields.
        """
        subject = self.subject
        fields = subject.fields
        self._check_row(0 if row is None else row)
        for group in subject.term_groups:
            attention = group.attention_map(row)
            if attention is not None:
                square, equal = attention
                known = square[~np.isnan(square)]
                title = uniform_text(known, equal) or "attention between fields"
                return heat_map(square, fields, fields, title=title, most=darkest(known, equal))
        raise DataError(
            f"only AFM and AutoInt have attention over fields, found {_model_name(subject)}: plot the explanation "
            "itself"
        )

    def _repr_html_(self) -> str:
        """One row's contributions by field, or mean absolute contributions of several rows."""
        rows = len(self.contributions)
        if rows == 1:
            plain = self.row(0)
            cells = [[f["field"], f["value"], f["contribution"]] for f in plain["fields"]]
            title = f"{plain['label']}: prediction {plain['prediction']:.4g}, score {plain['score']:.4g}"
            note = f"base {plain['base']:.4g}, gap {plain['gap']:.4g}; by {self.method}"
            columns = ["field", "value", "contribution"]
            return Table(columns, cells[:SHOWN_ROWS], title, note)._repr_html_()

        means = dict(zip(self.subject.fields, self.contributions.mean(0).tolist(), strict=True))
        cells = [[name, size, means[name]] for name, size in self._sizes(None)[:SHOWN_ROWS]]
        title = f"{self.subject.label}: contributions of {rows:,} rows"
        columns = ["field", "mean absolute", "mean"]
        return Table(columns, cells, title, f"by {self.method}")._repr_html_()


def _model_name(subject: Subject) -> str:
    return type(part_of_mean(subject.network)).__name__.removesuffix("Network")


def sentence(explanation: Explanation, row: int, measured: Sequence[Mapping[str, Any]] = ()) -> str:
    """The prediction, its main reasons (at most three), and the strongest one against it if it is half as strong.

    A reason is a field or a pair of fields whose part of the score differs from its mean over the
    background rows: of the model's own terms with the method `terms`, else a field's contribution
    or the effect of a pair of `measured` (`Explanation.measured_pairs`).
    """
    subject = explanation.subject
    number_of = {name: number for number, name in enumerate(subject.fields)}
    pairs: list[Part] = []
    for pair in measured:
        numbers = tuple(number_of[name] for name in pair["fields"])
        pairs.append((numbers, pair["effect"]))
    prediction = float(explanation.prediction[row])
    return reasons_sentence(subject, row, _parts(explanation, row), pairs, prediction)


def _parts(explanation: Explanation, row: int) -> list[Part]:
    """Fields or pairs with their parts of the score, compared with the background rows."""
    subject = explanation.subject
    singles = [(field,) for field in range(len(subject.fields))]
    if explanation.method != "terms":
        return list(zip(singles, explanation.contributions[row].tolist(), strict=True))

    parts: list[Part] = []
    for name, fields in (("first_order", singles), ("pairs", subject.pairs)):
        if name in subject.terms.added:
            mean = subject.background_terms.added[name].mean(0)
            differences = subject.terms.added[name][row] - mean
            parts += zip(fields, differences.tolist(), strict=True)
    return parts


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
    >>> sorted(row)[:6]
    ['base', 'bias', 'calibrated', 'fields', 'gap', 'label']
    """
    subject = Subject.of(bundle, frame, background=background, label=label)
    return explain_subject(subject, subject.usual_method if method is None else method, seed=seed)


def explain_subject(subject: Subject, method: Method, *, seed: int = 0) -> Explanation:
    """`explain` for encoded rows."""
    if method not in METHODS:
        raise ConfigError(
            f"method must be a known method, found {method!r}: {nearest(method, METHODS)}"
        )
    if method == "terms":
        contributions, base = _by_terms(subject)
    elif method == "tree_shap":
        contributions, base = _by_trees(subject)
    elif method == "integrated_gradients":
        contributions, base = _by_integrated_gradients(subject)
    else:
        others = subject.others(BACKGROUND_ROWS_PER_ROW, seed)
        contributions = occlusion(subject.mixer, subject.logit, others)
        background = subject.background.batches(SCORING_BATCH)
        base = score_batches(subject.network, background)[others].mean(1)
    gap = subject.logit - base - contributions.sum(1)
    return Explanation(
        subject=subject, method=method, contributions=contributions, base=base, gap=gap
    )


def _by_terms(subject: Subject) -> tuple[np.ndarray, np.ndarray]:
    """Each field's first-order term and half of its pairs' [N, F], and the bias [N]."""
    if not subject.terms.pairwise:
        raise ConfigError(
            f"method 'terms' needs a model of terms of fields and pairs (LR, FM, AFM), found {_model_name(subject)}: "
            f"use {subject.usual_method!r}; its other terms are shown with every method"
        )
    added = subject.terms.added
    pairs = by_field(added["pairs"], len(subject.fields)) / 2 if "pairs" in added else 0.0
    return added["first_order"] + pairs, added["bias"]


def _by_trees(subject: Subject) -> tuple[np.ndarray, np.ndarray]:
    """Each field's SHAP value [N, F], and the expected logit [N]."""
    network = subject.network
    if not isinstance(network, TreesNetwork):
        raise ConfigError(
            f"method 'tree_shap' needs trees (LightGBM, CatBoost), found {_model_name(subject)}: use "
            f"{subject.usual_method!r}"
        )
    of_batches = [network.contributions(batch) for batch in device_batches(network, subject.table)]
    contributions, expected = zip(*of_batches, strict=True)
    return np.concatenate(contributions), np.concatenate(expected)


def _by_integrated_gradients(subject: Subject) -> tuple[np.ndarray, np.ndarray]:
    """Each field's part along the path [N, F], and the logit of the average vectors [N]."""
    network = subject.network
    if not has_gradients(network):
        raise ConfigError(
            "integrated gradients need a model that reads its fields' vectors from whole tables, found "
            f"{_model_name(subject)}: use {subject.usual_method!r}"
        )
    contributions, start = integrated_gradients(network, subject.table, subject.background)
    return contributions, np.full(len(subject.table), start)
