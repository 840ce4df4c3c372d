"""pyarrow, which the extra `large` installs."""

from typing import Any

from fieldwise.errors import MissingExtraError


def arrow_library() -> Any:
    """The module `pyarrow`."""
    try:
        import pyarrow.ipc
    except ImportError as e:
        raise MissingExtraError(
            "a table larger than its share of memory is read through pyarrow, which is not installed: "
            "pip install 'fieldwise[large]'"
        ) from e
    return pyarrow
