"""The trials of a run so far: which one is the best, which were skipped, and how much time is left."""

from fieldwise.automatic.settings import Clock, Note
from fieldwise.automatic.task import AutoTask
from fieldwise.automatic.trial import TITLES, TREES, Trial, constant, gains
from fieldwise.display import counted
from fieldwise.training.history import STOPPED

LEAST_GAIN = 1e-4
"""The share of the constant's loss that a model must gain to have learned something."""


class Trials:
    """The models trained so far.

    `trials` begins with the constant; the others follow in the order of training. `skipped` has the
    reason for each model that was not trained, by its title, and `skipped_for_time` the titles of
    those that were skipped for time. `searched` counts the trials of the search, `on_all` is the
    chosen trial, trained again on training and validation rows, and `interrupted` tells whether
    Ctrl-C ended the run.
    """

    def __init__(self, task: AutoTask, clock: Clock, reserve: float, note: Note) -> None:
        self.task = task
        self.clock = clock
        self.reserve = reserve
        self.note = note
        self.trials: list[Trial] = [constant(task)]
        self.skipped: dict[str, str] = {}
        self.skipped_for_time: list[str] = []
        self.searched = 0
        self.on_all: Trial | None = None
        self.interrupted = False

    @property
    def left(self) -> float:
        """Seconds left for training."""
        return self.clock.left - self.reserve

    @property
    def networks(self) -> list[Trial]:
        """Trials that can become a bundle, best on validation rows first."""
        networks = [trial for trial in self.trials if trial.trained is not None]
        return sorted(networks, key=lambda trial: trial.value)

    @property
    def chosen(self) -> Trial:
        """The simplest network, in the order of `TITLES`, that is not significantly worse than the best one.

        If the best one is better than the constant, so must the simplest be. The order is fixed, so
        that the choice does not depend on how long each training took.
        """
        networks = self.networks
        best = networks[0]
        candidates = [
            trial for trial in networks if trial is best or not gains(self.task, best, trial)
        ]
        if self.learned(best):
            candidates = [trial for trial in candidates if self.learned(trial)]
        simplest_first = list(TITLES.values())

        def complexity(trial: Trial) -> tuple[int, float]:
            title, _, _ = trial.title.partition(",")
            return simplest_first.index(title), trial.value

        return min(candidates, key=complexity)

    def learned(self, trial: Trial) -> bool:
        """Whether a trial is significantly better than the constant on validation rows, by at least `LEAST_GAIN`.

        Any step towards the rows' share of positives is a gain for all of them, and rounding can be
        one for a network that ended before its first step: neither counts.
        """
        guess = self.trials[0]
        return trial.value < (1 - LEAST_GAIN) * guess.value and gains(self.task, trial, guess)

    def add(self, trial: Trial, allowed: float) -> None:
        """Add a trial and report its validation metric and duration, with the seconds that it was allowed."""
        self.trials.append(trial)
        if trial.stopped == "interrupted":
            self.interrupted = True
        calibrated = ", calibrated" if trial.calibration is not None else ""
        self.note(
            f"{trial.title}: validation {self.task.metric} {trial.value:.4f}{calibrated}, {_training_words(trial)}, "
            f"{trial.seconds:.1f} s with scoring (its training may take {allowed:.1f} s)"
        )

    def skip(self, title: str, why: str, *, for_time: bool = False) -> None:
        """Report why a model is not trained."""
        self.skipped[title] = why
        if for_time:
            self.skipped_for_time.append(title)
        self.note(f"{title} is left out: {why}")


def _training_words(trial: Trial) -> str:
    """How long a trial was trained, and why it ended: `3 epochs (time limit reached)`."""
    if trial.stopped == "converged":
        return f"solved exactly with {counted(trial.epochs, 'prior')}"
    unit = "tree" if trial.title == TREES else "epoch"
    return f"{counted(trial.epochs, unit)} ({STOPPED.get(trial.stopped, trial.stopped)})"
