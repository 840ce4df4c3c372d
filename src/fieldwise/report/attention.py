"""The report's explanations: fields, pairs, attention, heads and gates, over sampled test rows."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import polars as pl
from markupsafe import Markup

from fieldwise.bundle.bundle import Bundle
from fieldwise.explain.attention import darkest, is_uniform, uniform_text
from fieldwise.explain.effects import effects, span
from fieldwise.explain.explanation import explain_subject
from fieldwise.explain.sentence import prediction_text
from fieldwise.explain.subject import Subject
from fieldwise.explain.summary import summary
from fieldwise.report.blocks import Block, Figure, Note, Section, Table, count, number
from fieldwise.report.charts import dot_chart, heat_map, share_cell
from fieldwise.report.line_chart import Axis, Line, line_chart
from fieldwise.schema.label import Task

__all__ = ["explanation_section"]

PAIRS = 15
DIRECTIONS = 12
TABLED_FIELDS = 16  # attention tables of more fields would be too large to read
UNDRAWN = "It is not drawn: shades would show differences that mean nothing."
WORDS = {
    "terms": "the model's exact terms",
    "integrated_gradients": "integrated gradients",
    "occlusion": "the score's drop without the field",
}


def explanation_section(bundle: Bundle, frame: pl.DataFrame, label: str, *, rows: int, seed: int) -> Section:
    """A section that explains a sample of test rows."""
    drawn = frame
    if frame.height > rows:
        drawn = frame[np.sort(np.random.default_rng(seed).choice(frame.height, rows, replace=False))]
    subject = Subject.of(bundle, drawn, label=label)
    found = summary(explain_subject(subject, subject.usual_method, seed=seed), seed=seed)
    which = f"{count(drawn.height)} of {count(frame.height)} test rows, sampled with seed {seed}"
    blocks: list[Block] = [
        Note(
            text=f"Over {which if frame.height > rows else f'all {count(frame.height)} test rows'}, compared with "
            f"the bundle's {count(len(subject.background))} sample rows. Contributions to the score by "
            f"{WORDS[found['method']]}. Attention shows what a layer reads, not its effect on the score: `fieldwise "
            "explain --faithfulness` tests it."
        ),
        _fields(found["fields"]),
        *_directions(effects(bundle, label=label), subject.settings.task),
    ]
    if found["pairs"]:
        blocks += _pairs(found["pairs"], subject.fields)
    if "attention" in found:
        blocks += _attention(np.array(found["attention"]["mean"]), found["attention"]["fields"])
    if "levels" in found:
        blocks += _levels(found)
    return Section(title="Explanation", blocks=blocks)


def _fields(fields: Sequence[dict[str, Any]]) -> Table:
    most = max((f["mean_size"] for f in fields), default=0.0) or 1.0
    return Table(
        title="Fields, by mean absolute contribution",
        columns=["field", "mean absolute", "", "mean", "standard deviation"],
        rows=[
            [
                f["field"],
                number(f["mean_size"]),
                share_cell(f["mean_size"] / most),
                number(f["mean"], "+"),
                number(f["deviation"]),
            ]
            for f in fields
        ],
        words=(2,),
    )


def _directions(found: Sequence[dict[str, Any]], task: Task) -> list[Block]:
    """A chart per field of the mean prediction by value, all on one scale."""
    if not found:
        return []
    factor, unit = (100.0, " %") if task == "binary" else (1.0, "")
    low, high = (factor * end for end in span(found))
    room = (high - low) * 0.05 or 0.5
    scale = low - room, high + room
    blocks: list[Block] = [
        Note(
            text="Directions: the mean prediction if all of the bundle's sample rows had this value in the field and "
            f"kept their others, for the {min(DIRECTIONS, len(found))} of {len(found)} fields with the widest ranges, "
            "on one scale. Numbers are quantiles of these rows, other values the most frequent ones."
        )
    ]
    for one in found[:DIRECTIONS]:
        title, mean = f"Direction of {one['field']}", [factor * p for p in one["predictions"]]
        rows = [[v, prediction_text(p, task)] for v, p in zip(one["values"], one["predictions"], strict=True)]
        table = Table(columns=[one["field"], "mean prediction"], rows=rows)
        if "numbers" in one:
            line = Line(name="", x=one["numbers"], y=mean, points=True)
            drawing = line_chart([line], Axis(one["field"]), Axis("", span=scale, unit=unit), title=title)
        else:
            ordered = sorted(zip(one["values"], mean, strict=True), key=lambda row: -row[1])
            drawing = dot_chart(ordered, scale, title=title, unit=unit)
        blocks.append(Figure(title=title, drawing=drawing, table=table))
    return blocks


def _pairs(pairs: Sequence[dict[str, Any]], fields: Sequence[str]) -> list[Block]:
    parts = [name for name in pairs[0] if name not in ("fields", "strength")]
    most = pairs[0]["strength"] or 1.0
    top = Table(
        title=f"Pairs, by interaction strength: the first {min(PAIRS, len(pairs))} of {len(pairs)}",
        columns=["pair", "strength", "", *(part.replace("_", " ") for part in parts)],
        rows=[
            [
                " × ".join(p["fields"]),
                number(p["strength"]),
                share_cell(p["strength"] / most),
                *(number(p[part]) for part in parts),
            ]
            for p in pairs[:PAIRS]
        ],
        words=(2,),
        note="Strength: the root mean square of the part of the score due to both values together, beyond each alone.",
    )
    figures: list[Block] = [_square("Strength of pairs", pairs, "strength", fields, most=None)]
    if "mean_attention" in parts:
        weights, equal = np.array([p["mean_attention"] for p in pairs]), 1 / len(pairs)
        if is_uniform(weights, equal):
            figures.append(
                Note(text=f"Of pairs, {uniform_text(weights, equal)}, on average over these rows. {UNDRAWN}")
            )
        else:
            most = darkest(weights, equal)
            figures.append(_square("Attention of pairs, mean", pairs, "mean_attention", fields, most=most))
    return [top, *figures]


def _square(
    title: str, pairs: Sequence[dict[str, Any]], part: str, fields: Sequence[str], most: float | None
) -> Figure:
    place = {name: k for k, name in enumerate(fields)}
    values = np.full((len(fields), len(fields)), np.nan)
    for pair in pairs:
        i, j = (place[name] for name in pair["fields"])
        values[i, j] = values[j, i] = pair[part]
    ordered = sorted(pairs, key=lambda pair: -pair[part])
    return Figure(
        title=title,
        drawing=heat_map(values, fields, fields, title=f"{title}: a tile for each pair of fields", most=most),
        table=Table(
            columns=["pair", part.replace("_", " ")], rows=[[" × ".join(p["fields"]), number(p[part])] for p in ordered]
        ),
        note=f"The strongest tile: {number(float(np.nanmax(values)))}.",
    )


def _attention(mean_LHFF: np.ndarray, fields: Sequence[str]) -> list[Block]:
    layers, heads = mean_LHFF.shape[:2]
    equal = 1 / len(fields)
    if is_uniform(mean_LHFF, equal):
        return [Note(text=f"In all heads {uniform_text(mean_LHFF, equal)}, on average over these rows. {UNDRAWN}")]
    most = darkest(mean_LHFF, equal)
    found: list[Block] = [
        Note(
            text="Attention, averaged over these rows: each row of a map holds one field's weights for all fields, "
            f"which add up to 1. The largest weight of all heads is {number(float(mean_LHFF.max()))}; equal weights "
            f"would be {number(equal)}, and the darkest shade of all maps is {number(most)}."
        )
    ]
    for layer in range(layers):
        for head in range(heads):
            own, title = mean_LHFF[layer, head], f"Attention, layer {layer + 1}, head {head + 1}"
            if is_uniform(own, equal):
                found.append(Note(text=f"{title}: {uniform_text(own, equal)}. {UNDRAWN}"))
                continue
            if len(fields) <= TABLED_FIELDS:
                table = Table(
                    columns=["field", *fields],
                    rows=[[f, *(number(float(v)) for v in own[k])] for k, f in enumerate(fields)],
                )
            else:
                best = np.argsort(-own, axis=None, kind="stable")[: 4 * PAIRS]
                cells = [divmod(int(k), len(fields)) for k in best]
                table = Table(
                    columns=["query field", "key field", "weight"],
                    rows=[[fields[i], fields[j], number(float(own[i, j]))] for i, j in cells],
                    words=(1,),
                )
            found.append(
                Figure(
                    title=title,
                    drawing=heat_map(
                        own,
                        fields,
                        fields,
                        title=f"{title}: weights from query fields (rows) to key fields (columns)",
                        most=most,
                    ),
                    table=table,
                )
            )
    return found


def _levels(found: dict[str, Any]) -> list[Block]:
    levels = found["levels"]
    shares = np.array([level["matched_share"] for level in levels])
    heads = [f"item head {k + 1}" for k in range(shares.shape[1])]
    names = [f"level {level['level']}" for level in levels]
    figure = Figure(
        title="Matches by item head",
        drawing=heat_map(shares, names, heads, title="The share of matches by level and item head", most=1.0),
        table=Table(
            columns=["level", "mean score", "standard deviation", *heads],
            rows=[
                [
                    str(level["level"]),
                    number(level["mean"], "+"),
                    number(level["deviation"]),
                    *(number(s) for s in level["matched_share"]),
                ]
                for level in levels
            ],
        ),
        note="The share of a user's heads that match each item head best.",
    )
    rows: list[list[str | Markup]] = []
    for side in ("user", "item"):
        for gate in sorted(found[f"{side}_gates"], key=lambda g: -g["mean"]):
            numbers = number(gate["mean"]), number(gate["deviation"]), number(gate["mean_effect"], "+")
            rows.append([gate["field"], side, numbers[0], share_cell(gate["mean"]), *numbers[1:]])
    gates = Table(
        title="Gates: each field's weight in its tower, and its effect on the score",
        columns=["field", "tower", "mean", "", "standard deviation", "mean effect"],
        rows=rows,
        words=(1, 3),
    )
    return [figure, gates]
