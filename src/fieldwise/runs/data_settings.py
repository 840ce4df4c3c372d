"""The `[data]` of a recipe: where its rows come from, and how they are read."""

from collections.abc import Sequence
from dataclasses import dataclass

from fieldwise.config import check_seed
from fieldwise.data.read.text_format import TextFormat
from fieldwise.errors import ConfigError
from fieldwise.storage.machine import available_memory, parse_bytes

IN_MEMORY = "table-in-memory"
"""In place of a path, for a table in memory that is not written to a file."""
LEAST_MEMORY_BYTES = 64_000_000


@dataclass(frozen=True, kw_only=True)
class DataSettings:
    """The source of the rows.

    Args:
        name: a public data set (`fieldwise fetch`) or `simulated`.
        path: your own file, of any format of `as_table`, a folder of files of one kind, or a
            pattern such as `logs/*.parquet`, read in the order of the files' names; instead of
            `name`. A relative path in a recipe file is relative to that file's folder.
        separator: delimiter of a text file; detected if omitted.
        encoding: encoding of a text file, if not UTF-8.
        columns: column names of a text file without a header line.
        memory: memory for the rows while they are prepared, such as `2GB`, or a number of bytes; if
            omitted, half of what the machine has available then. Prepared data do not depend on it.
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
        self._check_source()
        if self.columns is not None:
            if isinstance(self.columns, str):
                raise ConfigError(
                    f"data.columns is a list of names, found the text {self.columns!r}"
                )
            object.__setattr__(self, "columns", tuple(self.columns))
            if self.path is None:
                raise ConfigError(
                    "data.columns are the column names of your own text file: also give data.path"
                )
        if self.memory is not None and parse_bytes(self.memory, "data.memory") < LEAST_MEMORY_BYTES:
            raise ConfigError(
                f"data.memory must be at least {LEAST_MEMORY_BYTES // 10**6}MB, found {self.memory!r}"
            )
        check_seed(self.seed)

    def _check_source(self) -> None:
        """Check that there is exactly one source."""
        if (self.name is None) != (self.path is None):
            return
        found = "neither"
        if self.name is not None:
            found = f"both {self.name!r} and {str(self.path)!r}"
        raise ConfigError(
            f"data needs either name (a known data set) or path (a file), found {found}: give one"
        )

    @property
    def memory_bytes(self) -> int:
        """The bytes of `memory`; if it is omitted, half of what the machine has available now."""
        if self.memory is None:
            return available_memory() // 2
        return parse_bytes(self.memory, "data.memory")

    def text(self, text_columns: Sequence[str] = ()) -> TextFormat:
        """How delimited text of `path` is written, and which of its columns a schema reads as text."""
        return TextFormat(
            separator=self.separator,
            encoding=self.encoding,
            columns=self.columns,
            text_columns=tuple(text_columns),
        )
