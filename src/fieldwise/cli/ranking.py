"""The options and tables of `--ranking` in `compare` and `evaluate`."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from typer import Option

from fieldwise.cli.show import console, print_table
from fieldwise.errors import ConfigError

if TYPE_CHECKING:
    from fieldwise.evaluation.bootstrap import Estimate
    from fieldwise.runs.leaderboard import RankingBoard
    from fieldwise.runs.ranking import RankingSettings

SAMPLED = (
    "Metrics on sampled candidates are higher than on all items, and may order models differently (Krichene and "
    "Rendle, KDD 2020): omit --candidates to rank all items."
)
POPULAR = (
    "The popularity baseline is best here. A model trained on impressions learns what users like once it is shown, not "
    "what they choose by themselves: sampled negatives ([negatives] in the recipe) teach that."
)


RANKING_K = 10


@dataclass(frozen=True, kw_only=True)
class RankingOptions:
    """Options of the ranking metrics in `compare` and `evaluate`."""

    ranking: Annotated[bool, Option(help="Also rank items for the users of the test rows: HR, NDCG, recall.")] = False
    k: Annotated[int | None, Option(min=1, help="With --ranking: K, the cutoff. Default: 10.")] = None
    candidates: Annotated[
        str | None, Option(metavar="all|N", help="With --ranking: rank `all` items, or N sampled and the liked ones.")
    ] = None
    users: Annotated[int | None, Option(min=1, help="With --ranking: users at most, sampled. Default: 1000.")] = None
    keep_seen: Annotated[bool, Option(help="With --ranking: do not exclude items liked before the test.")] = False

    @property
    def given(self) -> list[str]:
        """The options that were given, but for --ranking."""
        values = {"--k": self.k, "--candidates": self.candidates, "--users": self.users, "--keep-seen": self.keep_seen}
        return [name for name, value in values.items() if value]

    def settings(self) -> "RankingSettings | None":
        """The ranking settings, or None without --ranking."""
        if not self.ranking:
            if given := self.given:
                raise ConfigError(
                    f"{given[0]} is an option of --ranking, which is not given: add --ranking, or omit {given[0]}"
                )
            return None
        if self.candidates not in (None, "all") and not self.candidates.isdecimal():
            raise ConfigError(f"--candidates must be `all` or the number of sampled items, found {self.candidates!r}")
        from fieldwise.runs.ranking import RankingSettings  # PyTorch

        return RankingSettings(
            candidates=None if self.candidates in (None, "all") else int(self.candidates),
            users=self.users or 1000,
            keep_seen=self.keep_seen,
        )


def show_rankings(boards: "Sequence[RankingBoard]", interval: str, names: Mapping[str, str] | None = None) -> None:
    """Print ranking tables, each below a sentence on its task, with remarks."""
    from fieldwise.evaluation.top_k import TOP_K
    from fieldwise.runs.leaderboard import MAIN, POPULARITY, TOP_K_NAMES

    screen, names = console(), names or {}
    for board in boards:
        screen.print(f"\n{board.sentence}; {interval}")
        rows = []
        for line in board.lines:
            against = ["baseline", ""]
            if line.against is not None:
                against = [interval_text(line.against[MAIN], "+"), p_text(line.against[MAIN].p)]
            shown = [interval_text(line.metrics[m]) for m in TOP_K]
            rows.append([names.get(line.recipe, line.recipe), *shown, *against])
        base = names.get(board.base, board.base).rpartition("/")[2]
        heads = [*(f"{TOP_K_NAMES[m]}@{board.k}" for m in TOP_K), f"{TOP_K_NAMES[MAIN]}@{board.k} minus {base}'s", "p"]
        print_table(["recipe", *heads], rows, right=True)
        if board.candidates is not None:
            screen.print(SAMPLED)
        if board.lines[0].recipe == POPULARITY:
            screen.print(POPULAR)


def interval_text(estimate: "Estimate", sign: str = "") -> str:
    """A value with its interval."""
    return f"{estimate.value:{sign}.4f} [{estimate.low:{sign}.4f}, {estimate.high:{sign}.4f}]"


def p_text(value: float) -> str:
    """A p-value at the resolution of the bootstrap."""
    return f"{value:.2g}" if value >= 1e-4 else "<.0001"
