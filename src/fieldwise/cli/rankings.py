"""Rankings in `compare` and `evaluate`: their options, and their tables."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from typer import Option

from fieldwise.cli import show
from fieldwise.errors import ConfigError

if TYPE_CHECKING:
    from fieldwise.runs.leaderboard import RankingBoard
    from fieldwise.runs.ranking import RankingSettings

DEFAULT_CUTOFF = 10
DEFAULT_USERS = 1000
SAMPLED_CANDIDATES = (
    "Metrics on sampled candidates are higher than on all items, and may order models differently (Krichene and "
    "Rendle, KDD 2020): omit --candidates to rank all items."
)
NO_LISTS = (
    "How lists differ is not known: of each list 100 items are kept, and none by versions before this measure. Give a "
    "smaller --k, or --overwrite."
)
POPULARITY_IS_BEST = (
    "The popularity baseline is best here. A model trained on impressions learns what users like once it is shown, not "
    "what they choose by themselves: sampled negatives ([negatives] in the recipe) teach that."
)


@dataclass(frozen=True, kw_only=True)
class RankingOptions:
    """Options of the ranking metrics in `compare` and `evaluate`."""

    ranking: Annotated[
        bool,
        Option(
            help="Also rank items for the users of the test rows: HR, NDCG, recall; how lists differ."
        ),
    ] = False
    k: Annotated[int | None, Option(min=1, help="With --ranking: K, the cutoff. Default: 10.")] = (
        None
    )
    candidates: Annotated[
        str | None,
        Option(
            metavar="all|N",
            help="With --ranking: rank `all` items, or N sampled and the liked ones.",
        ),
    ] = None
    users: Annotated[
        int | None, Option(min=1, help="With --ranking: users at most, sampled. Default: 1000.")
    ] = None
    keep_seen: Annotated[
        bool, Option(help="With --ranking: do not exclude items liked before the test.")
    ] = False

    @property
    def given(self) -> list[str]:
        """The options that were given, but for --ranking."""
        values = {
            "--k": self.k,
            "--candidates": self.candidates,
            "--users": self.users,
            "--keep-seen": self.keep_seen,
        }
        return [name for name, value in values.items() if value]

    @property
    def cutoff(self) -> int:
        """K, or its default."""
        return self.k or DEFAULT_CUTOFF

    def settings(self) -> "RankingSettings | None":
        """The ranking settings, or None without --ranking."""
        if not self.ranking:
            if self.given:
                option = self.given[0]
                raise ConfigError(
                    f"{option} is an option of --ranking, which is not given: add --ranking, or omit {option}"
                )
            return None

        candidates = None
        if self.candidates not in (None, "all"):
            if not self.candidates.isdecimal():
                raise ConfigError(
                    f"--candidates must be `all` or the number of sampled items, found {self.candidates!r}"
                )
            candidates = int(self.candidates)

        from fieldwise.runs.ranking import RankingSettings  # PyTorch

        return RankingSettings(
            candidates=candidates, users=self.users or DEFAULT_USERS, keep_seen=self.keep_seen
        )


def show_rankings(
    boards: "Sequence[RankingBoard]", interval: str, names: Mapping[str, str] | None = None
) -> None:
    """Print ranking tables, each below a sentence on its task, with remarks.

    `names` has what recipes are called here, if it is another name than their own.
    """
    from fieldwise.runs.leaderboard import POPULARITY

    screen = show.console()
    for board in boards:
        screen.print(f"\n{board.sentence}; {interval}")
        table = board.table(names)
        show.print_table(table.columns, table.rows, right=True)
        if any(line.lists for line in board.lines):
            lists = board.lists_table(names)
            show.print_table(lists.columns, lists.rows, right=True)
        elif board.candidates is None:
            screen.print(NO_LISTS)
        for line in board.lines:
            if line.check is not None:
                recipe = (names or {}).get(line.recipe, line.recipe)
                screen.print(f"CHECK: {recipe}: {line.check}")
        if board.candidates is not None:
            screen.print(SAMPLED_CANDIDATES)
        if board.lines[0].recipe == POPULARITY:
            screen.print(POPULARITY_IS_BEST)
