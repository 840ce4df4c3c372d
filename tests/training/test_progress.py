import io
import re
import sys
import types
from dataclasses import replace

import pytest
import torch
from rich.console import Console

from fieldwise import Callback
from fieldwise.training import progress as module
from fieldwise.training.callbacks import TrainingStart, TrainingStep
from fieldwise.training.history import Evaluation
from fieldwise.training.progress import Bar, Lines, progress_for

EVALUATION = Evaluation(
    epoch=1.5,
    train_loss=0.5,
    learning_rate=0.1,
    seconds=3.0,
    metrics={"auc": 0.75, "logloss": 0.6, "rows": 5},
)


START = TrainingStart(epochs=4, steps=2, rows=100, monitor="auc")


def steps(*, epoch=1):
    pairs = enumerate(((60, 0.7), (40, 0.3)), start=2 * epoch - 1)
    return [TrainingStep(number, epoch, rows, torch.tensor(loss)) for number, (rows, loss) in pairs]


def drive(progress):
    progress.on_start(START)
    for step in steps():
        progress.on_step(step)
        if isinstance(progress, Bar):
            progress._bar.refresh()  # as the clock does ten times a second
    progress.on_evaluation(EVALUATION, True)
    progress.on_step(steps(epoch=2)[0])
    progress.on_end(None)


def test_plain_lines_where_standard_error_is_no_terminal(capsys):
    drive(progress_for("simulated/lr"))
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith(
        "simulated/lr epoch 1.5/4: train loss 0.5000, valid auc 0.7500 logloss 0.6000, "
    )
    assert re.search(r" rows/s, 3 s, at most \d+ s left \*\n$", err)
    assert err.count("\n") == 1
    assert "\x1b" not in err


def test_the_regression_that_training_starts_from_has_a_line_and_no_part_in_rate_and_time_left(
    monkeypatch, capsys
):
    clock = [0.0]
    monkeypatch.setattr(module.time, "perf_counter", lambda: clock[0])
    lines = Lines("afm")
    lines.on_start(START)
    for _ in range(20):
        clock[0] += 1
        lines.on_step(TrainingStep(0, 1, 0, torch.tensor(0.7), of_lr=True))
    for step in steps():
        clock[0] += 1
        lines.on_step(step)
    lines.on_evaluation(EVALUATION, True)
    first, evaluation = capsys.readouterr().err.splitlines()
    assert first == "afm: first LR is fitted (start_from_lr, mean_with_lr)"
    assert ", 50 rows/s, 3 s, at most 6 s left" in evaluation


def test_quiet_says_nothing(capsys):
    progress = progress_for("x", quiet=True)
    assert type(progress) is Callback
    drive(progress)
    assert capsys.readouterr() == ("", "")


def test_a_bar_on_a_terminal_shows_rate_loss_and_time_left(monkeypatch):
    monkeypatch.setattr(module, "SHOWN_EVERY", -1.0)
    screen = io.StringIO()
    drive(Bar("simulated/lr", Console(file=screen, force_terminal=True, width=120)))
    shown = screen.getvalue()
    assert "simulated/lr epoch 1/4" in shown
    assert "rows/s loss 0.3000" in shown
    assert "100%" in shown
    assert "0:00:" in shown
    assert "simulated/lr epoch 1.5/4: train loss 0.5000, valid auc 0.7500 logloss 0.6000" in shown


def test_a_bar_that_never_runs_leaves_the_terminal_alone():
    """A live bar hides the cursor, and shows it again at the end."""
    hidden, shown = "\x1b[?25l", "\x1b[?25h"
    for runs in (False, True):
        screen = io.StringIO()
        bar = Bar("x", Console(file=screen, force_terminal=True, width=120))
        assert screen.getvalue() == ""
        if runs:
            bar.on_start(START)
            bar.on_step(steps(epoch=2)[0])
        bar.on_end(None)
        assert (hidden in screen.getvalue()) == runs
    assert screen.getvalue().rindex(shown) > screen.getvalue().rindex(hidden)


def test_the_bar_is_chosen_by_standard_error_alone(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    progress = progress_for("x")
    progress.on_end(None)
    assert isinstance(progress, Bar)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: False, raising=False)
    assert isinstance(progress_for("x"), Lines)


