"""Writes docs/defaults-results.md from the results file; no figure in it is typed by hand."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from benchmarks.defaults.runs import MODELS
from benchmarks.defaults.tables import TABLES
from benchmarks.defaults.targets import TREES
from benchmarks.page import grid

__all__ = ["body", "page"]

COLUMNS = {
    "lr": "LR",
    "fm": "FM",
    "afm": "AFM",
    "autoint": "AutoInt",
    "autoint-plus": "AutoInt+",
    "finalmlp": "FinalMLP",
    "inttower": "IntTower",
    "sklearn-lr": "scikit-learn LR",
    **TREES,
    "constant": "a constant",
}
NETWORKS = tuple(name for name in COLUMNS if name in MODELS)

HEAD = """# Results with default settings

Written by `python -m benchmarks.defaults write`; do not edit. There are twelve development tables, each prepared as
a new user would: fields by `fieldwise init`, with corrections of the label, the user and item columns and the
columns that are not fields (`benchmarks/defaults/tables.py` has every correction), and a recipe that names only a
model. The figures are those of the rules at the commits in the last table, not of later ones: a rule that was
changed since then (`git log src/fieldwise/runs/default_settings.py src/fieldwise/data/infer`) is not in them.

A run evaluates the test rows once, at its end. The rules themselves, however, were chosen by test logloss on samples of
most of these tables ([experiments](defaults-experiments.md)), so the figures are more optimistic
than on a new table. Book-Crossing and Frappe were used least for this choice.

The baselines use the same rows and fields: the training rows' base rate as a constant; scikit-learn's
`LogisticRegression` with one column per category or bin, and C chosen from nine values by validation logloss; LightGBM
and CatBoost as [models](trees.md) with their default parameters, as many trees as the validation rows choose, and
numbers in bins as their ranks.

Counts include measured cells only; the last table has the number of seeds of each table. Tuned settings are better on
several of these tables: [results](results.md). Figures of different tables cannot be compared.
"""

TARGETS = (
    "Models are compared by test logloss, as a mean over seeds, with a paired 95 % bootstrap interval over rows. "
    "*No worse* means that the interval of the difference is not entirely above 0; *by the mean* counts the cases "
    "in which the mean is not above 0. A calibration error (15 bins of equal counts) meets its bound if it is at "
    "most the bound (*by the mean*), or if it is not larger than that of true probabilities in 19 of 20 samples. "
    "The better of FM and LR has the lower test logloss; the best network has the lowest validation logloss."
)
BOARD = "Means over seeds. Bold: a logloss that is not below the constant's. An empty cell was not measured."
CALIBRATION = "## Expected calibration error, and standard deviation of test logloss over seeds"
TIMES = "On one thread, with evaluations, means over seeds."

AGAIN = """
<!-- not run: develops -->
```sh
python -m benchmarks.defaults run --tag now --data-dir data
python -m benchmarks.defaults write --tag now
```
"""


def page(results: Mapping[str, Any]) -> str:
    """The whole page."""
    tables = {name: results["tables"][name] for name in TABLES if name in results["tables"]}
    missing = [name for name in TABLES if name not in tables]
    not_measured = [f"Not measured yet: {', '.join(missing)}.\n"] if missing else []
    return "\n".join([HEAD, *not_measured, body(tables), _provenance(tables)])


def body(tables: Mapping[str, Any]) -> str:
    """The figures of tables."""
    verdicts = [(name, v) for name, table in tables.items() for v in table["verdicts"]]
    missed = [f"- {name}: {v['target']}: {_words(v)}" for name, v in verdicts if not v["met"]]
    parts = [
        ("## Targets", TARGETS, *_targets([v for _, v in verdicts])),
        ("## AUC / logloss", BOARD, *_by_model(tables, COLUMNS, _figures)),
        (CALIBRATION, None, *_by_model(tables, [*NETWORKS, "sklearn-lr", *TREES], _calibration)),
        (
            "## Processor seconds of training",
            TIMES,
            *_by_model(tables, [*NETWORKS, *TREES], lambda f, _: f"{f['cpu_seconds']:.1f}"),
        ),
        ("## Missed targets", None, *(missed or ["None."])),
        ("## The tables", None, *_rows(tables)),
    ]
    return "\n".join(
        "\n".join([title, "", *([text, ""] if text else []), *lines, ""])
        for title, text, *lines in parts
    )


def _targets(verdicts: Sequence[Mapping[str, Any]]) -> list[str]:
    """The number of tables that meet each target."""
    rows = []
    for target in dict.fromkeys(v["target"] for v in verdicts):
        mine = [v for v in verdicts if v["target"] == target]
        met = sum(v["met"] for v in mine)
        mean = sum(v["met"] and v["mean"] for v in mine)
        rows.append((target, f"{met} of {len(mine)}", mean))
    return grid(("target", "met", "by the mean"), "lrr", rows)


def _by_model(
    tables: Mapping[str, Any], names: Iterable[str], cell: Callable[[Mapping[str, Any], float], str]
) -> list[str]:
    """A row of each table with a cell of each model that was measured; the constant's logloss is given to it."""
    names = list(names)
    rows = []
    for title, table in tables.items():
        models = table["models"]
        floor = models.get("constant", {}).get("logloss", math.inf)
        rows.append(
            [title, *(cell(models[name], floor) if name in models else "" for name in names)]
        )
    return grid(("table", *(COLUMNS[name] for name in names)), "l" * (1 + len(names)), rows)


