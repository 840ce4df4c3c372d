"""The report's explanations: fields, pairs, attention, heads and gates, over sampled test rows."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import polars as pl
from markupsafe import Markup

from fieldwise.bundle.bundle import Bundle
from fieldwise.explain.explanation import explain_subject
from fieldwise.explain.subject import Subject
from fieldwise.explain.summary import summary
from fieldwise.report.blocks import Block, Figure, Note, Section, Table, count, number
from fieldwise.report.charts import heat_map, share_cell

__all__ = ["explanation_section"]

PAIRS = 15
TABLED_FIELDS = 16  # attention tables of more fields would be too large to read
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
        figures.append(_square("Attention of pairs, mean", pairs, "mean_attention", fields, most=None))
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
    most = float(mean_LHFF.max())
    found: list[Block] = [
        Note(
            text="Attention, averaged over these rows: each row of a map holds one field's weights for all fields, "
            f"which add up to 1. The largest weight of all heads is {number(most)}; equal weights would be "
            f"{number(1 / len(fields))}."
        )
    ]
    for layer in range(layers):
        for head in range(heads):
            own, title = mean_LHFF[layer, head], f"Attention, layer {layer + 1}, head {head + 1}"
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
