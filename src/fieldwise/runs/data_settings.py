"""Where a recipe's rows come from."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from fieldwise.data.read.file_listing import find_files
from fieldwise.errors import ConfigError
from fieldwise.storage.machine import available_memory, parse_bytes

if TYPE_CHECKING:
    from fieldwise.data.read.delimited import TextFormat

LEAST_MEMORY = 64_000_000  # bytes


@dataclass(frozen=True, kw_only=True)
class DataSettings:
    """The source of the rows.

    Args:
        name: a public data set (`fieldwise fetch`) or `simulated`.
        path: your own file (CSV, TSV, Parquet, Arrow, libFM), a folder of files of one kind, or a pattern such as
            `logs/*.parquet`, read in the order of the files' names; instead of `name`. A relative path in a recipe
            file is relative to that file's folder.
        separator: delimiter of a text file; detected if omitted.
        encoding: encoding of a text file, if not UTF-8.
        columns: column names of a text file without a header line.
        memory: memory for the rows while they are prepared, such as `2GB`, or a number of bytes; if omitted, half of
            what the machine has available then. Prepared data do not depend on it.
        rows: number of rows of the simulated log.
        users: number of users of the simulated log.
        items: number of items of the simulated log.
        seed: seed of the simulated log.
    """

    name: str | None = None
    path: str | None = None
    separator: str | None = None
    encoding: str = "utf-8"
    columns: tuple[str, ...] | None = None
    memory: float | str | None = None
    rows: int = 120_000
    users: int = 1_000
    items: int = 400
    seed: int = 0

    def __post_init__(self) -> None:
        if (self.name is None) == (self.path is None):
            raise ConfigError("give either name (a known data set) or path (a file)")
        if self.columns is not None:
            if isinstance(self.columns, str):
                raise ConfigError(f"data.columns is a list of names, found the text {self.columns!r}")
            object.__setattr__(self, "columns", tuple(self.columns))
            if self.path is None:
                raise ConfigError("data.columns are the column names of your own text file: also give data.path")
        if self.memory is not None and parse_bytes(self.memory, "data.memory") < LEAST_MEMORY:
            raise ConfigError(f"data.memory must be at least {LEAST_MEMORY // 10**6}MB, found {self.memory!r}")
        check_seed(self.seed)

    @property
    def memory_bytes(self) -> int:
        """The bytes of `memory`; if it is omitted, half of what the machine has available now."""
        return available_memory() // 2 if self.memory is None else parse_bytes(self.memory, "data.memory")

    @property
    def text(self) -> "TextFormat":
        """How delimited text of `path` is written."""
        from fieldwise.data.read.delimited import TextFormat  # which imports Polars

        return TextFormat(separator=self.separator, encoding=self.encoding, columns=self.columns)

    @property
    def files(self) -> list[Path]:
        """The files of `path`, in the order in which they are read; none without one.

        Errors:
            DataError: a folder or pattern without files, or with files of different kinds.
        """
        return [] if self.path is None else find_files(Path(self.path))


def check_seed(seed: int, what: str = "seed") -> None:
    """Check that a seed is valid for NumPy and PyTorch: 0 to 2**32 - 1."""
    if not 0 <= seed < 2**32:
        raise ConfigError(f"{what} must lie between 0 and {2**32 - 1}, found {seed}")
