"""`fieldwise init`: write a schema and a recipe for a table of your own."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fieldwise.cli.next import command
from fieldwise.cli.options import Label, Positive, Reading
from fieldwise.cli.show import say
from fieldwise.errors import ConfigError

if TYPE_CHECKING:
    import polars as pl

    from fieldwise.schema import Schema

__all__ = ["InitOptions", "run"]

_ENDS = (".gz", ".csv", ".tsv", ".tab", ".txt", ".parquet", ".arrow", ".feather", ".ipc", ".libfm")
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
    from fieldwise.data.infer.schema import infer_schema
    from fieldwise.data.prepare.repeats import copies_sentence
    from fieldwise.data.read.lines import renumbering_rows
    from fieldwise.schema import Schema
    from fieldwise.storage.files import check_folder, write_atomically

    recipe_file, schema_file = _places(options)
    check_folder(options.out)
    sample = options.reading.sample(options.table)
    text, doubts = None, []
    with options.reading.lines(options.table):
        if options.given_schema is not None:
            schema = Schema.from_toml(options.given_schema)
        else:
            guess = infer_schema(sample, label=options.label, positive=options.positive or ())
            schema, text, doubts = guess.schema, guess.to_toml(), list(guess.doubts.values())
        with renumbering_rows(sample.kept):
            recipe = _recipe(sample.frame, schema, recipe_file, schema_file, options)
    if text is not None:
        write_atomically(schema_file, text.encode())
        print(schema_file)
    write_atomically(recipe_file, recipe.encode())
    print(recipe_file)
    if sample.told:
        say(f"inferred from {sample.told}")
    elif copies := copies_sentence(sample.frame):
        say(copies)
    for doubt in doubts:
        say(f"CHECK: {doubt}")
    read = "" if text is None else f"check and correct {schema_file}, then "
    say(f"next: {read}{command('train', recipe_file)}")


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


def _recipe(frame: "pl.DataFrame", schema: "Schema", recipe: Path, schema_file: Path, options: InitOptions) -> str:
    """The text of a recipe."""
    import tomli_w

    from fieldwise.config import to_plain
    from fieldwise.data.infer.split import suggest_split

    split, why = suggest_split(frame, schema)
    folder = recipe.parent
    data = {"path": _path_from(folder, options.table), **options.reading.arguments}
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
            _MODEL,
        ]
    )


def _path_from(folder: Path, file: Path) -> str:
    """A path to `file`: relative if it is in or below `folder`, so that both can be moved together, else absolute."""
    file, folder = Path(os.path.abspath(file)), Path(os.path.abspath(folder))
    return file.relative_to(folder).as_posix() if file.is_relative_to(folder) else str(file)


def _line(text: str) -> str:
    """Text for a comment, with control characters removed."""
    return "".join(letter if letter.isprintable() else " " for letter in text)
