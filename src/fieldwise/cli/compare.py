"""`fieldwise compare`."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fieldwise.cli.devices import Device, check_device, with_device
from fieldwise.cli.next import data_options, suggest
from fieldwise.cli.options import (
    AsJson,
    DataDir,
    Protocol,
    Quiet,
    Settings,
    Threads,
    Tracker,
    UseCache,
    cache_for,
    callbacks_for,
    existing_data_dir,
    set_threads,
)
from fieldwise.cli.ranking import RankingOptions
from fieldwise.cli.show import print_json, say

if TYPE_CHECKING:
    from fieldwise.runs.leaderboard import Board
    from fieldwise.runs.ranking_board import RankingBoard
    from fieldwise.runs.ranking_settings import RankingSettings
    from fieldwise.runs.recipe import Recipe
    from fieldwise.runs.records import Record

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
    plot: Annotated[Path | None, typer.Option(help="Write a plot to this file: .png, .svg or .pdf.")] = None
    again: Annotated[bool, typer.Option("--again", help="Run everything again.")] = False
    ranking: RankingOptions
    data_dir: DataDir = None
    json: AsJson = False
    quiet: Quiet = False
    tracker: Tracker = None
    device: Device = None
    threads: Threads = None
    cache: UseCache = True


def run(options: CompareOptions) -> None:
    """Train recipes with several seeds and print a leaderboard with intervals and a paired test. Can be resumed."""
    from fieldwise.runs.recipe import check_recipe

    settings = with_device(options.settings, options.device)
    for recipe in options.recipes:
        check_recipe(recipe, settings, protocol=options.protocol)  # before PyTorch is loaded
    from fieldwise.runs.leaderboard import leaderboards
    from fieldwise.runs.plots import check_plot, plot_boards

    ranking = options.ranking.settings()
    set_threads(options.threads)
    if options.plot is not None:
        check_plot(options.plot)
    recipes, base = _recipes(options)
    runs = _runs(recipes, ranking[0], options)
    boards = leaderboards(runs, base=base, metric=options.metric)
    ranked = [_ranked(board, runs, ranking) for board in boards]
    _print(boards, ranked, runs, options)
    if options.plot is not None:
        plot_boards(boards, options.plot)  # last: an error in the plot loses no result
    if not (options.json or options.quiet):
        _suggest(boards[0].lines[0].recipe, options)


def _recipes(options: CompareOptions) -> "tuple[list[Recipe], str | None]":
    """The recipes, and the name of the baseline if one was given.

    Errors:
        ConfigError: the recipes cannot be compared at all, by this metric, or with this baseline.
    """
    from fieldwise.runs.leaderboard import check_choices
    from fieldwise.runs.recipe import load_recipe
    from fieldwise.runs.recipe_files import recipe_names

    settings = with_device(options.settings, options.device)
    recipes = [load_recipe(name, settings, protocol=options.protocol) for name in options.recipes]
    check_device(options.device, *(recipe.training.device for recipe in recipes))
    base = options.base
    base = (
        base if base is None or base in recipe_names() else str(Path(base))
    )  # recipes from a file are named by their path
    check_choices([r.name for r in recipes], {r.schema.label.task for r in recipes}, base, options.metric)
    return recipes, base


def _runs(
    recipes: "list[Recipe]", ranking: "RankingSettings | None", options: CompareOptions
) -> "Mapping[str, Sequence[Record]]":
    """Stored runs, and new runs for those that were missing."""
    from fieldwise.runs.fits import RunContext, recorded_runs
    from fieldwise.runs.records import Store

    for recipe in recipes:
        folder = existing_data_dir(options.data_dir, recipe.data.name)
    try:
        return recorded_runs(
            recipes,
            range(options.seeds),
            store=Store(options.store),
            context=RunContext(
                data_dir=folder,
                cache=cache_for(options.cache, options.quiet),
                note=(lambda _: None) if options.quiet else say,
                callbacks=callbacks_for(options.tracker, quiet=options.quiet),
            ),
            again=options.again,
            ranking=ranking,
        )
    except KeyboardInterrupt:
        say(f"finished runs are kept in {options.store}: the same command resumes from there")
        raise


def _print(
    boards: "Sequence[Board]",
    ranked: "Sequence[Sequence[RankingBoard]]",
    runs: "Mapping[str, Sequence[Record]]",
    options: CompareOptions,
) -> None:
    from fieldwise.cli.compare_tables import show_boards
    from fieldwise.data.prepare.repeats import repeat_sentences
    from fieldwise.evaluation.remarks import remarks_on_means

    settings = options.settings or []
    if options.json:
        shown = [{**board.to_plain(), **_plain(of_board)} for board, of_board in zip(boards, ranked, strict=True)]
        print_json({"settings": list(settings), "boards": shown})
    else:
        show_boards(boards, ranked, options.seeds, settings)
        for name, records in runs.items():
            for sentence in remarks_on_means([record.facts.test for record in records], f"{name}'s test rows"):
                print(sentence)
    devices = sorted({str(r.about.get("environment", {}).get("device", "cpu")) for of in runs.values() for r in of})
    if len(devices) > 1:
        say(f"these runs were trained on several devices ({'; '.join(devices)}): their seconds do not compare")
    counts = [record.facts.counts for records in runs.values() for record in records]
    for sentence in dict.fromkeys(sentence for one in counts for sentence in repeat_sentences(one)):
        say(f"WARNING: {sentence}")


def _suggest(best: str, options: CompareOptions) -> None:
    """Print useful next commands."""
    given = [part for setting in options.settings or () for part in ("--set", setting)]
    given += [] if options.protocol is None else ["--protocol", options.protocol]
    given += data_options(options.data_dir)
    if find_spec("optuna") is not None:
        suggest("tune the best recipe on its validation rows", "tune", best, *given)
    else:
        suggest("train and save the best recipe", "train", best, *given)


def _ranked(
    board: "Board", runs: "Mapping[str, Sequence[Record]]", ranking: "tuple[RankingSettings | None, int]"
) -> "list[RankingBoard]":
    """The rankings of a board's recipes, in the order given."""
    from fieldwise.runs.ranking_board import ranking_boards

    if ranking[0] is None:
        return []
    own = {line.recipe for line in board.lines}
    found = {name: [one for record in of if (one := record.ranked)] for name, of in runs.items() if name in own}
    return ranking_boards(found, k=ranking[1], base=board.base)


def _plain(ranked: "Sequence[RankingBoard]") -> dict[str, object]:
    return {"rankings": [one.to_plain() for one in ranked]} if ranked else {}
