"""`fieldwise compare`."""

import json
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.table import Table

from fieldwise.cli.options import cache_for, existing_data_dir, set_threads
from fieldwise.cli.show import console, say
from fieldwise.evaluation.bootstrap import Spread
from fieldwise.experiments.leaderboard import METRICS, Board, Line, check_choices, leaderboards
from fieldwise.experiments.plots import check_plot, plot_boards
from fieldwise.experiments.records import Store
from fieldwise.experiments.runs import recorded_runs
from fieldwise.recipe import load_recipe
from fieldwise.training.progress import progress_for

__all__ = ["run_compare"]

WIDTH = 150
NAMES = {"auc": "AUC", "logloss": "logloss", "rmse": "RMSE"}


def run_compare(
    names: Sequence[str],
    settings: Sequence[str],
    protocol: str | None,
    seeds: int,
    base: str | None,
    metric: str | None,
    store: Path,
    plot: Path | None,
    again: bool,
    data_dir: Path | None,
    as_json: bool,
    quiet: bool,
    threads: int | None,
    cache: bool,
) -> None:
    """Run what is missing, then print, and plot where asked."""
    set_threads(threads)
    if plot is not None:
        check_plot(plot)
    recipes = [load_recipe(name, settings, protocol=protocol) for name in names]
    check_choices(names, {recipe.schema.label.task for recipe in recipes}, base, metric)
    folder = existing_data_dir(data_dir, recipes[0].data.name)
    runs = recorded_runs(
        recipes,
        range(seeds),
        store=Store(store),
        data_dir=folder,
        cache=cache_for(cache, quiet),
        again=again,
        note=(lambda _: None) if quiet else say,
        progress=lambda title: progress_for(title, quiet=quiet),
    )
    boards = leaderboards(runs, base=base, metric=metric)
    if plot is not None:
        plot_boards(boards, plot)
    if as_json:
        json.dump({"boards": [board.to_plain() for board in boards]}, sys.stdout, indent=1)
        print()
        return
    screen = console(WIDTH)
    for board in boards:
        mean = f"mean of {seeds} seed{'s' * (seeds != 1)} [95 % interval]"
        screen.print(f"{board.title}: {board.rows:,} test rows, {mean}")
        screen.print(board_table(board))
    screen.print(
        "Intervals and p: paired bootstrap over test rows and seeds. DeLong's p: of AUC, over test rows alone."
    )


def board_table(board: Board) -> Table:
    """One board as a table of text."""
    metrics = METRICS[board.task]
    base = _short(board.base).rpartition("/")[2]
    table = Table("recipe", *(NAMES[m] for m in metrics), f"{NAMES[board.metric]} less {base}'s", "p", box=None)
    if board.metric == "auc":
        table.add_column("DeLong p")
    for heading in ("parameters", "epochs", "s/epoch"):
        table.add_column(heading)
    for column in table.columns[1:]:
        column.justify = "right"
    for line in board.lines:
        shown = [_interval(line.metrics[m]) for m in metrics]
        table.add_row(_short(line.recipe), *shown, *_against(line, board), *_cost(line))
    return table


def _short(name: str) -> str:
    return Path(name).stem if name.endswith(".toml") else name


def _against(line: Line, board: Board) -> list[str]:
    width = 3 if board.metric == "auc" else 2
    if line.against is None:
        return ["base line", *[""] * (width - 1)]
    found = line.against[board.metric]
    cells = [_interval(found.spread, sign="+"), f"{found.p:.2g}"]
    return cells if found.delong_p is None else [*cells, f"{found.delong_p:.2g}"]


def _cost(line: Line) -> list[str]:
    epoch = "-" if line.seconds_per_epoch is None else f"{line.seconds_per_epoch:.1f}"
    return [f"{line.parameters:,}", f"{line.epochs:.1f}", epoch]


def _interval(found: Spread, sign: str = "") -> str:
    return f"{found.value:{sign}.4f} [{found.low:{sign}.4f}, {found.high:{sign}.4f}]"
