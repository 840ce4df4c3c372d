"""Progress display of a training run: a live bar on a terminal or in a notebook, plain lines elsewhere."""

import sys
import time
from collections.abc import Callable
from html import escape
from importlib import import_module
from typing import Any, Protocol

from rich.console import Console
from rich.progress import BarColumn, TaskID, TextColumn, TimeRemainingColumn
from rich.progress import Progress as RichProgress
from torch import Tensor

from fieldwise.training.result import Evaluation

__all__ = ["Bar", "Cell", "Lines", "OutOfTime", "Progress", "Silent", "progress_for"]

SHOWN_EVALUATIONS = 5  # the latest evaluations, below a notebook's bar
BAR_LETTERS = 30
SHOWN_EVERY = 0.2  # seconds between updates of the loss, each of which waits for its value


class OutOfTime(Exception):  # noqa: N818  # not an error: like KeyboardInterrupt, it ends a run
    """Raised by a Progress to end training with the best weights so far, when its time is over."""


class Progress(Protocol):
    """Interface notified of every step and evaluation of a run, which it may end by raising `OutOfTime`."""

    def epoch(self, number: int, of: int, rows: int) -> None:
        """Called when an epoch of `rows` rows begins."""

    def step(self, rows: int, loss: Tensor) -> None:
        """Called after a step over `rows` rows; `loss` is a scalar."""

    def evaluation(self, evaluation: Evaluation, monitor: str, better: bool) -> None:
        """Called after an evaluation on the validation rows."""

    def close(self) -> None:
        """Called at the end of the run."""


class Silent:
    """Shows nothing."""

    def epoch(self, number: int, of: int, rows: int) -> None:
        """Called when an epoch begins."""

    def step(self, rows: int, loss: Tensor) -> None:
        """Called after a step."""

    def evaluation(self, evaluation: Evaluation, monitor: str, better: bool) -> None:
        """Called after an evaluation on the validation rows."""

    def close(self) -> None:
        """Called at the end of the run."""


class Lines:
    """Prints one line per evaluation."""

    def __init__(self, title: str) -> None:
        self._title, self._of, self._rows, self._began = title, 0, 0, time.perf_counter()

    def epoch(self, number: int, of: int, rows: int) -> None:
        """Called when an epoch begins."""
        self._of, self._rows, self._began = of, 0, time.perf_counter()

    def step(self, rows: int, loss: Tensor) -> None:
        """Called after a step."""
        self._rows += rows

    def evaluation(self, evaluation: Evaluation, monitor: str, better: bool) -> None:
        """Called after an evaluation on the validation rows."""
        rate = self._rows / max(time.perf_counter() - self._began, 1e-9)
        print(_sentence(self._title, evaluation, self._of, monitor, better, rate), file=sys.stderr, flush=True)

    def close(self) -> None:
        """Called at the end of the run."""


class Bar:
    """A live bar with rows per second, loss and remaining time of the epoch, and a line per evaluation."""

    def __init__(self, title: str, console: Console) -> None:
        self._title, self._of, self._shown, self._done = title, 0, 0.0, 0
        self._began = time.perf_counter()
        self._task: TaskID | None = None
        self._bar = RichProgress(
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.percentage:>3.0f}% {task.fields[rate]} loss {task.fields[loss]}"),
            TimeRemainingColumn(),
            console=console,
            transient=True,
        )  # started by the first epoch: a live display hides the cursor, and an error may come before

    def epoch(self, number: int, of: int, rows: int) -> None:
        """Called when an epoch begins."""
        if self._task is None:
            self._bar.start()
        else:
            self._bar.remove_task(self._task)
        self._of, self._began, self._done = of, time.perf_counter(), 0
        self._task = self._bar.add_task(f"{self._title} epoch {number}/{of}", total=rows, rate="", loss="-")

    def step(self, rows: int, loss: Tensor) -> None:
        """Called after a step."""
        self._done += rows
        now = time.perf_counter()
        if self._task is not None and now - self._shown > SHOWN_EVERY:
            self._shown = now
            rate = f"{self._done / max(now - self._began, 1e-9):,.0f} rows/s"
            self._bar.update(self._task, completed=self._done, rate=rate, loss=f"{loss.item():.4f}")

    def evaluation(self, evaluation: Evaluation, monitor: str, better: bool) -> None:
        """Called after an evaluation on the validation rows."""
        rate = self._done / max(time.perf_counter() - self._began, 1e-9)
        self._bar.console.print(_sentence(self._title, evaluation, self._of, monitor, better, rate), highlight=False)

    def close(self) -> None:
        """Called at the end of the run; a further epoch starts the bar again."""
        self._bar.stop()
        if self._task is not None:
            self._bar.remove_task(self._task)
            self._task = None


