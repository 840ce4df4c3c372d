"""`fieldwise init`, `fetch` and `simulate`: a recipe for a table of your own, public data sets, a simulated log."""

import os
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from typer import Argument, Option

from fieldwise.cli.options import Label, Overwrite, Positive, Reading, Seed, data_folder
from fieldwise.cli.show import command, console, counted, print_table, say, suggest
from fieldwise.config import nearest, to_plain
from fieldwise.data.read.file_listing import find_files, kind_of, suffix_of
from fieldwise.errors import ConfigError, DataError
from fieldwise.schema import Schema
from fieldwise.storage.files import check_output, write_atomically

if TYPE_CHECKING:
    import polars as pl

    from fieldwise.data.infer.label import LabelCandidate
    from fieldwise.data.infer.schema import Inference
    from fieldwise.data.read.table_sample import Sample

_SIDES: tuple[Literal["user", "item"], ...] = ("user", "item")
_NONE = "-"
_OTHER_LABELS = 3
_VERSION_LIKE = r"^\d{1,4}(?:\.\d{1,3})?$"
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

    table: Annotated[Path, Argument(metavar="TABLE", help="CSV, TSV, Parquet, Arrow or libFM.")]
    label: Label = None
    positive: Positive = None
    user: Annotated[
        str | None, Option(help="The column of user ids. Default: guessed by name.")
    ] = None
    item: Annotated[
        str | None, Option(help="The column of item ids. Default: guessed by name.")
    ] = None
    schema: Annotated[
        Path | None, Option(help="A schema to use, or the file to write. Default: schema.toml.")
    ] = None
    out: Annotated[
        Path, Option(help="Folder for the recipe and the schema; - prints the schema instead.")
    ] = Path()
    overwrite: Overwrite = False
    reading: Reading

    @property
    def ids(self) -> dict[Literal["user", "item"], str]:
        """The columns of ids that are given, by side."""
        given = {"user": self.user, "item": self.item}
        return {side: column for side in _SIDES if (column := given[side]) is not None}

    @property
    def given(self) -> list[str]:
        """The options that say what columns are, as words of a command."""
        words = [] if self.label is None else ["--label", self.label]
        for value in self.positive or ():
            words += ["--positive", value]
        return words + id_words(self.ids)


def id_words(ids: Mapping[Literal["user", "item"], str]) -> list[str]:
    """The options that give columns of ids, as words of a command."""
    words: list[str] = []
    for side, column in ids.items():
        words += [f"--{side}", column]
    return words


def run(options: InitOptions) -> None:
    """Write a schema and a recipe for a table, ready to train.

    The schema has a comment for each column, for you to correct. With --out - it is printed, and
    nothing is written.
    """
    if str(options.out) == "-":
        _print_schema(options)
        return
    from fieldwise.data.infer.schema import suggest_split
    from fieldwise.data.read.row_numbers import renumbering_rows
    from fieldwise.data.read.table_sample import sample_table

    file = find_files(options.table)[0]
    text = options.reading.text()
    if not file.exists():
        raise DataError(f"the file {file} does not exist; check the path")
    recipe_file, schema_file, given = _places(options)
    separator = None  # that is detected in the text, if it is another than a comma
    if not (
        text.separator
        or kind_of(file) != "delimited text"
        or suffix_of(file)[0] in (".tsv", ".tab")
    ):
        separator = None if (result := text.separator_of(file)) == "," else result
    sample = sample_table(options.table, text)
    guess = None
    with options.reading.lines(options.table):
        if given:
            schema = Schema.from_toml(schema_file)
        else:
            guess = _inferred(sample, options)
            schema = guess.schema
        only_positives = guess is not None and guess.only_positives
        with renumbering_rows(sample.kept):
            split, why = suggest_split(sample.frame, schema, only_positives=only_positives)
    data = {"path": _path_from(options.out, options.table), **options.reading.arguments}
    data["separator"] = data["separator"] or separator
    tables: dict[str, Any] = {
        "schema": _path_from(options.out, schema_file),
        "data": {
            k: v for k, v in data.items() if v is not None and (k, v) != ("encoding", "utf-8")
        },
        "split": {
            "kind": split.kind,
            **{k: v for k, v in to_plain(split).items() if v is not False},
        },
    }
    changing: list[str] = []
    if only_positives:
        describing, changing = _item_columns(schema, sample.frame)
        tables["negatives"] = {"per_positive": 2, "parts": ["train", "valid", "test"]}
        tables["negatives"] |= {"item_columns": describing} if describing else {}
    if guess is not None:
        write_atomically(schema_file, guess.to_toml().encode())
        print(schema_file)
    write_atomically(
        recipe_file, _recipe(recipe_file.name, options.table.name, tables, why).encode()
    )
    print(recipe_file)
    if separator is not None:
        say(f"the fields of {options.table} are separated by {separator!r}")
    _say_sample(sample)
    read = ""
    if guess is not None:
        read = f"check and correct {schema_file}, then "
        for line in _findings(guess, sample, why, options):
            say(line)
    for column in changing:
        say(
            f"CHECK: column {column!r} has several values for one item, and no time says which of them a drawn "
            f"negative has, which keeps its positive's: give the schema a time, remove the column's fields from "
            f"{schema_file}, or give each item one value"
        )
    say(f"next: {read}{command('train', recipe_file)}")


