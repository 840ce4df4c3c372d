"""Replacing a folder where the file system cannot exchange two folders in one step: by two renames."""

import ctypes
import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest
from storage.faults import pictures, steps

from fieldwise.errors import DataError
from fieldwise.storage.folders import remove_leftovers, scratch_folder, whole_folder


class WithoutExchange:
    """The C library on such a file system (network drives, some overlays): the call fails with EINVAL."""

    asked = 0

    def renameat2(self, *_):
        WithoutExchange.asked += 1
        ctypes.set_errno(errno.EINVAL)
        return -1


class WithoutTheCall:
    """The C library of a system that has no such call."""


@pytest.fixture(params=[WithoutExchange, WithoutTheCall])
def two_renames(request, monkeypatch):
    monkeypatch.setattr(ctypes, "CDLL", lambda *_, **__: request.param())
    monkeypatch.setattr(WithoutExchange, "asked", 0)
    yield
    assert (WithoutExchange.asked > 0) == (request.param is WithoutExchange)


def put(folder, number):
    with whole_folder(folder) as new:
        (new / "below").mkdir()
        for name in ("one", "below/two"):
            (new / name).write_text(str(number))


def found(folder):
    """The number that both files hold, or None without a folder."""
    if not folder.exists():
        return None
    one, two = ((folder / name).read_text() for name in ("one", "below/two"))
    assert one == two
    return int(one)


@pytest.mark.usefixtures("two_renames")
def test_a_kill_between_the_two_renames_is_mended_by_the_next_writer(tmp_path):
    place = tmp_path / "place"
    put(place / "a", 1)
    taken = pictures(lambda: put(place / "a", 2), place, tmp_path / "shelf")
    seen = [found(killed / "a") for killed, _ in taken]
    gone = seen.count(None)
    assert gone >= 1, "for a moment there is none"
    first = seen.index(None)
    assert seen == [1] * first + [None] * gone + [2] * (len(seen) - first - gone)
    assert seen[-1] == 2
    for (killed, dark), before in zip(taken, seen, strict=True):
        for copy in (killed, dark):
            remove_leftovers(copy)
            assert found(copy / "a") == (before or 1), "the old one is put back"
            assert [path.name for path in copy.iterdir()] == ["a"]
        put(killed / "a", 3)
        assert found(killed / "a") == 3


@pytest.mark.usefixtures("two_renames")
def test_a_second_rename_that_fails_puts_the_old_folder_back(tmp_path):
    put(tmp_path / "a", 1)
    renames = []

    def at(step):
        if step == "rename":
            renames.append(found(tmp_path / "a"))
            if len(renames) == 2:
                raise OSError(errno.EIO, os.strerror(errno.EIO))

    with steps(at), pytest.raises(DataError, match="Input/output error"):
        put(tmp_path / "a", 2)
    assert renames == [1, None, None], "aside, the new one into place, which fails, and back"
    assert found(tmp_path / "a") == 1
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


HOLDS = """
import sys, time
from pathlib import Path
from fieldwise.storage.folders import scratch_folder
with scratch_folder(Path(sys.argv[1])) as folder:
    (folder / "rows").write_bytes(bytes(100))
    print(folder, flush=True)
    time.sleep(600)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="needs locks")
def test_scratch_files_of_a_killed_process_are_removed_by_the_next(tmp_path):
    others = [tmp_path / name for name in (".fieldwise-scratch.mine", "fieldwise-scratch.abcd1234", ".fieldwise-kept")]
    new = tmp_path / ".fieldwise-scratch.abcd1234"  # without a lock so far
    for folder in (*others, new):
        folder.mkdir()
    with subprocess.Popen([sys.executable, "-c", HOLDS, str(tmp_path)], stdout=subprocess.PIPE, text=True) as holder:
        held = Path(holder.stdout.readline().strip())
        for folder in (*others, held):
            os.utime(folder, (0, 0))
        with scratch_folder(tmp_path) as own:
            assert held.exists(), "its process works with it"
        assert not own.exists()
        holder.kill()
    with scratch_folder(tmp_path) as own:
        assert {*tmp_path.iterdir()} == {*others, new, own}
