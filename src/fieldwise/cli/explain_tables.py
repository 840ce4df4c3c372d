"""Tables of `fieldwise explain`: for one row, and for a set of rows."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from rich.table import Table

from fieldwise.cli.show import console
from fieldwise.explain.attention import is_uniform, uniform_text
from fieldwise.explain.explanation import Explanation
from fieldwise.explain.faithfulness import Curves
from fieldwise.explain.sentence import prediction_text
from fieldwise.schema.label import Task

__all__ = ["print_row", "print_set"]

WORDS = {
    "terms": "exact terms",
    "integrated_gradients": "integrated gradients",
    "occlusion": "the score's drop without a field",
}


def _number(value: float) -> str:
    return f"{value:+.4f}"


def _table(title: str, *columns: str) -> Table:
    return Table(*columns, title=title, title_justify="left", box=None)


def print_row(plain: dict[str, Any], found: Explanation, top: int) -> None:
    """Print the explanation of one row: `plain` holds its figures, `top` is the number of pairs and weights shown."""
    out = console()
    score, prediction, base, gap = (plain[k] for k in ("score", "prediction", "base", "gap"))
    given = sum(f["contribution"] for f in plain["fields"])
    calibrated = "calibrated " if found.subject.calibration else ""
    probability = f"{calibrated}probability {prediction:.4f}, " if found.subject.settings.task == "binary" else ""
    out.print(f"{plain['label']}: {plain['sentence']}\n", soft_wrap=True)
    out.print(
        f"{probability}score {_number(score)} = base {_number(base)} + fields {_number(given)}"
        f" + gap {_number(gap)} ({WORDS[plain['method']]})"
    )
    extra = [term for term in ("first_order", "attended") if term in plain["fields"][0]]
    table = _table("\nfields, strongest first", "field", "value", "contribution", *(e.replace("_", " ") for e in extra))
    for f in plain["fields"]:
        table.add_row(f["field"], f["value"], *(_number(f[k]) for k in ("contribution", *extra)))
    out.print(table)
    _print_effects(plain["effects"], top, found.subject.settings.task)
    if plain.get("pairs"):
        parts = [part for part in ("attention", "interaction") if part in plain["pairs"][0]]
        table = _table(f"\npairs, the first {top} of {len(plain['pairs'])}", "pair", "values", "contribution", *parts)
        for pair in plain["pairs"][:top]:
            numbers = [_number(pair["contribution"]), *(f"{pair[part]:.4f}" for part in parts)]
            table.add_row(" x ".join(pair["fields"]), " x ".join(pair["values"]), *numbers)
        out.print(table)
    if "attention" in plain:
        out.print(_strongest_attention(np.array(plain["attention"]), found.subject.fields, top))
    if "levels" in plain:
        table = _table("\nlevels: each user head with the item head that it matches best", "level", "score", "matches")
        for level in plain["levels"]:
            best = sorted(level["heads"], key=lambda head: -abs(head["product"]))[:top]
            met = ", ".join(f"{h['user_head']}-{h['item_head']} {_number(h['product'])}" for h in best)
            table.add_row(str(level["level"]), _number(level["contribution"]), met)
        out.print(table)
        table = _table("\ngates: each field's weight in its tower, and its effect on the score", "side", "field")
        for column in ("value", "gate", "effect"):
            table.add_column(column)
        for side in ("user", "item"):
            for gate in sorted(plain[f"{side}_gates"], key=lambda g: -g["gate"]):
                table.add_row(side, gate["field"], gate["value"], f"{gate['gate']:.4f}", _number(gate["effect"]))
        out.print(table)


def _print_effects(effects: Sequence[dict[str, Any]], top: int, task: Task) -> None:
    """Print the mean prediction by value of the fields with the widest ranges."""
    if not effects:
        return
    table = _table("\ndirections, the mean prediction of the sample rows with each value", "field", "value: prediction")
    for one in effects[:top]:
        pairs = zip(one["values"], one["predictions"], strict=True)
        table.add_row(one["field"], ", ".join(f"{value}: {prediction_text(p, task)}" for value, p in pairs))
    console().print(table)


def _strongest_attention(weights_LHFF: np.ndarray, fields: Sequence[str], top: int) -> Table | str:
    if is_uniform(weights_LHFF, 1 / len(fields)):
        return f"\n{uniform_text(weights_LHFF, 1 / len(fields))}"
    table = _table(
        f"\nattention, the {top} strongest between two fields", "layer", "head", "query field", "key field", "weight"
    )
    between = np.where(np.eye(len(fields), dtype=bool), -1.0, weights_LHFF)
    for place in np.argsort(-between, axis=None)[: min(top, int((between >= 0).sum()))]:
        layer, head, i, j = np.unravel_index(place, between.shape)
        table.add_row(str(layer + 1), str(head + 1), fields[i], fields[j], f"{between[layer, head, i, j]:.4f}")
    return table


def print_set(plain: dict[str, Any], curves: Sequence[Curves], top: int, task: Task) -> None:
    """Print the mean explanation of a set of rows, and its faithfulness curves if there are any."""
    out = console()
    out.print(
        f"{plain['label']}: {plain['rows']:,} rows, mean score {_number(plain['mean_score'])}, contributions by "
        f"{WORDS[plain['method']]}, largest gap {plain['largest_gap']:.4f}"
    )
    table = _table("\nfields, by mean absolute contribution", "field", "mean absolute", "mean", "std")
    for f in plain["fields"]:
        table.add_row(f["field"], f"{f['mean_size']:.4f}", _number(f["mean"]), f"{f['deviation']:.4f}")
    out.print(table)
    _print_effects(plain["effects"], top, task)
    if plain["pairs"]:
        parts = [k for k in plain["pairs"][0] if k not in ("fields", "strength")]
        names = [part.replace("_", " ") for part in parts]
        title = f"\npairs, by interaction strength: the first {top} of {len(plain['pairs'])}"
        table = _table(title, "pair", "strength", *names)
        for pair in plain["pairs"][:top]:
            table.add_row(" x ".join(pair["fields"]), f"{pair['strength']:.4f}", *(f"{pair[p]:.4f}" for p in parts))
        out.print(table)
    if "planted_pairs" in plain:
        planted = plain["planted_pairs"]
        out.print(f"\nplanted pairs among the first {planted['of']}: {planted['found']} of {planted['of']}")
    if "attention" in plain:
        out.print(_strongest_attention(np.array(plain["attention"]["mean"]), plain["attention"]["fields"], top))
    if "levels" in plain:
        table = _table("\nlevels", "level", "mean score", "std", "share of matches by item head")
        for level in plain["levels"]:
            shares = ", ".join(f"{k}: {share:.0%}" for k, share in enumerate(level["matched_share"]))
            table.add_row(str(level["level"]), _number(level["mean"]), f"{level['deviation']:.4f}", shares)
        out.print(table)
        table = _table("\ngates", "side", "field", "mean", "std", "mean effect")
        for side in ("user", "item"):
            for gate in sorted(plain[f"{side}_gates"], key=lambda g: -g["mean"]):
                numbers = f"{gate['mean']:.4f}", f"{gate['deviation']:.4f}", _number(gate["mean_effect"])
                table.add_row(side, gate["field"], *numbers)
        out.print(table)
    if curves:
        out.print(_curves_table(curves))


def _curves_table(curves: Sequence[Curves]) -> Table:
    title = (
        "\nfaithfulness: areas of deletion and insertion curves (higher is better), and their gain over random order"
    )
    table = _table(title, "order", "deletion", "above random", "insertion", "above random")
    for c in sorted(curves, key=lambda c: -c.deletion_area):
        cells = []
        for area, gain in ((c.deletion_area, c.deletion_gain), (c.insertion_area, c.insertion_gain)):
            cells += [f"{area:.3f}", f"{gain[0]:+.3f} [{gain[1]:+.3f}, {gain[2]:+.3f}]" if any(gain) else ""]
        table.add_row(c.order.replace("_", " "), *cells)
    return table
