"""Progress of a training run: a live bar on a terminal or in a notebook, plain lines elsewhere, machines' reports."""

import math
import sys
import time
from collections.abc import Callable
from html import escape
from importlib import import_module
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, TaskID, TextColumn, TimeRemainingColumn
from rich.progress import Progress as RichProgress

from fieldwise.data.reports import Reports
from fieldwise.evaluation.metrics import main_metrics
from fieldwise.training.callbacks import Callback, TrainingStart, TrainingStep
from fieldwise.training.history import Evaluation, History

SHOWN_EVALUATIONS = 5
"""The latest evaluations, below a notebook's bar."""
BAR_LETTERS = 30
SHOWN_EVERY = 0.2
"""Seconds between updates of the loss, each of which waits for its value."""


class Lines(Callback):
    """Prints one line per evaluation."""

    def __init__(self, title: str) -> None:
        self.title = title
        self.start = TrainingStart(epochs=0, steps=1, rows=0, monitor="")
        self.epoch = 0
        self.steps = 0
        self.rows = 0
        self.rows_before = 0
        self._shown = 0.0
        self._fits_lr = False  # before training
        now = time.perf_counter()
        self.started = now
        self.epoch_began = now
        self.last = now

    def on_start(self, start: TrainingStart) -> None:
        """Begin with the first epoch, or with the rest of one that was interrupted."""
        self.start = start
        self.steps = start.steps_done
        self.last = time.perf_counter()
        self.started = self.last
        if start.remark is not None:
            self.show(f"{self.title}: {start.remark}")
        self.begin_epoch(start.steps_done // start.steps + 1, start.rows_done)

    def on_step(self, step: TrainingStep) -> None:
        """Count the step in its epoch; those of the LR that is fitted before training are of none."""
        if step.of_lr:
            if not self._fits_lr:
                self.begin_regression()
            self._fits_lr = True
            self.last = time.perf_counter()
            return
        if self._fits_lr:
            self._fits_lr = False
            self.started = self.last
            self.begin_epoch(self.epoch, self.rows)
        if step.epoch != self.epoch:
            self.begin_epoch(step.epoch, 0)
        self.steps = step.number
        self.rows = self.rows + step.rows
        self.last = time.perf_counter()
        if self.last - self._shown > SHOWN_EVERY:
            self._shown = self.last
            self.show_step(step)

    def on_evaluation(self, evaluation: Evaluation, better: bool) -> None:
        """Show the evaluation as a sentence; a star marks the best one so far."""
        metrics = evaluation.metrics
        names = dict.fromkeys((self.start.monitor, *main_metrics()))
        shown = " ".join(f"{name} {metrics[name]:.4f}" for name in names if name in metrics)
        loss = "-" if evaluation.train_loss is None else f"{evaluation.train_loss:.4f}"
        parts = [
            f"{self.title} {self.start.unit} {evaluation.epoch:.4g}/{self.start.epochs}: train loss {loss}",
            f"valid {shown}",
            self.rate(),
            f"{evaluation.seconds:.0f} s",
            self.left(),
        ]
        star = " *" if better else ""
        self.show(", ".join(part for part in parts if part) + star)
        self.last = time.perf_counter()

    def begin_epoch(self, number: int, rows: int) -> None:
        """An epoch begins, of which `rows` rows were read before."""
        self.epoch = number
        self.rows = rows
        self.rows_before = rows
        self.epoch_began = self.last

    def begin_regression(self) -> None:
        """LR is fitted before training (`start_from_lr`, `mean_with_lr`); its time does not count for the time left."""
        self.show(f"{self.title}: first LR is fitted (start_from_lr, mean_with_lr)")

    def show_step(self, step: TrainingStep) -> None:
        """Show how far the epoch is, where that is updated in place."""

    def show(self, sentence: str) -> None:
        """Show the sentence of an evaluation."""
        print(sentence, file=sys.stderr, flush=True)

    def rate(self) -> str:
        """Rows per second of this epoch, without evaluations."""
        rows = self.rows - self.rows_before
        seconds = max(self.last - self.epoch_began, 1e-9)
        return f"{rows / seconds:,.0f} rows/s"

    def left(self) -> str:
        """The time left if the run takes all its epochs; empty if that is not known, or none is left."""
        done = self.steps - self.start.steps_done
        all_steps = self.start.steps * self.start.epochs
        if done <= 0 or self.steps >= all_steps:
            return ""
        seconds_per_step = (time.perf_counter() - self.started) / done
        seconds = seconds_per_step * (all_steps - self.steps)
        if seconds < 100:
            return f"at most {seconds:.0f} s left"
        if seconds < 6000:
            return f"at most {seconds / 60:.0f} min left"
        return f"at most {seconds / 3600:.1f} h left"


class Bar(Lines):
    """A live bar with rows per second, loss and remaining time of epoch and run, and a line per evaluation."""

    def __init__(self, title: str, console: Console) -> None:
        super().__init__(title)
        self._task: TaskID | None = None
        self._bar = RichProgress(
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.percentage:>3.0f}% {task.fields[rate]} loss {task.fields[loss]}"),
            TimeRemainingColumn(),
            TextColumn("{task.fields[left]}"),
            console=console,
            transient=True,
        )  # started by the run: a live display hides the cursor, and an error may come before

    def show_step(self, step: TrainingStep) -> None:
        """Show how far the epoch is."""
        if self._task is not None:
            loss = f"{step.loss.item():.4f}"
            self._bar.update(
                self._task, completed=self.rows, rate=self.rate(), loss=loss, left=self.left()
            )

    def on_end(self, result: History | None) -> None:
        """Remove the bar; a further run starts it again."""
        self._bar.stop()
        if self._task is not None:
            self._bar.remove_task(self._task)
            self._task = None

    def begin_epoch(self, number: int, rows: int) -> None:
        """An epoch begins, of which `rows` rows were read before."""
        super().begin_epoch(number, rows)
        if self._task is None:
            self._bar.start()
        else:
            self._bar.remove_task(self._task)
        title = f"{self.title} {self.start.unit} {number}/{self.start.epochs}"
        self._task = self._bar.add_task(
            title, total=self.start.rows, completed=rows, rate="", loss="-", left=""
        )

    def show(self, sentence: str) -> None:
        """Show the sentence of an evaluation."""
        self._bar.console.print(sentence, highlight=False)


