"""`fieldwise compare`."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fieldwise.cli.devices import Device, check_device
from fieldwise.cli.next import suggest
from fieldwise.cli.options import (
    AsJson,
    Overwrite,
    Protocol,
    Quiet,
    RecipeOptions,
    Settings,
    Tracker,
    data_folder,
    run_context,
)
from fieldwise.cli.ranking import WIDTH, RankingOptions, interval_text, p_text, show_rankings
from fieldwise.cli.show import console, print_json, print_table, say

if TYPE_CHECKING:
    from fieldwise.runs.leaderboard import Board, RankingBoard
    from fieldwise.runs.records import RunRecord

__all__ = ["CompareOptions", "run"]


@dataclass(frozen=True, kw_only=True)
class CompareOptions:
    """Options of `fieldwise compare`."""

    recipes: Annotated[
        list[str], typer.Argument(metavar="RECIPE...", help="Recipes by name or TOML file; the first is the baseline.")
    ]
    seeds: Annotated[int, typer.Option(min=1, help="Runs of each recipe, with seeds 0, 1, ... and the same rows.")] = 3
    settings: Settings = None
    protocol: Protocol = None
    base: Annotated[
        str | None, typer.Option(metavar="RECIPE", help="The recipe to compare with. Default: the first.")
    ] = None
    metric: Annotated[str | None, typer.Option(help="Metric to sort by: auc, logloss, ece or rmse.")] = None
    store: Annotated[
        Path, typer.Option(help="Folder of finished runs, which are not run again. Several processes may share it.")
    ] = Path("runs/compare")
    overwrite: Overwrite = False
    ranking: RankingOptions
    json: AsJson = False
    quiet: Quiet = False
    tracker: Tracker = None
    device: Device = None


def run(options: CompareOptions) -> None:
    """Train recipes with several seeds and print a leaderboard with intervals and a paired test. Can be resumed."""
    from fieldwise.runs.recipe import recipe_names

    def given(name: str) -> RecipeOptions:
        return RecipeOptions(recipe=name, settings=options.settings, protocol=options.protocol)

    for name in options.recipes:
        given(name).check(options.device)  # before PyTorch is loaded
    from fieldwise.runs.leaderboard import check_choices, leaderboards, ranking_boards
    from fieldwise.runs.records import Store, recorded_runs

    ranking, base = options.ranking.settings(), options.base
    recipes = [given(name).load(options.device) for name in options.recipes]
    check_device(options.device, *(recipe.training.device for recipe in recipes))
    if base is not None and base not in recipe_names():
        base = str(Path(base))  # recipes from a file are named by their path
    check_choices([r.name for r in recipes], {r.schema.label.task for r in recipes}, base, options.metric)
    for recipe in recipes:
        folder = data_folder(recipe.data.name)
    try:
        runs = recorded_runs(
            recipes,
            range(options.seeds),
            store=Store(options.store),
            context=run_context(folder, options.tracker, quiet=options.quiet),
            again=options.overwrite,
            ranking=ranking,
        )
    except KeyboardInterrupt:
        say(f"finished runs are kept in {options.store}: the same command resumes from there")
        raise
    boards = leaderboards(runs, base=base, metric=options.metric)
    ranked = []  # the rankings of each board's recipes, in the order given
    for board in boards:
        own = {line.recipe for line in board.lines}
        found = {name: [one for record in of if (one := record.ranked)] for name, of in runs.items() if name in own}
        ranked.append(ranking_boards(found, k=options.ranking.cutoff, base=board.base) if ranking else [])
    if options.json:
        shown = [
            {**board.to_plain(), **({"rankings": [one.to_plain() for one in of_board]} if of_board else {})}
            for board, of_board in zip(boards, ranked, strict=True)
        ]
        print_json({"settings": options.settings or [], "boards": shown})
    else:
        _show(boards, ranked, runs, options)
    _say_cautions(runs)
    if not (options.json or options.quiet):
        what, verb = "train and save the best recipe", "train"
        if find_spec("optuna") is not None:
            what, verb = "tune the best recipe on its validation rows", "tune"
        best = boards[0].lines[0].recipe
        suggest(what, verb, best, *given(best).words)


def _say_cautions(runs: "Mapping[str, Sequence[RunRecord]]") -> None:
    """Say what the runs do not have in common, and warn of repeated rows."""
    from fieldwise.data.prepare.row_fingerprints import repeat_sentences

    facts = [record.about for records in runs.values() for record in records]
    devices = sorted({str(about.get("environment", {}).get("device", "cpu")) for about in facts})
    if len(devices) > 1:
        say(f"these runs were trained on several devices ({'; '.join(devices)}): their seconds do not compare")
    for sentence in dict.fromkeys(one for about in facts for one in repeat_sentences(about.get("counts", {}))):
        say(f"WARNING: {sentence}")


def _show(
    boards: "Sequence[Board]",
    ranked: "Sequence[Sequence[RankingBoard]]",
    runs: "Mapping[str, Sequence[RunRecord]]",
    options: CompareOptions,
) -> None:
    """Print leaderboards, their rankings, what the intervals mean, and remarks."""
    from fieldwise.evaluation.words import remarks_on_means

    screen, several = console(WIDTH), options.seeds > 1
    for board, of_board in zip(boards, ranked, strict=True):
        mean = f"mean of {options.seeds} seed{'s' * several} [95 % interval]"
        screen.print(f"{board.title}: {board.rows:,} test rows, {mean}")
        # File names without folder and suffix, if these are unique.
        files = [line.recipe for line in board.lines]
        stems = {name: Path(name).stem if name.endswith(".toml") else name for name in files}
        names = {name: stem if list(stems.values()).count(stem) == 1 else name for name, stem in stems.items()}
        _print_board(board, names)
        show_rankings(of_board, f"{mean} for other users{' and seeds' * several}", names)
    if options.settings:
        screen.print(f"All recipes ran with {', '.join(options.settings)}.")
    alone = "other test rows; one seed does not show how results vary with the seed"
    over = "other test rows and seeds" if several else alone
    screen.print(f"Intervals and p: paired, for {over}. DeLong's p: for AUC and other test rows only.")
    if len(boards) > 1:
        screen.print("Recipes with other benchmarks, protocols or test rows are in separate tables.")
    for name, records in runs.items():
        for sentence in remarks_on_means([record["test"] for record in records], f"{name}'s test rows"):
            print(sentence)


def _print_board(board: "Board", names: Mapping[str, str]) -> None:
    from fieldwise.evaluation.metrics import compared, shown_name

    metrics, by_auc, rows = compared(board.task), board.metric == "auc", []
    base = names[board.base].rpartition("/")[2]
    heads = ["recipe", *(shown_name(m) for m in metrics), f"{shown_name(board.metric)} minus {base}'s", "p"]
    heads += [*["DeLong p"] * by_auc, "parameters", "epochs", "s/epoch"]
    for line in board.lines:
        against = ["baseline", *[""] * (1 + by_auc)]
        if line.against is not None:
            found = line.against[board.metric]
            delong = "-" if found.delong_p is None else p_text(found.delong_p)
            against = [interval_text(found.estimate, "+"), p_text(found.estimate.p), *[delong] * by_auc]
        epoch = "-" if line.seconds_per_epoch is None else f"{line.seconds_per_epoch:.1f}"
        cost = [f"{line.parameters:,}", f"{line.epochs:.1f}", epoch]
        rows.append([names[line.recipe], *(interval_text(line.metrics[m]) for m in metrics), *against, *cost])
    print_table(heads, rows, right=True, width=WIDTH)
