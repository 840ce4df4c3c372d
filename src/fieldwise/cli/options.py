"""Options that several commands share."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, CallbackParam, Option

from fieldwise.cli.show import shell_words
from fieldwise.config import nearest
from fieldwise.data.read.text_format import TEXT_OPTIONS, TextFormat
from fieldwise.errors import ConfigError
from fieldwise.scoring import EXCLUDE_SEEN, Seen
from fieldwise.scoring.list_options import ListOptions
from fieldwise.training.settings import DEVICE as DEVICE_NAME

if TYPE_CHECKING:
    from collections.abc import Sequence

    import polars as pl


DEVICE = "training.device"
"""The setting of a recipe."""
READ_FORMATS = "CSV, TSV, JSON Lines, Parquet, Arrow or libFM"
WRITTEN_FORMATS = ".csv, .tsv, .jsonl, .parquet or .arrow"
SHOWN_CHARACTERS = 60
"""Of a line that an error quotes."""


def one_of(*known: str) -> Callable[[CallbackParam, str], str]:
    """A callback that checks an option's value before any work; one that is not known is a ConfigError."""

    def check(param: CallbackParam, value: str) -> str:
        if value not in known:
            raise ConfigError(
                f"{param.opts[0]} must be {' or '.join(known)}, found {value!r}: {nearest(value, known)}"
            )
        return value

    return check


Settings = Annotated[
    list[str] | None,
    Option(
        "--set",
        metavar="KEY=VALUE",
        help="A setting, e.g. training.epochs=3 or protocol=time. May be repeated.",
    ),
]
BundleFolder = Annotated[Path, Argument(metavar="BUNDLE", help="The folder that `train` saved.")]
Label = Annotated[str | None, Option(help="The label's column. Default: guessed by name.")]
Seed = Annotated[int, Option(min=0, max=2**32 - 1, help="Random seed.")]
AsJson = Annotated[bool, Option(help="Print one JSON object on standard output.")]
Shown = Annotated[
    str,
    Option(
        metavar="HOW",
        callback=one_of("text", "json"),
        help="`json`: a line every few seconds, for machines.",
    ),
]
Overwrite = Annotated[bool, Option(help="Replace what exists there.")]
Tracker = Annotated[
    str | None,
    Option(
        metavar="NAME",
        help="Also log to `tensorboard`, `mlflow` or `wandb` (extras of these names).",
    ),
]
Raw = Annotated[
    bool,
    Option(
        help="Write keys to delimited text as they are, also those that a spreadsheet would run."
    ),
]
Quiet = Annotated[bool, Option("--quiet", "-q", help="Show no progress.")]
Positive = Annotated[
    list[str] | None,
    Option(
        help="A positive value of the label. Default: known words such as yes. May be repeated."
    ),
]


ExcludeSeen = Annotated[
    bool | None,
    Option(
        "--exclude-seen/--include-seen",
        help="Exclude all items of a user's rows in --log, or none. Default: those of positive rows.",
    ),
]


def seen_rule(exclude_seen: bool | None) -> Seen:
    """Which items of a user's rows are excluded, by the options `--exclude-seen` and `--include-seen`."""
    return EXCLUDE_SEEN if exclude_seen is None else exclude_seen


@dataclass(frozen=True, kw_only=True)
class UserLists:
    """The options of users' lists."""

    k: Annotated[int, Option(min=1, help="Number of items of a list.")] = 10
    exclude_seen: ExcludeSeen = None
    limit: Annotated[
        list[str] | None,
        Option(
            metavar="COLUMN=N",
            help="At most N items of a list with one value of an item column. May be repeated.",
        ),
    ] = None
    pin: Annotated[
        list[str] | None,
        Option(metavar="PLACE=ITEM", help="This item at this place, from 1. May be repeated."),
    ] = None

    @property
    def options(self) -> ListOptions:
        """The options that they stand for."""
        return ListOptions(
            n=self.k,
            exclude_seen=seen_rule(self.exclude_seen),
            limits=self._limits(),
            pinned=self._pinned(),
        )

    def _limits(self) -> dict[str, int]:
        """The limits by column."""
        limits: dict[str, int] = {}
        for text in self.limit or ():
            column, _, number = text.rpartition("=")
            if not column or not number.isdecimal() or column in limits:
                raise ConfigError(f"--limit must be COLUMN=N, each column once, found {text!r}")
            limits[column] = int(number)
        return limits

    def _pinned(self) -> dict[int, str]:
        """The ids of pinned items by place."""
        pinned: dict[int, str] = {}
        for text in self.pin or ():
            position, _, item = text.partition("=")
            if not item or not position.isdecimal() or int(position) in pinned:
                raise ConfigError(f"--pin must be PLACE=ITEM, each place once, found {text!r}")
            pinned[int(position)] = item
        return pinned


