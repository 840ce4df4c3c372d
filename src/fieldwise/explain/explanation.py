"""Explanations of rows' scores by field and by pair of fields, with the model's own attention and gates.

Letters: N rows, F fields.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from fieldwise.bundle.bundle import Bundle
from fieldwise.config import nearest
from fieldwise.data.read.tables import TableLike
from fieldwise.errors import ConfigError, DataError
from fieldwise.evaluation import sigmoid
from fieldwise.explain.gradients import has_gradients, integrated_gradients
from fieldwise.explain.occlusion import occlusion
from fieldwise.explain.sentence import sentence
from fieldwise.explain.subject import METHODS, Method, Subject
from fieldwise.explain.terms import PAIRWISE
from fieldwise.scoring.batches import SCORING_BATCH, score_batches

__all__ = ["Explanation", "explain", "explain_subject"]

_OF_PAIRS = {"attention": "attention", "interaction": "interactions"}
DRAWS = 32  # background rows per row
SHOWN_FIELDS = 10


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
        """One row's explanation as plain, JSON-compatible values: a sentence, fields and pairs, strongest first.

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
            "sentence": sentence(self, row),
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
    >>> sorted(row)[:6]
    ['base', 'bias', 'calibrated', 'fields', 'gap', 'label']
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
