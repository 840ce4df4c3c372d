"""`fieldwise explain`: explain the score of one row, or of a set of rows on average."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

from typer import Option

from fieldwise.cli import options as opt
from fieldwise.cli import resources, show
from fieldwise.cli.why_not import WhyNotOptions, show_why_not
from fieldwise.errors import ConfigError, DataError

if TYPE_CHECKING:
    import polars as pl

    from fieldwise.bundle.bundle import Bundle
    from fieldwise.display import Table
    from fieldwise.explain.faithfulness import Curves
    from fieldwise.explain.subject import Method, Subject
    from fieldwise.schema.label import Task

SHOWN_LINES = 10
"""Pairs, effects and attention weights that are printed; --json has all."""


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
        str | None,
        Option(help="terms, tree_shap, integrated_gradients or occlusion. Default: most exact."),
    ] = None
    label: Annotated[
        str | None, Option(help="The label of a multi-task bundle. Default: the main label.")
    ] = None
    faithfulness: Annotated[
        bool, Option(help="Evaluate the explanations by deletion and insertion curves.")
    ] = False
    why_not: WhyNotOptions
    reading: opt.Reading
    json: opt.AsJson = False
    device: opt.BundleDevice = "cpu"

    @property
    def rows_explained(self) -> str:
        """The file of the rows to explain, or which rows are explained without one."""
        return "the recipe's test rows" if self.data is None else str(self.data)


def run(options: ExplainOptions) -> None:
    """Explain scores by field and pair of fields.

    It is done for one row, or on average over a set of rows. With --why-not ITEM it says at which
    stage an item was lost that is not in a user's list.
    """
    if options.faithfulness and options.row is not None:
        raise ConfigError("--faithfulness is a mean over rows: omit --row")
    options.reading.check_used("--data or --background", options.data or options.background)
    bundle = resources.load_bundle(options.bundle, options.device)
    asked = options.why_not
    if asked.why_not is None:
        _explain_rows(options, bundle)
        return
    log = _log(bundle, options)
    show_why_not(asked, bundle, log, device=options.device, as_json=options.json)


def _explain_rows(options: ExplainOptions, bundle: "Bundle") -> None:
    """Explain the scores of rows."""
    from fieldwise.explain.effects import effects
    from fieldwise.explain.explanation import explain_subject
    from fieldwise.explain.faithfulness import faithfulness
    from fieldwise.explain.summary import planted_pairs_found, summary

    background = None
    if options.background is not None:
        background = resources.scored_table(bundle, options.background, options.reading)
    subject = _subject(bundle, background, options)
    method = subject.usual_method
    if options.method:
        method = cast("Method", options.method)
    explanation = explain_subject(subject, method)

    plain: dict[str, Any] = {
        "bundle": str(options.bundle),
        "data": options.rows_explained,
        "background": "its sample rows" if options.background is None else str(options.background),
        "network_share": bundle.network_share,
        "effects": effects(bundle, background, label=options.label),
    }
    curves: Sequence[Curves] = ()
    if options.row is not None:
        plain |= {"row": options.row, **explanation.row(0)}
    else:
        plain |= summary(explanation)
        if _is_of_simulated_log(bundle):
            pairs = [pair["fields"] for pair in plain["pairs"]]
            found_count, planted_count = planted_pairs_found(pairs)
            plain["planted_pairs"] = {"found": found_count, "of": planted_count}
        if options.faithfulness:
            curves = faithfulness(subject)
            plain["faithfulness"] = [_plain_curves(order_curves) for order_curves in curves]
    if options.json:
        show.print_json(plain, allow_nan=False)
        return

    if options.row is not None:
        _print_row(plain, subject)
    else:
        _print_set(plain, curves, subject)
    if bundle.mean_sentence is not None:
        show.console().print(f"\n{bundle.mean_sentence}")
    _suggest_next(options, bundle)


def _log(bundle: "Bundle", options: ExplainOptions) -> "pl.DataFrame":
    """The rows of users and items: those of --data, or all of the bundle's recipe."""
    import polars as pl

    from fieldwise.data.prepare.settings import PARTS

    if options.data is not None:
        return resources.scored_table(bundle, options.data, options.reading)
    prepared, _ = resources.rows_of_bundle(bundle, options.bundle, ["test"], "give --data FILE")
    frames: list[pl.DataFrame] = [getattr(prepared, part).frame for part in PARTS]
    return pl.concat(frames)