def _item_columns(schema: Schema, frame: "pl.DataFrame") -> tuple[list[str], list[str]]:
    """The columns that describe an item, and those that a drawn item can have no value of.

    These have several values for one item, and no time says which one counts.
    """
    from fieldwise.data.encode.columns import missing_as_null
    from fieldwise.data.prepare.splits import distinct_rows

    columns = list(
        dict.fromkeys(
            f.column for f in schema.fields if f.role == "item" and f.column != schema.item
        )
    )
    if _has_times(schema, frame):
        return columns, []
    describing: list[str] = []
    changing: list[str] = []
    for column in columns:
        pairs = distinct_rows(frame.select(str(schema.item), column))
        fields = [f for f in schema.fields if f.column == column]
        pairs = missing_as_null(pairs, fields, schema.missing).drop_nulls(column).unique()
        is_one = pairs.height == pairs.to_series(0).n_unique()
        (describing if is_one else changing).append(column)
    return describing, changing


def _has_times(schema: Schema, frame: "pl.DataFrame") -> bool:
    """Whether the schema's time orders the rows."""
    from fieldwise.data.prepare.ordering import order_values

    if schema.time is None:
        return False
    try:
        order_values(frame, schema.time, "time", schema.time_format, schema.missing)
    except DataError:
        return False
    return True


def _say_sample(sample: "Sample") -> None:
    """Say which rows of a table were looked at, if not all, or which of all are copies of others."""
    from fieldwise.data.prepare.row_fingerprints import copies_sentence

    if said := f"inferred from {sample.origin}" if sample.origin else copies_sentence(sample.frame):
        say(said)


def _print_schema(options: InitOptions) -> None:
    """Print the inferred schema as TOML."""
    if options.schema is not None:
        raise ConfigError(
            f"--out - prints an inferred schema, found --schema {options.schema}: omit it"
        )
    from fieldwise.data.encode.numbers import marks_sentences
    from fieldwise.data.read.table_sample import sample_table

    sample = sample_table(options.table, options.reading.text())
    with options.reading.lines(options.table):
        guess = _inferred(sample, options)
    print(guess.to_toml())
    _say_sample(sample)
    for sentence in marks_sentences(guess.marks):
        say(f"missing: {sentence}")
    for doubt in guess.grouped_doubts().values():
        say(f"CHECK: {doubt}")
    suggest(
        "write it as schema.toml, with a recipe",
        "init",
        options.table,
        *options.given,
        *options.reading.options(),
    )


def _inferred(sample: "Sample", options: InitOptions) -> "Inference":
    """The inferred schema; on a terminal the user is asked for a label and ids that are in doubt."""
    from fieldwise.data.infer.schema import infer_schema

    guess = infer_schema(
        sample, label=options.label, positive=options.positive or (), **options.ids
    )
    guess = _asked(guess, sample, options)
    if kind_of(find_files(options.table)[0]) == "delimited text":
        doubts = dict(guess.doubts)
        more = _whole_numbers_with_fractions(guess.schema, sample) | _texts_of_one_number(
            guess.schema, sample, options
        )
        for column, doubt in more.items():
            doubts[column] = f"{doubts[column]}; {doubt}" if column in doubts else doubt
        guess = replace(guess, doubts=doubts)
    return guess


