"""`fieldwise audit`: what in a table or recipe makes a score that is not real."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Argument, Option

from fieldwise.cli import options as opt
from fieldwise.cli import resources, show
from fieldwise.errors import ConfigError, FieldwiseError

if TYPE_CHECKING:
    from fieldwise.auditing import AuditReport

NO_FAILURE = "none"


class AuditFailedError(FieldwiseError):
    """The audit found something at least as bad as `--fail-on`."""


@dataclass(frozen=True, kw_only=True)
class AuditOptions:
    """Options of `fieldwise audit`."""

    source: Annotated[
        Path,
        Argument(
            metavar="RECIPE|TABLE",
            help=f"A recipe (its name or a TOML file), or rows with labels: {opt.READ_FORMATS}.",
        ),
    ]
    label: opt.Label = None
    positive: opt.Positive = None
    schema: Annotated[
        Path | None,
        Option(help="A schema (TOML) of the table. Default: inferred; all columns are audited."),
    ] = None
    split_column: Annotated[
        str | None, Option(metavar="COLUMN", help="A column with train, valid or test.")
    ] = None
    settings: opt.Settings = None
    fail_on: Annotated[
        str,
        Option(
            callback=opt.one_of("high", "medium", "low", NO_FAILURE),
            help="Exit with code 2 if a finding is at least this bad.",
        ),
    ] = NO_FAILURE
    seed: opt.Seed = 0
    reading: opt.Reading
    json: opt.AsJson = False


def run(options: AuditOptions) -> None:
    """Find what makes a score better than it will be in use.

    Columns that know the label or the future, rows that are in two parts, drawn negatives that
    differ from what was seen. No model is saved.
    """
    report = _report_on(options)
    if options.json:
        print(report.to_json())
    else:
        _show(report)
    failing = [] if options.fail_on == NO_FAILURE else report.failing(options.fail_on)
    if failing:
        raise AuditFailedError(
            f"--fail-on {options.fail_on} allows no such finding, found {len(failing)}, the first of kind "
            f"{failing[0].kind!r}: explain or mend what it says"
        )


def _report_on(options: AuditOptions) -> "AuditReport":
    """The audit of the recipe or the table."""
    from fieldwise.auditing.run import audit
    from fieldwise.data.prepare.settings import ColumnSplit
    from fieldwise.runs.recipe_files import load_recipe
    from fieldwise.schema import Schema

    if _is_recipe(options.source):
        _check_recipe_alone(options)
        recipe = load_recipe(str(options.source), options.settings or ())
        return audit(recipe, data_dir=resources.data_folder(recipe.data.name))
    opt.check_no_settings(options.settings)
    options.reading.check_separator(options.source)
    split = None if options.split_column is None else ColumnSplit(column=options.split_column)
    schema = None if options.schema is None else Schema.from_toml(options.schema)
    texts = () if schema is None else schema.text_columns
    with options.reading.lines(options.source):
        return audit(
            options.reading.table(options.source, texts),
            options.label,
            positive=options.positive or (),
            schema=schema,
            split=split,
            seed=options.seed,
        )


def _is_recipe(source: Path) -> bool:
    """Whether a recipe is named, and not a table."""
    return source.suffix == ".toml" or not (source.suffix or source.exists())


def _check_recipe_alone(options: AuditOptions) -> None:
    """Check that nothing is given that a recipe has."""
    given = {
        "--label": options.label,
        "--positive": options.positive,
        "--schema": options.schema,
        "--split-column": options.split_column,
        "--seed": options.seed,
        "--read": options.reading.read,
    }
    for option, value in given.items():
        if value:
            raise ConfigError(
                f"{option} is for a table, found the recipe {options.source}: change the recipe, or use --set"
            )


def _show(report: "AuditReport") -> None:
    """Print the findings, each with what to do."""
    out = show.console()
    for finding in report.findings:
        out.print(f"{finding.severity.upper()} {finding.kind}: {finding.sentence}")
        if finding.rows:
            out.print(f"    look at rows {', '.join(map(str, finding.rows))} (from 0)")
        out.print(f"    to do: {finding.remedy}")
    if not report.findings:
        out.print("nothing found: that is no proof that there is nothing")
    out.print(report.note)
