"""What `--ranking` asks for and shows, in `compare` and `evaluate`."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

from fieldwise.errors import ConfigError

if TYPE_CHECKING:
    from fieldwise.evaluation.bootstrap import Estimate
    from fieldwise.runs.ranking import RankingSettings
    from fieldwise.runs.ranking_board import RankingBoard

__all__ = ["ranking_settings", "show_rankings"]

K = 10
WIDTH = 1000  # a terminal breaks the lines, which is better than figures cut short
SAMPLED = (
    "Figures among items drawn are higher than among all items, and may order models otherwise (Krichene and Rendle, "
    "KDD 2020): leave --candidates out to rank all."
)
POPULAR = (
    "Popularity leads here. A model of rows that were shown knows what is liked once it is shown, not what users come "
    "to by themselves: sampled negatives ([negatives] in the recipe) teach that."
)


def ranking_settings(
    ranking: bool,
    k: int | None,
    candidates: str | None,
    users: int | None,
    user: str | None,
    item: str | None,
    keep_seen: bool,
) -> "tuple[RankingSettings | None, int]":
    """What to rank, or None where nothing is asked for, and how many items of a ranking count.

    Errors:
        ConfigError: an option without --ranking, or candidates that are neither `all` nor a number.
    """
    from fieldwise.runs.ranking import RankingSettings

    given = {"--k": k, "--candidates": candidates, "--users": users, "--user": user, "--item": item}
    options = [name for name, value in given.items() if value is not None] + ["--keep-seen"] * keep_seen
    if not ranking:
        if options:
            raise ConfigError(f"{options[0]} says how items are ranked: add --ranking, or leave it out")
        return None, K
    if candidates is not None and candidates != "all" and not candidates.isdecimal():
        raise ConfigError(f"--candidates must be all, or how many items are drawn, found {candidates!r}")
    settings = RankingSettings(
        candidates=None if candidates in (None, "all") else int(candidates),
        users=1000 if users is None else users,
        user=user,
        item=item,
        keep_seen=keep_seen,
    )
    return settings, K if k is None else k


def show_rankings(boards: "Sequence[RankingBoard]", interval: str, names: Mapping[str, str] | None = None) -> None:
    """Print tables of rankings, each below who was to find what, with what is to be known of them.

    Args:
        boards: the figures.
        interval: what intervals are for.
        names: what recipes are shown as, where it is not their names.
    """
    from fieldwise.runs.ranking_board import POPULARITY

    screen = Console(width=WIDTH, markup=False, highlight=False, soft_wrap=True)
    for board in boards:
        screen.print(f"\n{board.sentence}; {interval}")
        screen.print(_table(board, names or {}))
        if board.candidates is not None:
            screen.print(SAMPLED)
        if board.lines[0].recipe == POPULARITY:
            screen.print(POPULAR)


def _table(board: "RankingBoard", names: Mapping[str, str]) -> Table:
    from fieldwise.evaluation.top_k import TOP_K
    from fieldwise.runs.ranking_board import MAIN, TOP_K_NAMES

    base = names.get(board.base, board.base).rpartition("/")[2]
    headings = [f"{TOP_K_NAMES[m]}@{board.k}" for m in TOP_K]
    table = Table("recipe", *headings, f"{TOP_K_NAMES[MAIN]}@{board.k} less {base}'s", "p", box=None)
    for column in table.columns[1:]:
        column.justify = "right"
    for line in board.lines:
        shown = [_interval(line.metrics[m]) for m in TOP_K]
        against: Sequence[str] = ["baseline", ""]
        if line.against is not None:
            against = [_interval(line.against[MAIN], "+"), _p(line.against[MAIN].p)]
        table.add_row(names.get(line.recipe, line.recipe), *shown, *against)
    return table


def _interval(found: "Estimate", sign: str = "") -> str:
    return f"{found.value:{sign}.4f} [{found.low:{sign}.4f}, {found.high:{sign}.4f}]"


def _p(value: float) -> str:
    return f"{value:.2g}" if value >= 1e-4 else "<.0001"
