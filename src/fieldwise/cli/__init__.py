"""The command line: thin; it parses, calls and prints.

Results go to standard output, everything else to standard error.
"""

import errno
import sys
from collections.abc import Sequence

from fieldwise.errors import FieldwiseError

__all__ = ["main", "run"]

USER_FAULT = 2
INTERRUPTED = 130


def main(arguments: Sequence[str] | None = None) -> None:
    """Run a command and exit: 0 done, 1 the machine's fault, 2 the user's fault, 130 interrupted."""
    sys.exit(run(sys.argv[1:] if arguments is None else list(arguments)))


def run(arguments: Sequence[str]) -> int:
    """Run a command and return its exit code; errors of the user become one sentence without a traceback."""
    from fieldwise.cli.app import app

    try:
        code = app(args=list(arguments), prog_name="fieldwise", standalone_mode=False)
    except FieldwiseError as e:
        return _fail(str(e), USER_FAULT)
    except KeyboardInterrupt:
        return _fail("interrupted", INTERRUPTED)
    except OSError as e:
        if e.errno == errno.ENOSPC:
            return _fail(f"the disk is full{f' at {e.filename}' if e.filename else ''}: free space and run it again", 1)
        return _fail(f"the machine refused: {e}", 1)
    except MemoryError:
        hint = "use a smaller batch_size or fewer rows (`fieldwise describe` estimates both)"
        return _fail(f"the memory is full: {hint}", 1)
    except Exception as e:
        # The parser's own errors (unknown option, bad value) know how to show themselves; anything else is a bug.
        show = getattr(e, "show", None)
        if show is None:
            raise
        show()
        return int(getattr(e, "exit_code", USER_FAULT))
    # The parser turns Ctrl-C within a command into this code.
    return _fail("interrupted", INTERRUPTED) if code == INTERRUPTED else code or 0


def _fail(sentence: str, code: int) -> int:
    print(f"fieldwise: {sentence}", file=sys.stderr)
    return code
