"""The report's explanations: fields, pairs, attention, heads and gates, over sampled test rows."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
import polars as pl

from fieldwise.bundle.bundle import Bundle
from fieldwise.charts import Axis, Dot, Line, dot_chart, heat_map, line_chart, share_cell, wider
from fieldwise.display import Table, number
from fieldwise.explain.effects import effects, span
from fieldwise.explain.explanation import darkest, explain_subject, is_uniform, prediction_text, uniform_text
from fieldwise.explain.subject import Subject
from fieldwise.explain.summary import summary, summary_tables
from fieldwise.report.page import Block, Figure, Note, Section, count
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
    tables = summary_tables(found, PAIRS)
    largest = max((f["mean_size"] for f in found["fields"]), default=0.0) or 1.0
    which = f"{count(drawn.height)} of {count(frame.height)} test rows, sampled with seed {seed}"
    blocks: list[Block] = [
        Note(
            text=f"Over {which if frame.height > rows else f'all {count(frame.height)} test rows'}, compared with "
            f"the bundle's {count(len(subject.background))} sample rows. Contributions to the score by "
            f"{WORDS[found['method']]}. Attention shows what a layer reads, not its effect on the score: `fieldwise "
            "explain --faithfulness` tests it."
        ),
        _barred(tables["fields"], [f["mean_size"] / largest for f in found["fields"]], 1, words=(2,)),
        *_directions(effects(bundle, label=label), subject.settings.task),
    ]
    if found["pairs"]:
        blocks += _pairs(found["pairs"], tables["pairs"], subject.fields)
    if "attention" in found:
        blocks += _attention(np.array(found["attention"]["mean"]), found["attention"]["fields"])
    if "levels" in found:
        blocks += _levels(found, tables)
    return Section(title="Explanation", blocks=blocks)


def _barred(table: Table, shares: Sequence[float], after: int, *, words: Sequence[int], note: str = "") -> Table:
    """The table with bars of shares after a column."""
    columns = [*table.columns[: after + 1], "", *table.columns[after + 1 :]]
    rows = [
        [*row[: after + 1], share_cell(share), *row[after + 1 :]]
        for row, share in zip(table.rows, shares, strict=False)
    ]
    return dataclasses.replace(table, columns=columns, rows=rows, words=words, note=note)


def _directions(found: Sequence[dict[str, Any]], task: Task) -> list[Block]:
    """A chart per field of the mean prediction by value, all on one scale."""
    if not found:
        return []
    factor, unit = (100.0, " %") if task == "binary" else (1.0, "")
    scale = wider(*(factor * end for end in span(found)))
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
            dots = [Dot(name=value, value=p) for value, p in zip(one["values"], mean, strict=True)]
            drawing = dot_chart(sorted(dots, key=lambda dot: -dot.value), scale, title=title, unit=unit)
        blocks.append(Figure(title=title, drawing=drawing, table=table))
    return blocks


def _pairs(pairs: Sequence[dict[str, Any]], table: Table, fields: Sequence[str]) -> list[Block]:
    largest = pairs[0]["strength"] or 1.0
    top = _barred(
        table,
        [pair["strength"] / largest for pair in pairs],
        1,
        words=(2,),
        note="Strength: the root mean square of the part of the score due to both values together, beyond each alone.",
    )
    figures: list[Block] = [_square("Strength of pairs", pairs, "strength", fields, most=None)]
    if "mean_attention" in pairs[0]:
        weights, equal = np.array([p["mean_attention"] for p in pairs]), 1 / len(pairs)
        if is_uniform(weights, equal):
            text = f"Of pairs, {uniform_text(weights, equal)}, on average over these rows. {UNDRAWN}"
            figures.append(Note(text=text))
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
                rows = [[f, *(number(float(v)) for v in own[k])] for k, f in enumerate(fields)]
                table = Table(columns=["field", *fields], rows=rows)
            else:
                best = np.argsort(-own, axis=None, kind="stable")[: 4 * PAIRS]
                cells = [divmod(int(k), len(fields)) for k in best]
                rows = [[fields[i], fields[j], number(float(own[i, j]))] for i, j in cells]
                table = Table(columns=["query field", "key field", "weight"], rows=rows, words=(1,))
            what = f"{title}: weights from query fields (rows) to key fields (columns)"
            drawing = heat_map(own, fields, fields, title=what, most=most)
            found.append(Figure(title=title, drawing=drawing, table=table))
    return found


def _levels(found: dict[str, Any], tables: dict[str, Table]) -> list[Block]:
    shares = np.array([level["matched_share"] for level in found["levels"]])
    names = [f"level {level['level']}" for level in found["levels"]]
    title, heads = "The share of matches by level and item head", tables["levels"].columns[3:]
    figure = Figure(
        title="Matches by item head",
        drawing=heat_map(shares, names, heads, title=title, most=1.0),
        table=tables["levels"],
        note="The share of a user's heads that match each item head best.",
    )
    gates = [float(row[2]) for row in tables["gates"].rows]
    return [figure, _barred(tables["gates"], gates, 2, words=(1, 3))]
