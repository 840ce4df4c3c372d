"""The exceptions that fieldwise raises: FieldwiseError, and the others directly below it.

Every message is one sentence: the rule, what was found and where, what to do. The command line
prints it without a traceback and exits with code 2.

An error takes its sentence in parts: text, and the facts that a caller may know better.

>>> error = DataError("a price must be a number, found 'x' in ", Row(2), "; correct the cell")
>>> error.row.number += 1000
>>> str(error)
"a price must be a number, found 'x' in row 1002 (counting from 0); correct the cell"
"""

from dataclasses import dataclass


@dataclass
class Row:
    """A row that an error names: by its number, or by its line in a file once a caller has added that.

    Args:
        number: the row's number, from 0, in the table that was checked.
        file: the file that holds the row, where a table has several, or the row has a line.
        line: the line of the file at which the row begins, from 1.
    """

    number: int
    file: str | None = None
    line: int | None = None

    def __str__(self) -> str:
        if self.line is not None:
            return f"line {self.line} of {self.file}"
        of_file = "" if self.file is None else f" of {self.file}"
        return f"row {self.number} (counting from 0){of_file}"


@dataclass(frozen=True)
class Argument:
    """An argument that an error names, as Python writes it; the command line names its option instead.

    >>> print(Argument("out"), Argument("overwrite", True))
    out overwrite=True

    Args:
        name: the argument's name.
        value: the value to give; None: none is shown.
    """

    name: str
    value: object = None

    def __str__(self) -> str:
        return self.name if self.value is None else f"{self.name}={self.value!r}"


class FieldwiseError(Exception):
    """Base class of all errors that fieldwise raises for users; `args` are the parts of the sentence."""

    def __str__(self) -> str:
        return "".join(map(str, self.args))

    @property
    def row(self) -> Row | None:
        """The row that the sentence names, to which callers add what they know; None if it names none."""
        return next((part for part in self.args if isinstance(part, Row)), None)


class SchemaError(FieldwiseError, ValueError):
    """The schema is inconsistent or does not fit the table."""


class DataError(FieldwiseError, ValueError):
    """A file or a table breaks a rule; the message names the place (file and line, or column and row)."""


class ConfigError(FieldwiseError, ValueError):
    """A setting is unknown, of the wrong type or out of range."""


class BundleError(FieldwiseError):
    """A bundle cannot be used: it is damaged, from a newer version, or scores differently than when it was saved."""


class TrainingError(FieldwiseError):
    """Training cannot continue (the loss is not finite)."""


class LostProcessError(FieldwiseError):
    """Another process of a training that several share has failed, ended or does not answer."""


class MissingExtraError(FieldwiseError, ImportError):
    """An optional dependency is missing; the message gives the command that installs it."""


def first_line(error: BaseException) -> str:
    r"""The first line of an error's text, or the name of its class.

    >>> first_line(OSError("no disk\nat all")), first_line(KeyboardInterrupt())
    ('no disk', 'KeyboardInterrupt')
    """
    return (str(error).splitlines() or [type(error).__name__])[0]
