"""`fieldwise init`: a schema and a recipe for a table of your own."""

import os
import sys
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Argument, Option

from fieldwise.cli import options as opt
from fieldwise.cli.show import command, counted, say, strong_sentences, suggest
from fieldwise.config import to_plain
from fieldwise.errors import ConfigError, DataError
from fieldwise.schema import Schema
from fieldwise.schema.ids import SIDES, Who
from fieldwise.storage.files import write_atomically
from fieldwise.storage.outputs import check_output

if TYPE_CHECKING:
    import polars as pl

    from fieldwise.data.infer.inference import Inference
    from fieldwise.data.infer.label import LabelCandidate
    from fieldwise.data.read.table_sample import Sample

SHOWN_OTHER_LABELS = 3
NO_COLUMN = "-"
MODEL_TEXT = """\
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

    table: Annotated[Path, Argument(metavar="TABLE", help=f"{opt.READ_FORMATS}.")]
    label: opt.Label = None
    positive: opt.Positive = None
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
    overwrite: opt.Overwrite = False
    reading: opt.Reading

    @property
    def ids(self) -> dict[Who, str]:
        """The columns of ids that are given, by side."""
        columns: dict[Who, str] = {}
        if self.user is not None:
            columns["user"] = self.user
        if self.item is not None:
            columns["item"] = self.item
        return columns

    @property
    def given(self) -> list[str]:
        """The options that say what columns are, as words of a command."""
        words = [] if self.label is None else ["--label", self.label]
        for value in self.positive or ():
            words += ["--positive", value]
        return words + id_words(self.ids)


def id_words(ids: Mapping[Who, str]) -> list[str]:
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
    from fieldwise.data.prepare.suggested_split import suggest_split
    from fieldwise.data.read.file_listing import find_files
    from fieldwise.data.read.formats import table_files_of
    from fieldwise.data.read.row_numbers import renumbering_rows
    from fieldwise.data.read.table_sample import sample_table

    file = find_files(options.table)[0]
    text = options.reading.text()
    if not file.exists():
        raise DataError(f"the file {file} does not exist; check the path")
    recipe_file, schema_file, is_schema_given = _files(options)
    options.reading.check_separator(options.table)
    separator = table_files_of([file], text).detected_separator()
    sample = sample_table(options.table, text)
    guess = None
    with options.reading.lines(options.table):
        if is_schema_given:
            schema = Schema.from_toml(schema_file)
        else:
            guess = _inferred(sample, options)
            schema = guess.schema
        only_positives = guess is not None and guess.only_positives
        with renumbering_rows(sample.row_numbers):
            split, split_reason = suggest_split(sample.frame, schema, only_positives=only_positives)

    written = replace(text, separator=text.separator or separator)
    split_options = {name: value for name, value in to_plain(split).items() if value is not False}
    settings: dict[str, Any] = {
        "schema": _path_from(options.out, schema_file),
        "data": {"path": _path_from(options.out, options.table), **written.given},
        "split": {"kind": split.kind, **split_options},
    }
    changing_columns: list[str] = []
    if only_positives:
        item_columns, changing_columns = _item_columns(schema, sample.frame)
        settings["negatives"] = _negatives_settings(item_columns)
    if guess is not None:
        write_atomically(schema_file, guess.to_toml().encode())
        print(schema_file)
    recipe = _recipe_text(recipe_file.name, options.table.name, settings, split_reason)
    recipe += _proposed_features(
        schema, schema_file.name, set(sample.frame.columns), only_positives=only_positives
    )
    write_atomically(recipe_file, recipe.encode())
    print(recipe_file)

    if separator is not None:
        say(f"the fields of {options.table} are separated by {separator!r}")
    _say_sample(sample)
    if guess is not None:
        for line in _findings(guess, sample, split_reason, options):
            say(line)
    for column in changing_columns:
        say(
            f"CHECK: column {column!r} has several values for one item, and no time says which of them a drawn "
            f"negative has, which keeps its positive's: give the schema a time, remove the column's fields from "
            f"{schema_file}, or give each item one value"
        )
    first = "" if guess is None else f"check and correct {schema_file}, then "
    say(f"next: {first}{command('train', recipe_file)}")


def _print_schema(options: InitOptions) -> None:
    """Print the inferred schema as TOML."""
    if options.schema is not None:
        raise ConfigError(
            f"--out - prints an inferred schema, found --schema {options.schema}: omit it"
        )
    from fieldwise.data.encode.numbers import marks_sentences
    from fieldwise.data.read.table_sample import sample_table

    options.reading.check_separator(options.table)
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
        *options.reading.text().words(),
    )


def _files(options: InitOptions) -> tuple[Path, Path, bool]:
    """The files of recipe and schema, and whether the schema exists and is to be used as it is; none is overwritten."""
    from fieldwise.data.read.formats import stem_of

    stem = stem_of(options.table)
    schema = options.schema or options.out / "schema.toml"
    recipe = options.out / f"{stem}.toml"
    if recipe.resolve() == schema.resolve():
        recipe = options.out / f"{stem}-recipe.toml"

    is_schema_given = options.schema is not None and schema.is_file()
    if is_schema_given and (options.label is not None or options.positive or options.ids):
        raise ConfigError(
            f"--label, --positive, --user and --item are for an inferred schema, but {schema} exists: omit"
        )
    inputs = [schema] if is_schema_given else []
    check_output(recipe, overwrite=options.overwrite, inputs=inputs)
    if not is_schema_given:
        try:
            check_output(schema, overwrite=options.overwrite)
        except ConfigError as e:
            raise ConfigError(*e.args, f", or --schema {schema} to use it as it is") from None
    return recipe, schema, is_schema_given


def _inferred(sample: "Sample", options: InitOptions) -> "Inference":
    """The inferred schema; on a terminal the user is asked for a label in doubt and for absent ids."""
    from fieldwise.data.infer.schema import infer_schema
    from fieldwise.data.infer.text_doubts import text_doubts

    guess = infer_schema(
        sample, label=options.label, positive=options.positive or (), **options.ids
    )
    if _on_terminal():
        guess = _inferred_with_answers(guess, sample, options)
    doubts = dict(guess.column_doubts)
    text = options.reading.text()
    for column, doubt in text_doubts(guess.schema, sample, options.table, text).items():
        doubts[column] = f"{doubts[column]}; {doubt}" if column in doubts else doubt
    return replace(guess, column_doubts=doubts)


def _inferred_with_answers(
    guess: "Inference", sample: "Sample", options: InitOptions
) -> "Inference":
    """The inferred schema with what the user chooses for a label in doubt and for each side without ids."""
    from fieldwise.data.infer.schema import infer_schema

    label = options.label
    ids = options.ids
    positive = options.positive or ()
    is_label_in_doubt = guess.schema.label.column in guess.column_doubts
    if label is None and len(guess.labels) > 1 and is_label_in_doubt:
        answer = _chosen_label(guess)
        if answer != guess.labels[0].label.column:
            label = answer
            guess = infer_schema(sample, label=label, positive=positive, **ids)
    for side in SIDES:
        if getattr(guess.schema, side) is not None:
            continue
        column = _chosen_ids(guess, side, sample.frame.columns)
        if column is not None:
            ids[side] = column
            guess = infer_schema(sample, label=label, positive=positive, **ids)
    return guess


def _chosen_label(guess: "Inference") -> str:
    """The column that the user chooses of those that may be the label."""
    for candidate in guess.labels:
        say(f"may be the label: {_described(candidate)}")
    columns = [candidate.label.column for candidate in guess.labels]
    return _chosen_column("label", columns, columns[0])


def _chosen_ids(guess: "Inference", side: Who, columns: Sequence[str]) -> str | None:
    """The column of ids that the user chooses for a side of those that have no other purpose; None for none."""
    schema = guess.schema
    taken = (schema.label.column, schema.time, schema.user, schema.item)
    free_columns = [column for column in columns if column not in taken]
    default = guess.possible_ids.get(side, NO_COLUMN)
    what = f"{side} ids ({NO_COLUMN} for none)"
    column = _chosen_column(what, [NO_COLUMN, *free_columns], default)
    return None if column == NO_COLUMN else column


def _described(candidate: "LabelCandidate") -> str:
    """A column that may be the label, and why."""
    return f"{candidate.label.column}, {candidate.reason}"


def _chosen_column(what: str, columns: Sequence[str], default: str) -> str:
    while True:
        answer = str(typer.prompt(f"column of the {what}", default=default))
        if answer in columns:
            return answer
        say(f"the column must be one of {', '.join(columns)}; found {answer!r}")


def _on_terminal() -> bool:
    return sys.stdin.isatty() and sys.stdout.isatty()


def _proposed_features(
    schema: Schema, schema_name: str, taken: Set[str], *, only_positives: bool
) -> str:
    """A handful of features as of each row's time, as comments; none without users, items and times.

    Columns that are `taken` by the table are not made again.
    """
    import tomli_w

    from fieldwise.data.infer.schema_text import one_line
    from fieldwise.features import Count, Feature, Hour, Rate, TimeSince, Weekday

    if schema.user is None or schema.item is None or schema.time is None:
        return ""
    label = schema.label
    features: list[Feature] = [
        Count(key=schema.user, windows=("7d", "all")),
        TimeSince(key=schema.user),
        Count(key=schema.item, windows=("7d", "all")),
        Hour(),
        Weekday(),
    ]
    if not only_positives:
        features.append(Rate(key=schema.item, value=label.name, delay="1h"))
    settings = []
    fields = []
    for feature in features:
        if not taken.isdisjoint(feature.columns):
            continue
        plain = to_plain(feature)
        names = ["kind", "key", "value", "delay", "windows"]
        settings.append({name: plain[name] for name in names if name in plain})
        role = {schema.user: "user", schema.item: "item"}.get("".join(feature.keys), "context")
        kind = "numeric" if feature.keys else "categorical"
        for name in feature.columns:
            field = {"kind": kind, "name": name, "role": role}
            fields += ["[[fields]]", *tomli_w.dumps(field).splitlines()]
    lines = [
        "",
        "Features as of each row's time, which see what was known before it. To use them, uncomment them here,",
        "state after how long a label is known (delay), and add their fields to the schema. This recipe without",
        "them is the baseline: keep it, and compare both.",
        "",
        *tomli_w.dumps({"features": settings}).splitlines(),
        "",
        f"At the end of {one_line(schema_name)}, not here:",
        "",
        *fields,
    ]
    return "\n".join(f"# {line}".rstrip() for line in lines) + "\n"


def _recipe_text(name: str, table: str, settings: Mapping[str, Any], split_reason: str) -> str:
    """A recipe with comments.

    Args:
        name: the name of the recipe's file.
        table: the name of the table's file.
        settings: by table of the recipe, its settings.
        split_reason: why the rows are split so.
    """
    import tomli_w

    from fieldwise.data.infer.schema_text import one_line

    split_comment = one_line(split_reason[0].upper() + split_reason[1:])
    comments = {
        "schema": ["# What each column means: check it, and correct it where needed."],
        "split": [f"# {split_comment}. Other ways: random, time, leave-last-out, column."],
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
    for key, value in settings.items():
        lines += comments.get(key, [])
        lines += [tomli_w.dumps({key: value}).strip(), ""]
    lines.append(MODEL_TEXT)
    return "\n".join(lines)


def _negatives_settings(item_columns: Sequence[str]) -> dict[str, Any]:
    settings: dict[str, Any] = {"per_positive": 2, "parts": ["train", "valid", "test"]}
    if item_columns:
        settings["item_columns"] = item_columns
    return settings


def _item_columns(schema: Schema, frame: "pl.DataFrame") -> tuple[list[str], list[str]]:
    """The columns that describe an item, and those that a drawn item can have no value of.

    These have several values for one item, and no time says which one counts.
    """
    from fieldwise.data.encode.columns import missing_as_null
    from fieldwise.data.prepare.rows_by_value import distinct_rows
    from fieldwise.storage.scratch import NO_LIMIT

    item_fields = [
        field for field in schema.fields if field.role == "item" and field.column != schema.item
    ]
    columns = list(dict.fromkeys(field.column for field in item_fields))
    if _has_times(schema, frame):
        return columns, []

    describing: list[str] = []
    changing: list[str] = []
    for column in columns:
        fields = [field for field in schema.fields if field.column == column]
        pairs = distinct_rows(frame.select(str(schema.item), column), budget=NO_LIMIT)
        pairs = missing_as_null(pairs, fields, schema.missing).drop_nulls(column).unique()
        if pairs.height == pairs.to_series(0).n_unique():
            describing.append(column)
        else:
            changing.append(column)
    return describing, changing


def _has_times(schema: Schema, frame: "pl.DataFrame") -> bool:
    """Whether the schema's time orders the rows."""
    from fieldwise.data.prepare.ordering import times_of

    try:
        return times_of(frame, schema) is not None
    except DataError:
        return False