def _figures(found: Mapping[str, Any], floor: float) -> str:
    loss = f"{found['logloss']:.4f}"
    shown = f"**{loss}**" if found["logloss"] >= floor and "chosen" not in found else loss
    return f"{found['auc']:.4f} / {shown}"


def _calibration(found: Mapping[str, Any], _: float) -> str:
    spread = None if "chosen" in found else found["logloss_deviation"]
    return f"{found['ece']:.4f}" + (f" ± {spread:.4f}" if spread is not None else "")


def _words(v: Mapping[str, Any]) -> str:
    model = COLUMNS[v["model"]]
    if v["found"] is None:
        return f"{model} {v['value']:.4f}"
    gap = v["found"]
    return f"{model} minus {COLUMNS[v['against']]} {gap['value']:+.4f} [{gap['low']:+.4f}, {gap['high']:+.4f}]"


def _rows(tables: Mapping[str, Any]) -> list[str]:
    rows = []
    for name, table in tables.items():
        counts = [f"{table['counts'][part]:,}" for part in ("train", "valid", "test")]
        facts = [table["fields"], f"{table['values']:,}", f"{table['base_rate']:.3f}"]
        chosen = table["models"].get("sklearn-lr", {}).get("chosen", {}).get("C", "")
        commits = ", ".join(table["environment"]["commit"])
        rows.append(
            [name, table["about"], *counts, *facts, chosen, _seeds(table["models"]), commits]
        )
    head = (
        "table",
        "content",
        "training",
        "validation",
        "test",
        "fields",
        "values",
        "base rate",
        "C",
        "seeds",
        "commit",
    )
    return grid(head, "llrrrrrrrrl", rows)


def _seeds(models: Mapping[str, Any]) -> str:
    """The number of seeds of the networks, from the smallest to the largest."""
    results = sorted(f["seeds"] for name, f in models.items() if name in NETWORKS)
    return " to ".join(map(str, dict.fromkeys((results[0], results[-1])))) if results else "none"


def _provenance(tables: Mapping[str, Any]) -> str:
    where = {
        name: ", ".join(
            sorted({one for table in tables.values() for one in table["environment"][name]})
        )
        for name in ("date", "machine")
    }
    made = f"{where['date']}, {where['machine']}, with other work running"
    return f"{made}. To repeat it, or to add what is missing:\n{AGAIN}"
