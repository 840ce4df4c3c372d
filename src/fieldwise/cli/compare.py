"""`fieldwise compare` and `fieldwise tune`."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Argument, Option

from fieldwise.cli import options as opt
from fieldwise.cli import show
from fieldwise.cli.ranking import RANKING_K, RankingOptions, interval_text, p_text, show_rankings
from fieldwise.runs.recipe import Recipe, check_recipe, load_recipe, search_space, value_at

if TYPE_CHECKING:
    from fieldwise.runs.leaderboard import Board, RankingBoard
    from fieldwise.runs.records import RunRecord
    from fieldwise.runs.tune import Tuned


@dataclass(frozen=True, kw_only=True)
class CompareOptions:
    """Options of `fieldwise compare`."""

    recipes: Annotated[list[str], Argument(metavar="RECIPE", help="Names or TOML files; the first is the baseline.")]
    seeds: Annotated[int, Option(min=1, help="Runs of each recipe, with seeds 0, 1, ... and the same rows.")] = 3
    settings: opt.Settings = None
    metric: Annotated[str | None, Option(help="Metric to sort by: auc, logloss, ece or rmse.")] = None
    store: Annotated[Path, Option(help="Folder of finished runs, which several processes may share.")] = Path(
        "runs/compare"
    )
    overwrite: opt.Overwrite = False
    ranking: RankingOptions
    json: opt.AsJson = False
    quiet: opt.Quiet = False
    tracker: opt.Tracker = None


def run(options: CompareOptions) -> None:
    """Train recipes with several seeds; a leaderboard with intervals.

    It has a paired test of each recipe against the first. Finished runs are kept, and the same command resumes.
    """
    given = options.settings or []
    for name in options.recipes:
        check_recipe(name, given)  # before PyTorch is loaded
    from fieldwise.data.prepare.row_fingerprints import repeat_sentences
    from fieldwise.runs.leaderboard import check_base_and_metric, leaderboards, ranking_boards
    from fieldwise.runs.records import Store, recorded_runs

    ranking = options.ranking.settings()
    recipes = [load_recipe(name, given) for name in options.recipes]
    opt.check_device(*(recipe.training.device for recipe in recipes), what=opt.DEVICE)
    check_base_and_metric([r.name for r in recipes], {r.schema.label.task for r in recipes}, None, options.metric)
    for recipe in recipes:
        folder = opt.data_folder(recipe.data.name)
    try:
        context, store = opt.run_context(folder, options.tracker, quiet=options.quiet), Store(options.store)
        again, seeds = options.overwrite, range(options.seeds)
        runs = recorded_runs(recipes, seeds, store=store, context=context, again=again, ranking=ranking)
    except KeyboardInterrupt:
        show.say(f"finished runs are kept in {options.store}: the same command resumes from there")
        raise
    boards = leaderboards(runs, metric=options.metric)
    ranked = []  # the rankings of each board's recipes, in the order given
    for board in boards:
        own = {line.recipe for line in board.lines}
        results = {name: [one for record in of if (one := record.ranked)] for name, of in runs.items() if name in own}
        ranked.append(ranking_boards(results, k=options.ranking.k or RANKING_K, base=board.base) if ranking else [])
    if options.json:
        shown = [
            {**board.to_plain(), **({"rankings": [one.to_plain() for one in of_board]} if of_board else {})}
            for board, of_board in zip(boards, ranked, strict=True)
        ]
        show.print_json({"settings": given, "boards": shown})
    else:
        _show(boards, ranked, runs, options)
    facts = [record.about for records in runs.values() for record in records]
    devices = sorted({str(about.get("environment", {}).get("device", "cpu")) for about in facts})
    if len(devices) > 1:
        show.say(f"these runs were trained on several devices ({'; '.join(devices)}): their seconds do not compare")
    for sentence in dict.fromkeys(one for about in facts for one in repeat_sentences(about.get("counts", {}))):
        show.say(f"WARNING: {sentence}")
    if not (options.json or options.quiet):
        what, verb = "train and save the best recipe", "train"
        if find_spec("optuna") is not None:
            what, verb = "tune the best recipe on its validation rows", "tune"
        show.suggest(what, verb, boards[0].lines[0].recipe, *opt.setting_words(given))


def _show(
    boards: "Sequence[Board]",
    ranked: "Sequence[Sequence[RankingBoard]]",
    runs: "Mapping[str, Sequence[RunRecord]]",
    options: CompareOptions,
) -> None:
    """Print leaderboards, their rankings, what the intervals mean, and remarks."""
    from fieldwise.evaluation.metrics import compared, shown_name
    from fieldwise.evaluation.words import remarks_on_means

    screen, several = show.console(), options.seeds > 1
    for board, of_board in zip(boards, ranked, strict=True):
        mean = f"mean of {show.counted(options.seeds, 'seed')} [95 % interval]"
        screen.print(f"{board.title}: {show.counted(board.rows, 'test row')}, {mean}")
        # File names without folder and suffix, if these are unique.
        files = [line.recipe for line in board.lines]
        stems = {name: Path(name).stem if name.endswith(".toml") else name for name in files}
        names = {name: stem if list(stems.values()).count(stem) == 1 else name for name, stem in stems.items()}
        metrics, by_auc, rows = compared(board.task), board.metric == "auc", []
        for line in board.lines:
            against = ["baseline", *[""] * (1 + by_auc)]
            if line.against is not None:
                result = line.against[board.metric]
                delong = "-" if result.delong_p is None else p_text(result.delong_p)
                against = [interval_text(result.estimate, "+"), p_text(result.estimate.p), *[delong] * by_auc]
            epoch = "-" if line.seconds_per_epoch is None else f"{line.seconds_per_epoch:.1f}"
            cost = [f"{line.parameters:,}", f"{line.epochs:.1f}", epoch]
            rows.append([names[line.recipe], *(interval_text(line.metrics[m]) for m in metrics), *against, *cost])
        gain = f"{shown_name(board.metric)} minus {names[board.base].rpartition('/')[2]}'s"
        heads = ["recipe", *map(shown_name, metrics), gain, "p", *["DeLong p"] * by_auc]
        show.print_table([*heads, "parameters", "epochs", "s/epoch"], rows, right=True)
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


def run_tune(
    *,
    recipe: opt.RecipeName,
    settings: opt.Settings = None,
    trials: Annotated[int, Option(min=1, help="Total trials of the study, including those of earlier calls.")] = 30,
    seed: opt.Seed = 0,
    seeds: Annotated[int, Option(min=1, help="Seeds with which the best settings are evaluated on test rows.")] = 3,
    store: Annotated[Path, Option(help="Folder of studies. Several processes may share it.")] = Path("runs/tune"),
    json: opt.AsJson = False,
    quiet: opt.Quiet = False,
    tracker: opt.Tracker = None,
) -> None:
    """Search for better settings on the validation rows.

    The test rows are evaluated once, at the end. Ctrl-C keeps the finished trials, and the same command resumes. The
    recipe's table `search` defines the search space.
    """
    loaded = load_recipe(recipe, settings or ())
    from fieldwise.config import to_plain
    from fieldwise.runs.tune import tune

    opt.check_device(loaded.training.device, what=opt.DEVICE)
    context = opt.run_context(opt.data_folder(loaded.data.name), tracker, quiet=quiet)
    result = tune(loaded, trials=trials, store=store, context=context, seed=seed, final_seeds=seeds)
    if json:
        plain = {f.name: to_plain(getattr(result, f.name)) for f in fields(result) if f.name not in ("recipe", "runs")}
        runs = [{"folder": str(run.folder), "seed": run["seed"], "test": dict(run["test"])} for run in result.runs]
        show.print_json({**plain, "study": str(result.study), "recipe_file": str(result.recipe_file), "runs": runs})
        return
    _show_tuned(result, loaded)
    if not quiet:
        show.suggest("train a bundle with the best settings", "train", result.recipe_file)


def _show_tuned(tuned: "Tuned", recipe: Recipe) -> None:
    from fieldwise.evaluation.words import remarks_on_means

    screen, now, tests = show.console(), sum(tuned.trials.values()), [run["test"] for run in tuned.runs]
    ended = ", ".join(f"{count} {how}" for how, count in tuned.trials.items()) + f" trial{'s' * (now != 1)}"
    screen.print(f"{recipe.name}: best {tuned.metric} on validation rows {tuned.value:.4f} of {ended}")
    rows = []
    for path in search_space(recipe):
        values = value_at(recipe, path), tuned.values.get(path)
        texts = (f"{value:.4g}" if isinstance(value, float) else str(value) for value in values)
        rows.append([path, *("-" if text == "None" else text for text in texts)])
    show.print_table(["setting", "was", "best"], rows)
    for metric in ("auc", "logloss", "rmse"):
        if of := [test[metric] for test in tests if metric in test]:
            spread = f" (seeds {min(of):.4f} to {max(of):.4f})" if len(of) > 1 else ""
            screen.print(f"test {metric} {sum(of) / len(of):.4f}{spread}")
    for sentence in [*remarks_on_means(tests, "test rows"), *([tuned.caution] if tuned.caution else [])]:
        screen.print(sentence)
    after, times = tuned.test_evaluations[0]["after_trials"], len(tuned.test_evaluations)
    if times == 1:
        then = "after the search."
        if now > after:
            first = show.counted(after, "trial")
            then = f"after {first}; the search then went on to {now} trials, and they are still the best."
        screen.print(f"This study evaluated only these settings on the test rows, {then}")
    else:
        screen.print(
            f"This search continued after an evaluation on the test rows: {times} settings have been evaluated on them "
            f"by now ({tuned.study.with_suffix('.test.json')})."
        )
    screen.print(f"recipe: {tuned.recipe_file}, study: {tuned.study}")