def _subject(
    bundle: "Bundle", background: "pl.DataFrame | None", options: ExplainOptions
) -> "Subject":
    """The row asked for, or a random sample of the rows in their original order, with the background rows."""
    from fieldwise.explain.subject import Subject

    if options.data is None:
        _, (frame,) = resources.rows_of_bundle(bundle, options.bundle, ["test"], "give --data FILE")
    else:
        frame = resources.scored_table(bundle, options.data, options.reading)
    if background is not None:
        _check_background(bundle, background, f"--background {options.background}")
    if options.row is not None and options.row >= frame.height:
        count = show.counted(frame.height, "row")
        raise DataError(
            f"--row counts from 0, and there are {count} in {options.rows_explained}: found {options.row}"
        )
    if not frame.height:
        raise DataError(
            f"an explanation needs rows, but there are none in {options.rows_explained}"
        )
    if options.row is None:
        rows = show.sampled_rows(frame, options.rows, "rows sampled")
    else:
        rows = frame[options.row : options.row + 1]
    try:
        return Subject.of(bundle, rows, background=background, label=options.label)
    except DataError:
        bundle.encoder.transform(frame)  # an error names the cell's row in the file
        raise


def _check_background(bundle: "Bundle", background: "pl.DataFrame", option: str) -> None:
    """Check that there are background rows, and that the bundle can encode them."""
    if not background.height:
        raise DataError(f"{option} has no rows: give some to compare with")
    try:
        bundle.encoder.transform(background)
    except DataError as e:
        raise DataError(f"{option}: ", *e.args) from None


def _is_of_simulated_log(bundle: "Bundle") -> bool:
    """Whether a bundle was trained on the simulated log, whose pairs that matter are known."""
    data = bundle.about.recipe_settings.get("data", {})
    return bool(data.get("name") == "simulated")


def _plain_curves(curves: "Curves") -> dict[str, Any]:
    """Curves as plain values for JSON."""
    points = {"deletion": curves.deletion.tolist(), "insertion": curves.insertion.tolist()}
    return vars(curves) | points


def _suggest_next(options: ExplainOptions, bundle: "Bundle") -> None:
    """Suggest to explain one row, or a report after one."""
    if options.row is not None:
        show.suggest_report(bundle, options.bundle)
        return
    words: list[object] = [] if options.data is None else ["--data", options.data]
    words += ["--row", 0, *options.reading.text().words()]
    show.suggest("explain one row", "explain", options.bundle, *words)


def _print_row(plain: Mapping[str, Any], subject: "Subject") -> None:
    """Print the explanation of one row, whose figures `plain` holds."""
    from fieldwise.explain.summary import METHOD_WORDS

    out = show.console()
    task = subject.settings.task
    prediction = ""
    if task == "binary":
        prediction = f"probability {plain['prediction']:.4f}, "
        if subject.calibration:
            prediction = f"calibrated {prediction}"
    of_fields = sum(field["contribution"] for field in plain["fields"])
    out.print(f"{plain['label']}: {plain['sentence']}\n", soft_wrap=True)
    out.print(
        f"{prediction}score {plain['score']:+.4f} = base {plain['base']:+.4f} + fields {of_fields:+.4f}"
        f" + gap {plain['gap']:+.4f} ({METHOD_WORDS[plain['method']]})"
    )
    _print_fields(plain["fields"])
    _print_effects(plain["effects"], task)
    for group in subject.term_groups:
        for table in group.row_tables(plain, SHOWN_LINES):
            _print_table(table)
    if "attention" in plain:
        print_attention(plain["attention"], subject.fields)


