"""Replacing a folder where the file system cannot exchange two folders in one step: by two renames."""

import ctypes
import errno
import fcntl
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from storage.faults import pictures, steps

from fieldwise import DataError
from fieldwise.storage import folders
from fieldwise.storage.folders import remove_scratch, scratch_folder, whole_folder
from fieldwise.storage.locks import LOCK, one_writer, try_lock


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
def test_a_kill_between_the_two_renames_is_mended_by_the_next_writer(tmp_path, monkeypatch):
    monkeypatch.setattr(folders, "YOUNG_SECONDS", 0)  # a minute has passed
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
        with pytest.raises(RuntimeError, match="stop"), whole_folder(dark / "a"):
            raise RuntimeError("stop")
        assert found(dark / "a") == (before or 1), "the old one is put back"
        assert [path.name for path in dark.iterdir()] == ["a"]
        put(killed / "a", 3)
        assert found(killed / "a") == 3
        assert [path.name for path in killed.iterdir()] == ["a"]


@pytest.mark.usefixtures("two_renames")
def test_what_a_writer_leaves_that_is_killed_meanwhile_is_not_in_the_way(tmp_path):
    put(tmp_path / "a", 1)
    with whole_folder(tmp_path / "a") as new:
        (tmp_path / ".a.old").mkdir()
        (tmp_path / ".a.old" / "one").write_text("0")
        (new / "two").write_text("2")
    assert [path.name for path in (tmp_path / "a").iterdir()] == ["two"]
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


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
    others = [
        tmp_path / name
        for name in (".fieldwise-scratch.mine", "fieldwise-scratch.abcd1234", ".fieldwise-kept")
    ]
    new = tmp_path / ".fieldwise-scratch.abcd1234"  # without a lock so far
    for folder in (*others, new):
        folder.mkdir()
    with subprocess.Popen(
        [sys.executable, "-c", HOLDS, str(tmp_path)], stdout=subprocess.PIPE, text=True
    ) as holder:
        held = Path(holder.stdout.readline().strip())
        for folder in (*others, held):
            os.utime(folder, (0, 0))
        with scratch_folder(tmp_path) as own:
            assert held.exists(), "its process works with it"
        assert not own.exists()
        holder.kill()
    with scratch_folder(tmp_path) as own:
        assert {*tmp_path.iterdir()} == {*others, new, own}


def test_work_of_another_machine_is_removed_only_after_a_day_of_rest(tmp_path):
    """Its locks may be invisible here, as on some network drives: nobody holds one in this test."""
    folder = tmp_path / ".fieldwise-scratch.abcd1234"
    (folder / "below").mkdir(parents=True)
    (folder / "below" / "rows").write_bytes(b"rows")
    (folder / LOCK).write_text("another-machine 17\n")
    (folder / ".empty").touch()
    everything = [folder / "below" / "rows", *folder.iterdir(), folder]
    for path in everything:
        os.utime(path, (0, 0))
    os.utime(folder / "below" / "rows")  # it writes at this moment
    remove_scratch(tmp_path)
    assert (folder / "below" / "rows").read_bytes() == b"rows"
    for path in everything:
        os.utime(path, (0, 0))
    remove_scratch(tmp_path)
    assert not folder.exists()


@pytest.fixture
def nfs(monkeypatch):
    """A network drive: its clients see each other's locks on files that are open for writing, and no others."""
    flock = fcntl.flock

    def shared(descriptor, operation):
        mode = os.fstat(descriptor).st_mode
        if (
            stat.S_ISREG(mode)
            and fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDWR
        ):
            flock(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", shared)


@pytest.mark.usefixtures("nfs")
def test_a_folder_is_locked_also_where_folders_have_no_locks(tmp_path):
    folder = tmp_path / "folder"
    with one_writer(folder):
        with try_lock(folder) as second:
            assert not second
        with scratch_folder(tmp_path) as live:
            for path in (live, live / LOCK):
                os.utime(path, (0, 0))
            remove_scratch(tmp_path)
            assert live.exists()
    assert list(folder.iterdir()) == []
    with try_lock(folder) as free:
        assert free
