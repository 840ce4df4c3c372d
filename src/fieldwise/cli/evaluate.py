"""The commands about a trained bundle: `fieldwise evaluate`, `explain` and `report`.

`evaluate` has metrics, also of rankings and of two stages, and the bundle's calibration; `explain`
can also test whether its explanations are faithful.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

from typer import Argument, Option

from fieldwise.cli import options as opt
from fieldwise.cli import show
from fieldwise.cli.rankings import RankingOptions, show_rankings
from fieldwise.config import nearest
from fieldwise.errors import ConfigError, DataError
from fieldwise.scoring import PRERANK
from fieldwise.storage.files import check_not_input, check_output, write_atomically

if TYPE_CHECKING:
    import polars as pl

    from fieldwise.bundle.bundle import Bundle
    from fieldwise.evaluation.calibration import Calibration, Method
    from fieldwise.explain.faithfulness import Curves
    from fieldwise.explain.subject import Method as ExplanationMethod
    from fieldwise.explain.subject import Subject
    from fieldwise.schema import Task

NONE = "none"
REST = (
    "its scores and their order are as before. `--calibrate none` removes it again, "
    "which `export --to aoti` requires."
)
TOP = 10  # pairs, effects and attention weights that are printed; --json has all
METHOD_WORDS = {
    "terms": "exact terms",
    "integrated_gradients": "integrated gradients",
    "occlusion": "the score's drop without a field",
}
# with --prerank: items returned, and contexts
K = 20
CONTEXTS = 200


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
    prerank: Annotated[
        Path | None,
        Option(
            metavar="TOWER",
            help="Measure two stages: this IntTower chooses --candidates for BUNDLE.",
        ),
    ] = None
    index: Annotated[
        Path | None, Option(help="With --prerank: folder of the index that TOWER made.")
    ] = None
    nprobe: Annotated[
        int | None, Option(min=1, help="With --prerank: head clusters to probe. Default: all.")
    ] = None
    rows: Annotated[
        int | None, Option(min=1, help="With --prerank: contexts at most, sampled. Default: 200.")
    ] = None
    json: opt.AsJson = False
    device: opt.BundleDevice = "cpu"

    def check(self) -> None:
        """Check that the options belong together; else raise a ConfigError."""
        calibrate = self.calibrate is not None
        prerank = self.prerank is not None
        tasks = {"--ranking": self.ranking.ranking, "--calibrate": calibrate, "--prerank": prerank}
        given = [name for name, there in tasks.items() if there]
        if len(given) > 1:
            raise ConfigError(f"{given[0]} and {given[1]} are evaluations of their own: omit one")
        owners = {"--calibrate": ("out", "overwrite"), "--prerank": ("index", "nprobe", "rows")}
        for owner, name in ((owner, name) for owner, names in owners.items() for name in names):
            if owner not in given and getattr(self, name) not in (None, False):
                raise ConfigError(
                    f"--{name} is an option of {owner}, which is not given: add it, or omit --{name}"
                )
        used = ("--k", "--candidates") if prerank else ()
        unused = [name for name in self.ranking.given if name not in used]
        if unused and (calibrate or prerank):
            raise ConfigError(
                f"{unused[0]} is an option of --ranking, without effect on {given[0]}: omit {unused[0]}"
            )
        if self.calibrate == NONE and self.data is not None:
            raise ConfigError(
                "--calibrate none fits nothing, so that --data has no effect: omit --data"
            )
        if prerank and (self.index is None or self.data is None):
            raise ConfigError(
                "--prerank needs an index of items, and rows with users and contexts: give --index and --data"
            )


def run(options: EvaluateOptions) -> None:
    """Evaluate a bundle on its test rows, or on your table.

    With --ranking it also ranks items for users. --calibrate fits a calibration, with which the
    bundle then predicts. --prerank measures what two stages lose compared with ranking every item,
    and the latency of each stage.
    """
    options.check()
    if options.calibrate is not None:
        _calibrate(options, options.calibrate)
    elif options.prerank is not None:
        _measure_cascade(options, options.prerank)
    else:
        _evaluate(options)


def _evaluate(options: EvaluateOptions) -> None:
    """Print the metrics of the bundle on rows, and of its rankings."""
    from fieldwise.bundle.trained_rows import rows_trained, trained_words
    from fieldwise.bundle.unknown_ids import unknown_id_doubts
    from fieldwise.data.encode.encoder import check_table
    from fieldwise.data.prepare.labels import read_labels
    from fieldwise.runs.leaderboard import ranking_boards
    from fieldwise.runs.ranking import RankingTask, rank_items

    bundle = options.bundle
    data = options.data
    reading = options.reading
    ranking = options.ranking
    wanted = ranking.settings()
    reading.check_used("--data", data)
    if data is not None and wanted is not None:
        raise ConfigError(
            "--ranking excludes items that users liked in training rows, which --data does not have: omit one"
        )
    model = opt.load_bundle(bundle, options.device)
    where = str(data)
    ranked = []
    seen = None
    if data is not None:
        frame = reading.table(data, model.schema.text_columns)
    else:
        prepared, (frame,) = opt.rows_of_bundle(model, bundle, ["test"], "give --data FILE")
        where = "the recipe's test rows"
    with reading.lines(data):
        check_table(frame, model.schema)
        rows = read_labels(frame, model.schema.labels, missing=model.schema.missing)
    _say_dropped(rows.dropped)
    if model.calibration:
        several = len(model.schema.labels) > 1
        kinds = (
            f"{name}: {one.kind}" if several else one.kind
            for name, one in model.calibration.items()
        )
        show.say(f"measured with the bundle's calibration ({', '.join(kinds)})")
    metrics = model.metrics(rows, one_class=True)
    if data is not None:
        seen = rows_trained(model, rows.frame)
    elif wanted is not None:
        task = RankingTask(prepared, model.schema, wanted)
        ranked = ranking_boards({bundle.name: [rank_items(model, task)]}, k=ranking.cutoff)
    if options.json:
        results: dict[str, object] = {"bundle": str(bundle), "data": where, "metrics": metrics}
        if data is not None:
            results["share_trained"] = None if seen is None else seen.share
        if ranked:
            results["ranking"] = ranked[0].to_plain()
        show.print_json(results)
    else:
        show.show_metrics({where: metrics})
        show_rankings(ranked, "[95 % interval] for other users")
    if seen is not None and seen.found:
        instead = "evaluate on rows that were not passed to `fit`"
        if "recipe" in model.about:
            instead = f"to evaluate on its test rows: {show.command('evaluate', bundle)}"
        show.say(f"WARNING: {trained_words(rows.frame.height, seen)}; {instead}")
    if data is not None:
        for doubt in unknown_id_doubts(model, rows.frame):
            show.say(f"CHECK: {doubt}")
    if not options.json and data is None:
        show.suggest_report(model, bundle)
    elif not options.json:
        show.suggest(
            "explain the scores of these rows",
            "explain",
            bundle,
            "--data",
            data,
            *reading.options(),
        )


def _say_dropped(rows: int) -> None:
    if rows:
        show.say(f"{show.counted(rows, 'row')} dropped by the label's rule")


def _calibrate(options: EvaluateOptions, method: str) -> None:
    """Fit a calibration on validation rows and save it in the bundle, or remove it."""
    from fieldwise.bundle.bundle import bundle_digest
    from fieldwise.evaluation.calibration import METHODS

    target = options.out or options.bundle
    known = (*METHODS, NONE)
    if method not in known:
        raise ConfigError(
            f"--calibrate must be one of {', '.join(known)}, found {method!r}: {nearest(method, known)}"
        )
    options.reading.check_used("--data", options.data)
    replaces = bundle_digest(options.bundle) if options.out is None else None
    if options.out is not None:
        check_not_input(options.out, [options.bundle, *opt.table_files(options.data)])
    opt.check_out(target, overwrite=options.overwrite or options.out is None)
    bundle = opt.load_bundle(options.bundle, options.device)
    about = {name: value for name, value in bundle.about.items() if name != "calibration"}
    if method == NONE:
        replace(bundle, about=about, calibration={}).save(target, overwrite=True, replaces=replaces)
        show.say(f"{target} has no calibration: its probabilities are the sigmoid of its scores")
        if options.json:
            show.print_json({"bundle": str(target), "method": NONE})
        return
    facts, maps = _fit_calibration(options, bundle, cast("Method", method))
    replace(bundle, about={**about, "calibration": facts}, calibration=maps).save(
        target, overwrite=True, replaces=replaces
    )
    if options.json:
        show.print_json({"bundle": str(target), **facts})
        return
    worse = []
    for where, labels in facts["figures"].items():
        fitted = where == facts["fitted_on"]
        for name, metrics in labels.items():
            of = f"{name}, {where}" if len(labels) > 1 else where
            after = metrics["after"]
            rows = (
                [name, f"{old:.4f}", f"{after[name]:.4f}"]
                for name, old in metrics["before"].items()
            )
            show.print_table([of + " (fitted on these)" * fitted, "before", "after"], rows)
            if not fitted and after["logloss"] > metrics["before"]["logloss"]:
                worse.append(name)
    if worse:
        show.say(
            f"with the calibration, the logloss of {', '.join(worse)} is higher on rows that it was not fitted on"
        )
    show.console().print(f"{target} now predicts with this calibration ({method}); {REST}")
    if options.data is None:
        show.suggest_report(bundle, target)
    else:
        given = "--data", options.data, "--out", "predictions.csv", *options.reading.options()
        show.suggest("calibrated probabilities", "predict", target, *given)


def _fit_calibration(
    options: EvaluateOptions, bundle: "Bundle", method: "Method"
) -> "tuple[dict[str, Any], dict[str, Calibration]]":
    """A calibration of each binary label, fitted on the first of the parts, and the figures of all of them."""
    from fieldwise.data.prepare.labels import read_labels
    from fieldwise.evaluation.calibration import METHODS, before_and_after

    data = options.data
    labels = bundle.schema.labels
    if all(label.task != "binary" for label in labels):
        raise ConfigError(
            f"a calibration corrects probabilities, but {options.bundle} predicts a number: nothing to calibrate"
        )
    if data is not None:
        frames = {str(data): options.reading.table(data, bundle.schema.text_columns)}
        if not frames[str(data)].height:
            raise DataError(f"a calibration needs rows, but {data} has none")
    else:
        instead = "give --data FILE with rows that it was not trained on"
        _, (valid, test) = opt.rows_of_bundle(bundle, options.bundle, ["valid", "test"], instead)
        frames = {"validation rows": valid, "test rows": test}
    fitted_on, *_ = frames
    maps: dict[str, Calibration] = {}
    figures: dict[str, dict[str, Any]] = {where: {} for where in frames}
    for where, frame in frames.items():
        rows = read_labels(frame, labels, missing=bundle.schema.missing)
        _say_dropped(rows.dropped)
        scores = bundle.score(rows.frame).reshape(len(rows.frame), -1)
        for k, name in (
            (k, label.name) for k, label in enumerate(labels) if label.task == "binary"
        ):
            y = rows.y[:, k]
            score = scores[:, k]
            try:
                maps[name] = maps.get(name) or METHODS[method](y, score)
            except DataError as e:
                raise DataError(f"label {name!r}, {where}: {e}") from None
            figures[where][name] = before_and_after(y, score, maps[name])
    return {
        "method": method,
        "fitted_on": fitted_on,
        "rows": frames[fitted_on].height,
        "figures": figures,
    }, maps


def _measure_cascade(options: EvaluateOptions, prerank: Path) -> None:
    """Measure the loss of pre-ranking compared with ranking every item, and the latency of each stage."""
    from fieldwise.scoring.ranker import Ranker
    from fieldwise.serving.evaluate import evaluate_cascade
    from fieldwise.serving.index import open_index

    sizes = options.ranking
    if sizes.candidates is not None and not (
        sizes.candidates.isdecimal() and int(sizes.candidates)
    ):
        raise ConfigError(
            f"--candidates must be the number of items passed on, found {sizes.candidates!r}"
        )
    assert options.index is not None, "checked before"
    assert options.data is not None, "checked before"
    tower = opt.load_bundle(prerank, options.device)
    ranker = opt.load_bundle(options.bundle, options.device)
    cascade = Ranker(ranker, open_index(options.index), prerank=tower, nprobe=options.nprobe)
    texts = [*ranker.schema.text_columns, *tower.schema.text_columns]
    table = options.reading.table(options.data, texts)
    contexts = show.drawn_rows(table, options.rows or CONTEXTS, "rows sampled as contexts")
    report = evaluate_cascade(
        cascade, contexts, k=sizes.k or K, prerank=int(sizes.candidates or PRERANK)
    )
    if options.json:
        show.print_json(asdict(report))
        return
    k = report.k
    size = report.prerank
    approximate = options.nprobe is not None
    context_count = show.counted(report.contexts, "context")
    preranked = min(size, report.items)
    show.console().print(
        f"{context_count}, {report.items:,} items, {preranked:,} pre-ranked, {k} returned; "
        "compared with ranking all items:"
    )
    figures = {
        f"recall@{k}": report.recall,
        f"NDCG@{k}": report.ndcg,
        "best item found": report.best_found,
    }
    rows = [[name, f"{value:.4f}"] for name, value in figures.items()]
    if approximate:
        rows.append(["items scored by the IntTower, mean", f"{report.candidates:,.0f}"])
        rows.append(
            [f"share of its best {size:,} items among them", f"{report.candidate_recall:.4f}"]
        )
    if report.hit_rate is not None:
        rows.append(
            [f"hit rate@{k} of the items in {report.targets:,} rows", f"{report.hit_rate:.4f}"]
        )
        rows.append(["the same, ranking all items", f"{report.hit_rate_all:.4f}"])
    show.print_table(["metric", "value"], rows)
    rows = [[f"{size:,}", f"{share:.4f}"] for size, share in report.recall_by_prerank.items()]
    show.print_table(
        ["pre-ranked", f"share of the best {k} kept"], rows, title="\nrecall of pre-ranking"
    )
    stages = {
        "ranking all items" if name == "everything" else name: v
        for name, v in report.milliseconds.items()
    }
    rows = [[name, *(f"{value:.2f}" for value in values)] for name, values in stages.items()]
    show.print_table(["stage", "p50", "p95", "p99"], rows, title="\nmilliseconds per request")
    given = ["--prerank", prerank, "--index", options.index, *show.log_words(tower)]
    given += ["--nprobe", options.nprobe] if approximate else []
    show.suggest(
        "start a server with a web page that uses both bundles",
        "serve",
        options.bundle,
        *given,
        needs="uvicorn",
    )


@dataclass(frozen=True, kw_only=True)
class ExplainOptions:
    """Options of `fieldwise explain`."""

    bundle: opt.BundleFolder
    data: Annotated[
        Path | None, Option(help="Rows to explain. Default: the test rows of the bundle's recipe.")
    ] = None
    row: Annotated[int | None, Option(min=0, help="Explain only this row, counted from 0.")] = None
    rows: Annotated[
        int, Option(min=1, help="Without --row: maximum number of rows, sampled at random.")
    ] = 1000
    background: Annotated[
        Path | None, Option(help="Rows to compare with. Default: the bundle's sample rows.")
    ] = None
    method: Annotated[
        str | None, Option(help="terms, integrated_gradients or occlusion. Default: most exact.")
    ] = None
    label: Annotated[
        str | None, Option(help="The label of a multi-task bundle. Default: the main label.")
    ] = None
    faithfulness: Annotated[
        bool, Option(help="Evaluate the explanations by deletion and insertion curves.")
    ] = False
    reading: opt.Reading
    json: opt.AsJson = False
    device: opt.BundleDevice = "cpu"


def run_explain(options: ExplainOptions) -> None:
    """Explain scores by field and pair of fields.

    It is done for one row, or on average over a set of rows.
    """
    if options.faithfulness and options.row is not None:
        raise ConfigError("--faithfulness is a mean over rows: omit --row")
    from fieldwise.explain.effects import effects
    from fieldwise.explain.explanation import explain_subject, planted_pairs_found, summary
    from fieldwise.explain.faithfulness import faithfulness

    options.reading.check_used("--data or --background", options.data or options.background)
    bundle = opt.load_bundle(options.bundle, options.device)
    texts = bundle.schema.text_columns
    usual = None if options.background is None else options.reading.table(options.background, texts)
    subject = _subject(bundle, usual, options)
    result = explain_subject(
        subject,
        cast("ExplanationMethod", options.method) if options.method else subject.usual_method,
    )
    plain: dict[str, Any] = {
        "bundle": str(options.bundle),
        "data": _rows_explained(options),
        "background": "its sample rows" if options.background is None else str(options.background),
        "network_share": bundle.network_share,
        "effects": effects(bundle, usual, label=options.label),
    }
    curves: Sequence[Curves] = ()
    if options.row is not None:
        plain |= {"row": options.row, **result.row(0)}
    else:
        plain |= summary(result)
        recipe = bundle.about.get("recipe", {})
        settings = recipe.get("settings", {}) if isinstance(recipe, dict) else {}
        if settings.get("data", {}).get("name") == "simulated":  # its pairs that matter are known
            among, of = planted_pairs_found([pair["fields"] for pair in plain["pairs"]])
            plain["planted_pairs"] = {"found": among, "of": of}
        if options.faithfulness:
            curves = faithfulness(subject)
            lists = [
                {name: getattr(one, name).tolist() for name in ("deletion", "insertion")}
                for one in curves
            ]
            plain["faithfulness"] = [
                vars(one) | own for one, own in zip(curves, lists, strict=True)
            ]
    if options.json:
        show.print_json(plain, allow_nan=False)
        return
    if options.row is not None:
        _print_row(plain, subject)
    else:
        _print_set(plain, curves, subject.settings.task)
    if bundle.mean_sentence is not None:
        show.console().print(f"\n{bundle.mean_sentence}")
    if options.row is not None:
        show.suggest_report(bundle, options.bundle)
    else:
        rows = [] if options.data is None else ["--data", options.data]
        given = (*rows, "--row", 0, *options.reading.options())
        show.suggest("explain one row", "explain", options.bundle, *given)


def run_report(
    *,
    runs: Annotated[
        list[Path],
        Argument(metavar="RUN", help="Bundles or runs of `compare`, the baseline first."),
    ],
    out: Annotated[Path, Option(help="The HTML file to write.")] = Path("report.html"),
    overwrite: opt.Overwrite = False,
    slices: Annotated[
        list[str] | None,
        Option(
            "--slice", metavar="FIELD", help="Evaluate by this field's values. May be repeated."
        ),
    ] = None,
    rows: Annotated[
        int, Option(min=1, help="Maximum number of test rows to explain, sampled at random.")
    ] = 500,
    quiet: opt.Quiet = False,
    device: opt.BundleDevice = "cpu",
) -> None:
    """Write an offline HTML page about trained runs.

    It has their metrics, curves, calibration, slices, cold start and explanations.
    """
    from fieldwise.bundle.bundle import MANIFEST
    from fieldwise.report import ReportSettings, report

    if out.is_dir():
        raise ConfigError(
            f"--out must be a file, but {out} is a folder: give {out / 'report.html'}"
        )
    check_output(out, overwrite=overwrite, inputs=runs)
    opt.check_device(device)
    settings = ReportSettings(slices=tuple(slices or ()), rows=rows, device=device)
    page = report(runs, settings, data_dir=opt.data_folder(), cache=opt.cache_for(quiet)).encode()
    _, unsaved = opt.save_or_keep(
        lambda folder: write_atomically(folder / out.name, page), out.parent, "The report"
    )
    if unsaved is not None:
        raise unsaved
    if not quiet:
        show.say(f"report written to {out} ({len(page) / 1024:,.0f} KiB)")
        bundles = [run for run in runs if (run / MANIFEST).is_file()]
        if bundles:
            show.suggest(
                "start a web page to edit rows and see their scores",
                "serve",
                bundles[0],
                needs="uvicorn",
            )


def _rows_explained(options: ExplainOptions) -> str:
    """The file of the rows to explain, or which rows it stands for."""
    return "the recipe's test rows" if options.data is None else str(options.data)


def _subject(bundle: "Bundle", usual: "pl.DataFrame | None", options: ExplainOptions) -> "Subject":
    """The row asked for, or a random sample of the rows in their original order, with the background rows."""
    from fieldwise.explain.subject import Subject

    row = options.row
    data = _rows_explained(options)
    if options.data is None:
        _, (frame,) = opt.rows_of_bundle(bundle, options.bundle, ["test"], "give --data FILE")
    else:
        frame = options.reading.table(options.data, bundle.schema.text_columns)
    if usual is not None:
        if not usual.height:
            raise DataError(
                f"--background {options.background} has no rows: give some to compare with"
            )
        try:
            bundle.encoder.transform(usual)
        except DataError as e:
            raise DataError(f"--background {options.background}: {e}") from None
    if row is not None and row >= frame.height:
        count = show.counted(frame.height, "row")
        raise DataError(f"--row counts from 0, and there are {count} in {data}: found {row}")
    if not frame.height:
        raise DataError(f"an explanation needs rows, but there are none in {data}")
    chosen = (
        show.drawn_rows(frame, options.rows, "rows sampled")
        if row is None
        else frame[row : row + 1]
    )
    try:
        return Subject.of(bundle, chosen, background=usual, label=options.label)
    except DataError:
        bundle.encoder.transform(frame)  # an error names the cell's row in the file
        raise


def _print_row(plain: dict[str, Any], subject: "Subject") -> None:
    """Print the explanation of one row, whose figures `plain` holds."""
    out = show.console()
    task = subject.settings.task
    score, prediction, base, gap = (plain[k] for k in ("score", "prediction", "base", "gap"))
    given = sum(f["contribution"] for f in plain["fields"])
    calibrated = "calibrated " if subject.calibration else ""
    probability = f"{calibrated}probability {prediction:.4f}, " if task == "binary" else ""
    out.print(f"{plain['label']}: {plain['sentence']}\n", soft_wrap=True)
    out.print(
        f"{probability}score {score:+.4f} = base {base:+.4f} + fields {given:+.4f}"
        f" + gap {gap:+.4f} ({METHOD_WORDS[plain['method']]})"
    )
    extra = [term for term in ("first_order", "attended") if term in plain["fields"][0]]
    rows = [
        [f["field"], f["value"], *(f"{f[k]:+.4f}" for k in ("contribution", *extra))]
        for f in plain["fields"]
    ]
    heads = ["field", "value", "contribution", *(e.replace("_", " ") for e in extra)]
    show.print_table(heads, rows, title="\nfields, strongest first")
    _print_effects(plain["effects"], task)
    if plain.get("pairs"):
        parts = [part for part in ("attention", "interaction") if part in plain["pairs"][0]]
        rows = []
        for p in plain["pairs"][:TOP]:
            names = [" × ".join(p["fields"]), " × ".join(p["values"])]
            rows.append([*names, f"{p['contribution']:+.4f}", *(f"{p[k]:.4f}" for k in parts)])
        title = f"\npairs, the first {len(rows)} of {len(plain['pairs'])}"
        show.print_table(["pair", "values", "contribution", *parts], rows, title=title)
    if "attention" in plain:
        _print_attention(plain["attention"], subject.fields)
    if "levels" in plain:
        rows = []
        for level in plain["levels"]:
            best = sorted(level["heads"], key=lambda head: -abs(head["product"]))[:TOP]
            met = ", ".join(f"{h['user_head']}-{h['item_head']} {h['product']:+.4f}" for h in best)
            rows.append([str(level["level"]), f"{level['contribution']:+.4f}", met])
        title = "\nlevels: each user head with the item head that it matches best"
        show.print_table(["level", "score", "matches"], rows, title=title)
        rows = [
            [side, gate["field"], gate["value"], f"{gate['gate']:.4f}", f"{gate['effect']:+.4f}"]
            for side in ("user", "item")
            for gate in sorted(plain[f"{side}_gates"], key=lambda g: -g["gate"])
        ]
        title = "\ngates: each field's weight in its tower, and its effect on the score"
        show.print_table(["side", "field", "value", "gate", "effect"], rows, title=title)


def _print_effects(effects: "Sequence[dict[str, Any]]", task: "Task") -> None:
    """Print the mean prediction by value of the fields with the widest ranges."""
    from fieldwise.explain.explanation import prediction_text

    rows = []
    for one in effects[:TOP]:
        pairs = zip(one["values"], one["predictions"], strict=True)
        rows.append(
            [one["field"], ", ".join(f"{value}: {prediction_text(p, task)}" for value, p in pairs)]
        )
    if rows:
        title = "\ndirections, the mean prediction of the sample rows with each value"
        show.print_table(["field", "value: prediction"], rows, title=title)


def _print_attention(weights: object, fields: "Sequence[str]") -> None:
    """Print the strongest weights [L, H, F, F] between two fields."""
    import numpy as np

    from fieldwise.explain.explanation import uniform_text

    weights_LHFF = np.asarray(weights)
    if uniform := uniform_text(weights_LHFF, 1 / len(fields)):
        show.console().print(f"\n{uniform}")
        return
    between = np.where(np.eye(len(fields), dtype=bool), -1.0, weights_LHFF)
    rows = []
    for place in np.argsort(-between, axis=None)[: min(TOP, int((between >= 0).sum()))]:
        layer, head, i, j = np.unravel_index(place, between.shape)
        rows.append(
            [
                str(layer + 1),
                str(head + 1),
                fields[i],
                fields[j],
                f"{between[layer, head, i, j]:.4f}",
            ]
        )
    title = f"\nattention, the {TOP} strongest between two fields"
    show.print_table(["layer", "head", "query field", "key field", "weight"], rows, title=title)


def _print_set(plain: dict[str, Any], curves: "Sequence[Curves]", task: "Task") -> None:
    """Print the mean explanation of a set of rows, and its faithfulness curves if there are any."""
    from fieldwise.explain.explanation import summary_tables

    method = METHOD_WORDS[plain["method"]]
    gap = plain["largest_gap"]
    rows = show.counted(plain["rows"], "row")
    means = (
        f"mean score {plain['mean_score']:+.4f}, contributions by {method}, largest gap {gap:.4f}"
    )
    show.console().print(f"{plain['label']}: {rows}, {means}")
    for name, table in summary_tables(plain, TOP).items():
        show.print_table(
            table.columns, table.rows, title=f"\n{table.title[0].lower()}{table.title[1:]}"
        )
        if name == "fields":
            _print_effects(plain["effects"], task)
    if "planted_pairs" in plain:
        planted = plain["planted_pairs"]
        show.console().print(
            f"\nplanted pairs among the first {planted['of']}: {planted['found']} of {planted['of']}"
        )
    if "attention" in plain:
        _print_attention(plain["attention"]["mean"], plain["attention"]["fields"])
    orders = []
    for c in sorted(curves, key=lambda c: -c.deletion_area):
        cells = [c.order.replace("_", " ")]
        for area, gain in (
            (c.deletion_area, c.deletion_gain),
            (c.insertion_area, c.insertion_gain),
        ):
            cells += [
                f"{area:.3f}",
                f"{gain[0]:+.3f} [{gain[1]:+.3f}, {gain[2]:+.3f}]" if any(gain) else "",
            ]
        orders.append(cells)
    title = "faithfulness: areas of deletion and insertion curves (higher is better), and their gain over random order"
    if orders:
        heads = ["order", "deletion", "above random", "insertion", "above random"]
        show.print_table(heads, orders, title=f"\n{title}")
