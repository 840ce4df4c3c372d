"""`fieldwise explain`: explain the score of one row, or of a set of rows on average."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

from typer import Option

from fieldwise.cli import options as opt
from fieldwise.cli import show
from fieldwise.cli.explain_tables import print_row, print_set
from fieldwise.errors import ConfigError, DataError

if TYPE_CHECKING:
    import polars as pl

    from fieldwise.bundle.bundle import Bundle
    from fieldwise.explain.faithfulness import Curves
    from fieldwise.explain.subject import Method, Subject


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

    @property
    def rows_explained(self) -> str:
        """The file of the rows to explain, or which rows are explained without one."""
        return "the recipe's test rows" if self.data is None else str(self.data)


def run(options: ExplainOptions) -> None:
    """Explain scores by field and pair of fields.

    It is done for one row, or on average over a set of rows.
    """
    if options.faithfulness and options.row is not None:
        raise ConfigError("--faithfulness is a mean over rows: omit --row")
    from fieldwise.explain.effects import effects
    from fieldwise.explain.explanation import explain_subject
    from fieldwise.explain.faithfulness import faithfulness
    from fieldwise.explain.summary import summary

    options.reading.check_used("--data or --background", options.data or options.background)
    bundle = opt.load_bundle(options.bundle, options.device)
    background = None
    if options.background is not None:
        background = options.reading.table(options.background, bundle.schema.text_columns)
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
            plain["planted_pairs"] = _planted_pairs(plain["pairs"])
        if options.faithfulness:
            curves = faithfulness(subject)
            plain["faithfulness"] = [_plain_curves(order_curves) for order_curves in curves]
    if options.json:
        show.print_json(plain, allow_nan=False)
        return

    if options.row is not None:
        print_row(plain, subject)
    else:
        print_set(plain, curves, subject.settings.task)
    if bundle.mean_sentence is not None:
        show.console().print(f"\n{bundle.mean_sentence}")
    _suggest_next(options, bundle)


def _subject(
    bundle: "Bundle", background: "pl.DataFrame | None", options: ExplainOptions
) -> "Subject":
    """The row asked for, or a random sample of the rows in their original order, with the background rows."""
    from fieldwise.explain.subject import Subject

    if options.data is None:
        _, (frame,) = opt.rows_of_bundle(bundle, options.bundle, ["test"], "give --data FILE")
    else:
        frame = options.reading.table(options.data, bundle.schema.text_columns)
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
        rows = show.drawn_rows(frame, options.rows, "rows sampled")
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
    recipe = bundle.about.get("recipe", {})
    settings = recipe.get("settings", {}) if isinstance(recipe, dict) else {}
    return bool(settings.get("data", {}).get("name") == "simulated")


def _planted_pairs(pairs: Sequence[dict[str, Any]]) -> dict[str, int]:
    """How many of the simulated log's pairs are among the first pairs, and how many there are."""
    from fieldwise.explain.summary import planted_pairs_found

    found_count, planted_count = planted_pairs_found([pair["fields"] for pair in pairs])
    return {"found": found_count, "of": planted_count}


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
    words += ["--row", 0, *options.reading.options()]
    show.suggest("explain one row", "explain", options.bundle, *words)
