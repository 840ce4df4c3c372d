"""How a command ends: its exit code, and a user error as one sentence without a traceback."""

import re
import sys
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

from fieldwise.cli.show import visible
from fieldwise.distributed.environment import record_failure
from fieldwise.errors import FieldwiseError, LostProcessError

MACHINE_FAULT = 1
USER_FAULT = 2
"""Also when the disk or memory is full: the user can free some or ask for less."""
LOST = 3
"""Another of the processes that run a command together has failed, and has said why."""
INTERRUPTED = 130
PACKAGE_OF_MODULE = {"sklearn": "scikit-learn", "tomli_w": "tomli-w", "ray": "'fieldwise[ray]'"}
OUT_OF_MEMORY = re.compile(
    "can't allocate memory|not enough memory|out of memory|calculation overflowed|Overflow when unpacking long"
)
"""PyTorch's messages when an allocation fails; the third is of a GPU."""


def ended(work: Callable[[], int | None], arguments: Sequence[str] = ()) -> int:
    """Do some work and return the exit code that it ends with (None: 0); a user error is printed as one sentence."""
    try:
        code = work()
    except KeyboardInterrupt:
        return _fail("interrupted", INTERRUPTED)
    except Exception as e:
        failure = _failure(e)
        if failure is not None:
            return _fail(*failure)
        # The parser's own errors (unknown option, bad value) have a message; anything else is a
        # bug.
        if not hasattr(e, "format_message"):
            raise
        return _fail_usage(e, arguments)

    # The parser turns Ctrl-C during a command into this code.
    if code == INTERRUPTED:
        return _fail("interrupted", INTERRUPTED)
    return code or 0


def is_out_of_memory(e: Exception) -> bool:
    """Whether memory is exhausted, which PyTorch says by errors of other kinds."""
    if isinstance(e, (RuntimeError, TypeError)) and OUT_OF_MEMORY.search(str(e)):
        return True
    return isinstance(e, MemoryError)


def _failure(e: Exception) -> tuple[str, int] | None:
    """The sentence and the exit code of an error that is no bug; None for any other."""
    if isinstance(e, LostProcessError):
        return str(e), LOST
    if isinstance(e, FieldwiseError):
        return str(e), USER_FAULT
    if isinstance(e, OSError):
        return _failure_of_system(e)
    if isinstance(e, UnicodeEncodeError):
        return _failure_of_encoding(e)
    if isinstance(e, ModuleNotFoundError):
        return _failure_of_import(e)
    if is_out_of_memory(e):
        remedy = "use a smaller batch_size, smaller layers or fewer rows (`fieldwise describe` estimates memory)"
        return f"out of memory: {remedy}", USER_FAULT
    return None


def _failure_of_system(e: OSError) -> tuple[str, int]:
    from fieldwise.storage.files import disk_is_full

    if disk_is_full(e):
        where = f" at {e.filename}" if e.filename else ""
        return f"the disk is full{where}: free space and run it again", USER_FAULT
    return f"the operating system reported an error: {e}", MACHINE_FAULT


def _failure_of_encoding(e: UnicodeEncodeError) -> tuple[str, int] | None:
    """A name that the file system cannot have; None for a text that is no name of a file."""
    if e.encoding.replace("-", "").lower() == "utf8":
        return None
    sentence = (
        f"a name has characters that the system's encoding {e.encoding} lacks: set PYTHONUTF8=1, or a locale such "
        "as C.UTF-8"
    )
    return sentence, MACHINE_FAULT


def _failure_of_import(e: ModuleNotFoundError) -> tuple[str, int] | None:
    """A package that is not installed; None for a module of this package."""
    module = (e.name or "").partition(".")[0]
    if module in ("", "fieldwise"):
        return None
    package = PACKAGE_OF_MODULE.get(module, module)
    sentence = f"this command needs {module}, which is not installed: pip install {package}"
    return sentence, USER_FAULT


def _fail_usage(e: Any, arguments: Sequence[str]) -> int:
    """Print a parser error, or the help where no arguments were given, and return its exit code."""
    code = int(getattr(e, "exit_code", USER_FAULT))
    if not e.format_message():
        e.show()
        return code
    return _fail(_usage_sentence(e, arguments), code)


def _usage_sentence(e: Any, arguments: Sequence[str]) -> str:
    """A parser error as one sentence: its message, the value found, and where to find help."""
    value = ""
    if "Invalid value" in e.format_message():
        option_names = getattr(getattr(e, "param", None), "opts", [])
        values = _values_given(option_names, arguments)
        if values:
            value = f", found {values[-1]!r}"
    context = getattr(e, "ctx", None)
    command = context.command_path if context else "fieldwise"
    sentence = e.format_message().rstrip(".")
    return f"{sentence}{value}; see `{command} --help`"


def _values_given(option_names: Sequence[str], arguments: Sequence[str]) -> list[str]:
    """The values of an option among arguments, as `--option VALUE` first, then as `--option=VALUE`."""
    values = [value for name, value in pairwise(arguments) if name in option_names]
    for argument in arguments:
        name, equals, value = argument.partition("=")
        if equals and name in option_names:
            values.append(value)
    return values


def _fail(sentence: str, code: int) -> int:
    if record_failure(sentence):
        return code  # the process that started this one prints it
    print(visible(f"fieldwise: {sentence}"), file=sys.stderr)
    return code
