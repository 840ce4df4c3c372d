"""A progress display for tests that interrupt a training at a step."""

from fieldwise.training.callbacks import Callback


class Steps(Callback):
    """Counts steps, and interrupts at one of them."""

    def __init__(self, stop: int | None = None) -> None:
        self.done, self.stop = 0, stop

    def on_step(self, step):
        self.done += 1
        if self.done == self.stop:
            raise KeyboardInterrupt