class Cell:
    """A bar in the output of a notebook cell, updated in place, above the latest evaluations.

    Args:
        title: title of the run.
        display: `IPython.display.display`.
    """

    def __init__(self, title: str, display: Callable[..., Any]) -> None:
        self._title, self._display, self._handle = title, display, None
        self._line, self._evaluations = title, list[str]()
        self._number, self._of, self._rows, self._done = 0, 0, 0, 0
        self._began, self._shown = time.perf_counter(), 0.0

    def epoch(self, number: int, of: int, rows: int) -> None:
        """Called when an epoch begins."""
        self._number, self._of, self._rows, self._done = number, of, rows, 0
        self._began = time.perf_counter()

    def step(self, rows: int, loss: Tensor) -> None:
        """Called after a step."""
        self._done += rows
        now = time.perf_counter()
        if now - self._shown > SHOWN_EVERY:
            self._shown = now
            share = self._done / max(self._rows, 1)
            bar = "█" * int(share * BAR_LETTERS)
            rate = self._done / max(now - self._began, 1e-9)
            self._line = (
                f"{self._title} epoch {self._number}/{self._of} {bar:░<{BAR_LETTERS}} {share:4.0%} "
                f"{rate:,.0f} rows/s loss {loss.item():.4f}"
            )
            self._show()

    def evaluation(self, evaluation: Evaluation, monitor: str, better: bool) -> None:
        """Called after an evaluation on the validation rows."""
        rate = self._done / max(time.perf_counter() - self._began, 1e-9)
        self._evaluations.append(_sentence(self._title, evaluation, self._of, monitor, better, rate))
        self._show()

    def close(self) -> None:
        """Called at the end of the run: its evaluations stay visible."""
        self._line = ""
        self._show()

    def _show(self) -> None:
        text = "\n".join(line for line in (self._line, *reversed(self._evaluations[-SHOWN_EVALUATIONS:])) if line)
        shown = {"text/plain": text, "text/html": f"<pre>{escape(text)}</pre>"}
        if self._handle is None:
            self._handle = self._display(shown, raw=True, display_id=True)
        else:
            self._handle.update(shown, raw=True)


def progress_for(title: str, *, quiet: bool = False) -> Progress:
    """A bar on a terminal's standard error or in a notebook, plain lines elsewhere, nothing if `quiet`."""
    if quiet:
        return Silent()
    display = _notebook_display()
    if display is not None:
        return Cell(title, display)
    console = Console(stderr=True)
    return Bar(title, console) if console.is_terminal else Lines(title)


def _notebook_display() -> Callable[..., Any] | None:
    """`IPython.display.display` if this runs in a notebook's kernel, else None."""
    ipython = sys.modules.get("IPython")  # a kernel has already imported it
    shell = None if ipython is None else ipython.get_ipython()
    if getattr(shell, "kernel", None) is None:  # no shell, or a terminal's
        return None
    display: Callable[..., Any] = import_module("IPython.display").display
    return display


def _sentence(title: str, evaluation: Evaluation, of: int, monitor: str, better: bool, rate: float) -> str:
    shown = [monitor, *[name for name in ("auc", "logloss", "rmse") if name in evaluation.metrics and name != monitor]]
    metrics = " ".join(f"{name} {evaluation.metrics[name]:.4f}" for name in shown)
    mark = " *" if better else ""
    loss = "-" if evaluation.train_loss is None else f"{evaluation.train_loss:.4f}"
    return (
        f"{title} epoch {evaluation.epoch:.4g}/{of}: train loss {loss}, valid {metrics}, "
        f"{rate:,.0f} rows/s, {evaluation.seconds:.0f} s{mark}"
    )
