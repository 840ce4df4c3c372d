"""The section that explains a sample of test rows."""

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import polars as pl
from markupsafe import Markup

from fieldwise.bundle.bundle import Bundle
from fieldwise.charts import Axis, Chart, Line, dot_chart, heat_map, line_chart, wider
from fieldwise.data.sampling import drawn_rows
from fieldwise.display import Table, number
from fieldwise.explain.attention import darkest, pair_square, uniform_text
from fieldwise.explain.effects import effects
from fieldwise.explain.explanation import explain_subject
from fieldwise.explain.sentence import prediction_text
from fieldwise.explain.subject import Subject
from fieldwise.explain.summary import METHOD_WORDS, summary, summary_tables
from fieldwise.report.page import Block, Figure, Section, count, share_cell
from fieldwise.schema.label import Task

PAIRS_IN_TABLE = 15
MAX_EFFECTS = 12
MAX_FIELDS_OF_ATTENTION_TABLE = 16
"""A table of more fields would be too large to read."""
WEIGHTS_IN_TABLE = 4 * PAIRS_IN_TABLE
"""The largest attention weights, where the fields are too many for a table of all."""
UNDRAWN = "It is not drawn: shades would show differences that mean nothing."


def explanation_section(
    bundle: Bundle, frame: pl.DataFrame, label: str, *, rows: int, seed: int
) -> Section:
    """A section that explains a sample of test rows."""
    sample = frame
    sample_words = f"all {count(frame.height)} test rows"
    if frame.height > rows:
        sample = frame[drawn_rows(frame.height, rows, seed)]
        sample_words = (
            f"{count(sample.height)} of {count(frame.height)} test rows, sampled with seed {seed}"
        )

    subject = Subject.of(bundle, sample, label=label)
    figures = summary(explain_subject(subject, subject.usual_method, seed=seed), seed=seed)
    tables = summary_tables(subject, figures, PAIRS_IN_TABLE)
    sizes = np.array([field["mean_size"] for field in figures["fields"]])
    largest = sizes.max(initial=0.0) or 1.0

    blocks: list[Block] = [
        f"Over {sample_words}, compared with the bundle's {count(len(subject.background))} sample rows. Contributions "
        f"to the score by {METHOD_WORDS[figures['method']]}. Attention shows what a layer reads, not its effect on "
        "the score: `fieldwise explain --faithfulness` tests it.",
        _with_bars(tables["fields"], sizes / largest, after=1, words=(2,)),
        *_effect_blocks(effects(bundle, label=label), subject.settings.task),
    ]
    if figures["pairs"]:
        blocks += _pair_blocks(figures["pairs"], tables["pairs"], subject.fields)
    if "attention" in figures:
        attention = figures["attention"]
        blocks += _attention_blocks(np.array(attention["mean"]), attention["fields"])
    if "levels" in figures:
        blocks.append(_matches_figure(figures["levels"], tables["levels"]))
        gates = [float(row[2]) for row in tables["gates"].rows]
        blocks.append(_with_bars(tables["gates"], gates, after=2, words=(1, 3)))
    return Section("Explanation", blocks)


def _with_bars(
    table: Table, shares: Iterable[float], *, after: int, words: Sequence[int], note: str = ""
) -> Table:
    """The table with bars of shares after a column."""

    def inserted(row: Sequence[Any], cell: str | Markup) -> list[Any]:
        return [*row[: after + 1], cell, *row[after + 1 :]]

    columns = inserted(table.columns, "")
    rows = [
        inserted(row, share_cell(share)) for row, share in zip(table.rows, shares, strict=False)
    ]
    return dataclasses.replace(table, columns=columns, rows=rows, words=words, note=note)


def _effect_blocks(effects: Sequence[dict[str, Any]], task: Task) -> list[Block]:
    """A chart per field of the mean prediction by value, all on one scale."""
    if not effects:
        return []
    factor = 100.0 if task == "binary" else 1.0
    unit = " %" if task == "binary" else ""
    lowest = min(min(effect["predictions"]) for effect in effects)
    highest = max(max(effect["predictions"]) for effect in effects)
    scale = wider(factor * lowest, factor * highest)

    drawn = effects[:MAX_EFFECTS]
    blocks: list[Block] = [
        "Directions: the mean prediction if all of the bundle's sample rows had this value in the field and kept "
        f"their others, for the {len(drawn)} of {len(effects)} fields with the widest ranges, "
        "on one scale. Numbers are quantiles of these rows, other values the most frequent ones."
    ]
    for effect in drawn:
        title = f"Direction of {effect['field']}"
        rows = [
            [value, prediction_text(prediction, task)]
            for value, prediction in zip(effect["values"], effect["predictions"], strict=True)
        ]
        table = Table([effect["field"], "mean prediction"], rows)
        drawing = _effect_chart(effect, title, factor, unit, scale)
        blocks.append(Figure(title, drawing, table))
    return blocks


