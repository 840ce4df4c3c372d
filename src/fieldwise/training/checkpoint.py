"""Checkpoints of a training run: a killed one resumes from the last of them and ends with the same bits.

    FOLDER/0, FOLDER/1      the last two, written in turn (`fieldwise.storage.artifact`)
        checkpoint.json     what the run has reached: position, history, learning rates; what it is a run of (digests
                            of settings and rows, versions)
        tensors.HASH.safetensors  weights, averaged and best weights, the optimizer's state, states of generators

Only data is written and read. Steps wait for a copy in memory; a thread writes it.
"""

import contextlib
import json
import shutil
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from torch import Tensor

from fieldwise.distributed.process_group import differences
from fieldwise.errors import ConfigError, DataError, FieldwiseError
from fieldwise.storage.artifact import Artifact
from fieldwise.storage.tensors import read_tensors, write_tensors
from fieldwise.storage.writer import writing
from fieldwise.training.unfinished import CHECKPOINT, Unfinished, open_checkpoint

__all__ = ["Checkpoints", "State"]

SLOTS = 2
AT_EVALUATIONS = 0.1  # a checkpoint at an evaluation needs this share of the minutes since the last one
MOST_WAITING = 0.02  # of the time, for copies
MOST_NAMED = 3
NONE_LEFT = "no whole checkpoint is left: training begins anew"


@dataclass(frozen=True, kw_only=True)
class State:
    """What a run has reached between two steps.

    Args:
        facts: plain values for JSON.
        tensors: on the CPU, by name.
    """

    facts: Mapping[str, Any]
    tensors: Mapping[str, Tensor]


