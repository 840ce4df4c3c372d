"""Options that several commands share."""

import os
import sys
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fieldwise.errors import ConfigError
from fieldwise.version import __version__

if TYPE_CHECKING:
    from collections.abc import Callable

    import polars as pl

    from fieldwise.data.read.sampled import Sample
    from fieldwise.data.reports import Reports
    from fieldwise.storage.cache import Cache
    from fieldwise.training.callbacks import Callback

__all__ = [
    "GIVEN",
    "IMPORTS",
    "MAX_SEED",
    "AsJson",
    "BundleFolder",
    "DataDir",
    "Label",
    "Positive",
    "Protocol",
    "Quiet",
    "Raw",
    "Reading",
    "RecipeName",
    "Seed",
    "Settings",
    "Shown",
    "Threads",
    "Tracker",
    "UseCache",
    "cache_for",
    "callbacks_for",
    "command_again",
    "existing_data_dir",
    "reports_for",
    "resolve_data_dir",
    "set_threads",
    "version_option",
]

GIVEN: list[str] = []  # the arguments of this command, with which further processes of it start
IMPORTS: list[str] = []  # modules given with `--import`; suggested commands repeat the option
MAX_SEED = 2**32 - 1  # NumPy and PyTorch both take seeds up to this

RecipeName = Annotated[
    str, typer.Argument(metavar="RECIPE", help="A recipe's name (`fieldwise recipes` lists them) or a TOML file.")
]
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
DataDir = Annotated[
    Path | None,
    typer.Option(
        "--data-dir",
        envvar="FIELDWISE_DATA",
        show_envvar=True,
        help="Folder with the public data sets. Default: the folder that `data fetch` fills.",
    ),
]
Shown = Annotated[
    str,
    typer.Option(
        "--progress",
        metavar="HOW",
        help="`text`, or `json`: one line every few seconds on standard error, for machines that watch.",
    ),
]
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
Threads = Annotated[int | None, typer.Option(min=1, help="Number of CPU threads. Default: PyTorch's choice.")]


UseCache = Annotated[
    bool,
    typer.Option(
        "--cache/--no-cache",
        help="Reuse cached prepared data, and cache what is prepared (see `fieldwise cache show`).",
    ),
]


@dataclass(frozen=True, kw_only=True)
class Reading:
    """Options for reading text files.

    Errors:
        ConfigError: a column name is empty.
    """

    separator: Annotated[str | None, typer.Option(help="Delimiter of a text file. Default: detected.")] = None
    encoding: Annotated[str, typer.Option(help="Encoding of a text file.")] = "utf-8"
    columns: Annotated[
        str | None,
        typer.Option("--columns", help="Column names of a text file without a header, e.g. user,item,click."),
    ] = None

    def __post_init__(self) -> None:
        if self.separator == r"\t":  # as shells leave it
            object.__setattr__(self, "separator", "\t")
        if "" in (self.names or ()):
            raise ConfigError(
                f"--columns must name every column of the file, separated by commas, found {self.columns!r}"
            )

    @property
    def names(self) -> list[str] | None:
        """The column names; None if the file has a header."""
        return None if self.columns is None else [name.strip() for name in self.columns.split(",")]

    @property
    def given(self) -> bool:
        """Whether one of the options was given."""
        return self != type(self)()

    @property
    def arguments(self) -> dict[str, Any]:
        """The options as keyword arguments of the table reader."""
        return {"separator": self.separator, "encoding": self.encoding, "columns": self.names}

    def found_separator(self, path: Path) -> str | None:
        """The delimiter that is detected in a text file, or in the first of several, if it is another than a comma."""
        from fieldwise.data.read.bytesource import stream_source
        from fieldwise.data.read.found import find_files
        from fieldwise.data.read.kinds import kind_of, suffix_of
        from fieldwise.data.read.one_file import text_separator

        file = find_files(path)[0]
        if self.separator is not None or kind_of(file) != "delimited text" or suffix_of(file)[0] in (".tsv", ".tab"):
            return None
        found = text_separator(file, stream_source(file, self.encoding), self.names)
        return None if found == "," else found

    def table(self, path: Path | str) -> "pl.DataFrame":
        """The table of a file; one that takes more than a sixth of the available memory is mapped from scratch files.

        Errors:
            DataError: as `as_table` raises.
        """
        from fieldwise.data.read.whole import whole_table

        return whole_table(path, **self.arguments)

    def sample(self, path: Path) -> "Sample":
        """All rows of a table of usual size, else a random sample of them.

        Errors:
            DataError: as `sample_table` raises.
        """
        from fieldwise.data.read.sampled import sample_table

        return sample_table(path, **self.arguments)

    def lines(self, path: Path | None) -> AbstractContextManager[None]:
        """A context in which errors about a row of a text file name its line; it has no effect without a file."""
        if path is None:
            return nullcontext()
        from fieldwise.data.read.lines import naming_lines

        return naming_lines(path, **self.arguments)

    def options(self) -> list[str]:
        """The options that differ from their defaults, as typed on the command line."""
        from fieldwise.cli.next import text_options

        return text_options(self.separator, self.encoding, self.names)


