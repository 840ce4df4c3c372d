"""Hooks before every step by which this process changes files: to kill it, to fail, or to copy the folder."""

import builtins
import contextlib
import errno
import io
import os
import shutil
from unittest import mock

ALLOCATING = ("open", "write", "fsync", "mkdir")
CALLS = ("replace", "rename", "unlink", "remove", "rmdir", "mkdir", "fsync")


class Raw(io.FileIO):
    """A file of which every second write is cut short, as a system may do."""

    def __init__(self, file, mode, at, unflushed):
        super().__init__(file, mode)
        self.at, self.unflushed, self.cut = at, unflushed, False

    def write(self, data):
        self.at("write")
        self.unflushed.add(os.fstat(self.fileno()).st_ino)
        self.cut = not self.cut
        return super().write(data[: (len(data) + 1) // 2] if self.cut else data)


@contextlib.contextmanager
def steps(at, unflushed=None):
    """Call `at` with the name of each step before it is taken.

    Args:
        at: may raise, or not return.
        unflushed: a set that holds the inodes of files with content that was not flushed.
    """
    unflushed = set() if unflushed is None else unflushed
    busy, real_open = [], builtins.open

    def heard(name):
        if not busy:
            busy.append(name)
            try:
                at(name)
            finally:
                busy.pop()

    def opened(file, mode="r", buffering=-1, encoding=None, errors=None, newline=None, **more):
        if busy or not set(mode) & set("wxa"):
            return real_open(file, mode, buffering, encoding, errors, newline, **more)
        heard("open")
        binary = io.BufferedWriter(
            Raw(file, mode.replace("b", "").replace("t", ""), heard, unflushed)
        )
        return (
            binary
            if "b" in mode
            else io.TextIOWrapper(binary, encoding or "utf-8", errors, newline)
        )

    def wrapped(name, real):
        def call(*args, **kwargs):
            if not busy:
                heard(name)
                if name == "fsync":
                    unflushed.discard(os.fstat(args[0]).st_ino)
            return real(*args, **kwargs)

        return call

    with contextlib.ExitStack() as stack:
        for name in CALLS:
            stack.enter_context(mock.patch.object(os, name, wrapped(name, getattr(os, name))))
        stack.enter_context(mock.patch.object(builtins, "open", opened))
        stack.enter_context(mock.patch.object(io, "open", opened))
        yield


def pictures(write, place, shelf):
    """Run `write`, and copy `place` before every step and at the end.

    A copy is what a kill at that moment leaves on disk, since a killed process runs nothing more.

    Returns:
        Of each moment the copy, and one in which content that was not flushed is lost, as by a
        failure of power.
    """
    taken, unflushed = [], set()

    def at(_):
        killed, dark = (
            shelf / f"{len(taken)}" / place.name,
            shelf / f"{len(taken)}-dark" / place.name,
        )
        for copy in (killed, dark):
            shutil.copytree(place, copy)
        for path in place.rglob("*"):
            if path.stat().st_ino in unflushed:
                os.truncate(dark / path.relative_to(place), 0)
        taken.append((killed, dark))

    with steps(at, unflushed):
        write()
    at("end")
    return taken


@contextlib.contextmanager
def full_disk(free_steps):
    """The disk is full after this many steps that take space. Returns a list of the refused steps."""
    refused, left = [], [free_steps]

    def at(name):
        if name in ALLOCATING:
            left[0] -= 1
            if left[0] < 0:
                refused.append(name)
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with steps(at):
        yield refused
