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
from fieldwise.data.read.simulation import PLANTED
from fieldwise.data.read.tables import TableLike
from fieldwise.display import SHOWN_ROWS, Table, number, pandas_frame
from fieldwise.errors import ConfigError, DataError
from fieldwise.evaluation import sigmoid
from fieldwise.evaluation.slices import ABSENT
from fieldwise.explain.attribution import (
    has_gradients,
    integrated_gradients,
    occlusion,
    pair_interactions,
)
from fieldwise.explain.subject import METHODS, UNSEEN, Method, Subject
from fieldwise.models.build import part_of_mean
from fieldwise.schema import Task
from fieldwise.schema.ids import named_id
from fieldwise.scoring.batches import SCORING_BATCH, score_batches

UNIFORM = 0.1  # greatest difference of a uniform weight from the equal weights, as a share of them
DARK = 3.0  # multiple of the equal weights that has the darkest shade, unless a weight is larger


def darkest(weights: np.ndarray, equal: float) -> float:
    """The weight of the darkest shade: three times the equal ones (at most 1), or the largest if it is above that."""
    return max(float(weights.max()), min(1.0, DARK * equal))


def uniform_text(weights: np.ndarray, equal: float) -> str:
    """A sentence about uniform weights, all within 10 % of the equal ones; empty if they are not."""
    if np.any(np.abs(weights - equal) > UNIFORM * equal):
        return ""
    known = f"{equal:.4f} ({weights.min():.4f} to {weights.max():.4f})"
    return f"attention is uniform: all weights are within {100 * UNIFORM:.0f} % of the equal ones, {known}"


