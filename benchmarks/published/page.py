"""Writes docs/results.md from the results file; only published figures in it are typed by hand."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from benchmarks.page import grid
from benchmarks.published.tables import Row, Table
from fieldwise.evaluation.metrics import METRICS, shown_name
from fieldwise.runs.leaderboard import p_text

__all__ = ["page"]

HEAD = """# Results

Written by `python -m benchmarks.published write`; do not edit. `python -m benchmarks.published run TABLE` trains the
missing runs of a table. The name in a row's brackets is its recipe, and

<!-- not run: pattern -->
```sh
fieldwise compare RECIPE --seeds 3
```

repeats only that row (with the table's `--set protocol=NAME`, if it has one).

Our figures are means over seeds on the test rows, with 95 % intervals of a bootstrap over rows and seeds
([how](experiments.md)). Recipes were chosen on validation rows; the earliest ones in a manual search, with different
effort for different models, that printed test metrics next to the validation metrics. Published figures are copied as
printed: most are from one run and have no interval. Figures can only be compared within a table. For LightGBM the
number of parameters is the number of leaves, and the number of epochs is the number of trees;
`benchmarks/published/trees.py` describes how its settings are chosen. A `+` after a commit means that some changes were
committed later; one that the history does not have was rebased before it landed, and the next one after its date has
its code. The results of models with default settings are on [another page](defaults-results.md).
"""


def page(tables: Mapping[str, Table], results: Mapping[str, Any]) -> str:
    """The text of the page; tables without runs are omitted."""
    parts = [
        HEAD,
        *(
            _section(t, results["tables"][name])
            for name, t in tables.items()
            if name in results["tables"]
        ),
    ]
    return "\n".join(parts)


def _section(table: Table, found: Mapping[str, Any]) -> str:
    board = found["board"]
    lines = {line["recipe"]: line for line in board["lines"]}
    rows = [row for row in table.rows if row.name in lines]
    some_published = any(row.published for row in rows)
    head = ["model"]
    for metric in table.metrics:
        head += [
            *([f"published {shown_name(metric)}"] if some_published else []),
            f"our {shown_name(metric)}",
        ]
    head += [
        f"minus {board['base'].rpartition('/')[2]}'s",
        "p",
        "parameters",
        "epochs",
        "seconds per run",
    ]
    # older results have commits only for the whole table
    by_row = all("commits" in line for line in lines.values())
    head += ["commit"] if by_row else []
    out = [f"## {table.title}", "", " ".join(table.about.split()), ""]
    cells = [_row(row, lines[row.name], table, some_published, by_row) for row in rows]
    out += grid(head, "l" + "r" * (len(head) - 1), cells)
    out += ["", _provenance(table, found), ""]
    if found.get("draws"):
        out += [*_draws(table, found["draws"]), ""]
    return "\n".join(out)


def _row(
    row: Row, line: Mapping[str, Any], table: Table, some_published: bool, by_row: bool
) -> list[str]:
    cells = [f"{row.model}{_recipe(row)}"]
    for metric in table.metrics:
        ours = line["metrics"][metric]
        published = row.published.get(metric)
        shown = f"{ours['value']:.4f} [{ours['low']:.4f}, {ours['high']:.4f}]"
        if published is not None:
            better = (
                ours["value"] >= published if METRICS[metric].higher else ours["value"] <= published
            )
            shown = f"**{shown}**" if better else shown
        cells += [
            *([f"{published:.4f}" if published is not None else ""] if some_published else []),
            shown,
        ]
    against = (line.get("against") or {}).get(table.metrics[0])
    if against is None:
        cells += ["", ""]
    else:
        gain = against["estimate"]
        cells += [
            f"{gain['value']:+.4f} [{gain['low']:+.4f}, {gain['high']:+.4f}]",
            p_text(gain["p"]),
        ]
    cells += [f"{line['parameters']:,}", f"{line['epochs']:.1f}", f"{line['seconds']:.0f}"]
    return cells + ([", ".join(line["commits"])] if by_row else [])


def _draws(table: Table, found: Mapping[str, Mapping[str, Sequence[Sequence[float]]]]) -> list[str]:
    """The effect of sampling negatives again: the standard deviation of the means, and the one expected from seeds."""
    draws = ", ".join(
        f"`{draw}`" for draw in range(len(next(iter(next(iter(found.values())).values()))))
    )
    text = (
        f"With negatives sampled again, by `--set data_seed=` {draws}: the means over seeds, their standard deviation "
        "between samples, and the standard deviation of such means that the variance between seeds explains."
    )
    rows = []
    for recipe, metrics in found.items():
        for metric in table.metrics:
            values = np.array(metrics[metric])  # [draws, seeds]
            means = ", ".join(f"{value:.4f}" for value in values.mean(axis=1))
            seeds = (
                np.sqrt(values.var(axis=1, ddof=1).mean() / values.shape[1])
                if values.shape[1] > 1
                else np.nan
            )
            between = values.mean(axis=1).std(ddof=1)
            rows.append(
                (f"`{recipe}`", shown_name(metric), means, f"{between:.5f}", f"{seeds:.5f}")
            )
    head = ("recipe", "metric", "means by sample", "standard deviation", "explained by seeds")
    return [text, "", *grid(head, "lllrr", rows)]


def _recipe(row: Row) -> str:
    return f" (`{row.name}`)" if row.learner is None else ""


def _provenance(table: Table, found: Mapping[str, Any]) -> str:
    board = found["board"]
    seeds = len(board["lines"][0]["seeds"])
    where = found["environment"]
    bold = (
        "Bold: our mean is at least as good as the published figure, regardless of the interval. "
        if any(row.published for row in table.rows)
        else ""
    )
    protocol = f", protocol `{table.protocol}`" if table.protocol else ""
    return (
        f"{bold}{board['rows']:,} test rows{protocol}, {seeds} seeds; {', '.join(where['date'])}, commit "
        f"{', '.join(where['commit'])}, {', '.join(where['machine'])}. To repeat the table: "
        f"`python -m benchmarks.published run {table.name} --data-dir data`."
    )
