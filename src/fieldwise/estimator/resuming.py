"""`Recommender.fit` from its last checkpoint."""

import dataclasses
import sys
from pathlib import Path

from fieldwise.runs.fit_parts import FitInputs, Fitted, fit_with_refit
from fieldwise.runs.fit_settings import FitSettings
from fieldwise.training.unfinished import Unfinished

__all__ = ["from_checkpoint"]


def from_checkpoint(folder: Path, settings: FitSettings, inputs: FitInputs, *, verbose: bool) -> Fitted:
    """Train with checkpoints in a folder, from the last one if there is one; they are removed at the end.

    After Ctrl-C they stay.

    Args:
        folder: a folder for the checkpoints only.
        settings: settings of the run.
        inputs: its rows.
        verbose: whether to say on standard error that an unfinished run is resumed.

    Errors:
        DataError: another process trains there, the folder holds other files, or it cannot be written.
        ConfigError: the checkpoints there are of a run with other settings or rows.
    """

    def note(sentence: str) -> None:
        if verbose:
            print(sentence, file=sys.stderr)

    unfinished = Unfinished(folder=folder, note=note)
    with unfinished.claimed():
        fitted = fit_with_refit(settings, dataclasses.replace(inputs, unfinished=unfinished))
        if fitted.result.stopped != "interrupted":
            unfinished.remove()
    return fitted