@dataclass(kw_only=True)
class Checkpoints:
    """Reads and writes the checkpoints of one training.

    A checkpoint is due `minutes` after the last one, and at an evaluation after a tenth of that; later if steps would
    wait more than 2 % of the time for copies of large networks. One that cannot be written is a warning.

    Args:
        place: the unfinished run.
        name: of this training in it, `first` or `second`.
        minutes: between two checkpoints; 0 writes none.
        about: gives what it is a run of, as nested plain values; equal values resume.
        always: write one at the end too, for what follows.
    """

    place: Unfinished
    name: str
    minutes: float
    about: Callable[[], Mapping[str, Any]]
    always: bool = False
    _number: int = 0
    _last: float = field(default_factory=time.perf_counter)
    _copying: float = 0.0
    _thread: threading.Thread | None = None
    _failures: list[str] = field(default_factory=list)

    @property
    def folder(self) -> Path:
        """Where they are."""
        return self.place.part(self.name)

    @cached_property
    def _about(self) -> Mapping[str, Any]:
        plain: Mapping[str, Any] = json.loads(json.dumps(self.about()))  # as it is read back
        return plain

    def newest(self) -> State | None:
        """The last whole checkpoint of this run, or None; a damaged one is a warning.

        Errors:
            ConfigError: it is of a run with other settings, rows or versions.
            DataError: it has the format of another version.
        """
        found: list[Artifact] = []
        slots = [self.folder / str(slot) for slot in range(SLOTS)]
        there = [folder for folder in slots if (folder / CHECKPOINT.manifest).exists()]
        for folder in there:
            self._check_format(folder)
            with self._damage_told(folder):
                found.append(open_checkpoint(folder))
        for saved in sorted(found, key=lambda one: -one.about["number"]):
            self._check_same(saved.about["about"])
            with self._damage_told(saved.folder):
                tensors = CHECKPOINT.load(
                    saved.folder, lambda one: read_tensors(one.path("tensors")), (SafetensorError,)
                )
                self._number = saved.about["number"] + 1
                self._note(saved)
                return State(facts=saved.about["run"], tensors=tensors)
        if there:
            warnings.warn(NONE_LEFT, stacklevel=3)
        return None

    def _note(self, saved: Artifact) -> None:
        self.place.note(
            f"resumes the unfinished run in {self.place.folder}, which had reached epoch "
            f"{saved.about['run']['position']:.4g} at {saved.about['written']}"
        )

    def due(self, *, evaluated: bool, asked: bool = False) -> bool:
        """Whether a checkpoint is to be written now; never while the last one is being written.

        Args:
            evaluated: whether an evaluation was just done.
            asked: whether one was requested, by SIGUSR1.
        """
        if self.minutes <= 0 or (self._thread is not None and self._thread.is_alive()):
            return False
        wanted = 60 * self.minutes * (AT_EVALUATIONS if evaluated else 1.0)
        return asked or time.perf_counter() - self._last >= max(wanted, self._copying / MOST_WAITING)

    def end(self, capture: Callable[[], State]) -> None:
        """Write a checkpoint of the finished training, if one is due or `always` wanted."""
        if self.minutes > 0 and (self.always or self.due(evaluated=True)):
            self.write(capture, wait=True)

    def write(self, capture: Callable[[], State], *, wait: bool = False, told: bool = False) -> None:
        """Write a checkpoint: `capture` copies the state, and a thread writes it.

        Args:
            capture: called at once.
            wait: until it is written.
            told: whether a note says when it is written.
        """
        self.settle()
        if self.minutes <= 0:
            return
        began = time.perf_counter()
        try:
            state = capture()
        except MemoryError:
            self._failures.append("there is no memory for a copy of the run's state")
            self._tell()
            return
        self._copying, self._last = time.perf_counter() - began, began
        if wait:
            self._save(state)
            self._tell()
        else:
            self._thread = threading.Thread(target=self._save, args=(state, told), name="fieldwise-checkpoint")
            self._thread.start()

    def settle(self) -> None:
        """Wait until the last checkpoint is written."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        self._tell()

    def remove(self) -> None:
        """Remove the checkpoints of this training."""
        self.settle()
        shutil.rmtree(self.folder, ignore_errors=True)
        with contextlib.suppress(OSError):  # the other training's, or a lock
            self.place.folder.rmdir()

    def _save(self, state: State, told: bool = False) -> None:
        try:
            with writing(CHECKPOINT, self.folder / str(self._number % SLOTS)) as writer:
                with writer.open("tensors") as file:
                    write_tensors(file, state.tensors)
                when = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime())
                writer.finish(number=self._number, written=when, about=self._about, run=state.facts)
            self._number += 1
            if told:
                self.place.note(
                    f"wrote the checkpoint that SIGUSR1 asked for, of epoch {state.facts['position']:.4g}, to "
                    f"{self.place.folder}"
                )
        except (FieldwiseError, OSError, MemoryError) as e:
            self._failures.append((str(e).splitlines() or [type(e).__name__])[0])

    def _tell(self) -> None:
        while self._failures:
            why = self._failures.pop(0)
            warnings.warn(f"a checkpoint could not be written, and training goes on without it: {why}", stacklevel=4)

    @contextlib.contextmanager
    def _damage_told(self, folder: Path) -> Iterator[None]:
        try:
            yield
        except (FieldwiseError, OSError, ValueError, LookupError, TypeError) as e:
            why = (str(e).splitlines() or [type(e).__name__])[0]
            warnings.warn(
                f"a checkpoint is damaged, and is passed over: {why}",
                stacklevel=4,
            )
            shutil.rmtree(folder, ignore_errors=True)

    def _check_format(self, folder: Path) -> None:
        try:
            CHECKPOINT.check_version(folder)
        except DataError as e:
            raise DataError(f"{e}, or {self.place.remedy}") from None

    def _check_same(self, former: Mapping[str, Any]) -> None:
        found = differences(former, self._about)
        if not found:
            return
        shown = [f"{name} was {before} and is {now}" for name, before, now in found[:MOST_NAMED]]
        more = f", and {len(found) - MOST_NAMED} more differ" if len(found) > MOST_NAMED else ""
        raise ConfigError(
            f"the unfinished run in {self.place.folder} can only be resumed with what it began with, but "
            f"{', '.join(shown)}{more}: set these back, or {self.place.remedy}"
        )
