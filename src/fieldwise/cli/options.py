"""Options that several commands share."""

import json
import os
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fieldwise.cli.show import say
from fieldwise.config import nearest
from fieldwise.errors import ConfigError, SchemaError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import polars as pl

    from fieldwise.data.read.chunked_table import Sample
    from fieldwise.data.read.delimited import TextFormat
    from fieldwise.data.reports import Reports
    from fieldwise.runs.fits import RunContext
    from fieldwise.runs.recipe import Recipe
    from fieldwise.storage.cache import Cache
    from fieldwise.training.callbacks import Callback

__all__ = [
    "GIVEN",
    "IMPORTS",
    "MAX_SEED",
    "AsJson",
    "BundleFolder",
    "Label",
    "Overwrite",
    "Positive",
    "Protocol",
    "Quiet",
    "Raw",
    "Reading",
    "RecipeOptions",
    "Seed",
    "Settings",
    "Shown",
    "Tracker",
    "cache_for",
    "callbacks_for",
    "command_again",
    "data_folder",
    "naming_positive",
    "one_of",
    "reports_for",
    "run_context",
]

GIVEN: list[str] = []  # the arguments of this command, with which further processes of it start
IMPORTS: list[str] = []  # modules given with `--import`; suggested commands repeat the option
MAX_SEED = 2**32 - 1  # NumPy and PyTorch both take seeds up to this


def one_of(option: str, *known: str) -> Callable[[str], str]:
    """The callback of an option that takes some values alone; others are a ConfigError, before any work."""

    def check(value: str) -> str:
        if value not in known:
            raise ConfigError(f"{option} must be {' or '.join(known)}, found {value!r}")
        return value

    return check


Settings = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Change a setting, e.g. training.epochs=3. May be repeated."),
]
Protocol = Annotated[
    str | None,
    typer.Option(help="Another way to split rows and make features, e.g. time or leave-last-out for movielens-1m."),
]
BundleFolder = Annotated[Path, typer.Argument(metavar="BUNDLE", help="The folder that `train` saved.")]
Label = Annotated[str | None, typer.Option(help="The label's column. Default: guessed by name.")]
Seed = Annotated[int, typer.Option(min=0, max=MAX_SEED, help="Random seed.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object on standard output.")]
Shown = Annotated[
    str,
    typer.Option(
        "--progress",
        metavar="HOW",
        callback=one_of("--progress", "text", "json"),
        help="`text`, or `json`: one line every few seconds on standard error, for machines that watch.",
    ),
]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace what an earlier run wrote there.")]
Tracker = Annotated[
    str | None,
    typer.Option(
        "--tracker",
        metavar="NAME",
        help="Also write losses and metrics to `tensorboard` (in the folder tensorboard), `mlflow` or `wandb`, where "
        "its environment variables say (extras of these names).",
    ),
]
Raw = Annotated[
    bool, typer.Option("--raw", help="Write keys to text as they are, also those that a spreadsheet would run.")
]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Show no progress.")]
Positive = Annotated[
    list[str] | None,
    typer.Option(help="A positive value of the label. Default: recognised words such as yes. May be repeated."),
]


@dataclass(frozen=True, kw_only=True)
class RecipeOptions:
    """A recipe, and what changes it."""

    recipe: Annotated[
        str, typer.Argument(metavar="RECIPE", help="A recipe's name (`fieldwise recipes` lists them) or a TOML file.")
    ]
    settings: Settings = None
    protocol: Protocol = None

    def check(self, device: str | None = None) -> None:
        """Check the recipe, but for its model's settings, without PyTorch; arguments and errors as for `load`."""
        from fieldwise.runs.recipe import check_recipe

        check_recipe(self.recipe, self._settings(device), protocol=self.protocol)

    def load(self, device: str | None = None) -> "Recipe":
        """The recipe, with the device of --device if it is given. PyTorch is loaded only if all else is valid.

        Errors:
            ConfigError, SchemaError: as `load_recipe` raises.
        """
        from fieldwise.runs.recipe import load_recipe

        return load_recipe(self.recipe, self._settings(device), protocol=self.protocol)

    def _settings(self, device: str | None) -> list[str]:
        return [*(self.settings or []), *([] if device is None else [f"training.device={json.dumps(device)}"])]

    @property
    def words(self) -> list[str]:
        """The options that were given, as typed on the command line."""
        given = [] if self.protocol is None else ["--protocol", self.protocol]
        return [*(word for setting in self.settings or () for word in ("--set", setting)), *given]


