"""Writes docs/defaults-results.md from the results file; no figure in it is typed by hand."""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from benchmarks.defaults.tables import COUNTED

__all__ = ["body", "page"]

COLUMNS = {
    "lr": "LR",
    "fm": "FM",
    "afm": "AFM",
    "autoint": "AutoInt",
    "autoint-plus": "AutoInt+",
    "inttower": "IntTower",
    "sklearn-lr": "scikit-learn LR",
    "lightgbm": "LightGBM",
    "constant": "a constant",
}
OURS = tuple(COLUMNS)[:6]

HEAD = """# Results with default settings

Written by `python -m benchmarks.defaults write`; do not edit. The page has twelve development tables, each prepared as
a new user would: fields by `fieldwise data infer`, with corrections of the label, the user and item columns and the
columns that are not fields (`benchmarks/defaults/tables.py` has every correction), and a recipe that names only a
model. *Before* is the same with `defaults = "fixed"`: the same fields, and the defaults of the settings classes, which
do not depend on the data.

A run evaluates the test rows once, at its end. The rules themselves, however, were chosen by test logloss on samples of
most of these tables ([experiments](defaults.md#experiments-behind-the-rules)), so the figures of *now* are more
optimistic than on a new table. Book-Crossing and Frappe were used least for this choice.

The baselines use the same rows and fields: the training rows' base rate as a constant; scikit-learn's
`LogisticRegression` with one column per category or bin, and C chosen from nine values by validation logloss; LightGBM
with its default parameters, 100 trees, native categorical features and no early stopping.

Counts include measured cells only; the last table has the number of seeds of each table. Tuned settings are better on
several of these tables: [results](results.md). Figures of different tables cannot be compared.
"""

AGAIN = """
<!-- not run: develops -->
```sh
python -m benchmarks.defaults run --tag before --defaults fixed --data-dir data
python -m benchmarks.defaults run --tag now --data-dir data
python -m benchmarks.defaults write --tag now --against before
```
"""


def page(results: Mapping[str, Any]) -> str:
    """The whole page."""
    tables = {name: results["tables"][name] for name in COUNTED if name in results["tables"]}
    return "\n".join([HEAD, body(tables), _provenance(tables)])


def body(tables: Mapping[str, Any]) -> str:
    """The figures of tables."""
    parts = (_targets, _board, _calibration, _times, _missed, _rows)
    return "\n".join("\n".join(part(tables)) for part in parts)


def _targets(tables: Mapping[str, Any]) -> Iterator[str]:
    """The number of tables that meet each target, now and before."""
    yield "## Targets"
    yield ""
    yield (
        "Models are compared by test logloss, as a mean over seeds, with a paired 95 % bootstrap interval over rows. "
        "*No worse* means that the interval of the difference is not entirely above 0; *by the mean* counts the cases "
        "in which the mean is not above 0. A calibration error (15 bins of equal counts) meets its bound if it is at "
        "most the bound (*by the mean*), or if it is not larger than that of true probabilities in 19 of 20 samples. "
        "The better of FM and LR has the lower test logloss; the best of our models has the lowest validation logloss."
    )
    yield ""
    yield "| target | now | by the mean | before | by the mean |"
    yield "|---|---:|---:|---:|---:|"
    now = [v for table in tables.values() for v in table["verdicts"]]
    before = [v for table in tables.values() for v in table["verdicts_before"]]
    for target in dict.fromkeys(v["target"] for v in now):
        yield f"| {target} | {_count(now, target)} | {_count(before, target)} |"
    yield ""


def _count(verdicts: Sequence[Mapping[str, Any]], target: str) -> str:
    mine = [v for v in verdicts if v["target"] == target]
    if not mine:
        return " | "
    return f"{sum(v['met'] for v in mine)} of {len(mine)} | {sum(v['met'] and v['mean'] for v in mine)}"


def _board(tables: Mapping[str, Any]) -> Iterator[str]:
    yield "## AUC / logloss"
    yield ""
    yield "Means over seeds. Bold: a logloss that is not below the constant's. An empty cell was not measured."
    yield ""
    yield "| table |  | " + " | ".join(COLUMNS.values()) + " |"
    yield "|---|---|" + "---|" * len(COLUMNS)
    for name, table in tables.items():
        floor = table["now"].get("constant", {}).get("logloss", math.inf)
        for when in ("now", "before"):
            cells = [_cell(table[when].get(column), floor) for column in COLUMNS]
            yield f"| {name if when == 'now' else ''} | {when} | " + " | ".join(cells) + " |"
    yield ""


