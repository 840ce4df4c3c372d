"""`fieldwise evaluate`: metrics of a trained bundle on rows, of its rankings, of two stages; and its calibration."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

from typer import Option

from fieldwise.cli import options as opt
from fieldwise.cli import resources, saving, show
from fieldwise.cli.rankings import RankingOptions, show_rankings
from fieldwise.config import nearest, to_plain
from fieldwise.errors import ConfigError, DataError
from fieldwise.scoring import PRERANK
from fieldwise.storage.outputs import check_not_input

if TYPE_CHECKING:
    import polars as pl

    from fieldwise.bundle.about import CalibrationFacts
    from fieldwise.bundle.bundle import Bundle
    from fieldwise.data.prepare.labels import LabelledRows
    from fieldwise.evaluation.calibration import Method
    from fieldwise.scoring.evaluate import CascadeReport

NO_CALIBRATION = "none"
OPTIONS_OF = {"--calibrate": ("out", "overwrite"), "--tower": ("index", "nprobe", "rows")}
"""By an option that names an evaluation, the further options of that evaluation alone."""
RANKING_OPTIONS_OF_PRERANK = ("--k", "--candidates")
CALIBRATION_EFFECT = (
    "its scores and their order are as before. `--calibrate none` removes it again, "
    "which `export --to aoti` requires."
)
CALIBRATE_FIRST = ", or add --calibrate platt for probabilities"
DEFAULT_RETURNED = 20
DEFAULT_CONTEXTS = 200


@dataclass(frozen=True, kw_only=True)
class EvaluateOptions:
    """Options of `fieldwise evaluate`."""

    bundle: opt.BundleFolder
    data: Annotated[
        Path | None,
        Option(
            help="A table with labels. Default: the recipe's test rows (--calibrate: validation)."
        ),
    ] = None
    reading: opt.Reading
    ranking: RankingOptions
    calibrate: Annotated[
        str | None,
        Option(
            metavar="METHOD", help="Fit and save a calibration: platt or isotonic; none removes it."
        ),
    ] = None
    out: Annotated[
        Path | None, Option(help="With --calibrate: folder of the new bundle. Default: the same.")
    ] = None
    overwrite: opt.Overwrite = False
    tower: Annotated[
        Path | None,
        Option(
            metavar="TOWER",
            help="Measure two stages: this IntTower chooses --candidates for BUNDLE.",
        ),
    ] = None
    index: Annotated[
        Path | None, Option(help="With --tower: folder of the index that TOWER made.")
    ] = None
    nprobe: Annotated[
        int | None, Option(min=1, help="With --tower: head clusters to probe. Default: all.")
    ] = None
    rows: Annotated[
        int | None, Option(min=1, help="With --tower: contexts at most, sampled. Default: 200.")
    ] = None
    json: opt.AsJson = False
    device: opt.BundleDevice = "cpu"

    def check(self) -> None:
        """Check that the options belong together; else raise a ConfigError."""
        given = {
            "--ranking": self.ranking.ranking,
            "--calibrate": self.calibrate is not None,
            "--tower": self.tower is not None,
        }
        evaluations = [name for name, is_given in given.items() if is_given]
        if len(evaluations) > 1:
            raise ConfigError(
                f"{evaluations[0]} and {evaluations[1]} are evaluations of their own: omit one"
            )
        for evaluation, names in OPTIONS_OF.items():
            unused = [name for name in names if getattr(self, name) not in (None, False)]
            if unused and evaluation not in evaluations:
                raise ConfigError(
                    f"--{unused[0]} is an option of {evaluation}, which is not given: add it, or omit --{unused[0]}"
                )
        unused = self.ranking.given
        if self.tower is not None:
            unused = [name for name in unused if name not in RANKING_OPTIONS_OF_PRERANK]
        if unused and evaluations and not self.ranking.ranking:
            raise ConfigError(
                f"{unused[0]} is an option of --ranking, without effect on {evaluations[0]}: omit {unused[0]}"
            )
        if self.calibrate == NO_CALIBRATION and self.data is not None:
            raise ConfigError(
                "--calibrate none fits nothing, so that --data has no effect: omit --data"
            )
        if self.tower is not None and (self.index is None or self.data is None):
            raise ConfigError(
                "--tower needs an index of items, and rows with users and contexts: give --index and --data"
            )


def run(options: EvaluateOptions) -> None:
    """Evaluate a bundle on its test rows, or on your table.

    With --ranking it also ranks items for users. --calibrate fits a calibration, with which the
    bundle then predicts. --tower measures what two stages lose compared with ranking every item,
    and the latency of each stage.
    """
    options.check()
    if options.calibrate is not None:
        _calibrate(options, options.calibrate)
    elif options.tower is not None:
        _measure_cascade(options, options.tower)
    elif options.data is not None:
        _evaluate_table(options, options.data)
    else:
        _evaluate_test_rows(options)


def _evaluate_table(options: EvaluateOptions, data: Path) -> None:
    """Print the metrics of the bundle on a table with labels."""
    from fieldwise.bundle.trained_rows import rows_trained, trained_words
    from fieldwise.bundle.unknown_ids import unknown_id_doubts

    if options.ranking.settings() is not None:
        raise ConfigError(
            "--ranking excludes items that users liked in training rows, which --data does not have: omit one"
        )
    bundle = resources.load_bundle(options.bundle, options.device)
    table = resources.scored_table(bundle, data, options.reading)
    with options.reading.lines(data):
        rows = _labelled_rows(bundle, table)
    metrics = _metrics(bundle, rows)
    seen = rows_trained(bundle, rows.frame)
    if options.json:
        share_trained = None if seen is None else seen.share
        facts = {"data": str(data), "metrics": metrics, "share_trained": share_trained}
        show.print_json({"bundle": str(options.bundle), **facts})
    else:
        show.show_metrics({str(data): metrics})

    if seen is not None and seen.found:
        remedy = "evaluate on rows that were not passed to `fit`"
        if bundle.about.recipe is not None:
            remedy = f"to evaluate on its test rows: {show.command('evaluate', options.bundle)}"
        show.say(f"WARNING: {trained_words(rows.frame.height, seen)}; {remedy}")
    for doubt in unknown_id_doubts(bundle, rows.frame):
        show.say(f"CHECK: {doubt}")
    if not options.json:
        words = ["--data", data, *options.reading.text().words()]
        show.suggest("explain the scores of these rows", "explain", options.bundle, *words)


def _evaluate_test_rows(options: EvaluateOptions) -> None:
    """Print the metrics of the bundle on the test rows of its recipe, and of its rankings."""
    from fieldwise.runs.leaderboard import ranking_boards
    from fieldwise.runs.ranking import RankingTask, rank_items

    ranking = options.ranking.settings()
    options.reading.check_used("--data", None)
    bundle = resources.load_bundle(options.bundle, options.device)
    prepared, (table,) = resources.rows_of_bundle(
        bundle, options.bundle, ["test"], "give --data FILE"
    )
    metrics = _metrics(bundle, _labelled_rows(bundle, table))
    boards = []
    if ranking is not None:
        ranked = rank_items(bundle, RankingTask(prepared, bundle.schema, ranking))
        boards = ranking_boards({options.bundle.name: [ranked]}, k=options.ranking.cutoff)

    where = "the recipe's test rows"
    if options.json:
        plain: dict[str, Any] = {"bundle": str(options.bundle), "data": where, "metrics": metrics}
        if boards:
            plain["ranking"] = boards[0].to_plain()
        show.print_json(plain)
        return
    show.show_metrics({where: metrics})
    show_rankings(boards, "[95 % interval] for other users")
    show.suggest_report(bundle, options.bundle)


def _labelled_rows(bundle: "Bundle", table: "pl.DataFrame") -> "LabelledRows":
    """The rows of a table with their labels, without those that the label's rule drops."""
    from fieldwise.data.encode.encoder import check_table
    from fieldwise.data.prepare.labels import labelled_rows
    from fieldwise.storage.scratch import NO_LIMIT

    check_table(table, bundle.schema, budget=NO_LIMIT)
    return labelled_rows(table, bundle.schema, budget=NO_LIMIT)


