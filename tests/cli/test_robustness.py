"""What goes wrong around a run: folders for files, disks, two runs in one place, Ctrl-C, tables of next to nothing."""

import os
import re
import signal
import subprocess
import threading
from pathlib import Path
from types import SimpleNamespace

import polars as pl
import pytest

from fieldwise.bundle.bundle import Bundle
from fieldwise.bundle.files import MANIFEST
from fieldwise.storage import writer
from fieldwise.storage.locks import one_writer

LABEL = ["--label", "click"]


def test_a_folder_for_a_file_is_a_sentence(subtests, fieldwise, recipe, bundle):
    Path("folder").mkdir()
    Path("folder.toml").write_text(
        recipe.read_text().replace(str(recipe.with_name("log.csv")), str(Path("folder").absolute()))
    )
    for arguments in [
        ("data", "infer", "folder", *LABEL),
        ("predict", "BUNDLE", "--data", "folder", "--out", "scores.csv"),
        ("evaluate", "BUNDLE", "--data", "folder"),
        ("explain", "BUNDLE", "--data", "folder"),
        ("train", "folder.toml"),
        ("compare", "folder.toml"),
        ("describe", "folder.toml"),
        ("train", "folder"),
    ]:
        with subtests.test(arguments=arguments):
            code, out, err = fieldwise(*(bundle if a == "BUNDLE" else a for a in arguments))
            assert (code, out) == (2, "")
            (line,) = err.splitlines()
            assert "folder" in line
            assert line.startswith("fieldwise: ")
            assert not list(Path.cwd().glob("scores*"))
            assert not any(path.is_file() for path in Path("runs").rglob("*"))


TABLES = {
    "empty": (lambda _: None, "is empty|holds no|no columns|no rows"),
    "header alone": (lambda log: log.clear(), "a table needs rows, found none"),
    "one row": (lambda log: log.head(1), "row"),
    "two rows": (lambda log: log.head(2), "row|both classes"),
    "one class": (lambda log: log.with_columns(click=1), "both classes: all .* are positive"),
    "another class": (lambda log: log.with_columns(click=0), "both classes: all .* are negative"),
}


def test_tables_of_next_to_nothing(subtests, fieldwise, recipe, log, tmp_path):
    for command in ["train", "describe", "compare"]:
        for case, (made, words) in TABLES.items():
            with subtests.test(command=command, case=case):
                frame = made(log)
                (tmp_path / "log.csv").write_text("") if frame is None else frame.write_csv(tmp_path / "log.csv")
                code, out, err = fieldwise(command, recipe)
                assert (code, out) == (2, "")
                told = [line for line in err.splitlines() if line.startswith("fieldwise: ")]
                assert len(told) == 1
                assert re.search(words, told[0]), told[0]
                assert not list(tmp_path.glob("runs/**/bundle.json"))


