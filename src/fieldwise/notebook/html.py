"""Objects as small, self-contained HTML tables, with all values escaped."""

from collections.abc import Iterable, Sequence
from html import escape
from typing import Any

from fieldwise.bundle.bundle import Bundle
from fieldwise.evaluation.registry import shown_name
from fieldwise.explain.explanation import Explanation
from fieldwise.models import parameter_count
from fieldwise.models.build import model_name, model_to_dict
from fieldwise.runs.leaderboard import Board
from fieldwise.schema import Schema
from fieldwise.training.result import FitResult

__all__ = ["bundle_html", "explanation_html", "leaderboard_html", "schema_html", "table_html", "training_html"]

SHOWN_ROWS = 20
LONGEST = 80  # characters of a cell


def table_html(title: str, columns: Sequence[str], rows: Iterable[Sequence[object]], note: str = "") -> str:
    """A table with a title above and a note below; numbers are right-aligned.

    >>> table_html("a < b", ["n"], [[1]])[:22]
    '<p><b>a &lt; b</b></p>'
    """
    head = "".join(f"<th>{escape(name)}</th>" for name in columns)
    body = "".join(f"<tr>{''.join(map(_cell, row))}</tr>" for row in rows)
    below = f"<p>{escape(note)}</p>" if note else ""
    return f"<p><b>{escape(title)}</b></p><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{below}"


def _cell(value: object) -> str:
    if isinstance(value, bool) or value is None:
        text, side = {True: "yes", False: "", None: ""}[value], "left"
    elif isinstance(value, int | float):
        text, side = (f"{value:,}" if isinstance(value, int) else f"{value:.4g}"), "right"
    else:
        text, side = str(value), "left"
    cut = text if len(text) <= LONGEST else text[: LONGEST - 1] + "…"
    return f'<td style="text-align:{side}">{escape(cut)}</td>'


def schema_html(schema: Schema) -> str:
    """A schema: fields with their settings, labels, and the columns of time, group and keys."""
    plain = {"name", "kind", "role", "column"}
    rows = []
    for f in schema.fields:
        defaults = type(f)(f.name)
        changed = {k: v for k, v in vars(f).items() if k not in plain and v != getattr(defaults, k)}
        rows.append([f.name, f.kind, f.role, f.column, ", ".join(f"{k} {v}" for k, v in changed.items())])
    labels = []
    for label in schema.labels:
        rule = f" above {label.positive_above:g}" if label.positive_above is not None else ""
        rule = f" where {', '.join(map(str, label.positive_values))}" if label.positive_values is not None else rule
        labels.append(f"{label.name} ({label.task}: {label.column}{rule})")
    named = {name: getattr(schema, name) for name in ("user", "item", "time", "group")}
    named["keys"] = ", ".join(schema.keys)
    note = "; ".join([f"label {', '.join(labels)}", *(f"{what} {name}" for what, name in named.items() if name)])
    return table_html(f"Schema of {len(rows)} fields", ["field", "kind", "role", "column", "settings"], rows, note)


def training_html(result: FitResult) -> str:
    """The evaluations of a run, with the best one marked."""
    names = list(dict.fromkeys(m for m in (result.monitor, "auc", "logloss", "rmse") if m in result.best.metrics))
    shown = result.history[-SHOWN_ROWS:]
    rows = [
        [e.epoch, e.train_loss, *(e.metrics[m] for m in names), e.learning_rate, e.epoch == result.best.epoch]
        for e in shown
    ]
    before = len(result.history) - len(shown)
    notes = [f"stopped by {result.stopped} after {result.epochs} epochs, {result.seconds:.1f} s"]
    if result.interactions is not None:
        value = result.best.metrics[result.monitor]
        notes.append(f"kept as a mean with LR, in which it has {result.interactions:.0%}: {result.monitor} {value:.4g}")
    notes += [f"{before} earlier evaluations are not shown"] if before else []
    columns = ["epoch", "train loss", *(f"valid {m}" for m in names), "learning rate", "kept"]
    return table_html(f"Training, by valid {result.monitor}", columns, rows, "; ".join(notes))


def explanation_html(explanation: Explanation) -> str:
    """One row's contributions by field, or mean absolute contributions of several rows."""
    rows = len(explanation.contributions)
    if rows == 1:
        found = explanation.row(0)
        fields = [[f["field"], f["value"], f["contribution"]] for f in found["fields"]]
        title = f"{found['label']}: prediction {found['prediction']:.4g}, score {found['score']:.4g}"
        note = f"base {found['base']:.4g}, gap {found['gap']:.4g}; by {explanation.method}"
        return table_html(title, ["field", "value", "contribution"], fields[:SHOWN_ROWS], note)
    sizes, means = abs(explanation.contributions).mean(0), explanation.contributions.mean(0)
    order = sorted(range(len(sizes)), key=lambda f: -sizes[f])
    table = [[explanation.subject.fields[f], float(sizes[f]), float(means[f])] for f in order[:SHOWN_ROWS]]
    title = f"{explanation.subject.label}: contributions of {rows:,} rows"
    return table_html(title, ["field", "mean absolute", "mean"], table, f"by {explanation.method}")


def bundle_html(bundle: Bundle) -> str:
    """A bundle: model, settings, label and metrics."""
    settings: dict[str, Any] = {k: v for k, v in model_to_dict(bundle.settings).items() if k != "name"}
    rows: list[list[object]] = [
        ["model", model_name(bundle.settings)],
        ["settings", ", ".join(f"{k} {v}" for k, v in settings.items())],
        ["parameters", parameter_count(bundle.network)],
        ["fields", ", ".join(f.name for f in bundle.schema.fields)],
        ["labels", ", ".join(label.name for label in bundle.schema.labels)],
        ["calibration", ", ".join(f"{k}: {type(v).__name__}" for k, v in bundle.calibration.items()) or "none"],
    ]
    run = bundle.about.get("run", {})  # of a recipe; an estimator keeps its `result` instead
    best = bundle.about.get("result", {}).get("best", {}).get("metrics", {})
    of_parts = {"validation": run.get("valid", best), "test": run.get("test", {})}
    for part, metrics in of_parts.items():
        shown = [m for m in ("auc", "logloss", "gauc", "rmse", "mae") if m in metrics]
        if shown:
            rows.append([f"{part} rows", ", ".join(f"{m} {metrics[m]:.4f}" for m in shown)])
    return table_html("Bundle", ["", ""], [*rows, ["digest", bundle.digest[:12]]])


def leaderboard_html(board: Board) -> str:
    """Each recipe's metrics with 95 % intervals and its gain over the baseline."""
    metrics = list(board.lines[0].metrics)
    rows = []
    for line in board.lines:
        cells: list[object] = [line.recipe]
        for m in metrics:
            found = line.metrics[m]
            cells.append(f"{found.value:.4f} [{found.low:.4f}, {found.high:.4f}]")
        gain = line.against[board.metric].estimate if line.against else None
        cells.append("baseline" if gain is None else f"{gain.value:+.4f} [{gain.low:+.4f}, {gain.high:+.4f}]")
        rows.append([*cells, line.parameters, line.seconds])
    words = [shown_name(m) for m in metrics]
    columns = ["recipe", *words, f"gain in {shown_name(board.metric)}", "parameters", "seconds"]
    note = f"means over seeds with 95 % intervals of {board.replicates:,} bootstrap replicates"
    return table_html(f"{board.title}, {board.rows:,} test rows", columns, rows, note)
