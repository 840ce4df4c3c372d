"""`fieldwise init`: write a schema and a recipe for a table of your own."""

import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from fieldwise.cli.next import command
from fieldwise.cli.options import Label, Positive, Reading
from fieldwise.cli.show import say
from fieldwise.errors import ConfigError

if TYPE_CHECKING:
    from fieldwise.data.infer.label import LabelCandidate
    from fieldwise.data.infer.schema import Inference
    from fieldwise.data.prepare.split_settings import SplitSettings
    from fieldwise.data.read.sampled import Sample
    from fieldwise.schema import Schema

__all__ = ["InitOptions", "run"]

_ENDS = (
    *(".gz", ".zst", ".csv", ".tsv", ".tab", ".txt", ".parquet", ".pq", ".arrow", ".feather", ".ipc"),
    *(".libfm", ".libsvm", ".svm"),
)
_SIDES: tuple[Literal["user", "item"], ...] = ("user", "item")
_NONE = "-"
_OTHER_LABELS = 3
_MODEL = """\
[model]
name = "autoint+"  # or lr, fm, afm, deepfm, ...: docs/models/README.md; --set model.name=fm tries another

# Settings not given here are chosen from the data; `fieldwise describe` shows them. To set your own, for example:
# [training]
# epochs = 20
# learning_rate = 0.001
"""


@dataclass(frozen=True, kw_only=True)
class InitOptions:
    """Options of `fieldwise init`."""

    table: Annotated[Path, typer.Argument(metavar="TABLE", help="CSV, TSV, Parquet, Arrow or libFM.")]
    label: Label = None
    positive: Positive = None
    schema: Annotated[
        Path | None, typer.Option(help="An existing schema to use, or the file to write. Default: schema.toml.")
    ] = None
    out: Annotated[Path, typer.Option(help="Folder for the recipe and the schema.")] = Path()
    force: Annotated[bool, typer.Option("--force", help="Overwrite an existing recipe and schema.")] = False
    reading: Reading

    @property
    def given_schema(self) -> Path | None:
        """The existing schema file to use as it is, if there is one."""
        return self.schema if self.schema is not None and self.schema.is_file() else None


def run(options: InitOptions) -> None:
    """Write a commented schema and recipe for a table, ready to train."""
    from fieldwise.data.infer.split import suggest_split
    from fieldwise.data.prepare.repeats import copies_sentence
    from fieldwise.data.read.lines import renumbering_rows
    from fieldwise.schema import Schema
    from fieldwise.storage.files import check_folder, write_atomically

    recipe_file, schema_file = _places(options)
    check_folder(options.out)
    separator = options.reading.found_separator(options.table)
    sample, guess = options.reading.sample(options.table), None
    with options.reading.lines(options.table):
        if options.given_schema is not None:
            schema = Schema.from_toml(options.given_schema)
        else:
            guess = _inferred(sample, options)
            schema = guess.schema
        only_positives = guess is not None and guess.only_positives
        with renumbering_rows(sample.kept):
            split, why = suggest_split(sample.frame, schema, only_positives=only_positives)
    recipe = _recipe(schema, (split, why), recipe_file, schema_file, options, separator, only_positives)
    if guess is not None:
        write_atomically(schema_file, guess.to_toml().encode())
        print(schema_file)
    write_atomically(recipe_file, recipe.encode())
    print(recipe_file)
    if separator is not None:
        say(f"the fields of {options.table} are separated by {separator!r}")
    if sample.told:
        say(f"inferred from {sample.told}")
    elif copies := copies_sentence(sample.frame):
        say(copies)
    for line in () if guess is None else (*_facts(guess, sample, why), *_checks(guess, options)):
        say(line)
    read = "" if guess is None else f"check and correct {schema_file}, then "
    say(f"next: {read}{command('train', recipe_file)}")


def _inferred(sample: "Sample", options: InitOptions) -> "Inference":
    """The inferred schema; on a terminal the user is asked for a label and ids that are in doubt."""
    from fieldwise.data.infer.schema import infer_schema

    guess = infer_schema(sample, label=options.label, positive=options.positive or ())
    if not _on_terminal():
        return guess
    if options.label is None and len(guess.labels) > 1 and guess.schema.label.column in guess.doubts:
        for candidate in guess.labels:
            say(f"may be the label: {_described(candidate)}")
        names = [candidate.label.column for candidate in guess.labels]
        chosen = _asked("label", names, names[0])
        if chosen != names[0]:
            guess = infer_schema(sample, label=chosen, positive=options.positive or ())
    for side in _SIDES:
        taken = (guess.schema.label.column, guess.schema.time, guess.schema.user, guess.schema.item)
        if getattr(guess.schema, side) is None:
            names = [name for name in sample.frame.columns if name not in taken]
            chosen = _asked(f"{side} ids ({_NONE} for none)", [_NONE, *names], _NONE)
            guess = guess if chosen == _NONE else _with_id(guess, side, chosen)
    return guess


def _on_terminal() -> bool:
    return sys.stdin.isatty() and sys.stdout.isatty()


def _asked(what: str, names: list[str], default: str) -> str:
    """The column that the user chooses."""
    while (chosen := str(typer.prompt(f"column of the {what}", default=default))) not in names:
        say(f"the column must be one of {', '.join(names)}; found {chosen!r}")
    return chosen