def _print_set(plain: dict[str, Any], curves: "Sequence[Curves]", subject: "Subject") -> None:
    """Print the mean explanation of a set of rows, and its faithfulness curves if there are any."""
    from fieldwise.explain.summary import METHOD_WORDS, summary_tables

    out = show.console()
    out.print(
        f"{plain['label']}: {show.counted(plain['rows'], 'row')}, mean score {plain['mean_score']:+.4f}, "
        f"contributions by {METHOD_WORDS[plain['method']]}, largest gap {plain['largest_gap']:.4f}"
    )
    for name, table in summary_tables(subject, plain, SHOWN_LINES).items():
        _print_table(table)
        if name == "fields":
            _print_effects(plain["effects"], subject.settings.task)
    if "planted_pairs" in plain:
        planted = plain["planted_pairs"]
        out.print(
            f"\nplanted pairs among the first {planted['of']}: {planted['found']} of {planted['of']}"
        )
    if "attention" in plain:
        print_attention(plain["attention"]["mean"], plain["attention"]["fields"])
    if curves:
        _print_curves(curves)


def _print_table(table: "Table") -> None:
    """Print a table under its title, which starts with a small letter here."""
    title = f"\n{table.title[0].lower()}{table.title[1:]}"
    show.print_table(table.columns, table.rows, title=title)


def _print_fields(fields: Sequence[Mapping[str, Any]]) -> None:
    """Print the contributions of fields, strongest first."""
    from fieldwise.explain.terms import TERMS_OF_FIELDS

    parts = [part for part in TERMS_OF_FIELDS if part in fields[0]]
    rows = []
    for field in fields:
        numbers = [f"{field[part]:+.4f}" for part in ("contribution", *parts)]
        rows.append([field["field"], field["value"], *numbers])
    heads = ["field", "value", "contribution", *(part.replace("_", " ") for part in parts)]
    show.print_table(heads, rows, title="\nfields, strongest first")


def _print_effects(effects: Sequence[Mapping[str, Any]], task: "Task") -> None:
    """Print the mean prediction by value of the fields with the widest ranges."""
    from fieldwise.explain.sentence import prediction_text

    rows = []
    for effect in effects[:SHOWN_LINES]:
        predictions = []
        for value, prediction in zip(effect["values"], effect["predictions"], strict=True):
            predictions.append(f"{value}: {prediction_text(prediction, task)}")
        rows.append([effect["field"], ", ".join(predictions)])
    if rows:
        title = "\ndirections, the mean prediction of the sample rows with each value"
        show.print_table(["field", "value: prediction"], rows, title=title)


def print_attention(weights: object, fields: Sequence[str]) -> None:
    """Print the strongest weights [L, H, F, F] between two fields."""
    import numpy as np

    from fieldwise.explain.attention import uniform_text

    weights_LHFF = np.asarray(weights)
    uniform = uniform_text(weights_LHFF, 1 / len(fields))
    if uniform:
        show.console().print(f"\n{uniform}")
        return

    is_same_field = np.eye(len(fields), dtype=bool)
    between_LHFF = np.where(is_same_field, -1.0, weights_LHFF)
    shown = min(SHOWN_LINES, int((between_LHFF >= 0).sum()))
    rows = []
    for position in np.argsort(-between_LHFF, axis=None)[:shown]:
        layer, head, query, key = np.unravel_index(position, between_LHFF.shape)
        weight = between_LHFF[layer, head, query, key]
        rows.append([str(layer + 1), str(head + 1), fields[query], fields[key], f"{weight:.4f}"])
    title = f"\nattention, the {SHOWN_LINES} strongest between two fields"
    show.print_table(["layer", "head", "query field", "key field", "weight"], rows, title=title)


def _print_curves(curves: "Sequence[Curves]") -> None:
    """Print the areas of faithfulness curves, most faithful order first."""
    rows = []
    for order_curves in sorted(curves, key=lambda curves: -curves.deletion_area):
        row = [order_curves.order.replace("_", " ")]
        row += [f"{order_curves.deletion_area:.3f}", _gain_text(order_curves.deletion_gain)]
        row += [f"{order_curves.insertion_area:.3f}", _gain_text(order_curves.insertion_gain)]
        rows.append(row)
    heads = ["order", "deletion", "above random", "insertion", "above random"]
    title = (
        "faithfulness: areas of deletion and insertion curves (higher is better), and their gain "
        "over random order"
    )
    show.print_table(heads, rows, title=f"\n{title}")


def _gain_text(gain: Sequence[float]) -> str:
    """A gain with its interval; empty for the random order itself."""
    if not any(gain):
        return ""
    value, low, high = gain
    return f"{value:+.3f} [{low:+.3f}, {high:+.3f}]"
