"""Plots of leaderboards with Matplotlib (extra `plots`)."""

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fieldwise.errors import ConfigError
from fieldwise.evaluation.registry import shown_name
from fieldwise.runs.leaderboard import Board
from fieldwise.storage.files import check_file, write_atomically

__all__ = ["check_plot", "draw_board", "plot_boards"]

KINDS = (".png", ".svg", ".pdf")


def check_plot(path: Path) -> None:
    """Check, before any work, that a plot can be made.

    Errors:
        ConfigError: an unsupported suffix, or Matplotlib is missing.
        DataError: a file that cannot be written.
    """
    check_file(path)
    if path.suffix not in KINDS:
        raise ConfigError(f"a plot is a file of {', '.join(KINDS)}, found {path.name!r}: change its suffix")
    try:
        import matplotlib  # noqa: F401 (is it there?)
    except ImportError:
        raise ConfigError("a plot needs Matplotlib: pip install 'fieldwise[plots]', or omit --plot") from None


def plot_boards(boards: Sequence[Board], path: Path) -> None:
    """Write a plot with a panel per board: each recipe's mean with its 95 % interval and seeds as dots, best on top.

    Errors:
        ConfigError: as in `check_plot`.
    """
    check_plot(path)
    from matplotlib.figure import Figure

    heights = [len(board.lines) + 1.5 for board in boards]
    figure = Figure(figsize=(8, 0.35 * sum(heights) + 0.4 * len(boards)), layout="constrained")
    panels = figure.subplots(len(boards), 1, height_ratios=heights, squeeze=False)[:, 0]
    for board, panel in zip(boards, panels, strict=True):
        draw_board(board, panel)
    buffer = io.BytesIO()
    figure.savefig(buffer, format=path.suffix[1:], dpi=150)
    write_atomically(path, buffer.getvalue())


def draw_board(board: Board, panel: Any) -> None:
    """Draw one board on Matplotlib axes."""
    for place, line in enumerate(reversed(board.lines)):
        found = line.metrics[board.metric]
        color = "C1" if line.recipe == board.base else "C0"
        panel.plot([found.low, found.high], [place, place], color=color, linewidth=2)
        panel.plot(list(line.by_seed[board.metric]), [place] * len(line.seeds), "|", color="0.3", markersize=8)
        panel.plot([found.value], [place], "o", color=color)
    panel.set_yticks(range(len(board.lines)), [line.recipe for line in reversed(board.lines)])
    panel.set_ylim(-0.6, len(board.lines) - 0.4)
    panel.set_xlabel(f"test {shown_name(board.metric)}: mean, 95 % interval, seeds (orange: the baseline)")
    panel.set_title(f"{board.title}, {board.rows:,} test rows", loc="left", fontsize=9)
    panel.grid(axis="x", color="0.9")
    panel.set_axisbelow(True)