def test_the_time_left_is_that_of_all_epochs_and_of_a_resumed_runs_own_steps(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(module.time, "perf_counter", lambda: now[0])
    lines = Lines("run")
    lines.on_start(replace(START, epochs=10, steps=100, steps_done=450, rows_done=50))
    assert (lines.epoch, lines.rows, lines.left()) == (5, 50, "")
    now[0] += 30.0
    lines.on_step(TrainingStep(460, 5, 10, torch.tensor(0.5)))  # 10 steps in 30 s, 540 to go
    assert lines.left() == "at most 27 min left"
    assert lines.rate() == "0 rows/s"  # 10 rows in 30 s
    lines.on_step(TrainingStep(1000, 10, 10, torch.tensor(0.5)))
    assert lines.left() == ""


def test_a_star_marks_the_best_so_far_and_another_monitor_comes_first(capsys):
    lines = Lines("run")
    lines.on_start(replace(START, monitor="logloss"))
    for better in (True, False):
        lines.on_evaluation(EVALUATION, better)
        err = capsys.readouterr().err
        assert "valid logloss 0.6000 auc 0.7500," in err
        assert err.endswith("*\n") == better
    lines.on_evaluation(replace(EVALUATION, train_loss=None), better=True)  # before any step
    assert "train loss -, valid logloss" in capsys.readouterr().err


# In a notebook


class Shown:
    """What IPython's display would show: one output, replaced by each update."""

    def __init__(self) -> None:
        self.outputs: list[list[dict[str, str]]] = []

    def display(self, data: dict[str, str], *, raw: bool, display_id: bool) -> "Shown":
        assert raw
        assert display_id
        self.outputs.append([data])
        return self

    def update(self, data: dict[str, str], *, raw: bool) -> None:
        assert raw
        self.outputs[-1].append(data)


def put_in_a_notebook(monkeypatch: pytest.MonkeyPatch, *, kernel: object) -> Shown:
    shown = Shown()
    shell = types.SimpleNamespace(kernel=kernel)
    ipython, display = types.ModuleType("IPython"), types.ModuleType("IPython.display")
    ipython.get_ipython = lambda: shell  # type: ignore[attr-defined]
    display.display = shown.display  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    monkeypatch.setitem(sys.modules, "IPython.display", display)
    return shown


def test_a_notebooks_cell_has_one_output_that_is_updated(monkeypatch, capsys) -> None:
    shown = put_in_a_notebook(monkeypatch, kernel=object())
    monkeypatch.setattr(module, "SHOWN_EVERY", 0.0)
    seen = module.progress_for("A<B>")
    seen.on_start(replace(START, epochs=2, rows=400))
    seen.on_step(TrainingStep(1, 1, 100, torch.tensor(0.5)))
    seen.on_step(TrainingStep(2, 1, 300, torch.tensor(0.25)))
    evaluation = Evaluation(
        epoch=1.0, learning_rate=0.1, seconds=3.0, metrics={"auc": 0.75}, train_loss=0.375
    )
    seen.on_evaluation(evaluation, better=True)
    seen.on_end(None)
    (output,) = shown.outputs
    assert "A<B> epoch 1/2" in output[0]["text/plain"]
    assert " 25% " in output[0]["text/plain"]
    assert output[0]["text/plain"].count("█") == 7
    assert "100%" in output[1]["text/plain"]
    assert "loss 0.2500" in output[1]["text/plain"]
    assert output[-1]["text/plain"].startswith(
        "A<B> epoch 1/2: train loss 0.3750, valid auc 0.7500"
    )
    assert "█" not in output[-1]["text/plain"]
    assert all("<B>" not in one["text/html"] and "A&lt;B&gt;" in one["text/html"] for one in output)
    assert capsys.readouterr() == ("", "")


def test_a_terminals_ipython_is_no_notebook(monkeypatch) -> None:
    shown = put_in_a_notebook(monkeypatch, kernel=None)
    assert isinstance(module.progress_for("AFM"), module.Lines)
    assert type(module.progress_for("AFM", quiet=True)) is Callback
    assert not shown.outputs
