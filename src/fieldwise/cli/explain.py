"""`fieldwise explain`: explain the scores of rows, and test whether the explanations are faithful."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from fieldwise.cli.devices import BundleDevice, load_bundle
from fieldwise.cli.next import suggest, suggest_report
from fieldwise.cli.options import MAX_SEED, AsJson, BundleFolder, Reading, Threads, set_threads
from fieldwise.cli.show import drawn_rows, print_json
from fieldwise.errors import ConfigError, DataError

if TYPE_CHECKING:
    import polars as pl

    from fieldwise.bundle.bundle import Bundle
    from fieldwise.explain.explanation import Explanation
    from fieldwise.explain.faithfulness import Curves
    from fieldwise.explain.subject import Method, Subject

__all__ = ["ExplainOptions", "run"]


@dataclass(frozen=True, kw_only=True)
class ExplainOptions:
    """Options of `fieldwise explain`."""

    bundle: BundleFolder
    data: Annotated[Path, typer.Option(help="Rows to explain: CSV, TSV, Parquet, Arrow or libFM.")]
    row: Annotated[int | None, typer.Option(min=0, help="Explain only this row, counted from 0.")] = None
    rows: Annotated[int, typer.Option(min=1, help="Without --row: maximum number of rows, sampled at random.")] = 1000
    background: Annotated[
        Path | None,
        typer.Option(help="Background rows to compare with. Default: the sample rows in the bundle."),
    ] = None
    method: Annotated[
        str | None,
        typer.Option(help="terms, integrated_gradients or occlusion. Default: the most exact one that the model has."),
    ] = None
    label: Annotated[
        str | None, typer.Option(help="The label to explain in a multi-task bundle. Default: the main label.")
    ] = None
    top: Annotated[int, typer.Option(min=1, help="Number of pairs and attention weights to print.")] = 10
    faithfulness: Annotated[
        bool, typer.Option("--faithfulness", help="Evaluate the explanations with deletion and insertion curves.")
    ] = False
    seed: Annotated[int, typer.Option(min=0, max=MAX_SEED, help="Seed for sampling rows and background rows.")] = 0
    reading: Reading
    json: AsJson = False
    device: BundleDevice = "cpu"
    threads: Threads = None


def run(options: ExplainOptions) -> None:
    """Explain scores by field and pair of fields, for one row or on average over a set of rows."""
    if options.faithfulness and options.row is not None:
        raise ConfigError("--faithfulness is a mean over rows: omit --row")
    from fieldwise.explain.effects import effects
    from fieldwise.explain.explanation import explain_subject

    set_threads(options.threads)
    bundle = load_bundle(options.bundle, options.device)
    usual = None if options.background is None else options.reading.table(options.background)
    subject = _subject(bundle, usual, options)
    method = cast("Method", options.method) if options.method else subject.usual_method
    found = explain_subject(subject, method, seed=options.seed)
    directions = {"effects": effects(bundle, usual, label=options.label)}
    about = {
        "bundle": str(options.bundle),
        "data": str(options.data),
        "background": "its sample rows" if options.background is None else str(options.background),
    }
    if options.row is not None:
        _show_row({**about, "row": options.row, **found.row(0), **directions}, found, options)
        if not options.json:
            suggest_report(bundle, options.bundle, None)
    else:
        _show_set({**about, **directions}, found, bundle, options)
        if not options.json:
            given = ("--data", options.data, "--row", 0, *options.reading.options())
            suggest("explain one row", "explain", options.bundle, *given)


def _subject(bundle: "Bundle", usual: "pl.DataFrame | None", options: ExplainOptions) -> "Subject":
    """The rows to explain, with the background rows."""
    from fieldwise.explain.subject import Subject

    frame = options.reading.table(options.data)
    if usual is not None:
        if not usual.height:
            raise DataError(f"--background {options.background} has no rows: give some to compare with")
        try:
            bundle.encoder.transform(usual)
        except DataError as e:
            raise DataError(f"--background {options.background}: {e}") from None
    chosen = _chosen(frame, options)
    try:
        return Subject.of(bundle, chosen, background=usual, label=options.label)
    except DataError:
        bundle.encoder.transform(frame)  # an error names the cell's row in the file
        raise


def _show_row(plain: dict[str, Any], found: "Explanation", options: ExplainOptions) -> None:
    if options.json:
        print_json(plain, allow_nan=False)
        return
    from fieldwise.cli.explain_tables import print_row

    print_row(plain, found, options.top)


def _show_set(about: dict[str, Any], found: "Explanation", bundle: "Bundle", options: ExplainOptions) -> None:
    from fieldwise.cli.explain_tables import print_set
    from fieldwise.config import to_plain
    from fieldwise.explain.faithfulness import faithfulness
    from fieldwise.explain.summary import summary

    plain: dict[str, Any] = {**about, **summary(found, seed=options.seed)}
    planted = _planted(bundle, plain["pairs"])
    if planted is not None:
        plain["planted_pairs"] = {"found": planted[0], "of": planted[1]}
    curves = faithfulness(found.subject, seed=options.seed) if options.faithfulness else ()
    if curves:
        plain["faithfulness"] = [to_plain(_plain_curves(c)) for c in curves]
    if options.json:
        print_json(plain, allow_nan=False)
    else:
        print_set(plain, curves, options.top, found.subject.settings.task)


def _chosen(frame: "pl.DataFrame", options: ExplainOptions) -> "pl.DataFrame":
    """The row asked for, or a random sample of at most `rows` rows in their original order."""
    row, data = options.row, options.data
    if row is not None:
        if row >= frame.height:
            raise DataError(f"--row counts from 0, and {data} has {frame.height} rows: found {row}")
        return frame[row : row + 1]
    if not frame.height:
        raise DataError(f"an explanation needs rows, but {data} has none")
    return drawn_rows(frame, options.rows, options.seed, "rows sampled")


def _planted(bundle: "Bundle", pairs: Sequence[dict[str, Any]]) -> tuple[int, int] | None:
    """How many of the simulated log's planted pairs rank first; None for bundles trained on other data."""
    from fieldwise.explain.summary import planted_pairs_found

    recipe = bundle.about.get("recipe", {})
    settings = recipe.get("settings", {}) if isinstance(recipe, dict) else {}
    if settings.get("data", {}).get("name") != "simulated":
        return None
    return planted_pairs_found([pair["fields"] for pair in pairs])


def _plain_curves(curves: "Curves") -> dict[str, Any]:
    import numpy as np

    return {name: value.tolist() if isinstance(value, np.ndarray) else value for name, value in asdict(curves).items()}
