"""`fieldwise explain`, which can also test whether its explanations are faithful, and `fieldwise report`."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

from typer import Argument, Option

from fieldwise.cli import options as opt
from fieldwise.cli import show
from fieldwise.errors import ConfigError, DataError

if TYPE_CHECKING:
    from collections.abc import Sequence

    import polars as pl

    from fieldwise.bundle.bundle import Bundle
    from fieldwise.explain.faithfulness import Curves
    from fieldwise.explain.subject import Method, Subject
    from fieldwise.schema.label import Task

TOP = 10  # pairs, effects and attention weights that are printed; --json has all
WORDS = {
    "terms": "exact terms",
    "integrated_gradients": "integrated gradients",
    "occlusion": "the score's drop without a field",
}


@dataclass(frozen=True, kw_only=True)
class ExplainOptions:
    """Options of `fieldwise explain`."""

    bundle: opt.BundleFolder
    data: Annotated[Path, Option(help="Rows to explain: CSV, TSV, Parquet, Arrow or libFM.")]
    row: Annotated[int | None, Option(min=0, help="Explain only this row, counted from 0.")] = None
    rows: Annotated[int, Option(min=1, help="Without --row: maximum number of rows, sampled at random.")] = 1000
    background: Annotated[Path | None, Option(help="Rows to compare with. Default: the bundle's sample rows.")] = None
    method: Annotated[str | None, Option(help="terms, integrated_gradients or occlusion. Default: most exact.")] = None
    label: Annotated[str | None, Option(help="The label of a multi-task bundle. Default: the main label.")] = None
    faithfulness: Annotated[bool, Option(help="Evaluate the explanations by deletion and insertion curves.")] = False
    reading: opt.Reading
    json: opt.AsJson = False
    device: opt.BundleDevice = "cpu"


def run(options: ExplainOptions) -> None:
    """Explain scores by field and pair of fields.

    It is done for one row, or on average over a set of rows.
    """
    if options.faithfulness and options.row is not None:
        raise ConfigError("--faithfulness is a mean over rows: omit --row")
    from fieldwise.explain.effects import effects
    from fieldwise.explain.explanation import explain_subject, planted_pairs_found, summary
    from fieldwise.explain.faithfulness import faithfulness

    bundle = opt.load_bundle(options.bundle, options.device)
    usual = None if options.background is None else options.reading.table(options.background)
    subject = _subject(bundle, usual, options)
    result = explain_subject(subject, cast("Method", options.method) if options.method else subject.usual_method)
    plain: dict[str, Any] = {
        "bundle": str(options.bundle),
        "data": str(options.data),
        "background": "its sample rows" if options.background is None else str(options.background),
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
            lists = [{name: getattr(one, name).tolist() for name in ("deletion", "insertion")} for one in curves]
            plain["faithfulness"] = [vars(one) | own for one, own in zip(curves, lists, strict=True)]
    if options.json:
        show.print_json(plain, allow_nan=False)
    elif options.row is not None:
        _print_row(plain, subject)
        show.suggest_report(bundle, options.bundle)
    else:
        _print_set(plain, curves, subject.settings.task)
        given = ("--data", options.data, "--row", 0, *options.reading.options())
        show.suggest("explain one row", "explain", options.bundle, *given)


def run_report(
    *,
    runs: Annotated[list[Path], Argument(metavar="RUN", help="Bundles or runs of `compare`, the baseline first.")],
    out: Annotated[Path, Option(help="The HTML file to write.")] = Path("report.html"),
    slices: Annotated[
        list[str] | None, Option("--slice", metavar="FIELD", help="Evaluate by this field's values. May be repeated.")
    ] = None,
    rows: Annotated[int, Option(min=1, help="Maximum number of test rows to explain, sampled at random.")] = 500,
    quiet: opt.Quiet = False,
    device: opt.BundleDevice = "cpu",
) -> None:
    """Write an offline HTML page about trained runs.

    It has their metrics, curves, calibration, slices, cold start and explanations.
    """
    from fieldwise.bundle.bundle import MANIFEST
    from fieldwise.report import ReportSettings, report
    from fieldwise.storage.files import check_file, write_atomically

    if out.is_dir():
        raise ConfigError(f"--out must be a file, but {out} is a folder: give {out / 'report.html'}")
    check_file(out)
    opt.check_device(device)
    settings = ReportSettings(slices=tuple(slices or ()), rows=rows, device=device)
    page = report(runs, settings, data_dir=opt.data_folder(), cache=opt.cache_for(quiet)).encode()
    _, unsaved = opt.save_or_keep(lambda folder: write_atomically(folder / out.name, page), out.parent, "The report")
    if unsaved is not None:
        raise unsaved
    if not quiet:
        show.say(f"report written to {out} ({len(page) / 1024:,.0f} KiB)")
        bundles = [run for run in runs if (run / MANIFEST).is_file()]
        if bundles:
            show.suggest("start a web page to edit rows and see their scores", "serve", bundles[0], needs="uvicorn")


def _subject(bundle: "Bundle", usual: "pl.DataFrame | None", options: ExplainOptions) -> "Subject":
    """The row asked for, or a random sample of the rows in their original order, with the background rows."""
    from fieldwise.explain.subject import Subject

    row, data = options.row, options.data
    frame = options.reading.table(data)
    if usual is not None:
        if not usual.height:
            raise DataError(f"--background {options.background} has no rows: give some to compare with")
        try:
            bundle.encoder.transform(usual)
        except DataError as e:
            raise DataError(f"--background {options.background}: {e}") from None
    if row is not None and row >= frame.height:
        raise DataError(f"--row counts from 0, and {data} has {frame.height} rows: found {row}")
    if not frame.height:
        raise DataError(f"an explanation needs rows, but {data} has none")
    chosen = show.drawn_rows(frame, options.rows, "rows sampled") if row is None else frame[row : row + 1]
    try:
        return Subject.of(bundle, chosen, background=usual, label=options.label)
    except DataError:
        bundle.encoder.transform(frame)  # an error names the cell's row in the file
        raise


def _print_row(plain: dict[str, Any], subject: "Subject") -> None:
    """Print the explanation of one row, whose figures `plain` holds."""
    out, task = show.console(), subject.settings.task
    score, prediction, base, gap = (plain[k] for k in ("score", "prediction", "base", "gap"))
    given = sum(f["contribution"] for f in plain["fields"])
    calibrated = "calibrated " if subject.calibration else ""
    probability = f"{calibrated}probability {prediction:.4f}, " if task == "binary" else ""
    out.print(f"{plain['label']}: {plain['sentence']}\n", soft_wrap=True)
    out.print(
        f"{probability}score {score:+.4f} = base {base:+.4f} + fields {given:+.4f}"
        f" + gap {gap:+.4f} ({WORDS[plain['method']]})"
    )
    extra = [term for term in ("first_order", "attended") if term in plain["fields"][0]]
    rows = [[f["field"], f["value"], *(f"{f[k]:+.4f}" for k in ("contribution", *extra))] for f in plain["fields"]]
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
        rows.append([one["field"], ", ".join(f"{value}: {prediction_text(p, task)}" for value, p in pairs)])
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
    between, rows = np.where(np.eye(len(fields), dtype=bool), -1.0, weights_LHFF), []
    for place in np.argsort(-between, axis=None)[: min(TOP, int((between >= 0).sum()))]:
        layer, head, i, j = np.unravel_index(place, between.shape)
        rows.append([str(layer + 1), str(head + 1), fields[i], fields[j], f"{between[layer, head, i, j]:.4f}"])
    title = f"\nattention, the {TOP} strongest between two fields"
    show.print_table(["layer", "head", "query field", "key field", "weight"], rows, title=title)


def _print_set(plain: dict[str, Any], curves: "Sequence[Curves]", task: "Task") -> None:
    """Print the mean explanation of a set of rows, and its faithfulness curves if there are any."""
    from fieldwise.explain.explanation import summary_tables

    method, gap, rows = WORDS[plain["method"]], plain["largest_gap"], show.counted(plain["rows"], "row")
    means = f"mean score {plain['mean_score']:+.4f}, contributions by {method}, largest gap {gap:.4f}"
    show.console().print(f"{plain['label']}: {rows}, {means}")
    for name, table in summary_tables(plain, TOP).items():
        show.print_table(table.columns, table.rows, title=f"\n{table.title[0].lower()}{table.title[1:]}")
        if name == "fields":
            _print_effects(plain["effects"], task)
    if "planted_pairs" in plain:
        planted = plain["planted_pairs"]
        show.console().print(f"\nplanted pairs among the first {planted['of']}: {planted['found']} of {planted['of']}")
    if "attention" in plain:
        _print_attention(plain["attention"]["mean"], plain["attention"]["fields"])
    orders = []
    for c in sorted(curves, key=lambda c: -c.deletion_area):
        cells = [c.order.replace("_", " ")]
        for area, gain in ((c.deletion_area, c.deletion_gain), (c.insertion_area, c.insertion_gain)):
            cells += [f"{area:.3f}", f"{gain[0]:+.3f} [{gain[1]:+.3f}, {gain[2]:+.3f}]" if any(gain) else ""]
        orders.append(cells)
    title = "faithfulness: areas of deletion and insertion curves (higher is better), and their gain over random order"
    if orders:
        heads = ["order", "deletion", "above random", "insertion", "above random"]
        show.print_table(heads, orders, title=f"\n{title}")