def _metrics(bundle: "Bundle", rows: "LabelledRows") -> dict[str, float]:
    """The metrics of a bundle; says how many rows were dropped, and which calibration it has."""
    show.say_dropped(rows.dropped)
    if bundle.calibration:
        has_several_labels = len(bundle.schema.labels) > 1
        kinds: list[str] = []
        for name, calibration in bundle.calibration.items():
            kinds.append(f"{name}: {calibration.kind}" if has_several_labels else calibration.kind)
        show.say(f"measured with the bundle's calibration ({', '.join(kinds)})")
    for label in bundle.schema.labels:
        if bundle.meaning(label) != label.meaning:
            show.say(
                f"CHECK: a prediction is the {bundle.meaning(label)}: read AUC, group AUC and NDCG alone"
                f"{CALIBRATE_FIRST if label.task == 'binary' else ''}"
            )
    return bundle.metrics(rows, one_class=True)


def _calibrate(options: EvaluateOptions, method: str) -> None:
    """Fit a calibration on validation rows and save it in the bundle, or remove it."""
    from fieldwise.bundle.bundle import bundle_digest
    from fieldwise.bundle.calibrate import calibrate, without_calibration
    from fieldwise.evaluation.calibration import METHODS

    known_methods = (*METHODS, NO_CALIBRATION)
    if method not in known_methods:
        raise ConfigError(
            f"--calibrate must be one of {', '.join(known_methods)}, found {method!r}: {nearest(method, known_methods)}"
        )
    options.reading.check_used("--data", options.data)
    if options.out is None:
        target = options.bundle
        replaced_digest = bundle_digest(options.bundle)
    else:
        target = options.out
        replaced_digest = None
        check_not_input(options.out, [options.bundle, *resources.table_files(options.data)])
    saving.check_out(target, overwrite=options.overwrite or options.out is None)

    bundle = resources.load_bundle(options.bundle, options.device)
    if method == NO_CALIBRATION:
        without_calibration(bundle).save(target, overwrite=True, replaces=replaced_digest)
        show.say(f"{target} has no calibration: its probabilities are the sigmoid of its scores")
        if options.json:
            show.print_json({"bundle": str(target), "method": NO_CALIBRATION})
        return

    frames = _frames(options, bundle)
    calibrated = calibrate(bundle, frames, cast("Method", method), show.say)
    calibrated.save(target, overwrite=True, replaces=replaced_digest)
    facts = calibrated.about.calibration
    assert facts is not None, "a calibrated bundle says how"
    if options.json:
        show.print_json({"bundle": str(target), **to_plain(facts)})
        return
    _show_figures(facts)
    show.console().print(
        f"{target} now predicts with this calibration ({method}); {CALIBRATION_EFFECT}"
    )
    if options.data is None:
        show.suggest_report(bundle, target)
    else:
        words = [
            "--data",
            options.data,
            "--out",
            "predictions.csv",
            *options.reading.text().words(),
        ]
        show.suggest("calibrated probabilities", "predict", target, *words)