def _device_name(device: str) -> str:
    """Check that a text is a valid device name; whether the device exists is checked once PyTorch is loaded."""
    if not DEVICE_NAME.fullmatch(device):
        raise ConfigError(f"--device must be auto, cpu, cuda, cuda:N or mps, found {device!r}")
    return device


BundleDevice = Annotated[
    str,
    Option(
        callback=_device_name,
        help="Where it computes: cpu, cuda, cuda:N, mps, or auto (a GPU if any).",
    ),
]
RecipeName = Annotated[
    str,
    Argument(
        metavar="RECIPE",
        show_default=False,
        help="A name (`fieldwise describe` lists them) or a TOML file.",
    ),
]


def setting_words(settings: "Sequence[str] | None") -> list[str]:
    """Settings as typed on the command line."""
    return [word for setting in settings or () for word in ("--set", setting)]


def check_no_settings(settings: "Sequence[str] | None") -> None:
    """Check that there are no settings where no recipe is given; else raise a ConfigError."""
    if settings:
        raise ConfigError("--set changes a recipe, which is not given: name one, or omit --set")


@dataclass(frozen=True, kw_only=True)
class Reading:
    """The option `--read`: how text files are read."""

    read: Annotated[
        list[str] | None,
        Option(
            metavar="KEY=VALUE",
            help="For text: 'separator=;', encoding=latin-1, columns=a,b,c. May be repeated.",
        ),
    ] = None

    def __post_init__(self) -> None:
        self.check()

    def check(self) -> None:
        """Check that every option is known; else raise a ConfigError."""
        self.text()

    def text(self, text_columns: "Sequence[str] | None" = ()) -> TextFormat:
        """The options as the format of a text file; cells of `text_columns` are not changed, None: of all columns."""
        given: dict[str, Any] = {}
        for text in self.read or ():
            key, equals, value = text.partition("=")
            if key not in TEXT_OPTIONS or not equals:
                raise ConfigError(
                    f"--read must be KEY=VALUE with a known key, found {text!r}: {nearest(key, TEXT_OPTIONS)}"
                )
            given[key] = value
        if given.get("separator") == r"\t":  # as shells leave it
            given["separator"] = "\t"
        if "columns" in given:
            names = tuple(name.strip() for name in given["columns"].split(","))
            if "" in names:
                rule = "--read columns=... must name every column of the file, separated by commas"
                raise ConfigError(f"{rule}, found {given['columns']!r}")
            given["columns"] = names
        return TextFormat(**given, text_columns=text_columns)

    def check_used(self, option: str, value: object) -> None:
        """Check that there is a file to read as `--read` says; else raise a ConfigError."""
        if self.read and value is None:
            raise ConfigError(f"--read applies to {option}, which is not given")

    def check_separator(self, path: Path) -> None:
        """Check that a given separator divides the header of a text file, if another one would.

        Errors:
            ConfigError: the file would be read as one column.
        """
        from fieldwise.data.read.file_listing import find_files
        from fieldwise.data.read.formats import table_files_of

        text = self.text()
        if text.separator is None:
            return
        file = find_files(path)[0]
        better = table_files_of([file], text).better_separator()
        if better is None:
            return
        detected, header = better
        words = shell_words(TextFormat(separator=detected).words())
        raise ConfigError(
            f"the separator must divide the columns of {path}, but {text.separator!r} does not occur in the first "
            f"line of {file}, {_shortened(header.rstrip())!r}: give {words}, or omit it"
        )

    def table(self, path: Path | str, text_columns: "Sequence[str]") -> "pl.DataFrame":
        """The table of a file, mapped from scratch files if it takes more than a sixth of the available memory.

        Cells of `text_columns` are read from text as they are written (`Schema.text_columns`).
        """
        from fieldwise.data.read.load_table import whole_table

        return whole_table(path, self.text(text_columns))

    def lines(self, path: Path | None) -> AbstractContextManager[None]:
        """A context in which errors about a row of a text file name its line; it has no effect without a file."""
        if path is None:
            return nullcontext()
        from fieldwise.data.read.row_numbers import naming_lines

        return naming_lines(path, self.text())


def _shortened(line: str) -> str:
    """The start of a line, if it is long."""
    return line if len(line) <= SHOWN_CHARACTERS else f"{line[:SHOWN_CHARACTERS]}..."