class Cell(Lines):
    """A bar in the output of a notebook cell, updated in place, above the latest evaluations."""

    def __init__(self, title: str, display: Callable[..., Any]) -> None:
        super().__init__(title)
        self._display = display
        self._handle = None
        self._line = title
        self._evaluations = list[str]()

    def show_step(self, step: TrainingStep) -> None:
        """Show how far the epoch is."""
        share = self.rows / max(self.start.rows, 1)
        bar = "█" * int(share * BAR_LETTERS)
        parts = [
            f"{self.title} {self.start.unit} {self.epoch}/{self.start.epochs} {bar:░<{BAR_LETTERS}} {share:4.0%} "
            f"{self.rate()} loss {step.loss.item():.4f}",
            self.left(),
        ]
        self._line = ", ".join(part for part in parts if part)
        self._update()

    def on_end(self, result: History | None) -> None:
        """Remove the bar; the evaluations stay visible."""
        self._line = ""
        self._update()

    def show(self, sentence: str) -> None:
        """Show the sentence of an evaluation."""
        self._evaluations.append(sentence)
        self._update()

    def _update(self) -> None:
        newest_first = reversed(self._evaluations[-SHOWN_EVALUATIONS:])
        lines = [self._line, *newest_first]
        text = "\n".join(line for line in lines if line)
        shown = {"text/plain": text, "text/html": f"<pre>{escape(text)}</pre>"}
        if self._handle is None:
            self._handle = self._display(shown, raw=True, display_id=True)
        else:
            self._handle.update(shown, raw=True)


class Reported(Lines):
    """Tells reports the rows of each epoch and the metrics of each evaluation."""

    def __init__(self, reports: Reports, title: str) -> None:
        super().__init__(title)
        self._reports = reports

    def on_step(self, step: TrainingStep) -> None:
        """Report the rows of a step, and its loss, which is read when it is shown."""

        def loss() -> float | None:
            value = float(step.loss)
            # JSON has no number for others
            return round(value, 6) if math.isfinite(value) else None

        super().on_step(step)
        self._reports.add(step.rows, loss=loss)

    def on_evaluation(self, evaluation: Evaluation, better: bool) -> None:
        """Report the metrics of an evaluation."""
        self._reports.note(
            run=self.title,
            epoch=evaluation.epoch,
            epochs=self.start.epochs,
            evaluation=dict(evaluation.metrics),
            monitor=self.start.monitor,
            better=better,
            train_loss=evaluation.train_loss,
            seconds=round(evaluation.seconds, 1),
        )

    def on_end(self, result: History | None) -> None:
        """Report that training has ended: test rows are evaluated."""
        self._reports.begin("evaluation", run=self.title)

    def begin_epoch(self, number: int, rows: int) -> None:
        """An epoch begins, of which `rows` rows were read before."""
        super().begin_epoch(number, rows)
        left = self.start.rows - rows
        self._reports.begin(
            "training", left, run=self.title, epoch=number, epochs=self.start.epochs
        )

    def begin_regression(self) -> None:
        """Report that LR is fitted before training."""
        self._reports.begin("regression", run=self.title)

    def show(self, sentence: str) -> None:
        """Report a remark about the rows."""
        self._reports.note(run=self.title, remark=sentence)

    def scoring(self, rows: int) -> None:
        """Report that these test rows are scored, after the run."""
        self._reports.begin("evaluation", rows, run=self.title)

    def scored(self, rows: int) -> None:
        """Report that some of these rows are scored."""
        self._reports.add(rows)


def progress_for(title: str, *, quiet: bool = False) -> Callback:
    """A bar on a terminal's standard error or in a notebook, plain lines elsewhere, nothing if `quiet`."""
    if quiet:
        return Callback()
    ipython = sys.modules.get("IPython")  # a notebook's kernel has already imported it
    shell = None if ipython is None else ipython.get_ipython()
    if getattr(shell, "kernel", None) is not None:  # else no shell, or a terminal's
        return Cell(title, import_module("IPython.display").display)
    console = Console(stderr=True)
    return Bar(title, console) if console.is_terminal else Lines(title)
