"""`train` and `Recommender` resume unfinished runs, and `train` replaces a finished bundle only with --overwrite."""

import sys
import time
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from cli.test_bad_input import refused

from fieldwise import FM, Bundle, Callback, ConfigError, Recommender, TrainingSettings
from fieldwise.estimator import recommender as estimator
from fieldwise.training import progress

SLOW = 0.5  # seconds


class Stops(Callback):
    """Ctrl-C at the sixth step, after some seconds."""

    def __init__(self, seconds=0.0):
        self.steps, self.seconds = 0, seconds

    def on_step(self, step):
        self.steps += 1
        if self.steps == 6:
            time.sleep(self.seconds)
            raise KeyboardInterrupt


def test_a_folder_with_only_checkpoints_says_so(fieldwise):
    (Path(".b.unfinished") / "first-training").mkdir(parents=True)
    unfinished = "a training into it is unfinished: the same `fieldwise train`"
    refused(fieldwise("evaluate", "b"), f"b is not a bundle: it has no bundle.json; {unfinished}")
    assert "give the folder that was saved" in fieldwise("evaluate", "c")[2]


def test_a_run_that_ctrl_c_broke_off_goes_on(fieldwise, done, recipe, monkeypatch):
    done("train", recipe, "--out", "whole", "--quiet")
    with monkeypatch.context() as patched:
        patched.setattr(progress, "progress_for", lambda *_, **__: Stops(SLOW))
        code, _, err = fieldwise("train", recipe, "--out", "b")
    assert code == 130
    assert "is in b; the same command resumes it" in err
    interrupted = Bundle.load("b").about.run
    assert interrupted["stopped"] == "interrupted"
    refused(
        fieldwise("train", recipe, "--out", "b", "--set", "training.learning_rate=0.01"),
        "training.learning_rate was 0.05 and is 0.01: set these back, or remove that folder",
    )
    err = done("train", recipe, "--out", "b")[1]
    assert "resumes the unfinished run in" in err
    assert Bundle.load("b").digest == Bundle.load("whole").digest
    assert Bundle.load("b").about.run["seconds"] >= SLOW, "those before the interruption count"
    assert not Path(".b.unfinished").exists()


def test_a_finished_bundle_is_replaced_only_when_asked(fieldwise, done, recipe):
    done("train", recipe, "--out", "b", "--quiet")
    before = Bundle.load("b").digest
    code, _, err = fieldwise("train", recipe, "--out", "b", "--set", "seed=3")
    assert code == 2
    assert err == "fieldwise: b exists: give --overwrite to replace it, or another --out\n"
    assert Bundle.load("b").digest == before
    done("train", recipe, "--out", "b", "--set", "seed=3", "--quiet", "--overwrite")
    assert Bundle.load("b").digest != before


def test_a_recommender_resumes_from_its_checkpoint(log, tmp_path, monkeypatch):
    made = {"model": FM(embedding_dim=4), "training": TrainingSettings(epochs=3, batch_size=32)}
    X, y = log.drop("row_id", "click"), log["click"]
    expected = Recommender(**made).fit(X, y)
    with monkeypatch.context() as patched:
        patched.setattr(estimator, "progress_for", lambda *_, **__: Stops())
        with pytest.raises(KeyboardInterrupt):
            Recommender(**made, checkpoint=tmp_path / "c").fit(X, y)
    with pytest.raises(
        ConfigError, match=r"training rows was rows2:.*remove that folder to train from the start"
    ):
        Recommender(**made, checkpoint=tmp_path / "c").fit(X[:300], y[:300])
    result = Recommender(**made, checkpoint=tmp_path / "c").fit(X, y)
    assert result.bundle_.digest == expected.bundle_.digest
    assert not (tmp_path / "c").exists()


def test_a_run_with_other_vectors_does_not_go_on(fieldwise, done, recipe, log, monkeypatch):
    items = log["item"].unique().sort()
    vectors = np.random.default_rng(0).normal(size=(len(items), 3)).astype(np.float32)
    write_vectors(items, vectors)
    text = recipe.read_text()
    field = '    { kind = "vector", name = "text", column = "item", vectors = "items.parquet" },'
    recipe.write_text(text.replace("fields = [", "fields = [\n" + field))
    with monkeypatch.context() as patched:
        patched.setattr(progress, "progress_for", lambda *_, **__: Stops())
        assert fieldwise("train", recipe, "--out", "b")[0] == 130

    write_vectors(items, vectors + np.float32(1))
    refused(fieldwise("train", recipe, "--out", "b"), "vectors by id")
    write_vectors(items, vectors)
    assert "resumes the unfinished run in" in done("train", recipe, "--out", "b")[1]


def write_vectors(items: pl.Series, vectors: np.ndarray) -> None:
    table = pl.DataFrame({"item": items, "vector": pl.Series(vectors.tolist())})
    table.write_parquet("items.parquet")


@pytest.mark.parametrize("command", ["train", "compare", "tune"])
def test_an_absent_library_is_said_before_the_table_is_read(
    fieldwise, recipe, command, monkeypatch
):
    Path("log.csv").unlink()
    monkeypatch.setitem(sys.modules, "lightgbm", None)
    refused(
        fieldwise(command, recipe, "--set", "model.name=lightgbm"),
        "LightGBM, which is not installed",
    )
