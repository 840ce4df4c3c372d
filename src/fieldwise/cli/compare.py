"""`fieldwise compare`: train recipes with several seeds, and print leaderboards."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Argument, Option

from fieldwise.cli import options as opt
from fieldwise.cli import resources, show
from fieldwise.cli.rankings import RankingOptions, show_rankings
from fieldwise.runs.recipe import title_of
from fieldwise.runs.recipe_files import check_recipe, load_recipe

if TYPE_CHECKING:
    from fieldwise.runs.leaderboard import Board, RankingBoard
    from fieldwise.runs.records import RunRecord


@dataclass(frozen=True, kw_only=True)
class CompareOptions:
    """Options of `fieldwise compare`."""

    recipes: Annotated[
        list[str],
        Argument(metavar="RECIPE", help="Names or TOML files; the first is the baseline."),
    ]
    seeds: Annotated[
        int, Option(min=1, help="Runs of each recipe, with seeds 0, 1, ... and the same rows.")
    ] = 3
    settings: opt.Settings = None
    metric: Annotated[
        str | None,
        Option(help="Metric to sort by, a column of the leaderboard. Default: the first."),
    ] = None
    store: Annotated[
        Path, Option(help="Folder of finished runs, which several processes may share.")
    ] = Path("runs/compare")
    overwrite: opt.Overwrite = False
    ranking: RankingOptions
    json: opt.AsJson = False
    quiet: opt.Quiet = False
    tracker: opt.Tracker = None


def run(options: CompareOptions) -> None:
    """Train recipes with several seeds; a leaderboard with intervals.

    It has a paired test of each recipe against the first. Finished runs are kept, and the same
    command resumes.
    """
    settings = options.settings or []
    for name in options.recipes:
        check_recipe(name, settings)  # before PyTorch is loaded

    from fieldwise.runs.leaderboard import leaderboards

    runs = _finished_runs(options)
    boards = leaderboards(runs, metric=options.metric)
    rankings = [_rankings_beside(board, runs, options.ranking) for board in boards]
    if options.json:
        shown_boards = []
        for board, ranking_boards in zip(boards, rankings, strict=True):
            shown_board = board.to_plain()
            if ranking_boards:
                shown_board["rankings"] = [ranking.to_plain() for ranking in ranking_boards]
            shown_boards.append(shown_board)
        show.print_json({"settings": settings, "boards": shown_boards})
    else:
        _show_boards(boards, rankings, runs, options)

    _say_warnings(runs)
    if not (options.json or options.quiet):
        purpose = "train and save the best recipe"
        command = "train"
        if find_spec("optuna") is not None:
            purpose = "tune the best recipe on its validation rows"
            command = "tune"
        best_recipe = boards[0].lines[0].recipe
        show.suggest(purpose, command, best_recipe, *opt.setting_words(settings))


def _finished_runs(options: CompareOptions) -> "Mapping[str, Sequence[RunRecord]]":
    """The runs of each recipe; those that are not in the store are trained."""
    from fieldwise.runs.leaderboard import check_base_and_metric
    from fieldwise.runs.recorded_runs import recorded_runs
    from fieldwise.runs.records import Store

    ranking = options.ranking.settings()
    recipes = [load_recipe(name, options.settings or []) for name in options.recipes]
    resources.check_device(*(recipe.training.device for recipe in recipes), what=opt.DEVICE)
    names = [recipe.name for recipe in recipes]
    tasks = {recipe.schema.label.task for recipe in recipes}
    check_base_and_metric(names, tasks, None, options.metric)
    for recipe in recipes:
        resources.check_library(recipe)
        resources.data_folder(recipe.data.name)  # it must exist if a recipe needs it
    try:
        return recorded_runs(
            recipes,
            range(options.seeds),
            context=resources.run_context(
                resources.data_folder(), options.tracker, quiet=options.quiet
            ),
            store=Store(options.store),
            again=options.overwrite,
            ranking=ranking,
        )
    except KeyboardInterrupt:
        show.say(f"finished runs are kept in {options.store}: the same command resumes from there")
        raise


def _rankings_beside(
    board: "Board", runs: "Mapping[str, Sequence[RunRecord]]", options: RankingOptions
) -> "Sequence[RankingBoard]":
    """The rankings of a leaderboard's recipes, in the order in which these are given; none without --ranking."""
    from fieldwise.runs.leaderboard import ranking_boards

    if not options.ranking:
        return []
    recipes = {line.recipe for line in board.lines}
    results = {}
    for name, records in runs.items():
        if name in recipes:
            ranked = (record.ranked for record in records)
            results[name] = [ranking for ranking in ranked if ranking]
    return ranking_boards(results, k=options.cutoff, base=board.base)


def _say_warnings(runs: "Mapping[str, Sequence[RunRecord]]") -> None:
    """Say if runs were trained on several devices, and which rows are repeated."""
    from fieldwise.data.prepare.repeated_rows import repeat_sentences

    facts = [record.about for records in runs.values() for record in records]
    devices = sorted({str(about.get("environment", {}).get("device", "cpu")) for about in facts})
    if len(devices) > 1:
        show.say(
            f"these runs were trained on several devices ({'; '.join(devices)}): their seconds do not compare"
        )
    warnings: list[str] = []
    for about in facts:
        warnings += repeat_sentences(about.get("counts", {}))
    for sentence in dict.fromkeys(warnings):
        show.say(f"WARNING: {sentence}")


def _show_boards(
    boards: "Sequence[Board]",
    rankings: "Sequence[Sequence[RankingBoard]]",
    runs: "Mapping[str, Sequence[RunRecord]]",
    options: CompareOptions,
) -> None:
    """Print leaderboards, their rankings, what the intervals mean, and remarks."""
    from fieldwise.evaluation.words import remarks_on_means

    screen = show.console()
    mean = f"mean of {show.counted(options.seeds, 'seed')} [95 % interval]"
    ranking_interval = f"{mean} for other users"
    varying = "other test rows; one seed does not show how results vary with the seed"
    if options.seeds > 1:
        ranking_interval += " and seeds"
        varying = "other test rows and seeds"

    for board, ranking_boards in zip(boards, rankings, strict=True):
        names = _shown_names(board)
        screen.print(f"{board.title}: {show.counted(board.rows, 'test row')}, {mean}")
        table = board.table(names=names)
        show.print_table(table.columns, table.rows, right=True)
        for sentence in board.mean_sentences:
            screen.print(sentence)
        show_rankings(ranking_boards, ranking_interval, names)

    if options.settings:
        screen.print(f"All recipes ran with {', '.join(options.settings)}.")
    screen.print(
        f"Intervals and p: paired, for {varying}. DeLong's p: for AUC and other test rows only."
    )
    if len(boards) > 1:
        screen.print(
            "Recipes with other benchmarks, protocols or test rows are in separate tables."
        )
    for name, records in runs.items():
        test_metrics = [record["test"] for record in records]
        for sentence in remarks_on_means(test_metrics, f"{name}'s test rows"):
            print(sentence)


def _shown_names(board: "Board") -> dict[str, str]:
    """What each recipe is called: a file's name without folder and suffix, if that is unique."""
    titles = {line.recipe: title_of(line.recipe) for line in board.lines}
    all_titles = list(titles.values())
    return {name: title if all_titles.count(title) == 1 else name for name, title in titles.items()}
