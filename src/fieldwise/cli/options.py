"""Options that several commands share, and what they mean."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fieldwise.errors import ConfigError
from fieldwise.version import __version__

if TYPE_CHECKING:
    import polars as pl

    from fieldwise.storage.cache import Cache

__all__ = [
    "MAX_SEED",
    "Candidates",
    "Columns",
    "DataDir",
    "Encoding",
    "ItemColumn",
    "KeepSeen",
    "Positive",
    "Quiet",
    "RankedUsers",
    "Ranking",
    "Reading",
    "Separator",
    "Threads",
    "TopK",
    "UseCache",
    "UserColumn",
    "cache_for",
    "column_names",
    "existing_data_dir",
    "resolve_data_dir",
    "set_threads",
    "version_option",
]

MAX_SEED = 2**32 - 1  # NumPy and PyTorch both take seeds up to this

DataDir = Annotated[
    Path | None,
    typer.Option(
        "--data-dir",
        envvar="FIELDWISE_DATA",
        show_envvar=True,
        help="Folder with the public data sets; where left out, the cache that `data fetch` fills.",
    ),
]
Ranking = Annotated[
    bool,
    typer.Option(
        "--ranking", help="Rank items for the users of the test rows, too: hit rate, NDCG and recall of the first K."
    ),
]
TopK = Annotated[int | None, typer.Option("--k", min=1, help="With --ranking: how many items count; 10.")]
Candidates = Annotated[
    str | None,
    typer.Option(
        metavar="all|N", help="With --ranking: among all items, or N drawn for each user beside those that were liked."
    ),
]
RankedUsers = Annotated[
    int | None, typer.Option("--users", min=1, help="With --ranking: for so many users at most, drawn; 1000.")
]
UserColumn = Annotated[
    str | None,
    typer.Option("--user", metavar="COLUMN", help="With --ranking: of users; the schema's group if left out."),
]
ItemColumn = Annotated[
    str | None,
    typer.Option("--item", metavar="COLUMN", help="With --ranking: of items; the first item category's if left out."),
]
KeepSeen = Annotated[
    bool,
    typer.Option("--keep-seen", help="With --ranking: rank what a user liked in training and validation rows, too."),
]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Show no progress.")]
Separator = Annotated[
    str | None, typer.Option(help="What stands between the cells of a text file, where its suffix does not tell.")
]
Columns = Annotated[
    str | None,
    typer.Option("--columns", help="Names of the columns of a text file without a header: user,item,click."),
]
Encoding = Annotated[str, typer.Option(help="Encoding of a text file.")]
Positive = Annotated[
    list[str] | None,
    typer.Option(
        help="A positive value of the label; by the meaning of words such as yes where left out. May be repeated."
    ),
]
Threads = Annotated[int | None, typer.Option(min=1, help="Threads to compute with; PyTorch's choice where left out.")]
UseCache = Annotated[
    bool,
    typer.Option(
        "--cache/--no-cache",
        help="Open data that were prepared before, and keep what is prepared (`fieldwise cache show`).",
    ),
]


def column_names(given: str | None) -> list[str] | None:
    """The names in the text of `--columns`, or None where it was not given."""
    if given is None:
        return None
    names = [name.strip() for name in given.split(",")]
    if "" in names:
        raise ConfigError(f"--columns names every column of the file, separated by commas, found {given!r}")
    return names


@dataclass(frozen=True)
class Reading:
    """How a command reads the text files that it is given.

    Args:
        separator: between cells; by the suffix where left out.
        encoding: of the text.
        columns: names of the columns of files without a header.
    """

    separator: str | None = None
    encoding: str = "utf-8"
    columns: Sequence[str] | None = None

    @classmethod
    def of(cls, separator: str | None, encoding: str, columns: str | None) -> "Reading":
        """From the texts of the options."""
        return cls(separator, encoding, column_names(columns))

    @property
    def given(self) -> bool:
        """Whether one of the options was given."""
        return self != Reading()

    def table(self, path: Path | str) -> "pl.DataFrame":
        """The table of a file.

        Errors:
            DataError: as of `as_table`.
        """
        from fieldwise.data.read.tables import as_table

        return as_table(path, separator=self.separator, encoding=self.encoding, columns=self.columns)

    def options(self) -> list[str]:
        """The options as they are typed, those that are not the usual ones."""
        from fieldwise.cli.next import text_options

        return text_options(self.separator, self.encoding, self.columns)


def cache_for(wanted: bool, quiet: bool = False) -> "Cache | None":
    """The cache of prepared data, which tells on standard error what it reads; None where it is not wanted."""
    if not wanted:
        return None
    from fieldwise.cli.show import say
    from fieldwise.storage.cache import default_cache

    return default_cache() if quiet else default_cache(say)


def resolve_data_dir(given: Path | None) -> Path:
    """The folder of public data sets, there or not: as given, or the cache below the user's home."""
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


def set_threads(threads: int | None) -> None:
    """Limit PyTorch's threads where asked."""
    if threads is not None:
        import torch

        torch.set_num_threads(threads)


def version_option() -> Any:
    """`--version`: print and leave."""

    def show(wanted: bool) -> None:
        if wanted:
            print(f"fieldwise {__version__}")
            raise typer.Exit

    return typer.Option("--version", callback=show, is_eager=True, help="Show the version and leave.")
