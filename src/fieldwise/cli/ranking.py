"""The options and tables of `--ranking` in `compare` and `evaluate`."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from fieldwise.errors import ConfigError

if TYPE_CHECKING:
    from rich.table import Table

    from fieldwise.evaluation.bootstrap import Estimate
    from fieldwise.runs.ranking_board import RankingBoard
    from fieldwise.runs.ranking_settings import RankingSettings

__all__ = ["RankingOptions", "show_rankings"]

K = 10
WIDTH = 1000  # a terminal wraps long lines, which is better than truncated figures
SAMPLED = (
    "Metrics on sampled candidates are higher than on all items, and may order models differently (Krichene and "
    "Rendle, KDD 2020): omit --candidates to rank all items."
)
POPULAR = (
    "The popularity baseline is best here. A model trained on impressions learns what users like once it is shown, not "
    "what they choose by themselves: sampled negatives ([negatives] in the recipe) teach that."
)


@dataclass(frozen=True, kw_only=True)
class RankingOptions:
    """Options of the ranking metrics in `compare` and `evaluate`."""

    ranking: Annotated[
        bool,
        typer.Option(
            "--ranking",
            help="Also rank items for the users of the test rows: hit rate, NDCG and recall at K.",
        ),
    ] = False
    k: Annotated[int | None, typer.Option("--k", min=1, help="With --ranking: K, the cutoff. Default: 10.")] = None
    candidates: Annotated[
        str | None,
        typer.Option(
            metavar="all|N",
            help="With --ranking: rank `all` items, or the liked items among N sampled per user.",
        ),
    ] = None
    users: Annotated[
        int | None,
        typer.Option(
            "--users", min=1, help="With --ranking: maximum number of users, sampled at random. Default: 1000."
        ),
    ] = None
    user: Annotated[
        str | None,
        typer.Option("--user", metavar="COLUMN", help="With --ranking: column of user ids. Default: the schema's."),
    ] = None
    item: Annotated[
        str | None,
        typer.Option("--item", metavar="COLUMN", help="With --ranking: column of item ids. Default: the schema's."),
    ] = None
    keep_seen: Annotated[
        bool,
        typer.Option(
            "--keep-seen",
            help="With --ranking: do not exclude items that a user liked in training and validation rows.",
        ),
    ] = False

    def settings(self) -> "tuple[RankingSettings | None, int]":
        """The ranking settings, or None without --ranking, and the cutoff K.

        Errors:
            ConfigError: an option without --ranking, or candidates that are neither `all` nor a number.
        """
        from fieldwise.runs.ranking_settings import RankingSettings

        if not self.ranking:
            self._check_alone()
            return None, K
        if self.candidates is not None and self.candidates != "all" and not self.candidates.isdecimal():
            raise ConfigError(f"--candidates must be `all` or the number of sampled items, found {self.candidates!r}")
        settings = RankingSettings(
            candidates=None if self.candidates in (None, "all") else int(self.candidates),
            users=1000 if self.users is None else self.users,
            user=self.user,
            item=self.item,
            keep_seen=self.keep_seen,
        )
        return settings, K if self.k is None else self.k

    def _check_alone(self) -> None:
        """Refuse ranking options without --ranking."""
        names = ("k", "candidates", "users", "user", "item")
        given = [f"--{name}" for name in names if getattr(self, name) is not None] + ["--keep-seen"] * self.keep_seen
        if given:
            raise ConfigError(
                f"{given[0]} is an option of --ranking, which is not given: add --ranking, or omit {given[0]}"
            )


def show_rankings(boards: "Sequence[RankingBoard]", interval: str, names: Mapping[str, str] | None = None) -> None:
    """Print ranking tables, each below a sentence on its task, with remarks.

    Args:
        boards: the ranking metrics.
        interval: what the intervals cover.
        names: names to show for recipes, if they differ.
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
    table = Table("recipe", *headings, f"{TOP_K_NAMES[MAIN]}@{board.k} minus {base}'s", "p", box=None)
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
