"""Reports on long work: what they say, and when."""

import io
import json
import time

import pytest
import torch

from fieldwise.data import reports as module
from fieldwise.data.reports import Reports, ShownReports, memory_mib
from fieldwise.training.callbacks import TrainingStart, TrainingStep
from fieldwise.training.history import Evaluation
from fieldwise.training.progress import Reported


class Clock:
    now = 100.0

    def perf_counter(self):
        return self.now


@pytest.fixture
def clock(monkeypatch):
    monkeypatch.setattr(module, "time", clock := Clock())
    monkeypatch.setattr(module, "memory_mib", lambda: 12.6)
    return clock


def lines(out):
    return [json.loads(line) for line in out.getvalue().splitlines()]


def test_the_state_of_a_phase(clock):
    reports = ShownReports(as_json=True)
    reports.begin("prediction", 1000, run="x")
    clock.now += 2
    reports.add(200)
    assert reports.state() == {
        "phase": "prediction", "run": "x", "rows": 200, "rows_total": 1000, "rows_per_second": 100, "seconds": 2.0,
        "seconds_left": 8.0, "memory_mib": 13,
    }  # fmt: skip
    reports.begin("preparation")
    assert reports.state() | {"memory_mib": 0} == {
        "phase": "preparation", "rows": None, "rows_total": None, "rows_per_second": None, "seconds": 0.0,
        "seconds_left": None, "memory_mib": 0,
    }  # fmt: skip


def test_lines_come_every_so_often_also_while_no_row_is_done():
    out = io.StringIO()
    with ShownReports(as_json=True, every=0.01, out=out) as reports:
        reports.begin("preparation")
        end = time.perf_counter() + 300
        while len(lines(out)) < 3 and time.perf_counter() < end:
            time.sleep(0.01)
        reports.begin("training", 10)
        reports.add(10)
    told = lines(out)
    assert [one["rows"] for one in told if one["phase"] == "preparation"][:3] == [None, None, None]
    assert told[-1]["phase"] == "training"
    assert told[-1]["rows"] == 10


def test_the_last_line_comes_after_an_error_too():
    def broken(reports):
        reports.begin("prediction", 10)
        reports.add(4)
        raise ValueError("broken")

    out = io.StringIO()
    with pytest.raises(ValueError, match="broken"), ShownReports(as_json=True, out=out) as reports:
        broken(reports)
    assert [one["rows"] for one in lines(out)] == [4]


def test_a_sentence_for_people(clock):
    out = io.StringIO()
    reports = ShownReports(as_json=False, out=out)
    reports.begin("prediction", 4_000_000)
    clock.now += 10
    reports.add(1_000_000)
    reports._show(reports.state())
    reports.note(evaluation=1)
    assert (
        out.getvalue()
        == "prediction: 1,000,000 of 4,000,000 rows, 100,000 rows/s, 30 s left, 13 MiB\n"
    )
    reports.begin("finishing the preparation")  # which counts no rows
    clock.now += 12
    reports._show(reports.state())
    assert out.getvalue().splitlines()[1] == "finishing the preparation: 12 s so far, 13 MiB"


def test_short_work_says_nothing(capsys):
    with ShownReports(as_json=False) as reports:
        reports.begin("prediction", 5)
        reports.add(5)
    Reports().begin("prediction")
    assert capsys.readouterr() == ("", "")


def test_a_training_tells_epochs_losses_and_evaluations():
    out = io.StringIO()
    with ShownReports(as_json=True, out=out) as reports:
        progress = Reported(reports, "fm")
        progress.on_start(TrainingStart(epochs=3, steps=2, rows=100, monitor="auc"))
        progress.on_step(TrainingStep(1, 1, 60, torch.tensor(0.5)))
        progress.on_step(TrainingStep(2, 1, 40, torch.tensor(float("nan"))))
        progress.on_evaluation(
            Evaluation(
                epoch=1.0, train_loss=0.5, learning_rate=0.1, seconds=3.0, metrics={"auc": 0.75}
            ),
            better=True,
        )
        progress.on_end(None)
    evaluation, epoch, after = lines(out)
    assert (evaluation["evaluation"], evaluation["epoch"], evaluation["better"]) == (
        {"auc": 0.75},
        1.0,
        True,
    )
    assert (epoch["phase"], epoch["run"], epoch["epoch"], epoch["epochs"]) == (
        "training",
        "fm",
        1,
        3,
    )
    assert (epoch["rows"], epoch["rows_total"], epoch["loss"]) == (100, 100, None)
    assert after["phase"] == "evaluation"


def test_memory_is_that_of_this_process():
    before = memory_mib()
    if before is None:
        pytest.skip("this system does not tell it")
    held = bytearray(b"x" * (64 << 20))
    assert memory_mib() >= before + 32
    del held