def _whole_numbers_with_fractions(schema: Schema, sample: "Sample") -> dict[str, str]:
    """A doubt for every column of ids or categories of a text file whose cells are whole numbers, written as `12.0`."""
    import polars as pl

    what = {f.column: "categories" for f in schema.fields if f.cell == "category"}
    for side in _SIDES:
        column = getattr(schema, side)
        if column is not None:
            what[column] = f"{side} ids"
    doubts: dict[str, str] = {}
    for column, values in what.items():
        cells = sample.frame.get_column(column).drop_nulls()
        if len(cells) and cells.dtype == pl.Float64 and (cells % 1 == 0).all():
            doubts[column] = (
                f"the {values} in {column!r} are whole numbers written with a fraction, such as 12.0, which is another "
                "value than the 12 of a frame or a request: if pandas wrote the file, convert the column with "
                "astype('Int64') before to_csv"
            )
    return doubts


def _texts_of_one_number(schema: Schema, sample: "Sample", options: InitOptions) -> dict[str, str]:
    """A doubt for every field of numbers of a text file that has two texts of one number, such as 4.1 and 4.10.

    The first rows are looked at. A name such as `price` tells that the texts are numbers.
    """
    import polars as pl

    from fieldwise.data.read.chunk_limits import ChunkLimits
    from fieldwise.data.read.table_files import TableFiles
    from fieldwise.schema.ids import kind_of_name

    dtypes = sample.frame.schema  # which polars makes anew each time that it is asked for
    columns = {
        field.column
        for field in schema.fields
        if field.cell == "number"
        and dtypes.get(field.column) == pl.Float64
        and kind_of_name(field.column) != "quantity"
    }
    if not columns:
        return {}
    limits = ChunkLimits(memory=sys.maxsize)
    _, texts = next(TableFiles(find_files(options.table), options.reading.text()).chunks(limits))
    doubts: dict[str, str] = {}
    for name in sorted(columns.intersection(texts.columns)):
        cells = texts.get_column(name).drop_nulls().unique()
        if cells.dtype != pl.String or not cells.str.contains(_VERSION_LIKE).all():
            continue
        number = cells.cast(pl.Float64)
        repeated = (
            pl.DataFrame({"text": cells, "number": number})
            .filter(number.is_duplicated())
            .sort("number", "text")
        )
        if repeated.height:
            first, second = repeated["text"].head(2)
            doubts[name] = (
                f"{first!r} and {second!r} in column {name!r} are one number: if they are versions or codes, which "
                'differ, write kind = "categorical"'
            )
    return doubts


def _asked(guess: "Inference", sample: "Sample", options: InitOptions) -> "Inference":
    """The inferred schema with what the user chooses on a terminal for a label and ids that are in doubt."""
    from fieldwise.data.infer.schema import infer_schema

    if not _on_terminal():
        return guess
    label = options.label
    ids = options.ids
    if (
        options.label is None
        and len(guess.labels) > 1
        and guess.schema.label.column in guess.doubts
    ):
        for candidate in guess.labels:
            say(f"may be the label: {_described(candidate)}")
        names = [candidate.label.column for candidate in guess.labels]
        chosen = _prompt("label", names, names[0])
        if chosen != names[0]:
            label = chosen
            guess = infer_schema(sample, label=label, positive=options.positive or (), **ids)
    for side in _SIDES:
        taken = (guess.schema.label.column, guess.schema.time, guess.schema.user, guess.schema.item)
        if getattr(guess.schema, side) is not None:
            continue
        names = [name for name in sample.frame.columns if name not in taken]
        column = _prompt(
            f"{side} ids ({_NONE} for none)", [_NONE, *names], guess.possible_ids.get(side, _NONE)
        )
        if column != _NONE:
            ids = ids | {side: column}
            guess = infer_schema(sample, label=label, positive=options.positive or (), **ids)
    return guess


