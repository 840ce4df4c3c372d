"""The tables of `fieldwise explain`."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from fieldwise.cli import show

if TYPE_CHECKING:
    from fieldwise.explain.faithfulness import Curves
    from fieldwise.explain.subject import Subject
    from fieldwise.schema.label import Task

SHOWN_LINES = 10
"""Pairs, effects and attention weights that are printed; --json has all."""
METHOD_WORDS = {
    "terms": "exact terms",
    "integrated_gradients": "integrated gradients",
    "occlusion": "the score's drop without a field",
}


def print_row(plain: Mapping[str, Any], subject: "Subject") -> None:
    """Print the explanation of one row, whose figures `plain` holds."""
    out = show.console()
    task = subject.settings.task
    prediction = ""
    if task == "binary":
        prediction = f"probability {plain['prediction']:.4f}, "
        if subject.calibration:
            prediction = f"calibrated {prediction}"
    of_fields = sum(field["contribution"] for field in plain["fields"])
    out.print(f"{plain['label']}: {plain['sentence']}\n", soft_wrap=True)
    out.print(
        f"{prediction}score {plain['score']:+.4f} = base {plain['base']:+.4f} + fields {of_fields:+.4f}"
        f" + gap {plain['gap']:+.4f} ({METHOD_WORDS[plain['method']]})"
    )
    _print_fields(plain["fields"])
    _print_effects(plain["effects"], task)
    if plain.get("pairs"):
        _print_pairs(plain["pairs"])
    if "attention" in plain:
        print_attention(plain["attention"], subject.fields)
    if "levels" in plain:
        _print_levels(plain["levels"])
        _print_gates({"user": plain["user_gates"], "item": plain["item_gates"]})


def print_set(plain: dict[str, Any], curves: "Sequence[Curves]", task: "Task") -> None:
    """Print the mean explanation of a set of rows, and its faithfulness curves if there are any."""
    from fieldwise.explain.summary import summary_tables

    out = show.console()
    out.print(
        f"{plain['label']}: {show.counted(plain['rows'], 'row')}, mean score {plain['mean_score']:+.4f}, "
        f"contributions by {METHOD_WORDS[plain['method']]}, largest gap {plain['largest_gap']:.4f}"
    )
    for name, table in summary_tables(plain, SHOWN_LINES).items():
        title = f"\n{table.title[0].lower()}{table.title[1:]}"
        show.print_table(table.columns, table.rows, title=title)
        if name == "fields":
            _print_effects(plain["effects"], task)
    if "planted_pairs" in plain:
        planted = plain["planted_pairs"]
        out.print(
            f"\nplanted pairs among the first {planted['of']}: {planted['found']} of {planted['of']}"
        )
    if "attention" in plain:
        print_attention(plain["attention"]["mean"], plain["attention"]["fields"])
    if curves:
        _print_curves(curves)


def _print_fields(fields: Sequence[Mapping[str, Any]]) -> None:
    """Print the contributions of fields, strongest first."""
    parts = [part for part in ("first_order", "attended") if part in fields[0]]
    rows = []
    for field in fields:
        numbers = [f"{field[part]:+.4f}" for part in ("contribution", *parts)]
        rows.append([field["field"], field["value"], *numbers])
    heads = ["field", "value", "contribution", *(part.replace("_", " ") for part in parts)]
    show.print_table(heads, rows, title="\nfields, strongest first")


def _print_effects(effects: Sequence[Mapping[str, Any]], task: "Task") -> None:
    """Print the mean prediction by value of the fields with the widest ranges."""
    from fieldwise.explain.sentence import prediction_text

    rows = []
    for effect in effects[:SHOWN_LINES]:
        predictions = []
        for value, prediction in zip(effect["values"], effect["predictions"], strict=True):
            predictions.append(f"{value}: {prediction_text(prediction, task)}")
        rows.append([effect["field"], ", ".join(predictions)])
    if rows:
        title = "\ndirections, the mean prediction of the sample rows with each value"
        show.print_table(["field", "value: prediction"], rows, title=title)


def _print_pairs(pairs: Sequence[Mapping[str, Any]]) -> None:
    """Print the contributions of the first pairs of fields."""
    parts = [part for part in ("attention", "interaction") if part in pairs[0]]
    rows = []
    for pair in pairs[:SHOWN_LINES]:
        row = [" × ".join(pair["fields"]), " × ".join(pair["values"])]
        row.append(f"{pair['contribution']:+.4f}")
        row += [f"{pair[part]:.4f}" for part in parts]
        rows.append(row)
    title = f"\npairs, the first {len(rows)} of {len(pairs)}"
    show.print_table(["pair", "values", "contribution", *parts], rows, title=title)


def print_attention(weights: object, fields: Sequence[str]) -> None:
    """Print the strongest weights [L, H, F, F] between two fields."""
    import numpy as np

    from fieldwise.explain.attention import uniform_text

    weights_LHFF = np.asarray(weights)
    uniform = uniform_text(weights_LHFF, 1 / len(fields))
    if uniform:
        show.console().print(f"\n{uniform}")
        return

    is_same_field = np.eye(len(fields), dtype=bool)
    between_LHFF = np.where(is_same_field, -1.0, weights_LHFF)
    shown = min(SHOWN_LINES, int((between_LHFF >= 0).sum()))
    rows = []
    for position in np.argsort(-between_LHFF, axis=None)[:shown]:
        layer, head, query, key = np.unravel_index(position, between_LHFF.shape)
        weight = between_LHFF[layer, head, query, key]
        rows.append([str(layer + 1), str(head + 1), fields[query], fields[key], f"{weight:.4f}"])
    title = f"\nattention, the {SHOWN_LINES} strongest between two fields"
    show.print_table(["layer", "head", "query field", "key field", "weight"], rows, title=title)


def _print_levels(levels: Sequence[Mapping[str, Any]]) -> None:
    """Print the score of each level of an IntTower, with the heads that match best."""
    rows = []
    for level in levels:
        heads = sorted(level["heads"], key=lambda head: -abs(head["product"]))
        matches = [
            f"{head['user_head']}-{head['item_head']} {head['product']:+.4f}"
            for head in heads[:SHOWN_LINES]
        ]
        rows.append([str(level["level"]), f"{level['contribution']:+.4f}", ", ".join(matches)])
    title = "\nlevels: each user head with the item head that it matches best"
    show.print_table(["level", "score", "matches"], rows, title=title)


def _print_gates(gates_by_side: Mapping[str, Sequence[Mapping[str, Any]]]) -> None:
    """Print the gates of an IntTower's fields, widest open first on each side."""
    rows = []
    for side, gates in gates_by_side.items():
        for gate in sorted(gates, key=lambda gate: -gate["gate"]):
            numbers = [f"{gate['gate']:.4f}", f"{gate['effect']:+.4f}"]
            rows.append([side, gate["field"], gate["value"], *numbers])
    title = "\ngates: each field's weight in its tower, and its effect on the score"
    show.print_table(["side", "field", "value", "gate", "effect"], rows, title=title)


def _print_curves(curves: "Sequence[Curves]") -> None:
    """Print the areas of faithfulness curves, most faithful order first."""
    rows = []
    for order_curves in sorted(curves, key=lambda curves: -curves.deletion_area):
        row = [order_curves.order.replace("_", " ")]
        row += [f"{order_curves.deletion_area:.3f}", _gain_text(order_curves.deletion_gain)]
        row += [f"{order_curves.insertion_area:.3f}", _gain_text(order_curves.insertion_gain)]
        rows.append(row)
    heads = ["order", "deletion", "above random", "insertion", "above random"]
    title = (
        "faithfulness: areas of deletion and insertion curves (higher is better), and their gain "
        "over random order"
    )
    show.print_table(heads, rows, title=f"\n{title}")


def _gain_text(gain: Sequence[float]) -> str:
    """A gain with its interval; empty for the random order itself."""
    if not any(gain):
        return ""
    value, low, high = gain
    return f"{value:+.3f} [{low:+.3f}, {high:+.3f}]"
