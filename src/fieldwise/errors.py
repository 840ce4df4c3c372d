"""The exceptions that fieldwise raises: FieldwiseError, and the others directly below it.

Every message is one sentence: the rule, what was found and where, what to do. The command line
prints it without a traceback and exits with code 2.
"""


class FieldwiseError(Exception):
    """Base class of all errors that fieldwise raises for users."""


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
