"""`train` and `Recommender` go on from an unfinished run, and `train` replaces a finished bundle only when asked."""

import time
from pathlib import Path

import pytest

from fieldwise import FM, Bundle, Recommender
from fieldwise.errors import ConfigError
from fieldwise.estimator import recommender as estimator
from fieldwise.training import progress
from fieldwise.training.callbacks import Callback
from fieldwise.training.settings import TrainingSettings

SLOW = 5.0  # seconds, more than the whole run takes


class Stops(Callback):
    """Ctrl-C at the sixth step."""

    steps = 0

    def on_step(self, step):
        self.steps += 1
        if self.steps == 6:
            time.sleep(SLOW)
            raise KeyboardInterrupt


def test_a_folder_with_only_checkpoints_says_so(fieldwise):
    (Path(".b.unfinished") / "first-training").mkdir(parents=True)
    code, _, err = fieldwise("evaluate", "b")
    assert code == 2
    assert (
        "b is not a bundle: it has no bundle.json; a training into it is unfinished: the same `fieldwise train`" in err
    )
    assert "give the folder that was saved" in fieldwise("evaluate", "c")[2]


def test_a_run_that_ctrl_c_broke_off_goes_on(fieldwise, recipe, monkeypatch):
    assert fieldwise("train", recipe, "--out", "whole", "--quiet")[0] == 0
    with monkeypatch.context() as patched:
        patched.setattr(progress, "progress_for", lambda *_, **__: Stops())
        code, _, err = fieldwise("train", recipe, "--out", "b")
    assert code == 130
    assert "is in b; the same command resumes it" in err
    interrupted = Bundle.load("b").about["run"]
    assert interrupted["stopped"] == "interrupted"
    code, _, err = fieldwise("train", recipe, "--out", "b", "--set", "training.learning_rate=0.01")
    assert code == 2
    assert "training.learning_rate was 0.05 and is 0.01: set these back, or give --restart to start over" in err
    code, _, err = fieldwise("train", recipe, "--out", "b")
    assert code == 0
    assert "resumes the unfinished run in" in err
    assert Bundle.load("b").digest == Bundle.load("whole").digest
    assert Bundle.load("b").about["run"]["seconds"] >= SLOW, "those before the interruption count"
    assert not Path(".b.unfinished").exists()


def test_restart_begins_anew_with_other_settings(fieldwise, recipe, monkeypatch):
    with monkeypatch.context() as patched:
        patched.setattr(progress, "progress_for", lambda *_, **__: Stops())
        assert fieldwise("train", recipe, "--out", "b")[0] == 130
    code, _, err = fieldwise("train", recipe, "--out", "b", "--seed", 3, "--restart")
    assert code == 0
    assert "resumes" not in err
    assert Bundle.load("b").about["run"]["seed"] == 3


def test_a_finished_bundle_is_replaced_only_when_asked(fieldwise, recipe):
    assert fieldwise("train", recipe, "--out", "b", "--quiet")[0] == 0
    before = Bundle.load("b").digest
    code, _, err = fieldwise("train", recipe, "--out", "b", "--seed", 3)
    assert code == 2
    assert (
        err == "fieldwise: b holds a bundle already, which training would replace: give --overwrite, or another --out\n"
    )
    assert Bundle.load("b").digest == before
    assert fieldwise("train", recipe, "--out", "b", "--seed", 3, "--quiet", "--overwrite")[0] == 0
    assert Bundle.load("b").digest != before


def test_a_recommender_goes_on(log, tmp_path, monkeypatch):
    made = {"model": FM(embedding_dim=4), "training": TrainingSettings(epochs=3, batch_size=32)}
    rows = log.drop("row_id"), log["click"]
    X, y = rows[0].drop("click"), rows[1]
    expected = Recommender(**made).fit(X, y)
    with monkeypatch.context() as patched:
        patched.setattr(estimator, "progress_for", lambda *_, **__: Stops())
        with pytest.raises(KeyboardInterrupt):
            Recommender(**made, checkpoint=tmp_path / "c").fit(X, y)
    with pytest.raises(ConfigError, match=r"training rows was rows2:.*remove that folder to train from the start"):
        Recommender(**made, checkpoint=tmp_path / "c").fit(X[:300], y[:300])
    found = Recommender(**made, checkpoint=tmp_path / "c").fit(X, y)
    assert found.bundle_.digest == expected.bundle_.digest
    assert not (tmp_path / "c").exists()
