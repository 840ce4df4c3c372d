"""`fieldwise compare`."""

import json
import sys
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path

from rich.console import Console
from rich.table import Table

from fieldwise.cli.next import data_options, suggest
from fieldwise.cli.options import cache_for, existing_data_dir, set_threads
from fieldwise.cli.ranking import show_rankings
from fieldwise.cli.show import say
from fieldwise.data.prepare.repeats import repeat_sentences
from fieldwise.evaluation.bootstrap import Estimate
from fieldwise.evaluation.registry import compared, shown_name
from fieldwise.evaluation.remarks import remarks_on_means
from fieldwise.runs.fits import recorded_runs
from fieldwise.runs.leaderboard import Board, Line, check_choices, leaderboards
from fieldwise.runs.plots import check_plot, plot_boards
from fieldwise.runs.ranking import RankingSettings
from fieldwise.runs.ranking_board import RankingBoard, ranking_boards
from fieldwise.runs.recipe import load_recipe, recipe_names
from fieldwise.runs.records import Record, Store
from fieldwise.training.progress import progress_for

__all__ = ["run_compare"]

WIDTH = 1000  # a terminal breaks the lines, which is better than figures cut short


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
    ranking: tuple[RankingSettings | None, int],
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
    base = base if base is None or base in recipe_names() else str(Path(base))  # as recipes of a file are named
    check_choices([r.name for r in recipes], {r.schema.label.task for r in recipes}, base, metric)
    for recipe in recipes:
        folder = existing_data_dir(data_dir, recipe.data.name)
    try:
        runs = recorded_runs(
            recipes,
            range(seeds),
            store=Store(store),
            data_dir=folder,
            cache=cache_for(cache, quiet),
            again=again,
            ranking=ranking[0],
            note=(lambda _: None) if quiet else say,
            progress=lambda title: progress_for(title, quiet=quiet),
        )
    except KeyboardInterrupt:
        say(f"the runs that ended are kept in {store}: the same command goes on from there")
        raise
    boards = leaderboards(runs, base=base, metric=metric)
    ranked = [_ranked(board, runs, ranking) for board in boards]
    if as_json:
        shown = [{**board.to_plain(), **_plain(of_board)} for board, of_board in zip(boards, ranked, strict=True)]
        plain = {"settings": list(settings), "boards": shown}
        json.dump(plain, sys.stdout, indent=1)
        print()
    else:
        _show(boards, ranked, seeds, settings)
        for name, records in runs.items():
            for sentence in remarks_on_means([record.about["test"] for record in records], f"{name}'s test rows"):
                print(sentence)
    counts = [record.about.get("counts", {}) for records in runs.values() for record in records]
    for sentence in dict.fromkeys(sentence for one in counts for sentence in repeat_sentences(one)):
        say(f"WARNING: {sentence}")
    if plot is not None:
        plot_boards(boards, plot)  # last: what was measured is not lost with a picture
    if not (as_json or quiet):
        given = [part for setting in settings for part in ("--set", setting)]
        given += [*([] if protocol is None else ["--protocol", protocol]), *data_options(data_dir)]
        best = boards[0].lines[0].recipe
        if find_spec("optuna") is not None:
            suggest("better settings of the best, by its validation rows", "tune", best, *given)
        else:
            suggest("a bundle of the best", "train", best, *given)


def _ranked(
    board: Board, runs: Mapping[str, Sequence[Record]], ranking: tuple[RankingSettings | None, int]
) -> list[RankingBoard]:
    """The rankings of a board's recipes, in their given order."""
    if ranking[0] is None:
        return []
    own = {line.recipe for line in board.lines}
    found = {name: [one for record in of if (one := record.ranked)] for name, of in runs.items() if name in own}
    return ranking_boards(found, k=ranking[1], base=board.base)


def _plain(ranked: Sequence[RankingBoard]) -> dict[str, object]:
    return {"rankings": [one.to_plain() for one in ranked]} if ranked else {}


def _show(
    boards: Sequence[Board], ranked: Sequence[Sequence[RankingBoard]], seeds: int, settings: Sequence[str]
) -> None:
    screen = Console(width=WIDTH, markup=False, highlight=False, soft_wrap=True)
    for board, of_board in zip(boards, ranked, strict=True):
        mean = f"mean of {seeds} seed{'s' * (seeds != 1)} [95 % interval]"
        screen.print(f"{board.title}: {board.rows:,} test rows, {mean}")
        screen.print(board_table(board))
        show_rankings(of_board, f"{mean} for other users{' and seeds' * (seeds > 1)}", _shown_names(board))
    if settings:
        screen.print(f"All recipes with {', '.join(settings)}.")
    over = "other test rows and seeds" if seeds > 1 else "other test rows; of one seed nothing is known of others"
    screen.print(f"Intervals and p: paired, for {over}. DeLong's p: of AUC, for other test rows alone.")
    if len(boards) > 1:
        screen.print("Recipes of other benchmarks, protocols or test rows stand in tables of their own.")


def board_table(board: Board) -> Table:
    """One board as a table of text."""
    metrics = compared(board.task)
    names = _shown_names(board)
    base = names[board.base].rpartition("/")[2]
    table = Table(
        "recipe", *(shown_name(m) for m in metrics), f"{shown_name(board.metric)} less {base}'s", "p", box=None
    )
    if board.metric == "auc":
        table.add_column("DeLong p")
    for heading in ("parameters", "epochs", "s/epoch"):
        table.add_column(heading)
    for column in table.columns[1:]:
        column.justify = "right"
    for line in board.lines:
        shown = [_interval(line.metrics[m]) for m in metrics]
        table.add_row(names[line.recipe], *shown, *_against(line, board), *_cost(line))
    return table


def _shown_names(board: Board) -> dict[str, str]:
    """A file's name without folder and suffix, where that tells it from the others."""
    names = [line.recipe for line in board.lines]
    stems = {name: Path(name).stem if name.endswith(".toml") else name for name in names}
    return {name: stem if list(stems.values()).count(stem) == 1 else name for name, stem in stems.items()}


def _against(line: Line, board: Board) -> list[str]:
    width = 3 if board.metric == "auc" else 2
    if line.against is None:
        return ["baseline", *[""] * (width - 1)]
    found = line.against[board.metric]
    cells = [_interval(found.estimate, sign="+"), _p(found.estimate.p)]
    if board.metric == "auc":
        cells.append("-" if found.delong_p is None else _p(found.delong_p))
    return cells


def _p(value: float) -> str:
    """A probability, as far as a bootstrap can tell it."""
    return f"{value:.2g}" if value >= 1e-4 else "<.0001"


def _cost(line: Line) -> list[str]:
    epoch = "-" if line.seconds_per_epoch is None else f"{line.seconds_per_epoch:.1f}"
    return [f"{line.parameters:,}", f"{line.epochs:.1f}", epoch]


def _interval(found: Estimate, sign: str = "") -> str:
    return f"{found.value:{sign}.4f} [{found.low:{sign}.4f}, {found.high:{sign}.4f}]"
