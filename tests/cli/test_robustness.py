"""Folders in place of files, tables of no or one row, Ctrl-C before a model, a disk too small for the cache."""

import os
import signal
import threading
from pathlib import Path
from types import SimpleNamespace

import polars as pl
import pytest
from cli.test_bad_input import refused

from fieldwise import Bundle
from fieldwise.bundle.bundle import MANIFEST
from fieldwise.storage import files
from fieldwise.storage.locks import one_writer

LABEL = ["--label", "click"]


def test_a_folder_for_a_file_is_a_sentence(subtests, fieldwise, recipe, bundle):
    Path("folder").mkdir()
    Path("folder.toml").write_text(
        recipe.read_text().replace(str(recipe.with_name("log.csv")), str(Path("folder").absolute()))
    )
    for arguments in [
        ("init", "folder", "--out", "-", *LABEL),
        ("predict", "BUNDLE", "--data", "folder", "--out", "scores.csv"),
        ("evaluate", "BUNDLE", "--data", "folder"),
        ("explain", "BUNDLE", "--data", "folder"),
        ("train", "folder.toml"),
        ("compare", "folder.toml"),
        ("describe", "folder.toml"),
        ("train", "folder"),
    ]:
        with subtests.test(arguments=arguments):
            refused(fieldwise(*(bundle if a == "BUNDLE" else a for a in arguments)), "folder")
            assert not list(Path.cwd().glob("scores*"))
            assert not any(path.is_file() for path in Path("runs").rglob("*"))


@pytest.mark.parametrize("rows", [0, 1])
def test_scoring_next_to_nothing(done, bundle, log, tmp_path, rows):
    frame = log.head(rows)
    frame.write_parquet(tmp_path / "rows.parquet")
    done("predict", bundle, "--data", "rows.parquet", "--out", "scores.csv")
    assert pl.read_csv("scores.csv").height == frame.height


def test_one_writer_waits_for_the_other(tmp_path):
    order = []
    held, asked = threading.Event(), threading.Event()

    def second():
        assert held.wait(300)
        asked.set()
        with one_writer(tmp_path / "place"):
            order.append("second")

    thread = threading.Thread(target=second)
    thread.start()
    with one_writer(tmp_path / "place"):
        held.set()
        assert asked.wait(300)
        thread.join(0.2)
        order.append("first")
    thread.join(60)
    assert order == ["first", "second"]
    assert list((tmp_path / "place").iterdir()) == []


def test_ctrl_c_while_saving_keeps_the_old_bundle(fieldwise, done, recipe, monkeypatch):
    done("train", recipe, "--out", "b", "--quiet")
    before = Bundle.load("b").digest
    there, real = [], files.write_atomically

    def stops(path, content):
        if path.name == MANIFEST:
            there.extend(path.parent.iterdir())
            os.kill(os.getpid(), signal.SIGINT)
        real(path, content)

    monkeypatch.setattr(files, "write_atomically", stops)
    # what a shell starts behind & ignores it
    ours = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        code, _, err = fieldwise(
            "train", recipe, "--out", "b", "--quiet", "--overwrite", "--set", "seed=3"
        )
    finally:
        signal.signal(signal.SIGINT, ours)
    assert code == 130
    assert "interrupted" in err
    assert len(there) > 5, "old and new ones beside each other"
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


def test_a_disk_too_small_for_the_cache_is_a_warning_before_work(
    fieldwise, done, recipe, monkeypatch
):
    # 400 rows, 4 fields, a number and a label: 9,600 bytes encoded, which the cache holds beside
    # the raw rows.
    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=12_000))
    err = done("describe", recipe)[1]
    assert "not stored in the cache: that needs" in err
    assert "0 entries" in fieldwise("prepare")[1]