def _say_sample(sample: "Sample") -> None:
    """Say which rows of a table were looked at, if not all, or which of all are copies of others."""
    from fieldwise.data.prepare.repeated_rows import copies_sentence

    if sample.origin:
        say(f"inferred from {sample.origin}")
        return
    copies = copies_sentence(sample.frame)
    if copies:
        say(copies)


def _findings(
    guess: "Inference", sample: "Sample", split: str, options: InitOptions
) -> Iterator[str]:
    """The five lines about a table (label, user, item, time and split), and what the user must check."""
    from fieldwise.auditing.table import of_schema
    from fieldwise.data.encode.numbers import marks_sentences

    yield _label_line(guess)
    for side in SIDES:
        yield _ids_line(guess, side, sample.frame)
    yield f"time: {guess.schema.time or 'none found'}"
    yield f"split: {split}"
    for sentence in marks_sentences(guess.marks):
        yield f"missing: {sentence}"
    for doubt in guess.grouped_doubts().values():
        yield f"CHECK: {doubt}"
    if not guess.only_positives:
        table = of_schema(sample.frame, guess.schema, None, preparation=None, seed=0)
        for sentence in strong_sentences(table):
            yield f"CHECK: {sentence}"
    for side in guess.sides_not_found:
        yield (
            f'CHECK: no column was found that holds {side} ids: if there is one, write {side} = "COLUMN" at the '
            f"top of the schema, and make it a categorical field of role {side!r}"
        )

    reading = options.reading.text().words()
    if guess.possible_ids:
        words = [*options.given, *id_words(guess.possible_ids)]
        again = command("init", options.table, *words, *reading, "--overwrite")
        yield f"CHECK: if these are the ids: {again}"
    if options.label is None:
        for other in guess.labels[1 : SHOWN_OTHER_LABELS + 1]:
            words = ["--label", other.label.column]
            again = command("init", options.table, *words, *reading, "--overwrite")
            yield f"CHECK: the label may also be {_described(other)}: {again}"


def _label_line(guess: "Inference") -> str:
    """The label with its share of positive rows, unless its reason has it already."""
    label = guess.labels[0]
    line = f"label: {_described(label)}"
    if label.rate is None or guess.only_positives or label.reason_has_rate:
        return line
    return f"{line} ({label.rate:.1%} of the rows)"


def _ids_line(guess: "Inference", side: Who, frame: "pl.DataFrame") -> str:
    """The column of ids of a side with its number of values, or the one that may be it."""
    column = getattr(guess.schema, side)
    if column is not None:
        return f"{side}: {column}, {counted(frame.get_column(column).n_unique(), 'value')}"
    possible = guess.possible_ids.get(side)
    if possible is not None:
        return f"{side}: none, but column {possible!r} may be (see CHECK)"
    return f"{side}: none found"


def _path_from(folder: Path, file: Path) -> str:
    """A path to `file`: relative if it is in or below `folder`, so that both can be moved together, else absolute."""
    file = Path(os.path.abspath(file))
    folder = Path(os.path.abspath(folder))
    return file.relative_to(folder).as_posix() if file.is_relative_to(folder) else str(file)