@pytest.mark.parametrize("case", ["header alone", "one row"])
def test_scoring_next_to_nothing(fieldwise, bundle, log, tmp_path, case):
    frame = TABLES[case][0](log)
    frame.write_parquet(tmp_path / "rows.parquet")
    code, _, err = fieldwise("predict", bundle, "--data", "rows.parquet", "--out", "scores.csv")
    assert code == 0, err
    assert pl.read_csv("scores.csv").height == frame.height


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 64 KiB, where this machine lets a test mount one."""
    place = tmp_path / "disk"
    place.mkdir()
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(place)], check=False, capture_output=True
    )
    if done.returncode:
        pytest.skip("mounting a file system is not permitted here")
    yield place
    subprocess.run(["umount", "-l", str(place)], check=True)


def mounts_permitted():
    return hasattr(os, "geteuid") and os.geteuid() == 0


@pytest.mark.skipif(not mounts_permitted(), reason="mounting a file system takes root")
@pytest.mark.parametrize("command", ["train", "predict", "compare", "simulate"])
def test_a_disk_that_is_really_full(fieldwise, recipe, bundle, log, small_disk, command):
    log.write_parquet("rows.parquet")
    asked = {
        "train": ("train", recipe, "--out", small_disk / "b", "--quiet"),
        "predict": ("predict", bundle, "--data", "rows.parquet", "--out", small_disk / "scores.csv"),
        "compare": ("compare", recipe, "--seeds", 1, "--quiet", "--store", small_disk / "store"),
        "simulate": ("data", "simulate", "--rows", 20_000, "--out", small_disk / "log.parquet"),
    }
    code, _, err = fieldwise(*asked[command])
    assert code == 2
    (line,) = err.splitlines()
    assert "the disk is full" in line
    left = [path for path in small_disk.rglob("*") if path.is_file() and path.suffix != ".lock"]
    assert left == []


def test_one_writer_waits_for_the_other(tmp_path):
    order = []
    held, asked = threading.Event(), threading.Event()

    def second():
        held.wait(10)
        asked.set()
        with one_writer(tmp_path / "place"):
            order.append("second")

    thread = threading.Thread(target=second)
    thread.start()
    with one_writer(tmp_path / "place"):
        held.set()
        asked.wait(10)
        thread.join(0.2)
        order.append("first")
    thread.join(10)
    assert order == ["first", "second"]
    assert list((tmp_path / "place").iterdir()) == []


def test_ctrl_c_while_saving_keeps_the_old_bundle(fieldwise, recipe, monkeypatch):
    assert fieldwise("train", recipe, "--out", "b", "--quiet")[0] == 0
    before = Bundle.load("b").digest
    files, real = [], writer.write_atomically

    def stops(path, content):
        if path.name == MANIFEST:
            files.extend(path.parent.iterdir())
            os.kill(os.getpid(), signal.SIGINT)
        real(path, content)

    monkeypatch.setattr(writer, "write_atomically", stops)
    ours = signal.signal(signal.SIGINT, signal.default_int_handler)  # what a shell starts behind & ignores it
    try:
        code, _, err = fieldwise("train", recipe, "--out", "b", "--quiet", "--overwrite", "--set", "seed=3")
    finally:
        signal.signal(signal.SIGINT, ours)
    assert code == 130
    assert "interrupted" in err
    assert len(files) > 5, "old and new ones beside each other"
    assert Bundle.load("b").digest == before
    assert len(list(Path("b").iterdir())) == 5


@pytest.mark.parametrize("stage", ["data.prepare_recipe", "pipeline.train_recipe"])
def test_ctrl_c_before_there_is_a_model(fieldwise, recipe, monkeypatch, stage):
    def stops(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(f"fieldwise.runs.{stage}", stops)
    code, out, err = fieldwise("train", recipe, "--out", "b")
    assert (code, out) == (130, "")
    assert err.splitlines()[-1] == "fieldwise: interrupted"
    assert not Path("b").exists()


def test_a_disk_too_small_for_the_encoded_rows_is_told_before_work(fieldwise, recipe, tmp_path, monkeypatch):
    place = tmp_path / "cache"  # on the same disk: the tests' folder of temporary files is another one
    monkeypatch.setenv("FIELDWISE_CACHE", str(place))
    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=1_000))
    prepared = []
    monkeypatch.setattr("fieldwise.runs.data.prepare", lambda *_, **__: prepared.append(1))
    code, _, err = fieldwise("train", recipe, "--out", "b", "--quiet")
    assert code == 2
    assert re.search(r"needs at least \d+ MB of disk, and .* has 0 MB free: free some space, or set TMPDIR", err)
    assert not prepared


def test_a_disk_too_small_for_the_cache_is_told_before_work(fieldwise, recipe, monkeypatch):
    # 400 rows, 4 fields, a number and a label: 9,600 bytes encoded, which the cache holds beside the raw rows.
    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=12_000))
    code, _, err = fieldwise("describe", recipe)
    assert code == 0
    assert "not stored in the cache: that needs" in err
    assert "0 entries" in fieldwise("cache", "show")[1]
