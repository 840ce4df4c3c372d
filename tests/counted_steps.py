"""Callbacks for tests that end a training at a step."""

from fieldwise import Callback


class Steps(Callback):
    """Counts steps of batches, not those of a regression before, and interrupts at one of them."""

    def __init__(self, stop: int | None = None) -> None:
        self.done, self.stop = 0, stop

    def on_step(self, step):
        self.done += step.rows > 0
        if step.rows and self.done == self.stop:
            raise KeyboardInterrupt


class Ends(Callback):
    """Counts all steps and evaluations, and ends the run by an exception at one of them."""

    def __init__(self, step=None, evaluation=None, how=KeyboardInterrupt):
        self.at_step, self.at_evaluation, self.how = step, evaluation, how
        self.steps = self.evaluations = 0
        self.closed = False

    def on_step(self, step):
        self.steps += 1
        if self.steps == self.at_step:
            raise self.how

    def on_evaluation(self, evaluation, better):
        self.evaluations += 1
        if self.evaluations == self.at_evaluation:
            raise self.how

    def on_end(self, result):
        self.closed = True
