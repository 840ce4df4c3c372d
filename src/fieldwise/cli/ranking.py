"""What `--ranking` asks for and shows, in `compare` and `evaluate`."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from fieldwise.errors import ConfigError

if TYPE_CHECKING:
    from rich.table import Table

    from fieldwise.evaluation.bootstrap import Estimate
    from fieldwise.runs.ranking import RankingSettings
    from fieldwise.runs.ranking_board import RankingBoard

__all__ = ["RankingOptions", "show_rankings"]

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


@dataclass(frozen=True, kw_only=True)
class RankingOptions:
    """What is ranked beside the metrics of rows, in `compare` and `evaluate`."""

    ranking: Annotated[
        bool,
        typer.Option(
            "--ranking",
            help="Rank items for the users of the test rows, too: hit rate, NDCG and recall of the first K.",
        ),
    ] = False
    k: Annotated[int | None, typer.Option("--k", min=1, help="With --ranking: how many items count; 10.")] = None
    candidates: Annotated[
        str | None,
        typer.Option(
            metavar="all|N",
            help="With --ranking: among all items, or N drawn for each user beside those that were liked.",
        ),
    ] = None
    users: Annotated[
        int | None, typer.Option("--users", min=1, help="With --ranking: for so many users at most, drawn; 1000.")
    ] = None
    user: Annotated[
        str | None,
        typer.Option("--user", metavar="COLUMN", help="With --ranking: of users; the schema's if left out."),
    ] = None
    item: Annotated[
        str | None,
        typer.Option("--item", metavar="COLUMN", help="With --ranking: of items; the schema's if left out."),
    ] = None
    keep_seen: Annotated[
        bool,
        typer.Option(
            "--keep-seen", help="With --ranking: rank what a user liked in training and validation rows, too."
        ),
    ] = False

    def settings(self) -> "tuple[RankingSettings | None, int]":
        """What to rank, or None where nothing is asked for, and how many items of a ranking count.

        Errors:
            ConfigError: an option without --ranking, or candidates that are neither `all` nor a number.
        """
        from fieldwise.runs.ranking import RankingSettings

        if not self.ranking:
            self._check_alone()
            return None, K
        if self.candidates is not None and self.candidates != "all" and not self.candidates.isdecimal():
            raise ConfigError(f"--candidates must be all, or how many items are drawn, found {self.candidates!r}")
        settings = RankingSettings(
            candidates=None if self.candidates in (None, "all") else int(self.candidates),
            users=1000 if self.users is None else self.users,
            user=self.user,
            item=self.item,
            keep_seen=self.keep_seen,
        )
        return settings, K if self.k is None else self.k

    def _check_alone(self) -> None:
        """Refuse options that say how to rank where nothing is ranked."""
        names = ("k", "candidates", "users", "user", "item")
        given = [f"--{name}" for name in names if getattr(self, name) is not None] + ["--keep-seen"] * self.keep_seen
        if given:
            raise ConfigError(f"{given[0]} says how items are ranked: add --ranking, or leave it out")


def show_rankings(boards: "Sequence[RankingBoard]", interval: str, names: Mapping[str, str] | None = None) -> None:
    """Print tables of rankings, each below who was to find what, with what is to be known of them.

    Args:
        boards: the figures.
        interval: what intervals are for.
        names: what recipes are shown as, where it is not their names.
    """
    from rich.console import Console

    from fieldwise.runs.ranking_board import POPULARITY

    screen = Console(width=WIDTH, markup=False, highlight=False, soft_wrap=True)
    for board in boards:
        screen.print(f"\n{board.sentence}; {interval}")
        screen.print(_table(board, names or {}))
        if board.candidates is not None:
            screen.print(SAMPLED)
        if board.lines[0].recipe == POPULARITY:
            screen.print(POPULAR)


def _table(board: "RankingBoard", names: Mapping[str, str]) -> "Table":
    from rich.table import Table

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
