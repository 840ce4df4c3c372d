"""What the package logs, and how much of it a command shows."""

import logging

import pytest

from fieldwise import FM, Categorical, Label, Recommender, Schema, TrainingSettings, simulate


@pytest.fixture(autouse=True)
def _as_before():
    logger = logging.getLogger("fieldwise")
    before = list(logger.handlers), logger.level
    yield
    logger.handlers[:], logger.level = before


def test_a_training_logs_by_python(caplog):
    schema = Schema(fields=(Categorical("user_id"),), label=Label("liked"))
    with caplog.at_level(logging.DEBUG, "fieldwise"):
        Recommender(schema, FM(), training=TrainingSettings(epochs=2, batch_size=100)).fit(
            simulate(1000)
        )
    said = [(one.name, one.levelname, one.getMessage()) for one in caplog.records]
    assert said[0] == (
        "fieldwise.training.fit",
        "INFO",
        "training on 900 rows: at most 2 epochs of 9 steps, from step 0",
    )
    assert [level for _, level, _ in said] == ["INFO", "DEBUG", "DEBUG", "INFO"]


def test_v_shows_more_and_q_less(done, recipe):
    lines = {}
    for options in (("-v",), ("-vv",), ("-v", "-q")):
        err = done("train", recipe, "--out", "b", "--overwrite", *options)[1]
        lines[options] = [
            line for line in err.splitlines() if line.startswith("fieldwise.training.fit: ")
        ]
    assert not lines["-v", "-q"]
    assert "training on 240 rows: at most 2 epochs of 4 steps" in lines[("-v",)][0]
    assert not [line for line in lines[("-v",)] if "after epoch" in line]
    assert [line for line in lines[("-vv",)] if "after epoch 1: logloss" in line]