def cache_for(wanted: bool, quiet: bool = False) -> "Cache | None":
    """The cache of prepared data, which reports on standard error what it reads; None if it is not wanted."""
    if not wanted:
        return None
    from fieldwise.cli.show import say
    from fieldwise.storage.cache import default_cache

    return default_cache() if quiet else default_cache(say)


def reports_for(shown: str, *, quiet: bool = False) -> "AbstractContextManager[Reports]":
    """A context whose reports on long work are shown as `--progress` says.

    Errors:
        ConfigError: neither `text` nor `json`.
    """
    from fieldwise.data.reports import NO_REPORTS, JsonReports, LineReports

    if shown not in ("text", "json"):
        raise ConfigError(f"--progress must be text or json, found {shown!r}")
    if shown == "json":
        return JsonReports()
    return nullcontext(NO_REPORTS) if quiet else LineReports()


def callbacks_for(tracker: str | None, *, quiet: bool) -> "Callable[[str], list[Callback]]":
    """What makes the callbacks of a training from its title: its progress display, and a tracker if one is named.

    Errors:
        ConfigError, MissingExtraError: there is no such tracker, or its library is missing.
    """
    from fieldwise.training.progress import progress_for
    from fieldwise.training.trackers import check_tracker

    kind = None if tracker is None else check_tracker(tracker)
    return lambda title: [progress_for(title, quiet=quiet), *([] if kind is None else [kind(title)])]


def resolve_data_dir(given: Path | None) -> Path:
    """The folder of public data sets, which may not exist: as given, or the default below the user's home."""
    if given is None:
        cache = os.environ.get("XDG_CACHE_HOME")
        return (Path(cache) if cache else Path.home() / ".cache") / "fieldwise" / "data"
    return given


def existing_data_dir(given: Path | None, name: str | None) -> Path:
    """`resolve_data_dir` for reading the data set `name`.

    Errors:
        ConfigError: `name` is a public set and the folder given does not exist.
    """
    from fieldwise.data.read.public import PUBLIC_SETS

    if name in PUBLIC_SETS and given is not None and not given.is_dir():
        raise ConfigError(f"the data folder must exist: {given} does not; check --data-dir or FIELDWISE_DATA")
    return resolve_data_dir(given)


def command_again() -> list[str]:
    """The command line of this command, for another process that runs it.

    Like this process, it imports nothing from the working directory, unless `python -m fieldwise` was called.
    """
    safe = [] if sys.path[:1] == [os.getcwd()] else ["-P"]
    return [sys.executable, *safe, "-m", "fieldwise", *GIVEN]


def set_threads(threads: int | None) -> None:
    """Limit PyTorch's threads, if a number is given."""
    if threads is not None:
        import torch

        torch.set_num_threads(threads)


def version_option() -> Any:
    """The option `--version`: print the version and exit."""

    def show(wanted: bool) -> None:
        if wanted:
            print(f"fieldwise {__version__}")
            raise typer.Exit

    return typer.Option("--version", callback=show, is_eager=True, help="Show the version and exit.")