def _cell(found: Mapping[str, Any] | None, floor: float) -> str:
    if found is None:
        return ""
    loss = f"{found['logloss']:.4f}"
    shown = f"**{loss}**" if found["logloss"] >= floor and "chosen" not in found else loss
    return f"{found['auc']:.4f} / {shown}"


def _calibration(tables: Mapping[str, Any]) -> Iterator[str]:
    yield "## Expected calibration error, and standard deviation of test logloss over seeds"
    yield ""
    yield "Earlier values in brackets."
    yield ""
    names = [*OURS, "sklearn-lr", "lightgbm"]
    yield "| table | " + " | ".join(COLUMNS[name] for name in names) + " |"
    yield "|---|" + "---|" * len(names)
    for name, table in tables.items():
        cells = []
        for column in names:
            now, before = table["now"].get(column), table["before"].get(column)
            cell = "" if now is None else f"{now['ece']:.4f}"
            spread = None if now is None or "chosen" in now else now["logloss_deviation"]
            cell += f" ± {spread:.4f}" if spread is not None else ""
            cells.append(cell + (f" ({before['ece']:.4f})" if before and now else ""))
        yield f"| {name} | " + " | ".join(cells) + " |"
    yield ""


def _times(tables: Mapping[str, Any]) -> Iterator[str]:
    yield "## Processor seconds of training"
    yield ""
    yield (
        "On one thread, with evaluations. In brackets, as multiples of *before*: the time to the best validation AUC "
        "of *before*, and the total time. Medians over seeds; *never*: that AUC was not reached."
    )
    yield ""
    yield "| table | " + " | ".join(COLUMNS[name] for name in OURS) + " |"
    yield "|---|" + "---|" * len(OURS)
    for name, table in tables.items():
        yield f"| {name} | " + " | ".join(_time(table["now"].get(column)) for column in OURS) + " |"
    yield ""


def _time(found: Mapping[str, Any] | None) -> str:
    if found is None:
        return ""
    shown = f"{found['cpu_seconds']:.1f}"
    gap = found.get("less_before")
    if gap is None:
        return shown
    to_auc = "never" if gap["time_to_auc"] is None else f"{gap['time_to_auc']:.2f}"
    return f"{shown} ({to_auc}, {gap['time_in_all']:.2f})"


def _missed(tables: Mapping[str, Any]) -> Iterator[str]:
    yield "## Missed targets"
    yield ""
    missed = [(name, v) for name, table in tables.items() for v in table["verdicts"] if not v["met"]]
    lines = [f"- {name}: {v['target']}: {_words(v)}" for name, v in missed]
    yield from lines or ["None."]
    yield ""


def _words(v: Mapping[str, Any]) -> str:
    model = COLUMNS[v["model"]]
    if v["found"] is None:
        return f"{model} {'never' if v['value'] is None else format(v['value'], '.4f')}"
    gap = v["found"]
    return f"{model} minus {COLUMNS[v['against']]} {gap['value']:+.4f} [{gap['low']:+.4f}, {gap['high']:+.4f}]"


def _rows(tables: Mapping[str, Any]) -> Iterator[str]:
    yield "## The tables"
    yield ""
    yield "| table | content | training | validation | test | fields | values | base rate | C | seeds now | before |"
    yield "|---|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|"
    for name, table in tables.items():
        counts = table["counts"]
        chosen = table["now"].get("sklearn-lr", {}).get("chosen", {}).get("C", "")
        yield (
            f"| {name} | {table['about']} | {counts['train']:,} | {counts['valid']:,} | {counts['test']:,} | "
            f"{table['fields']} | {table['values']:,} | {table['base_rate']:.3f} | {chosen} | {_seeds(table['now'])} | "
            f"{_seeds(table['before'])} |"
        )
    yield ""


def _seeds(models: Mapping[str, Any]) -> str:
    """The number of seeds of our models, from the smallest to the largest."""
    found = sorted(f["seeds"] for name, f in models.items() if name in OURS)
    return " to ".join(map(str, dict.fromkeys((found[0], found[-1])))) if found else "none"


def _provenance(tables: Mapping[str, Any]) -> str:
    where = {
        name: ", ".join(sorted({one for table in tables.values() for one in table["environment"][name]}))
        for name in ("date", "machine", "commit")
    }
    made = f"{where['date']}, commit {where['commit']}, {where['machine']}, with other work running"
    return f"{made}. To repeat it, or to add what is missing:\n{AGAIN}"