def _on_terminal() -> bool:
    return sys.stdin.isatty() and sys.stdout.isatty()


def _prompt(what: str, names: list[str], default: str) -> str:
    """The column that the user chooses."""
    while (chosen := str(typer.prompt(f"column of the {what}", default=default))) not in names:
        say(f"the column must be one of {', '.join(names)}; found {chosen!r}")
    return chosen


def _described(candidate: "LabelCandidate") -> str:
    return f"{candidate.label.column}, {candidate.reason.removeprefix('label: ')}"


def _findings(
    guess: "Inference", sample: "Sample", split: str, options: InitOptions
) -> Iterator[str]:
    """The five lines about a table (label, user, item, time and split), and what the user must check."""
    from fieldwise.data.encode.numbers import marks_sentences

    label = guess.labels[0]
    said = label.rate is None or guess.only_positives or "% of the rows" in label.reason
    yield f"label: {_described(label)}{'' if said else f' ({label.rate:.1%} of the rows)'}"
    ids = {side: getattr(guess.schema, side) for side in _SIDES}
    for side, column in ids.items():
        count = (
            ""
            if column is None
            else f", {counted(sample.frame.get_column(column).n_unique(), 'value')}"
        )
        possible = guess.possible_ids.get(side)
        found = (
            "none found"
            if possible is None
            else f"none, but column {possible!r} may be (see CHECK)"
        )
        yield f"{side}: {column or found}{count}"
    yield f"time: {guess.schema.time or 'none found'}"
    yield f"split: {split}"
    for sentence in marks_sentences(guess.marks):
        yield f"missing: {sentence}"
    for doubt in guess.grouped_doubts().values():
        yield f"CHECK: {doubt}"
    for side, column in ids.items():
        is_named = column is not None or side in guess.possible_ids
        if not is_named and not any(f"no {side}" in doubt for doubt in guess.doubts.values()):
            yield (
                f'CHECK: no column was found that holds {side} ids: if there is one, write {side} = "COLUMN" at the '
                f"top of the schema, and make it a categorical field of role {side!r}"
            )
    if guess.possible_ids:
        words = [*options.given, *id_words(guess.possible_ids)]
        again = command("init", options.table, *words, *options.reading.options(), "--overwrite")
        yield f"CHECK: if these are the ids: {again}"
    for other in guess.labels[1 : _OTHER_LABELS + 1] if options.label is None else ():
        again = command(
            "init",
            options.table,
            "--label",
            other.label.column,
            *options.reading.options(),
            "--overwrite",
        )
        yield f"CHECK: the label may also be {_described(other)}: {again}"


def _places(options: InitOptions) -> tuple[Path, Path, bool]:
    """The files of recipe and schema, and whether the schema exists and is to be used as it is; none is overwritten."""
    stem = options.table.name
    table = options.table
    if kind_of(table) is not None:
        stem = (Path(table.stem) if suffix_of(table)[1] else table).stem
    schema = options.schema or options.out / "schema.toml"
    recipe = options.out / f"{stem}.toml"
    if recipe.resolve() == schema.resolve():
        recipe = options.out / f"{stem}-recipe.toml"
    given = options.schema is not None and schema.is_file()
    if given and (options.label is not None or options.positive or options.ids):
        raise ConfigError(
            f"--label, --positive, --user and --item are for an inferred schema, but {schema} exists: omit"
        )
    check_output(recipe, overwrite=options.overwrite, inputs=[schema] if given else [])
    if not given:
        try:
            check_output(schema, overwrite=options.overwrite)
        except ConfigError as e:
            raise ConfigError(f"{e}, or --schema {schema} to use it as it is") from None
    return recipe, schema, given


def _path_from(folder: Path, file: Path) -> str:
    """A path to `file`: relative if it is in or below `folder`, so that both can be moved together, else absolute."""
    file = Path(os.path.abspath(file))
    folder = Path(os.path.abspath(folder))
    return file.relative_to(folder).as_posix() if file.is_relative_to(folder) else str(file)


