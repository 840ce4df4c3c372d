import errno
import os
import stat
from pathlib import Path

import polars as pl
import pytest

from fieldwise import DataError
from fieldwise.storage import locks
from fieldwise.storage.files import cannot_write, disk_is_full, write_atomically
from fieldwise.storage.outputs import check_file, check_folder, keep_elsewhere


def fail_with(error):
    def fail(*args, **kwargs):
        raise error

    return fail


def system_error(number):
    return OSError(number, os.strerror(number))


def names_in(folder):
    return sorted(p.name for p in folder.iterdir())


@pytest.mark.parametrize("content", [b"", bytes(range(256)) * 5000])
def test_writes_what_was_given_and_leaves_nothing_else(tmp_path, content):
    path = tmp_path / "a folder" / "deep" / "file.bin"
    write_atomically(path, content)
    assert path.read_bytes() == content
    write_atomically(path, content + b"!")
    assert path.read_bytes() == content + b"!"
    assert names_in(path.parent) == ["file.bin"]
    assert stat.S_IMODE(path.stat().st_mode) == 0o644


def test_a_failure_leaves_the_old_content_and_no_other_file(subtests, tmp_path, monkeypatch):
    for old in [None, b"old"]:
        for error, raised, sentence in [
            (
                system_error(errno.ENOSPC),
                DataError,
                r"the disk is full: cannot write .*f\.json; free some space there",
            ),
            (system_error(errno.EDQUOT), DataError, "the disk is full"),
            (system_error(errno.EIO), DataError, r"cannot write .*f\.json: Input/output error"),
            (KeyboardInterrupt(), KeyboardInterrupt, None),
            (MemoryError(), MemoryError, None),
        ]:
            for step in ["fsync", "replace"]:
                with subtests.test(old=old, error=error, step=step):
                    path = tmp_path / "f.json"
                    path.unlink(missing_ok=True)
                    if old is not None:
                        path.write_bytes(old)
                    with monkeypatch.context() as patched:
                        patched.setattr(os, step, fail_with(error))
                        with pytest.raises(raised, match=sentence) as caught:
                            write_atomically(path, b"new")
                    assert "\n" not in str(caught.value)
                    assert names_in(tmp_path) == ([] if old is None else ["f.json"])
                    assert old is None or path.read_bytes() == old
                    write_atomically(path, b"new")  # and the next attempt succeeds
                    assert path.read_bytes() == b"new"


def test_a_file_or_a_folder_in_the_way_is_one_sentence(tmp_path):
    (tmp_path / "taken").write_text("a file")
    with pytest.raises(DataError, match=r"cannot write .*choose a writable folder"):
        write_atomically(tmp_path / "taken" / "f", b"x")
    (tmp_path / "f").mkdir()
    with pytest.raises(DataError, match=r"cannot write .*directory"):
        write_atomically(tmp_path / "f", b"x")
    assert names_in(tmp_path) == ["f", "taken"]


@pytest.mark.skipif(
    not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may write anywhere"
)
def test_a_folder_without_permission_is_one_sentence(tmp_path):
    tmp_path.chmod(0o500)
    try:
        with pytest.raises(DataError, match="choose a writable folder"):
            write_atomically(tmp_path / "f", b"x")
    finally:
        tmp_path.chmod(0o700)


@pytest.mark.parametrize("below", ["", "deep/er"])
def test_a_folder_is_checked_before_any_work_and_nothing_is_left(tmp_path, below):
    check_folder(tmp_path / below)
    check_file(tmp_path / below / "f.txt")
    assert names_in(tmp_path) == []
    (tmp_path / "file").write_text("mine")
    with pytest.raises(DataError, match=r"file is not a folder; choose a writable folder"):
        check_folder(tmp_path / "file" / below)
    with pytest.raises(DataError, match=r"file is not a folder"):
        check_file(tmp_path / "file" / below / "f.txt")
    with pytest.raises(DataError, match="it is a folder; choose another name"):
        check_file(tmp_path)


@pytest.mark.parametrize(
    ("number", "sentence", "step"),
    [
        (
            errno.EROFS,
            "cannot write .*new: Read-only file system; choose a writable folder",
            "builtins.open",
        ),
        (errno.ENOSPC, "the disk is full: cannot write .*new; free some space there", "os.fsync"),
    ],
)
def test_a_disk_that_takes_nothing_is_an_error_before_any_work(
    tmp_path, monkeypatch, number, sentence, step
):
    monkeypatch.setattr(step, fail_with(system_error(number)))
    with pytest.raises(DataError, match=sentence):
        check_folder(tmp_path / "new")
    assert names_in(tmp_path) == []


def test_a_result_is_saved_elsewhere_if_its_folder_cannot_be_written(tmp_path, monkeypatch):
    places = [tmp_path / name for name in ("temporary", "home", "here")]
    for place in places[1:]:
        place.mkdir()
    monkeypatch.setattr("tempfile.gettempdir", lambda: str(places[0]))  # is not there
    monkeypatch.setattr("pathlib.Path.home", lambda: places[1])
    monkeypatch.chdir(places[2])

    def write(folder):
        if folder.parent == places[1]:
            raise DataError("the disk is full")
        (folder / "f").write_text("kept")

    kept = keep_elsewhere(write, DataError("its own place is read-only"))
    assert (kept.parent, (kept / "f").read_text()) == (places[2], "kept")
    assert names_in(places[1]) == []
    failure = DataError("its own place is read-only")
    with pytest.raises(DataError) as e:
        keep_elsewhere(fail_with(system_error(errno.EROFS)), failure)
    assert e.value is failure
    assert names_in(places[2]) == [kept.name]


def test_a_file_system_without_locks_warns_once(tmp_path, monkeypatch):
    def refuse(*_):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr("fcntl.flock", refuse)
    locks._warn_once.cache_clear()
    folder = tmp_path / "b"
    saving = locks.one_writer(folder)
    with pytest.warns(UserWarning, match=f"the disk of {folder} has no file locks: two processes"):
        saving.__enter__()
    with locks.one_writer(folder):  # a second warning would be an error here
        pass
    saving.__exit__(None, None, None)
    locks._warn_once.cache_clear()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk_is_known_from_an_error_of_polars_too():
    """It has no errno."""
    with pytest.raises(OSError, match="os error 28") as caught, open("/dev/full", "wb") as file:
        pl.DataFrame({"a": range(100_000)}).write_ipc(file)
    assert "the disk is full: cannot write rows; free some space there" in str(
        cannot_write(Path("rows"), caught.value)
    )
    assert not disk_is_full(OSError("No such file (os error 2)"))
    assert not disk_is_full(OSError(errno.EIO, "Input/output error"))