def _frames(options: EvaluateOptions, bundle: "Bundle") -> "dict[str, pl.DataFrame]":
    """The rows to fit on, then those to measure on, by what they are called."""
    if all(label.task != "binary" for label in bundle.schema.labels):
        raise ConfigError(
            f"a calibration corrects probabilities, but {options.bundle} predicts a number: nothing to calibrate"
        )
    if options.data is None:
        remedy = "give --data FILE with rows that it was not trained on"
        _, (valid, test) = resources.rows_of_bundle(
            bundle, options.bundle, ["valid", "test"], remedy
        )
        return {"validation rows": valid, "test rows": test}
    frame = resources.scored_table(bundle, options.data, options.reading)
    if not frame.height:
        raise DataError(f"a calibration needs rows, but {options.data} has none")
    return {str(options.data): frame}


def _show_figures(facts: "CalibrationFacts") -> None:
    """Print the metrics before and after, and say for which labels the logloss is higher on new rows."""
    worse_labels = []
    for where, labels in facts.figures.items():
        is_fitted_on = where == facts.fitted_on
        for name, metrics in labels.items():
            before = metrics["before"]
            after = metrics["after"]
            title = f"{name}, {where}" if len(labels) > 1 else where
            if is_fitted_on:
                title += " (fitted on these)"
            rows = [
                [metric, f"{value:.4f}", f"{after[metric]:.4f}"] for metric, value in before.items()
            ]
            show.print_table([title, "before", "after"], rows)
            if not is_fitted_on and after["logloss"] > before["logloss"]:
                worse_labels.append(name)
    if worse_labels:
        show.say(
            f"with the calibration, the logloss of {', '.join(worse_labels)} is higher on rows that it was not fitted "
            "on"
        )


