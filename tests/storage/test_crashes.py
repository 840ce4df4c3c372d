"""Every kind of artifact is complete at every moment: kills, power loss, full disks, concurrent access."""

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from storage.faults import full_disk, pictures
from storage.kinds import CASES, fake_exporter, found
from storage.things import save_thing

from fieldwise import FieldwiseError
from fieldwise.bundle import export
from fieldwise.storage import folders

# All kinds are written by the same functions, so that one alone is also tried without an older
# artifact.
OVER = [("thing", False), *((name, case.replaces) for name, case in CASES.items())]


@pytest.fixture
def case(kind, monkeypatch):
    monkeypatch.setitem(export._MAKERS, "onnx", fake_exporter)
    return CASES[kind]


def names(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


@pytest.mark.parametrize(("kind", "older"), OVER)
def test_a_kill_at_any_step_leaves_the_old_one_or_the_new_one(tmp_path, case, older, monkeypatch):
    monkeypatch.setattr(folders, "YOUNG_SECONDS", 0)
    place, clean = tmp_path / "place", tmp_path / "clean"
    place.mkdir()
    clean.mkdir()
    if older:
        case.save(place / "a", 1)
    case.save(clean / "a", 2)
    taken = pictures(lambda: case.save(place / "a", 2), place, tmp_path / "shelf")
    outcomes = [found(case, killed / "a") for killed, _ in taken]
    before = outcomes.count(1 if older else None)
    assert outcomes == [1 if older else None] * before + [2] * (len(outcomes) - before)
    assert before >= 5
    assert outcomes[-1] == 2
    assert [found(case, dark / "a") for _, dark in taken] == outcomes
    left = {tuple(names(killed)): killed for killed, _ in taken}
    # what is left is in nobody's way, and goes with a writer a minute later
    for killed in left.values():
        case.save(killed / "a", 2)
        assert found(case, killed / "a") == 2
        assert names(killed) == names(clean)


def test_names_of_parts_are_on_disk_before_the_manifest_names_them(tmp_path, monkeypatch):
    """If the power failed between, the old manifest would be there, or the new one with all of its files."""
    events, fsync, rename = [], os.fsync, os.replace

    def flushed(descriptor):
        events.append(("flush", os.fstat(descriptor).st_ino))
        fsync(descriptor)

    def renamed(old, new, **more):
        events.append(("name", Path(new).name.split(".")[0]))
        rename(old, new, **more)

    monkeypatch.setattr(os, "fsync", flushed)
    monkeypatch.setattr(os, "replace", renamed)
    save_thing(tmp_path / "a", 1)
    folder = ("flush", (tmp_path / "a").stat().st_ino)
    parts, manifest = (
        [events.index(("name", part)) for part in ("left", "right")],
        events.index(("name", "thing")),
    )
    assert folder in events[max(parts) : manifest], "the folder is flushed between"
    assert folder in events[manifest:]


@pytest.mark.parametrize(("kind", "older"), OVER)
def test_a_full_disk_is_one_sentence_and_leaves_what_was_there(tmp_path, case, older):
    if older:
        case.save(tmp_path / "a", 1)
    before = names(tmp_path)
    for free in range(0, 200, 1 if case is CASES["thing"] else 3):
        said = None
        try:
            with full_disk(free) as refused:
                case.save(tmp_path / "a", 2)
        except FieldwiseError as e:
            said = str(e)
        if said is None:
            break
        assert "the disk is full" in said
        assert "\n" not in said
        assert found(case, tmp_path / "a") == (1 if older else None)
        assert names(tmp_path) == before
    assert free >= 5
    assert all(step == "fsync" for step in refused), "only flushing a folder may fail unseen"
    assert found(case, tmp_path / "a") == 2


@pytest.mark.parametrize("kind", ["thing", "run", "entry", "index", "table"])
def test_two_writers_and_a_reader_never_meet(tmp_path, case):
    folder, errors, numbers, rounds = tmp_path / "a", [], set(), 4
    case.save(folder, 1)
    writers_left = [2]

    def write(number):
        try:
            for _ in range(rounds):
                case.save(folder, number)
        except BaseException as e:
            errors.append(e)
        finally:
            writers_left[0] -= 1

    threads = [threading.Thread(target=write, args=(number,)) for number in (1, 2)]
    for thread in threads:
        thread.start()
    while writers_left[0]:
        numbers.add(case.load(folder))
    for thread in threads:
        thread.join()
    assert errors == []
    assert numbers <= {1, 2}
    case.save(tmp_path / "clean", case.load(folder))
    assert names(folder) == names(tmp_path / "clean")


KILLED = """
import os, signal, sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from storage.faults import steps
from storage.things import load_thing, save_thing
assert "torch" not in sys.modules
place = Path(sys.argv[2])
save_thing(place, 1)
status, k = 1, 0
while status:
    pid = os.fork()
    if not pid:
        left = [k]
        def at(_):
            left[0] -= 1
            if left[0] < 0:
                os.kill(os.getpid(), signal.SIGKILL)
        with steps(at):
            save_thing(place, 2)
        os._exit(0)
    status, k = os.waitpid(pid, 0)[1], k + 1
    print(status, load_thing(place))
    save_thing(place, 1)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="processes cannot be forked here")
def test_processes_that_are_killed_at_every_step(tmp_path):
    """What the pictures above stand for, with real processes: their locks end, and what they left is removed."""
    command = [sys.executable, "-c", KILLED, str(Path(__file__).parents[1]), str(tmp_path / "a")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    lines = [tuple(map(int, line.split())) for line in done.stdout.splitlines()]
    killed = [number for status, number in lines if status == signal.SIGKILL]
    assert killed == [1] * killed.count(1) + [2] * killed.count(2)
    assert killed.count(1) >= 10
    assert lines[len(killed) :] == [(0, 2)]
    save_thing(tmp_path / "clean", 1)
    assert names(tmp_path / "a") == names(tmp_path / "clean")