def reading_words(separator: str | None, encoding: str, columns: "Sequence[str] | None" = None) -> list[str]:
    """The options for reading a text file that differ from their defaults, as typed on the command line."""
    given = {} if separator is None else {"separator": separator.replace("\t", r"\t")}
    given |= {} if encoding == "utf-8" else {"encoding": encoding}
    given |= {} if columns is None else {"columns": ",".join(columns)}
    return [word for key, value in given.items() for word in ("--read", f"{key}={value}")]


@dataclass(frozen=True, kw_only=True)
class Reading:
    """The option `--read`: how text files are read.

    Errors:
        ConfigError: an unknown key, or an empty column name.
    """

    read: Annotated[
        list[str] | None,
        typer.Option(
            "--read",
            metavar="KEY=VALUE",
            help="How to read a text file: 'separator=;' (default: detected), encoding=latin-1 (default: utf-8), or "
            "columns=user,item,click, the names for a file without a header. May be repeated.",
        ),
    ] = None

    def __post_init__(self) -> None:
        _ = self.arguments  # which checks them

    @property
    def arguments(self) -> dict[str, Any]:
        """The options by name."""
        found: dict[str, Any] = {"separator": None, "encoding": "utf-8", "columns": None}
        for text in self.read or ():
            key, equals, value = text.partition("=")
            if key not in found or not equals:
                raise ConfigError(f"--read must be KEY=VALUE with a known key, found {text!r}: {nearest(key, found)}")
            found[key] = value
        if found["separator"] == r"\t":  # as shells leave it
            found["separator"] = "\t"
        if found["columns"] is not None:
            names = [name.strip() for name in found["columns"].split(",")]
            if "" in names:
                raise ConfigError(
                    f"--read columns=... must name every column of the file, separated by commas, found "
                    f"{found['columns']!r}"
                )
            found["columns"] = names
        return found

    @property
    def text(self) -> "TextFormat":
        """The options as the format of a text file."""
        from fieldwise.data.read.delimited import TextFormat

        return TextFormat(**self.arguments)

    def check_used(self, option: str, value: object) -> None:
        """Check that there is a file to read as `--read` says.

        Errors:
            ConfigError: `--read` is given, but not the option of the file.
        """
        if self.read and value is None:
            raise ConfigError(f"--read applies to {option}, which is not given")

    def found_separator(self, path: Path) -> str | None:
        """The delimiter that is detected in a text file, or in the first of several, if it is another than a comma."""
        from fieldwise.data.read.file_listing import find_files, kind_of, suffix_of

        file, text = find_files(path)[0], self.text
        if text.separator or kind_of(file) != "delimited text" or suffix_of(file)[0] in (".tsv", ".tab"):
            return None
        found = text.separator_of(file)
        return None if found == "," else found

    def table(self, path: Path | str) -> "pl.DataFrame":
        """The table of a file; one that takes more than a sixth of the available memory is mapped from scratch files.

        Errors:
            DataError: as `as_table` raises.
        """
        from fieldwise.data.read.chunked_table import whole_table

        return whole_table(path, self.text)

    def sample(self, path: Path) -> "Sample":
        """All rows of a table of usual size, else a random sample of them.

        Errors:
            DataError: as `sample_table` raises.
        """
        from fieldwise.data.read.chunked_table import sample_table

        return sample_table(path, self.text)

    def lines(self, path: Path | None) -> AbstractContextManager[None]:
        """A context in which errors about a row of a text file name its line; it has no effect without a file."""
        if path is None:
            return nullcontext()
        from fieldwise.data.read.lines import naming_lines

        return naming_lines(path, self.text)

    def options(self) -> list[str]:
        """The options that differ from their defaults, as typed on the command line."""
        return reading_words(**self.arguments)

    def say_sample(self, sample: "Sample") -> None:
        """Say which rows of a table were looked at, if not all, or which of all are copies of others."""
        from fieldwise.data.prepare.row_fingerprints import copies_sentence

        if sample.told:
            say(f"inferred from {sample.told}")
        elif copies := copies_sentence(sample.frame):
            say(copies)