def _measure_cascade(options: EvaluateOptions, tower_folder: Path) -> None:
    """Measure the loss of pre-ranking compared with ranking every item, and the latency of each stage."""
    from fieldwise.scoring.evaluate import evaluate_cascade
    from fieldwise.scoring.ranker import Ranker
    from fieldwise.serving.index import open_index

    preranked = _preranked(options.ranking.candidates)
    assert options.index is not None, "checked before"
    assert options.data is not None, "checked before"
    tower = resources.load_bundle(tower_folder, options.device)
    bundle = resources.load_bundle(options.bundle, options.device)
    cascade = Ranker(bundle, open_index(options.index), tower=tower, nprobe=options.nprobe)
    text_columns = [*bundle.schema.text_columns, *tower.schema.text_columns]
    table = options.reading.table(options.data, text_columns)
    contexts = show.sampled_rows(
        table, options.rows or DEFAULT_CONTEXTS, "rows sampled as contexts"
    )
    returned = options.ranking.k or DEFAULT_RETURNED
    report = evaluate_cascade(cascade, contexts, k=returned, prerank=preranked)
    if options.json:
        show.print_json(asdict(report))
        return

    is_approximate = options.nprobe is not None
    _show_report(report, is_approximate=is_approximate)
    words: list[object] = ["--tower", tower_folder, "--index", options.index]
    words += show.log_words(tower)
    if is_approximate:
        words += ["--nprobe", options.nprobe]
    show.suggest(
        "start a server with a web page that uses both bundles",
        "serve",
        options.bundle,
        *words,
        needs="uvicorn",
    )


def _preranked(candidates: str | None) -> int:
    """The number of items passed on, as --candidates gives it."""
    if candidates is None:
        return PRERANK
    if not candidates.isdecimal() or not int(candidates):
        raise ConfigError(
            f"--candidates must be the number of items passed on, found {candidates!r}"
        )
    return int(candidates)


def _show_report(report: "CascadeReport", *, is_approximate: bool) -> None:
    """Print the losses, and the latencies."""
    k = report.k
    preranked = min(report.prerank, report.items)
    show.console().print(
        f"{show.counted(report.contexts, 'context')}, {report.items:,} items, {preranked:,} pre-ranked, {k} returned; "
        "compared with ranking all items:"
    )
    rows = [
        [f"recall@{k}", f"{report.recall:.4f}"],
        [f"NDCG@{k}", f"{report.ndcg:.4f}"],
        ["best item found", f"{report.best_found:.4f}"],
    ]
    if is_approximate:
        share_name = f"share of its best {report.prerank:,} items among them"
        rows.append(["items scored by the IntTower, mean", f"{report.candidates:,.0f}"])
        rows.append([share_name, f"{report.candidate_recall:.4f}"])
    if report.hit_rate is not None:
        hit_rate_name = f"hit rate@{k} of the items in {report.targets:,} rows"
        rows.append([hit_rate_name, f"{report.hit_rate:.4f}"])
        rows.append(["the same, ranking all items", f"{report.hit_rate_all:.4f}"])
    show.print_table(["metric", "value"], rows)

    rows = [[f"{size:,}", f"{share:.4f}"] for size, share in report.recall_by_prerank.items()]
    heads = ["pre-ranked", f"share of the best {k} kept"]
    show.print_table(heads, rows, title="\nrecall of pre-ranking")

    rows = []
    for stage, percentiles in report.milliseconds.items():
        stage_name = "ranking all items" if stage == "everything" else stage
        rows.append([stage_name, *(f"{value:.2f}" for value in percentiles)])
    heads = ["stage", "p50", "p95", "p99"]
    show.print_table(heads, rows, title="\nmilliseconds per request")