def _with_id(guess: "Inference", side: Literal["user", "item"], column: str) -> "Inference":
    """The inference with a column as the ids of users or items."""
    from fieldwise.schema import Categorical

    fields = tuple(f for f in guess.schema.fields if f.column != column)
    own = next((f for f in guess.schema.fields if f.column == column and f.cell == "category"), Categorical(column))
    fields = (replace(own, role=side), *fields)
    ids = {"user": guess.schema.user, "item": guess.schema.item, side: column}
    schema = replace(guess.schema, fields=fields, user=ids["user"], item=ids["item"])
    doubts = {name: doubt for name, doubt in guess.doubts.items() if name != column}
    notes = guess.notes | {column: f"categorical: the {side} id, as you said"}
    return replace(guess, schema=schema, notes=notes, doubts=doubts)


def _described(candidate: "LabelCandidate") -> str:
    return f"{candidate.label.column}, {candidate.reason.removeprefix('label: ')}"


def _facts(guess: "Inference", sample: "Sample", split: str) -> Iterator[str]:
    """The five lines about a table: label, user, item, time and split."""
    label = guess.labels[0]
    said = label.rate is None or guess.only_positives or "% of the rows" in label.reason
    yield f"label: {_described(label)}{'' if said else f' ({label.rate:.1%} of the rows)'}"
    for side in _SIDES:
        column = getattr(guess.schema, side)
        count = "" if column is None else f", {sample.frame.get_column(column).n_unique():,} values"
        yield f"{side}: {column or 'none found'}{count}"
    yield f"time: {guess.schema.time or 'none found'}"
    yield f"split: {split}"


def _checks(guess: "Inference", options: InitOptions) -> Iterator[str]:
    """What the user must check."""
    for doubt in guess.doubts.values():
        yield f"CHECK: {doubt}"
    for side in _SIDES:
        if getattr(guess.schema, side) is None and not any(f"no {side}" in doubt for doubt in guess.doubts.values()):
            yield (
                f'CHECK: no column was found that holds {side} ids: if there is one, write {side} = "COLUMN" at the '
                f"top of the schema, and make it a categorical field of role {side!r}"
            )
    for other in guess.labels[1 : _OTHER_LABELS + 1] if options.label is None else ():
        again = command("init", options.table, "--label", other.label.column, *options.reading.options(), "--force")
        yield f"CHECK: the label may also be {_described(other)}: {again}"


def _places(options: InitOptions) -> tuple[Path, Path]:
    """The files of recipe and schema.

    Errors:
        ConfigError: a file would be overwritten.
    """
    stem = options.table.name
    for end in _ENDS:
        stem = stem[: -len(end)] if stem.lower().endswith(end) and len(stem) > len(end) else stem
    schema = options.schema or options.out / "schema.toml"
    recipe = options.out / f"{stem}.toml"
    if recipe.resolve() == schema.resolve():
        recipe = options.out / f"{stem}-recipe.toml"
    given = options.given_schema is not None
    if given and (options.label is not None or options.positive):
        raise ConfigError(f"--label and --positive are for an inferred schema, but {schema} exists: omit")
    for file in (recipe,) if given else (recipe, schema):
        if file.exists() and not options.force:
            use = (
                ""
                if file == recipe
                else f", --schema {file} to use it as it is, or --schema OTHER.toml to write another"
            )
            raise ConfigError(f"{file} exists and is not overwritten: give --force to replace it{use}")
    return recipe, schema


def _recipe(
    schema: "Schema",
    suggested: "tuple[SplitSettings, str]",
    recipe: Path,
    schema_file: Path,
    options: InitOptions,
    separator: str | None,
    only_positives: bool,
) -> str:
    """The text of a recipe."""
    import tomli_w

    from fieldwise.config import to_plain

    split, why = suggested
    folder = recipe.parent
    data = {"path": _path_from(folder, options.table), **options.reading.arguments}
    data["separator"] = data["separator"] or separator
    known = {k: v for k, v in data.items() if v is not None and (k, v) != ("encoding", "utf-8")}
    shown = {k: v for k, v in to_plain(split).items() if v is not False}
    return "\n".join(
        [
            f"# A recipe for {_line(options.table.name)}: paths are relative to this file's folder.",
            f"#   fieldwise describe {_line(recipe.name)}    shows what it will do, without training",
            f"#   fieldwise train {_line(recipe.name)}",
            "",
            "# What each column means: check it, and correct it where needed.",
            tomli_w.dumps({"schema": _path_from(folder, schema_file)}).strip(),
            "",
            tomli_w.dumps({"data": known}).strip(),
            "",
            f"# {_line(why[0].upper() + why[1:])}. Other ways: random, time, leave-last-out, column.",
            tomli_w.dumps({"split": {"kind": shown.pop("kind"), **shown}}).strip(),
            "",
            *(_negatives(schema) if only_positives else ()),
            _MODEL,
        ]
    )


def _negatives(schema: "Schema") -> list[str]:
    """Lines of a recipe that draw negatives for a log of positives."""
    import tomli_w

    columns = list(dict.fromkeys(f.column for f in schema.fields if f.role == "item" and f.column != schema.item))
    drawn = {"per_positive": 2, "parts": ["train", "valid", "test"], "item_columns": columns}
    return [
        "# Every row is an event that happened: for each, items are drawn that the user never used.",
        "# item_columns describe the item: a drawn row gets the drawn item's values.",
        tomli_w.dumps({"negatives": {k: v for k, v in drawn.items() if v}}).strip(),
        "",
    ]


def _path_from(folder: Path, file: Path) -> str:
    """A path to `file`: relative if it is in or below `folder`, so that both can be moved together, else absolute."""
    file, folder = Path(os.path.abspath(file)), Path(os.path.abspath(folder))
    return file.relative_to(folder).as_posix() if file.is_relative_to(folder) else str(file)


def _line(text: str) -> str:
    """Text for a comment, with control characters removed."""
    return "".join(letter if letter.isprintable() else " " for letter in text)
