"""Standard output and error as every command has them: no text and no reader that has gone ends a command.

Characters that the encoding of the terminal or file lacks are written as Python escapes them. Where
the reader of a pipe has gone (`| head`), the rest is dropped: the command does its work and ends
with its own code.
"""

import contextlib
import io
import os
import sys
from collections.abc import Iterator
from typing import TextIO


class _ForgivingPipe(io.FileIO):
    """An open file that drops what nobody reads any more."""

    def write(self, content: "bytes | bytearray | memoryview") -> int:  # type: ignore[override]
        try:
            return super().write(content) or 0
        except BrokenPipeError:
            return memoryview(content).nbytes


@contextlib.contextmanager
def forgiving_streams() -> Iterator[None]:
    """A context in which standard output and error are forgiving; both are flushed at its end."""
    before = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = forgiving(sys.stdout), forgiving(sys.stderr)
    try:
        yield
    finally:
        for stream, original in zip((sys.stdout, sys.stderr), before, strict=True):
            with contextlib.suppress(OSError, ValueError):
                stream.close() if original is None else stream.flush()
        sys.stdout, sys.stderr = before


def forgiving(stream: TextIO | None) -> TextIO:
    """A stream that writes to the same file; nowhere if it is None, as Python has a stream that was closed before.

    Streams that are no files are returned unchanged.
    """
    if stream is None:
        return open(os.devnull, "w", encoding="utf-8")
    if not isinstance(stream, io.TextIOWrapper):
        return stream
    try:
        descriptor = stream.fileno()
    except OSError:  # it writes to memory
        stream.reconfigure(errors="backslashreplace")
        return stream
    if stream.isatty():  # which has no reader that goes
        stream.reconfigure(errors="backslashreplace")
        return stream
    stream.flush()
    raw = _ForgivingPipe(descriptor, "wb", closefd=False)
    return io.TextIOWrapper(
        raw if stream.write_through else io.BufferedWriter(raw),  # type: ignore[type-var]
        encoding=stream.encoding,
        errors="backslashreplace",
        line_buffering=stream.line_buffering,
        write_through=stream.write_through,
    )