def _recipe(name: str, table: str, tables: dict[str, Any], why: str) -> str:
    """The text of a recipe."""
    import tomli_w

    from fieldwise.data.infer.schema import one_line

    comments = {
        "schema": ["# What each column means: check it, and correct it where needed."],
        "split": [
            f"# {one_line(why[0].upper() + why[1:])}. Other ways: random, time, leave-last-out, column."
        ],
        "negatives": [
            "# Every row is an event that happened: for each, items are drawn that the user never used.",
            "# item_columns describe the item: a drawn row gets the drawn item's values, which are its latest ones at",
            "# or before the time of the row.",
        ],
    }
    lines = [
        f"# A recipe for {one_line(table)}: paths are relative to this file's folder.",
        f"#   fieldwise describe {one_line(name)}    shows what it will do, without training",
        f"#   fieldwise train {one_line(name)}",
        "",
    ]
    for key, value in tables.items():
        lines += [*comments.get(key, ()), tomli_w.dumps({key: value}).strip(), ""]
    return "\n".join([*lines, _MODEL])


def run_fetch(
    *,
    name: Annotated[
        str | None, Argument(metavar="NAME", help="The data set. Default: all are listed.")
    ] = None,
) -> None:
    """Download a public data set from its source, or list all.

    Checksums are checked, and a download that broke off starts again. The files are in the folder
    that the environment variable FIELDWISE_DATA names, else in the user's cache folder; other
    commands read them there.
    """
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
        TransferSpeedColumn,
    )

    from fieldwise.data.read.public_sets import PUBLIC_SETS, fetch
    from fieldwise.runs.recipe_files import recipe_names

    folder = data_folder()
    rows = []
    absent = []
    if name is None:
        for known, public in PUBLIC_SETS.items():
            how = f"fieldwise fetch {known}" if public.origin else "by hand"
            here = public.present(folder)
            rows.append([known, f"{public.rows:,}", "yes" if here else "no", how, public.licence])
            absent += [known] if public.origin and not here else []
        rows.append(["simulated", "any", "yes", "fieldwise simulate", "none: synthetic data"])
        print_table(["name", "rows", "present", "how to get it", "terms"], rows)
        console().print(
            f"data folder: {folder}" + ("" if folder.is_dir() else " (does not exist yet)")
        )
        if absent:
            suggest("download one", "fetch", absent[0])
        return
    if name not in PUBLIC_SETS:
        raise ConfigError(f"no data set is named {name!r}: {nearest(name, PUBLIC_SETS)}")
    public = PUBLIC_SETS[name]
    say(f"{public.title}: {public.licence}")
    shown = BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn()
    with Progress(TextColumn(name), *shown, console=Console(stderr=True)) as bar:
        task = bar.add_task(name, total=None)
        files = fetch(
            public,
            folder,
            progress=lambda done, total: bar.update(task, completed=done, total=total),
        )
    print(*files, sep="\n")
    recipes = [recipe for recipe in recipe_names() if recipe.startswith(f"{name}/")]
    if recipes:
        suggest(
            "train a model on it", "train", f"{name}/fm" if f"{name}/fm" in recipes else recipes[0]
        )


def run_simulate(
    *,
    out: Annotated[Path, Option(help="File to write: .csv, .tsv, .parquet or .arrow.")],
    rows: Annotated[int, Option(min=1, help="Number of rows.")] = 120_000,
    users: Annotated[int, Option(min=1, help="Number of users.")] = 1_000,
    items: Annotated[int, Option(min=1, help="Number of films.")] = 400,
    seed: Seed = 0,
    overwrite: Overwrite = False,
) -> None:
    """Write a simulated log, with the true probability of every row."""
    from fieldwise.data.read.simulation import simulate
    from fieldwise.data.read.table_writer import write_table

    check_output(out, overwrite=overwrite)
    frame = simulate(rows, users=users, items=items, seed=seed)
    write_table(frame, out)
    say(f"{counted(frame.height, 'row')} written to {out} ({', '.join(frame.columns)})")
    suggest("write a schema and a recipe for it", "init", out, "--label", "liked")