def _effect_chart(
    effect: dict[str, Any], title: str, factor: float, unit: str, scale: tuple[float, float]
) -> Chart:
    """A line over numbers, or a dot for each of other values, highest prediction first."""
    predictions = [factor * prediction for prediction in effect["predictions"]]
    if "numbers" in effect:
        line = Line(x=effect["numbers"], y=predictions, points=True)
        across = Axis(label=effect["field"])
        return line_chart([line], across, Axis(label="", span=scale, unit=unit), title=title)

    order = np.argsort([-prediction for prediction in predictions], kind="stable")
    names = [effect["values"][k] for k in order]
    values = [predictions[k] for k in order]
    return dot_chart(names, values, scale, title=title, unit=unit)


def _pair_blocks(
    pairs: Sequence[dict[str, Any]], table: Table, fields: Sequence[str]
) -> list[Block]:
    """The table of the strongest pairs, and maps of all pairs' strength and attention."""
    largest = pairs[0]["strength"] or 1.0
    strongest = _with_bars(
        table,
        [pair["strength"] / largest for pair in pairs],
        after=1,
        words=(2,),
        note="Strength: the root mean square of the part of the score due to both values together, beyond each alone.",
    )
    blocks: list[Block] = [strongest]

    strength = np.array([pair["strength"] for pair in pairs])
    blocks.append(_pair_map("Strength of pairs", "strength", pairs, strength, fields))

    if "mean_attention" in pairs[0]:
        attention = np.array([pair["mean_attention"] for pair in pairs])
        equal = 1 / len(pairs)
        uniform = uniform_text(attention, equal)
        if uniform:
            blocks.append(f"Of pairs, {uniform}, on average over these rows. {UNDRAWN}")
        else:
            title = "Attention of pairs, mean"
            most = darkest(attention, equal)
            blocks.append(_pair_map(title, "mean attention", pairs, attention, fields, most))
    return blocks


def _pair_map(
    title: str,
    measure: str,
    pairs: Sequence[dict[str, Any]],
    weights: np.ndarray,
    fields: Sequence[str],
    most: float | None = None,
) -> Figure:
    """A tile for each pair of fields; its table has the heaviest first."""
    numbers_of_pairs = [[fields.index(name) for name in pair["fields"]] for pair in pairs]
    square = pair_square(numbers_of_pairs, weights, len(fields))
    drawing = heat_map(
        square, fields, fields, title=f"{title}: a tile for each pair of fields", most=most
    )
    rows = [
        [" × ".join(pairs[k]["fields"]), number(float(weights[k]))]
        for k in np.argsort(-weights, kind="stable")
    ]
    note = f"The strongest tile: {number(float(weights.max()))}."
    return Figure(title, drawing, Table(["pair", measure], rows), note=note)


def _attention_blocks(mean_LHFF: np.ndarray, fields: Sequence[str]) -> list[Block]:
    """A map of each head's weights, unless they are uniform."""
    layers, heads = mean_LHFF.shape[:2]
    equal = 1 / len(fields)
    uniform = uniform_text(mean_LHFF, equal)
    if uniform:
        return [f"In all heads {uniform}, on average over these rows. {UNDRAWN}"]

    most = darkest(mean_LHFF, equal)
    blocks: list[Block] = [
        "Attention, averaged over these rows: each row of a map holds one field's weights for all fields, "
        f"which add up to 1. The largest weight of all heads is {number(float(mean_LHFF.max()))}; equal weights "
        f"would be {number(equal)}, and the darkest shade of all maps is {number(most)}."
    ]
    for layer in range(layers):
        for head in range(heads):
            weights_FF = mean_LHFF[layer, head]
            title = f"Attention, layer {layer + 1}, head {head + 1}"
            uniform = uniform_text(weights_FF, equal)
            if uniform:
                blocks.append(f"{title}: {uniform}. {UNDRAWN}")
                continue
            description = f"{title}: weights from query fields (rows) to key fields (columns)"
            drawing = heat_map(weights_FF, fields, fields, title=description, most=most)
            blocks.append(Figure(title, drawing, _attention_table(weights_FF, fields)))
    return blocks


def _attention_table(weights_FF: np.ndarray, fields: Sequence[str]) -> Table:
    """All weights of a head, or the largest ones where the fields are many."""
    rows: list[list[str]] = []
    if len(fields) <= MAX_FIELDS_OF_ATTENTION_TABLE:
        for name, weights_F in zip(fields, weights_FF, strict=True):
            rows.append([name, *(number(float(weight)) for weight in weights_F)])
        return Table(["field", *fields], rows)

    largest = np.argsort(-weights_FF, axis=None, kind="stable")[:WEIGHTS_IN_TABLE]
    for cell in largest:
        query, key = divmod(int(cell), len(fields))
        rows.append([fields[query], fields[key], number(float(weights_FF[query, key]))])
    return Table(["query field", "key field", "weight"], rows, words=(1,))


def _matches_figure(levels: Sequence[dict[str, Any]], table: Table) -> Figure:
    """IntTower's share of matches by level and item head."""
    shares = np.array([level["matched_share"] for level in levels])
    names = [f"level {level['level']}" for level in levels]
    heads = table.columns[3:]
    title = "The share of matches by level and item head"
    drawing = heat_map(shares, names, heads, title=title, most=1.0)
    note = "The share of a user's heads that match each item head best."
    return Figure("Matches by item head", drawing, table, note=note)
