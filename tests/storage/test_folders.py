"""Replacing a folder where the file system cannot exchange two folders in one step: by two renames."""

import ctypes
import errno
import os

import pytest
from storage.faults import pictures, steps

from fieldwise.errors import DataError
from fieldwise.storage.folders import remove_leftovers, whole_folder


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