_OF_PAIRS = {"attention": "attention", "interaction": "interactions"}
DRAWS = 32  # background rows per row
SHOWN_FIELDS = 10
PAIRED_FIELDS = 12  # fields whose pairs are measured: 66 pairs


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Explanation:
    """Contributions of each field to the scores of N rows: `base + contributions.sum(1) + gap` is the logit.

    Args:
        subject: the rows, their values and their scores.
        method: `terms`: a field's first-order term and half of each of its pairs' (LR, FM, AFM),
            added to w0; exact. `integrated_gradients`: a field's part along the path from the
            background's average vectors; the gap is the quadrature error. `occlusion`: the logit's
            drop when the field has background rows' values, added to their mean logit; the gap is
            due to interactions of fields.
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
        number = self.subject.settings.predicted(self.subject.logit)
        calibration = self.subject.calibration
        number = number if calibration is None else calibration.logit(number)
        return sigmoid(number) if self.subject.settings.task == "binary" else number

    def row(self, row: int, *, pairs: bool = False) -> dict[str, Any]:
        """One row's explanation as plain, JSON-compatible values: a sentence, fields and pairs, strongest first.

        Args:
            row: number of the row.
            pairs: also measure pairs of fields if the model has no pair terms (`measured_pairs`),
                so that the sentence names them too.

        Errors:
            DataError: no such row.
        """
        subject = self.subject
        rows = len(self.contributions)
        if not 0 <= row < rows:
            raise DataError(f"rows are numbered from 0 to {rows - 1}, found row {row}")
        values = list(subject.values.row(row))
        added = {name: term[row] for name, term in subject.terms.added.items()}
        shown = {name: part[row] for name, part in subject.terms.shown.items()}
        fields = [
            {"field": name, "value": values[f], "contribution": float(self.contributions[row, f])}
            | {term: float(added[term][f]) for term in ("first_order", "attended") if term in added}
            for f, name in enumerate(subject.fields)
        ]
        results: dict[str, Any] = {
            "label": subject.label,
            "sentence": "",
            "score": float(subject.logit[row]),
            "prediction": float(self.prediction[row]),
            "calibrated": subject.calibration is not None,
            "method": self.method,
            "scale": self.subject.settings.scale or 1.0,
            "base": float(self.base[row]),
            "gap": float(self.gap[row]),
            "fields": sorted(fields, key=lambda f: -abs(f["contribution"])),
        }
        results |= {term: float(added[term]) for term in ("bias", "mlp") if term in added}
        if "pairs" in added:
            results["pairs"] = []
            for p in np.argsort(-np.abs(added["pairs"]), kind="stable"):
                names = [subject.fields[f] for f in subject.pairs[p]]
                own = [values[f] for f in subject.pairs[p]]
                pair = {"fields": names, "values": own, "contribution": float(added["pairs"][p])}
                pair |= {
                    name: float(shown[part][p]) for name, part in _OF_PAIRS.items() if part in shown
                }
                results["pairs"].append(pair)
        elif "attention" in shown:
            results["attention"] = shown["attention"].tolist()
        if "matches" in added:
            results |= self._matches(added["matches"], shown, values)
        measured = self.measured_pairs(row) if pairs and "pairs" not in added else []
        results["sentence"] = sentence(self, row, measured)
        if measured:
            results["measured_pairs"] = measured
        return results

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
        number = np.array([row])
        chosen = np.sort(
            np.argsort(-np.abs(self.contributions[row]), kind="stable")[:PAIRED_FIELDS]
        )
        pairs = chosen[np.stack(np.triu_indices(len(chosen), 1), axis=1)]
        others = subject.others(DRAWS, seed)[number]
        effect = pair_interactions(subject.mixer, subject.logit, others, number, chosen)[0].mean(0)
        values = subject.values.row(row)
        result = []
        for p in np.argsort(-np.abs(effect), kind="stable"):
            names = [subject.fields[f] for f in pairs[p]]
            own = [values[f] for f in pairs[p]]
            result.append({"fields": names, "values": own, "effect": float(effect[p])})
        return result

    def __repr__(self) -> str:
        rows = len(self.contributions)
        subject = self.subject
        about = f"Explanation of {rows:,} row{'' if rows == 1 else 's'}: label {subject.label!r}, by {self.method}"
        if rows == 1:
            score = subject.logit[0]
            prediction = self.prediction[0]
            base = self.base[0]
            about += f"; score {score:+.4f}, prediction {prediction:.4f}, base {base:+.4f}"
        else:
            about += "; mean absolute contribution of each field"
        sizes = self._sizes(0 if rows == 1 else None)
        lines = [
            f"  {name}: {size:{'+.4f' if rows == 1 else '.4f'}}"
            for name, size in sizes[:SHOWN_FIELDS]
        ]
        more = (
            [f"  and {len(sizes) - SHOWN_FIELDS} more fields"] if len(sizes) > SHOWN_FIELDS else []
        )
        return "\n".join([about, *lines, *more])

    def _sizes(self, row: int | None) -> list[tuple[str, float]]:
        """The contributions of a row by `FIELD = VALUE`, or all rows' mean absolute ones by field, largest first."""
        names = self.subject.fields
        sizes = np.abs(self.contributions).sum(0) / max(len(self.contributions), 1)
        if row is not None:
            names = tuple(
                f"{f} = {value}"
                for f, value in zip(names, self.subject.values.row(row), strict=True)
            )
            sizes = self.contributions[row]
        return [(names[f], float(sizes[f])) for f in np.argsort(-np.abs(sizes), kind="stable")]

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
        row = 0 if row is None and len(self.contributions) == 1 else row
        title = f"mean absolute contribution, {len(self.contributions):,} rows"
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
        fields = self.subject.fields
        weights = subject.terms.shown.get("attention")
        if weights is None:
            name = type(part_of_mean(subject.network)).__name__.removesuffix("Network")
            raise DataError(
                f"only AFM and AutoInt have attention over fields, found {name}: plot the explanation itself"
            )
        self.row(0 if row is None else row)  # raises an error with the valid rows
        mean = weights.mean(0) if row is None else weights[row]
        if mean.ndim == 1:
            equal = 1 / len(subject.pairs)
            square = np.full((len(fields), len(fields)), np.nan)
            for weight, (i, j) in zip(mean, subject.pairs, strict=True):
                square[i, j] = square[j, i] = weight
        else:
            equal = 1 / len(fields)
            square = mean.mean((0, 1))
        known = square[~np.isnan(square)]
        title = uniform_text(known, equal) or "attention between fields"
        return heat_map(square, fields, fields, title=title, most=darkest(known, equal))

    def _repr_html_(self) -> str:
        """One row's contributions by field, or mean absolute contributions of several rows."""
        rows = len(self.contributions)
        if rows == 1:
            result = self.row(0)
            fields = [[f["field"], f["value"], f["contribution"]] for f in result["fields"]]
            title = f"{result['label']}: prediction {result['prediction']:.4g}, score {result['score']:.4g}"
            note = f"base {result['base']:.4g}, gap {result['gap']:.4g}; by {self.method}"
            return Table(
                ["field", "value", "contribution"], fields[:SHOWN_ROWS], title, note
            )._repr_html_()
        means = dict(zip(self.subject.fields, self.contributions.mean(0).tolist(), strict=True))
        table = [[name, size, means[name]] for name, size in self._sizes(None)[:SHOWN_ROWS]]
        title = f"{self.subject.label}: contributions of {rows:,} rows"
        return Table(
            ["field", "mean absolute", "mean"], table, title, f"by {self.method}"
        )._repr_html_()

    def _matches(
        self, matches_LH: np.ndarray, shown: dict[str, np.ndarray], values: list[str]
    ) -> dict[str, Any]:
        """IntTower's levels with the matched heads, and both sides' gates."""
        levels = []
        gates = {}
        for level, (products, matched) in enumerate(
            zip(matches_LH, shown["matched_head"], strict=True)
        ):
            of_heads = enumerate(zip(matched, products, strict=True))
            heads = [
                {"user_head": h, "item_head": int(i), "product": float(product)}
                for h, (i, product) in of_heads
            ]
            levels.append(
                {"level": level + 1, "contribution": float(products.sum()), "heads": heads}
            )
        for side in ("user", "item"):
            fields = self.subject.tower_fields(side)
            weights = shown[f"{side}_gates"]
            gates[f"{side}_gates"] = [
                {
                    "field": self.subject.fields[f],
                    "value": values[f],
                    "gate": float(gate),
                    "effect": float(effect),
                }
                for f, gate, effect in zip(
                    fields, weights, shown[f"{side}_gate_effects"], strict=True
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
        raise ConfigError(
            f"method must be a known method, found {method!r}: {nearest(method, METHODS)}"
        )
    name = type(part_of_mean(subject.network)).__name__.removesuffix("Network")
    if method == "terms":
        if not subject.terms.pairwise:
            raise ConfigError(
                f"method 'terms' needs a model of terms of fields and pairs (LR, FM, AFM), found {name}: use "
                f"{subject.usual_method!r}; its other terms are shown with every method"
            )
        # Each field's first-order term and half of its pairs', and the bias.
        added = subject.terms.added
        pairs = subject.by_field(added["pairs"]) / 2 if "pairs" in added else 0.0
        contributions = added["first_order"] + pairs
        base = added["bias"]
    elif method == "integrated_gradients":
        if not has_gradients(subject.network):
            raise ConfigError(
                f"integrated gradients need a model that reads its fields' vectors from whole tables, found {name}: "
                f"use {subject.usual_method!r}"
            )
        contributions, start = integrated_gradients(
            subject.network, subject.table, subject.background
        )
        base = np.full(len(subject.table), start)
    else:
        others = subject.others(DRAWS, seed)
        contributions = occlusion(subject.mixer, subject.logit, others)
        base = score_batches(subject.network, subject.background.batches(SCORING_BATCH))[
            others
        ].mean(1)
    gap = subject.logit - base - contributions.sum(1)
    return Explanation(
        subject=subject, method=method, contributions=contributions, base=base, gap=gap
    )


MAIN = 3  # maximum number of reasons
# minimum size of a further reason, and of one against, as a share of the strongest one's
HALF = 0.5
LONGEST = 60  # characters of a value


def sentence(explanation: Explanation, row: int, measured: Sequence[Mapping[str, Any]] = ()) -> str:
    """The prediction, its main reasons (at most three), and the strongest one against it if it is half as strong.

    A reason is a field or a pair of fields whose part of the score differs from its mean over the
    background rows: of the model's own terms with the method `terms`, else a field's contribution
    or the effect of a pair of `measured` (`Explanation.measured_pairs`).
    """
    parts = _parts(explanation, row)
    total = sum(amount for _, amount in parts)
    number_of = {name: number for number, name in enumerate(explanation.subject.fields)}
    for pair in measured:
        fields_of_pair = tuple(number_of[name] for name in pair["fields"])
        parts.append((fields_of_pair, pair["effect"]))
    sign = 1.0 if total >= 0 else -1.0
    ordered = sorted(parts, key=lambda part: -sign * part[1])
    most = max(sign * ordered[0][1], 0.0) if ordered else 0.0
    named: set[int] = set()
    reasons: list[str] = []
    against = ""
    for fields, amount in ordered:
        if (
            len(reasons) < MAIN
            and sign * amount >= HALF * most > 0
            and not named.issuperset(fields)
        ):
            reasons.append(_clause(explanation, row, fields, amount > 0))
            named |= set(fields)
    if (
        ordered
        and -sign * ordered[-1][1] >= HALF * most > 0
        and not named.issuperset(ordered[-1][0])
    ):
        against = ", although " + _clause(explanation, row, ordered[-1][0], sign < 0)
    prediction = float(explanation.prediction[row])
    task = explanation.subject.settings.task
    number = prediction_text(prediction, task)
    if not reasons:
        return f"{number}, as for the rows it is compared with: no value changes it"
    # the number alone does not say which way the reasons go
    odd = task != "binary" or (prediction > 0.5) != (sign > 0)
    usual = f", {'more' if sign > 0 else 'less'} than usual" if odd else ""
    *first, last = reasons
    joined = f"{', '.join(first)}, and {last}" if first else last
    return f"{number}{usual}, mainly because {joined}{against}"


def prediction_text(share: float, task: Task) -> str:
    """A probability as a percentage, with more digits near 0 and 1; a number of a regression with four digits.

    >>> [prediction_text(p, "binary") for p in (0.8234, 0.041, 0.00321, 0.99996, 1e-7)]
    ['82 %', '4.1 %', '0.32 %', 'above 99.99 %', 'below 0.01 %']
    """
    if task != "binary":
        return f"{share:.4g}"
    if share < 1e-4 or share > 1 - 1e-4:
        return "below 0.01 %" if share < 0.5 else "above 99.99 %"
    rarer = min(share, 1 - share)
    return f"{100 * share:.{0 if rarer >= 0.1 else 1 if rarer >= 0.01 else 2}f} %"


def _parts(explanation: Explanation, row: int) -> list[tuple[tuple[int, ...], float]]:
    """Fields or pairs with their parts of the score, compared with the background rows."""
    subject = explanation.subject
    singles = [(field,) for field in range(len(subject.fields))]
    if explanation.method != "terms":
        return list(zip(singles, explanation.contributions[row].tolist(), strict=True))
    results: list[tuple[tuple[int, ...], float]] = []
    for name, fields in (("first_order", singles), ("pairs", subject.pairs)):
        if name in subject.terms.added:
            own = subject.terms.added[name][row]
            usual = subject.background_terms.added[name].mean(0)
            results += zip(fields, (own - usual).tolist(), strict=True)
    return results


def _clause(explanation: Explanation, row: int, fields: tuple[int, ...], up: bool) -> str:
    words = [_in_words(explanation.subject, row, field, up) for field in fields]
    if len(words) == 1:
        return words[0][2]
    (user, _), (item, number) = sorted(
        zip(words, fields, strict=True), key=lambda one: one[0][0] != "user"
    )
    if user[0] == "user" and explanation.subject.schema.fields[number].role == "item":
        return f"this user {'likes' if up else 'does not like'} {item[1]}"
    return f"{words[0][1]} goes {'well' if up else 'badly'} with {words[1][1]}"


def _in_words(subject: Subject, row: int, number: int, up: bool) -> tuple[str, str, str]:
    """Whose id a field's value is ("user", "item" or ""), and the value as a noun and as a main clause."""
    field = subject.schema.fields[number]
    name = field.name.replace("_", " ")
    value = subject.values.row(row)[number]
    unseen = field.cell == "category" and value.endswith(UNSEEN)
    value = value.removesuffix(UNSEEN) if unseen else value
    for role in ("user", "item"):
        if field.column == named_id(role, subject.schema):
            high = "high" if up else "low"
            return (
                role,
                f"this {role}",
                f"this {role}{' is new' if unseen else f'’s scores are {high} in general'}",
            )
    if value == ABSENT:
        return "", f"a missing {name}", f"the {name} is missing"
    value = value if len(value) <= LONGEST else value[: LONGEST - 1] + "…"
    if level := subject.levels.get(field.name, {row: ""})[row]:
        return "", f"a {level} {name} ({value})", f"the {name} is {level} ({value})"
    are = "are" if field.cell == "list" and name.endswith("s") else "is"
    new = "new " if unseen else ""
    clause = ", which is new to the model" if unseen else ""
    return "", f"the {new}{name} {value}", f"the {name} {are} {value}{clause}"


PAIR_DRAWS = 4
PAIR_ROWS = 32, 256  # minimum and maximum number of rows for measuring pairs
PAIR_SCORES = 200_000  # limit on scores, one per pair and row, above the minimum number of rows


def summary(explanation: Explanation, *, seed: int = 0) -> dict[str, Any]:
    """Means and standard deviations over the rows, as plain values.

    `fields`, by mean absolute contribution; `pairs`, by strength (`strongest_pairs`); for AutoInt
    the mean `attention` [L, H, F, F] and its standard deviation; for IntTower the means of each
    level's score, of the gates and of the share of matches by item head.

    Args:
        explanation: explanation of at least one row.
        seed: seed for sampling background rows for the pairs.
    """
    subject = explanation.subject
    contributions = explanation.contributions
    fields = [
        {"field": name, "mean_size": float(np.abs(column).mean()), **_spread(column)}
        for name, column in zip(subject.fields, contributions.T, strict=True)
    ]
    results: dict[str, Any] = {
        "label": subject.label,
        "rows": len(contributions),
        "method": explanation.method,
        "mean_score": float(subject.logit.mean()),
        "largest_gap": float(np.abs(explanation.gap).max()),
        "fields": sorted(fields, key=lambda f: -f["mean_size"]),
        "pairs": strongest_pairs(subject, seed=seed),
    }
    added = subject.terms.added
    shown = subject.terms.shown
    if "attention" in shown and "pairs" not in added:
        of = {
            "mean": shown["attention"].mean(0).tolist(),
            "deviation": shown["attention"].std(0).tolist(),
        }
        results["attention"] = {"fields": list(subject.fields), **of}
    if "matches" in added:
        heads = range(int(shown["matched_head"].max()) + 1)
        results["levels"] = [
            {
                "level": level + 1,
                **_spread(score),
                "matched_share": [float((matched == k).mean()) for k in heads],
            }
            for level, (score, matched) in enumerate(
                zip(added["matches"].sum(2).T, shown["matched_head"].swapaxes(0, 1), strict=True)
            )
        ]
        for side in ("user", "item"):
            gates = shown[f"{side}_gates"]
            effects = shown[f"{side}_gate_effects"]
            results[f"{side}_gates"] = [
                {
                    "field": subject.fields[f],
                    **_spread(gates[:, k]),
                    "mean_effect": float(effects[:, k].mean()),
                }
                for k, f in enumerate(subject.tower_fields(side))
            ]
    return results


def _spread(values: np.ndarray) -> dict[str, float]:
    return {"mean": float(values.mean()), "deviation": float(values.std())}


def summary_tables(summary: dict[str, Any], pairs: int) -> dict[str, Table]:
    """The parts of a `summary` as tables of texts: `fields`, `pairs` (the first ones), `levels` and `gates`."""
    columns = ["field", "mean absolute", "mean", "standard deviation"]
    rows = [
        [f["field"], number(f["mean_size"]), number(f["mean"], "+"), number(f["deviation"])]
        for f in summary["fields"]
    ]
    tables = {"fields": Table(columns, rows, "Fields, by mean absolute contribution")}
    if summary["pairs"]:
        parts = [name for name in summary["pairs"][0] if name != "fields"]
        rows = [
            [" × ".join(p["fields"]), *(number(p[part]) for part in parts)]
            for p in summary["pairs"][:pairs]
        ]
        title = f"Pairs, by interaction strength: the first {len(rows)} of {len(summary['pairs'])}"
        columns = ["pair", *(part.replace("_", " ") for part in parts)]
        tables["pairs"] = Table(columns, rows, title)
    if "levels" in summary:
        heads = [f"item head {k + 1}" for k in range(len(summary["levels"][0]["matched_share"]))]
        rows = [
            [
                str(one["level"]),
                number(one["mean"], "+"),
                number(one["deviation"]),
                *map(number, one["matched_share"]),
            ]
            for one in summary["levels"]
        ]
        title = "Levels: scores, and the share of user heads that match each item head best"
        columns = ["level", "mean score", "standard deviation", *heads]
        tables["levels"] = Table(columns, rows, title)
        rows = [
            [
                gate["field"],
                side,
                number(gate["mean"]),
                number(gate["deviation"]),
                number(gate["mean_effect"], "+"),
            ]
            for side in ("user", "item")
            for gate in sorted(summary[f"{side}_gates"], key=lambda g: -g["mean"])
        ]
        title = "Gates: each field's weight in its tower, and its effect on the score"
        columns = ["field", "tower", "mean", "standard deviation", "mean effect"]
        tables["gates"] = Table(columns, rows, title)
    return tables


def strongest_pairs(
    subject: Subject, *, rows: int | None = None, draws: int = PAIR_DRAWS, seed: int = 0
) -> list[dict[str, Any]]:
    """All pairs of fields by the root mean square of their interaction effects, strongest first.

    The mean is over rows and background rows of `pair_interactions`.

    Besides the `strength`, FM and AFM have the mean and standard deviation of the pair's term over
    all rows, and AFM those of its attention.

    Args:
        subject: N rows; strengths are measured on at most `rows` of them, evenly spaced.
        rows: see above; 256 if omitted, fewer with many fields, but at least 32.
        draws: background rows per row.
        seed: seed for sampling background rows.
    """
    if not subject.pairs:
        return []
    least, most = PAIR_ROWS
    wanted = (
        min(most, max(least, PAIR_SCORES // (draws * len(subject.pairs)))) if rows is None else rows
    )
    some = np.unique(
        np.linspace(0, len(subject.table) - 1, min(wanted, len(subject.table))).astype(int)
    )
    others = subject.others(draws, seed)[some]
    together = pair_interactions(subject.mixer, subject.logit, others, some)
    terms = subject.terms
    parts = {"term": terms.added["pairs"]} if "pairs" in terms.added else {}
    if parts and "attention" in terms.shown:
        parts["attention"] = terms.shown["attention"]
    results = []
    for p, (i, j) in enumerate(subject.pairs):
        pair = {
            "fields": [subject.fields[i], subject.fields[j]],
            "strength": float(np.sqrt(np.square(together[:, :, p]).mean())),
        }
        for name, part in parts.items():
            pair |= {
                f"mean_{name}": float(part[:, p].mean()),
                f"{name}_deviation": float(part[:, p].std()),
            }
        results.append(pair)
    return sorted(results, key=lambda pair: -pair["strength"])


def planted_pairs_found(pairs: Sequence[Sequence[str]]) -> tuple[int, int]:
    """The number of the simulated log's planted pairs among as many first pairs of field names, and their number.

    >>> planted_pairs_found([("genres", "age_group"), ("user_id", "item_id")])
    (1, 5)
    """
    planted = {frozenset(columns) for columns, *_ in PLANTED.values() if len(columns) == 2}
    first = {frozenset(pair) for pair in pairs[: len(planted)]}
    return len(planted & first), len(planted)
