"""The command line: it parses arguments, calls the package and prints.

Results go to standard output; progress, warnings and errors go to standard error.
"""

import contextlib
import os
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from fieldwise.cli.outcome import INTERRUPTED, ended
from fieldwise.cli.show import visible
from fieldwise.cli.signals import as_interrupts, die_by
from fieldwise.cli.streams import forgiving_streams

__all__ = ["execute", "main", "run"]


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
    began = time.perf_counter()
    from fieldwise.cli.app import app
    from fieldwise.cli.processes import Invocation

    invocation = Invocation(arguments, began=began, execute=execute)

    with warnings.catch_warnings():  # restores warnings.showwarning on exit
        warnings.showwarning = partial(_warn, warnings.showwarning)
        code: int | None = app(
            args=list(arguments), prog_name="fieldwise", standalone_mode=False, obj=invocation
        )
        sys.stdout.flush()  # here a full disk is an error of the command
        return code


def _warn(
    show_as_python: Callable[..., None],
    message: Warning | str,
    category: type[Warning],
    *where: Any,
) -> None:
    """Show a warning meant for users as one sentence; show any other as Python does."""
    if category is UserWarning:
        print(visible(f"fieldwise: warning: {message}"), file=sys.stderr)
    else:
        show_as_python(message, category, *where)
