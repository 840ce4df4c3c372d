"""The command line: it parses arguments, calls the package and prints.

Results go to standard output; progress, warnings and errors go to standard error.
"""

import contextlib
import os
import re
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from typing import Any

from fieldwise.cli.show import visible
from fieldwise.cli.signals import as_interrupts, die_by
from fieldwise.cli.streams import forgiving_streams
from fieldwise.distributed.environment import record_failure
from fieldwise.errors import FieldwiseError, LostProcessError

__all__ = ["INTERRUPTED", "LOST", "ended", "execute", "is_out_of_memory", "main", "run"]

MACHINE_FAULT = 1
USER_FAULT = 2  # also when the disk or memory is full: the user can free some or ask for less
LOST = 3  # another of the processes that run a command together has failed, and has said why
INTERRUPTED = 130
# by modules of other names
PACKAGES = {"sklearn": "scikit-learn", "tomli_w": "tomli-w", "ray": "'fieldwise[ray]'"}
# PyTorch's messages when an allocation fails; the third is of a GPU.
NO_MEMORY = "can't allocate memory|not enough memory|out of memory|calculation overflowed|Overflow when unpacking long"


def main(arguments: Sequence[str] | None = None) -> None:
    """Run a command and exit with a code: 0 success, 1 machine error, 2 user error, 3 lost process, 130 interrupted.

    SIGTERM and SIGHUP interrupt a command like Ctrl-C, and then end the process.
    """
    code = INTERRUPTED
    with contextlib.ExitStack() as stack:
        stack.enter_context(forgiving_streams())
        # a signal may come after the command
        stack.enter_context(contextlib.suppress(KeyboardInterrupt))
        signals = stack.enter_context(as_interrupts())
        code = run(sys.argv[1:] if arguments is None else list(arguments))
    if signals:
        die_by(signals[0])
    sys.exit(code)


def run(arguments: Sequence[str]) -> int:
    """Run a command and return its exit code; a user error is printed as one sentence without a traceback."""
    return ended(partial(execute, arguments), arguments)


def execute(arguments: Sequence[str]) -> int | None:
    """Run a command and return its exit code, None for success; its errors are raised."""
    # Waiting OpenMP threads sleep instead of spinning: slightly slower on a free machine, much
    # faster on a busy one. The setting has an effect only if it is made before PyTorch is loaded.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    began = time.perf_counter()  # so that a time budget includes loading PyTorch
    from fieldwise.cli.app import app
    from fieldwise.cli.show import GIVEN

    GIVEN[:] = arguments
    with warnings.catch_warnings():  # restores warnings.showwarning on exit
        warnings.showwarning = partial(_warn, warnings.showwarning)
        code: int | None = app(
            args=list(arguments), prog_name="fieldwise", standalone_mode=False, obj=began
        )
        sys.stdout.flush()  # here a full disk is an error of the command
        return code


def ended(work: Callable[[], int | None], arguments: Sequence[str] = ()) -> int:
    """Do some work and return the exit code that it ends with (None: 0); a user error is printed as one sentence."""
    try:
        code = work()
    except FieldwiseError as e:
        return _fail(str(e), LOST if isinstance(e, LostProcessError) else USER_FAULT)
    except KeyboardInterrupt:
        return _fail("interrupted", INTERRUPTED)
    except OSError as e:
        from fieldwise.storage.files import disk_is_full

        if disk_is_full(e):
            place = f" at {e.filename}" if e.filename else ""
            return _fail(f"the disk is full{place}: free space and run it again", USER_FAULT)
        return _fail(f"the operating system reported an error: {e}", MACHINE_FAULT)
    except UnicodeEncodeError as e:
        if e.encoding.replace("-", "").lower() == "utf8":
            raise
        return _fail(
            f"a name has characters that the system's encoding {e.encoding} lacks: set PYTHONUTF8=1, or a locale such "
            "as C.UTF-8",
            MACHINE_FAULT,
        )
    except ModuleNotFoundError as e:
        missing = (e.name or "").partition(".")[0]
        if missing in ("", "fieldwise"):
            raise
        package = PACKAGES.get(missing, missing)
        return _fail(
            f"this command needs {missing}, which is not installed: pip install {package}",
            USER_FAULT,
        )
    except Exception as e:
        if is_out_of_memory(e):
            hint = "use a smaller batch_size, smaller layers or fewer rows (`fieldwise describe` estimates memory)"
            return _fail(f"out of memory: {hint}", USER_FAULT)
        # The parser's own errors (unknown option, bad value) have a message; anything else is a
        # bug.
        if not hasattr(e, "format_message"):
            raise
        code = int(getattr(e, "exit_code", USER_FAULT))
        if not e.format_message():  # no arguments were given: show the help
            e.show()  # type: ignore[attr-defined]
            return code
        return _fail(_usage(e, arguments), code)
    # The parser turns Ctrl-C during a command into this code.
    return _fail("interrupted", INTERRUPTED) if code == INTERRUPTED else code or 0


def is_out_of_memory(e: Exception) -> bool:
    """Whether memory is exhausted, which PyTorch says by errors of other kinds."""
    said_by_pytorch = (
        isinstance(e, (RuntimeError, TypeError)) and re.search(NO_MEMORY, str(e)) is not None
    )
    return said_by_pytorch or isinstance(e, MemoryError)


def _usage(e: Any, arguments: Sequence[str]) -> str:
    """A parser error as one sentence: its message, the value found, and where to find help."""
    names = getattr(getattr(e, "param", None), "opts", [])
    given = [after for name, after in pairwise(arguments) if name in names]
    given += [
        text.partition("=")[2]
        for text in arguments
        if text.partition("=")[0] in names and "=" in text
    ]
    result = f", found {given[-1]!r}" if given and "Invalid value" in e.format_message() else ""
    command = e.ctx.command_path if getattr(e, "ctx", None) else "fieldwise"
    sentence = e.format_message().rstrip(".")
    return f"{sentence}{result}; see `{command} --help`"


def _warn(
    shown: Callable[..., None], message: Warning | str, category: type[Warning], *where: Any
) -> None:
    """Show a warning meant for users as one sentence; show any other as Python does."""
    if category is UserWarning:
        print(visible(f"fieldwise: warning: {message}"), file=sys.stderr)
    else:
        shown(message, category, *where)


def _fail(sentence: str, code: int) -> int:
    if record_failure(sentence):
        return code  # the process that started this one prints it
    print(visible(f"fieldwise: {sentence}"), file=sys.stderr)
    return code