def cache_for(quiet: bool = False) -> "Cache | None":
    """The cache of prepared data, which reports on standard error what it reads; None if FIELDWISE_CACHE is `off`."""
    from fieldwise.storage.cache import OFF, default_cache

    if os.environ.get("FIELDWISE_CACHE") == OFF:
        return None
    return default_cache() if quiet else default_cache(say)


def reports_for(shown: str, *, quiet: bool = False) -> "AbstractContextManager[Reports]":
    """A context whose reports on long work are shown as `--progress` says."""
    from fieldwise.data.reports import NO_REPORTS, ShownReports

    return nullcontext(NO_REPORTS) if quiet and shown == "text" else ShownReports(as_json=shown == "json")


def callbacks_for(tracker: str | None, *, quiet: bool) -> Callable[[str], "list[Callback]"]:
    """What makes the callbacks of a training from its title: its progress display, and a tracker if one is named.

    Errors:
        ConfigError, MissingExtraError: there is no such tracker, or its library is missing.
    """
    from fieldwise.training.progress import progress_for
    from fieldwise.training.trackers import check_tracker

    kind = None if tracker is None else check_tracker(tracker)
    return lambda title: [progress_for(title, quiet=quiet), *([] if kind is None else [kind(title)])]


def run_context(data_dir: Path, tracker: str | None, *, quiet: bool) -> "RunContext":
    """Where stored runs read their data, and how they are shown.

    Errors:
        ConfigError, MissingExtraError: as `callbacks_for` raises.
    """
    from fieldwise.runs.fits import RunContext

    note = (lambda _: None) if quiet else say
    return RunContext(
        data_dir=data_dir, cache=cache_for(quiet), note=note, callbacks=callbacks_for(tracker, quiet=quiet)
    )


def data_folder(name: str | None = None) -> Path:
    """The folder of public data sets: FIELDWISE_DATA, else one in the user's cache folder.

    Args:
        name: a data set that is to be read from it.

    Errors:
        ConfigError: `name` is a public set, and the folder that FIELDWISE_DATA names does not exist.
    """
    if not (named := os.environ.get("FIELDWISE_DATA")):
        cache = os.environ.get("XDG_CACHE_HOME")
        return (Path(cache) if cache else Path.home() / ".cache") / "fieldwise" / "data"
    if name is not None and not Path(named).is_dir():
        from fieldwise.data.read.public_sets import PUBLIC_SETS

        if name in PUBLIC_SETS:
            raise ConfigError(f"the data folder must exist: {named} does not; check FIELDWISE_DATA")
    return Path(named)


@contextmanager
def naming_positive() -> "Iterator[None]":
    """Errors about a label name the option, where Python's names the argument."""
    try:
        yield
    except SchemaError as e:
        raise SchemaError(str(e).replace("ones as positive", "ones with --positive")) from None


def command_again() -> list[str]:
    """The command line of this command, for another process that runs it.

    Like this process, it imports nothing from the working directory, unless `python -m fieldwise` was called.
    """
    safe = [] if sys.path[:1] == [os.getcwd()] else ["-P"]
    return [sys.executable, *safe, "-m", "fieldwise", *GIVEN]
