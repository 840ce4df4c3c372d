"""What can go wrong, as few classes as callers need to tell apart.

    FieldwiseError
    ├── SchemaError      the meaning given to columns is wrong or does not fit the table
    ├── DataError        a file or a table holds something that it must not
    ├── ConfigError      a setting, recipe key or option is wrong
    ├── BundleError      a saved model is damaged, too new, or scores differently
    ├── TrainingError    training cannot go on (a loss that is not finite)
    └── MissingExtraError  a feature needs a package that is not installed

Every message is one sentence: the rule, what was found and where, what to do. The command line prints it
without a traceback and exits with code 2.
"""

__all__ = [
    "BundleError",
    "ConfigError",
    "DataError",
    "FieldwiseError",
    "MissingExtraError",
    "SchemaError",
    "TrainingError",
]


class FieldwiseError(Exception):
    """Base of every error that fieldwise raises for its user."""


class SchemaError(FieldwiseError, ValueError):
    """The schema contradicts itself or the table."""


class DataError(FieldwiseError, ValueError):
    """A file or a table breaks a rule: the message names the place (file and line, or column and row)."""


class ConfigError(FieldwiseError, ValueError):
    """A setting is unknown, of the wrong type or out of range."""


class BundleError(FieldwiseError):
    """A bundle cannot be trusted: damaged, from a newer version, or scoring differently than when saved."""


class TrainingError(FieldwiseError):
    """Training cannot go on."""


class MissingExtraError(FieldwiseError, ImportError):
    """An optional dependency is absent; the message gives the line that installs it."""
