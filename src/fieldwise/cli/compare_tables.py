"""Leaderboards of `fieldwise compare` as text tables."""

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from fieldwise.cli.ranking import WIDTH, show_rankings
from fieldwise.evaluation.bootstrap import Estimate
from fieldwise.evaluation.registry import compared, shown_name
from fieldwise.runs.leaderboard import Board, Line
from fieldwise.runs.ranking_board import RankingBoard

__all__ = ["board_table", "show_boards"]


def show_boards(
    boards: Sequence[Board], ranked: Sequence[Sequence[RankingBoard]], seeds: int, settings: Sequence[str]
) -> None:
    """Print leaderboards, their rankings, and what the intervals mean."""
    screen = Console(width=WIDTH, markup=False, highlight=False, soft_wrap=True)
    for board, of_board in zip(boards, ranked, strict=True):
        mean = f"mean of {seeds} seed{'s' * (seeds != 1)} [95 % interval]"
        screen.print(f"{board.title}: {board.rows:,} test rows, {mean}")
        screen.print(board_table(board))
        show_rankings(of_board, f"{mean} for other users{' and seeds' * (seeds > 1)}", _shown_names(board))
    if settings:
        screen.print(f"All recipes ran with {', '.join(settings)}.")
    over = (
        "other test rows and seeds"
        if seeds > 1
        else "other test rows; one seed does not show how results vary with the seed"
    )
    screen.print(f"Intervals and p: paired, for {over}. DeLong's p: for AUC and other test rows only.")
    if len(boards) > 1:
        screen.print("Recipes with other benchmarks, protocols or test rows are in separate tables.")


def board_table(board: Board) -> Table:
    """One leaderboard as a text table."""
    metrics = compared(board.task)
    names = _shown_names(board)
    base = names[board.base].rpartition("/")[2]
    table = Table(
        "recipe", *(shown_name(m) for m in metrics), f"{shown_name(board.metric)} minus {base}'s", "p", box=None
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
    """Recipe names to show: file names without folder and suffix, if these are unique."""
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
    """A p-value at the resolution of the bootstrap."""
    return f"{value:.2g}" if value >= 1e-4 else "<.0001"


def _cost(line: Line) -> list[str]:
    epoch = "-" if line.seconds_per_epoch is None else f"{line.seconds_per_epoch:.1f}"
    return [f"{line.parameters:,}", f"{line.epochs:.1f}", epoch]


def _interval(found: Estimate, sign: str = "") -> str:
    return f"{found.value:{sign}.4f} [{found.low:{sign}.4f}, {found.high:{sign}.4f}]"
