"""The checkpoints of a training run: a killed one resumes from the last and ends with the same bits.

The last two are the artifacts (`fieldwise.storage.artifact`) FOLDER/0 and FOLDER/1, written in turn:

- `checkpoint.json`: what the run has reached (position, history, learning rates), and what it is a
  run of (digests of settings and rows, versions).
- `tensors.HASH.safetensors`: weights, averaged and best weights, the optimizer's state, states of
  generators.

Only data is written and read. Steps wait for a copy in memory; a thread writes it.
"""

import contextlib
import json
import shutil
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from safetensors import SafetensorError
from torch import Tensor

from fieldwise.config import flat
from fieldwise.distributed.process_group import ProcessGroup
from fieldwise.errors import ConfigError, DataError, FieldwiseError, first_line
from fieldwise.storage.arrays import read_tensors, write_tensors
from fieldwise.storage.artifact import Artifact, ArtifactKind, writing
from fieldwise.storage.files import cannot_write
from fieldwise.storage.locks import try_lock
from fieldwise.training.snapshot import Snapshot, restore
from fieldwise.training.state import TrainState
from fieldwise.training.step import Step

LOCK = "lock"
FOLDER_SUFFIX = "-training"
SLOTS = 2
SHARE_OF_MINUTES_AT_EVALUATIONS = 0.1
"""A checkpoint at an evaluation needs this share of the minutes since the last one."""
MOST_WAITING = 0.02
"""The largest share of the time in which steps wait for copies."""
MAX_SHOWN_LETTERS = 40
MAX_SHOWN_DIFFERENCES = 3
NONE_LEFT = "no whole checkpoint is left: training begins anew"
CHECKPOINT = ArtifactKind(
    name="checkpoint",
    manifest="checkpoint.json",
    format=1,
    parts={"tensors": "safetensors"},
    damage=DataError,
    remedy="remove its folder to train from the start",
    origin="give the folder of an unfinished run",
    fast=True,
    nan=True,
)


@dataclass(frozen=True, kw_only=True)
class CheckpointFolder:
    """The folder of a run that may be killed: its checkpoints, until its result is saved."""

    folder: Path  # made when it is needed
    note: Callable[[str], None] = lambda _: None  # called with a sentence when a run is resumed

    @classmethod
    def beside(cls, out: Path, note: Callable[[str], None] = lambda _: None) -> "CheckpointFolder":
        """The folder `.NAME.unfinished` beside a result's folder."""
        out = out.absolute()
        return cls(folder=out.with_name(f".{out.name}.unfinished"), note=note)

    @property
    def remedy(self) -> str:
        """How to start over, at the end of an error's sentence."""
        return f"remove {self.folder} to train from the start"

    def exists(self) -> bool:
        """Whether there is a checkpoint."""
        return any(self.folder.glob(f"*{FOLDER_SUFFIX}/*/{CHECKPOINT.manifest}"))

    def remove(self) -> None:
        """Remove the checkpoints and the folder: the result is saved."""
        for path in self.folder.glob(f"*{FOLDER_SUFFIX}"):
            shutil.rmtree(path, ignore_errors=True)
        with contextlib.suppress(OSError):
            (self.folder / LOCK).unlink(missing_ok=True)
            self.folder.rmdir()

    @contextlib.contextmanager
    def claimed(self) -> Iterator[None]:
        """A context in which no other process trains here, else a DataError; at the end an empty folder is removed."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as e:
            raise cannot_write(self.folder, e) from e
        names = sorted(path.name for path in self.folder.iterdir())
        others = [name for name in names if name != LOCK and not name.endswith(FOLDER_SUFFIX)]
        if others:
            raise DataError(
                f"checkpoints need a folder of their own: {self.folder} holds other files, such as {others[0]!r}; "
                "choose another folder"
            )
        with contextlib.ExitStack() as lock:
            is_alone = True
            with contextlib.suppress(OSError):  # a file system without locks
                is_alone = lock.enter_context(try_lock(self.folder / LOCK))
            if not is_alone:
                raise DataError(
                    f"only one training at a time can use {self.folder}, and another process does: wait for its end, "
                    "or choose another folder"
                )
            try:
                yield
            finally:
                if not self.exists():
                    self.remove()


@dataclass(kw_only=True)
class Checkpoints:
    """Reads and writes the checkpoints of one training.

    A checkpoint is due `minutes` after the last one, and at an evaluation after a tenth of that;
    later if steps would wait more than 2 % of the time for copies of large networks. One that
    cannot be written is a warning.
    """

    unfinished: CheckpointFolder
    name: str  # of this training in it, `first` or `second`
    minutes: float  # between two checkpoints; 0 writes none
    # what it is a run of, as nested plain values; equal values resume
    about: Callable[[], Mapping[str, Any]]
    always: bool = False  # write one at the end too, for what follows
    _number: int = 0  # of the next one
    _last: float = field(default_factory=time.perf_counter)  # when it was copied
    _copying: float = 0.0  # seconds that the last copy took
    _writing: Future[None] | None = None

    @property
    def folder(self) -> Path:
        """Where they are."""
        return self.unfinished.folder / f"{self.name}{FOLDER_SUFFIX}"

    @cached_property
    def _about(self) -> Mapping[str, Any]:
        plain: Mapping[str, Any] = json.loads(json.dumps(self.about()))  # as it is read back
        return plain

    def newest(self) -> Snapshot | None:
        """The last whole checkpoint, or None; a damaged one is a warning, one of another run a ConfigError."""
        slots = [self.folder / str(slot) for slot in range(SLOTS)]
        folders = [folder for folder in slots if (folder / CHECKPOINT.manifest).exists()]
        opened = list[Artifact]()
        for folder in folders:
            try:
                CHECKPOINT.check_version(folder)
            except DataError as e:
                raise DataError(*e.args, f", or {self.unfinished.remedy}") from None
            with self._removing_damaged(folder):
                opened.append(_open(folder))

        newest_first = sorted(opened, key=lambda artifact: -artifact.about["number"])
        for artifact in newest_first:
            self._check_same_run(artifact)
            with self._removing_damaged(artifact.folder):
                return self._load(artifact)
        if folders:
            warnings.warn(NONE_LEFT, stacklevel=3)
        return None

    def _check_same_run(self, artifact: Artifact) -> None:
        """Check that a checkpoint is one of this run; else a ConfigError says what differs."""
        different = differences(artifact.about["about"], self._about)
        if not different:
            return
        shown = [
            f"{name} was {before} and is {now}"
            for name, before, now in different[:MAX_SHOWN_DIFFERENCES]
        ]
        more = ""
        if len(different) > MAX_SHOWN_DIFFERENCES:
            more = f", and {len(different) - MAX_SHOWN_DIFFERENCES} more differ"
        raise ConfigError(
            f"the unfinished run in {self.unfinished.folder} can only be resumed with what it began with, but "
            f"{', '.join(shown)}{more}: set these back, or remove that folder to train from the start"
        )

    def _load(self, artifact: Artifact) -> Snapshot:
        """Read a checkpoint; the next one that is written follows it."""
        tensors = CHECKPOINT.load(
            artifact.folder,
            lambda opened: read_tensors(opened.path("tensors")),
            (SafetensorError,),
        )
        self._number = artifact.about["number"] + 1
        facts = artifact.about["run"]
        self.unfinished.note(
            f"resumes the unfinished run in {self.unfinished.folder}, which had reached epoch "
            f"{facts['position']:.4g} at {artifact.about['written']}"
        )
        return facts, tensors

    def due(self, *, evaluated: bool, requested: bool = False) -> bool:
        """Whether to write one now, after an evaluation or asked by SIGUSR1; never while the last is being written."""
        if self.minutes <= 0 or (self._writing is not None and not self._writing.done()):
            return False
        if requested:
            return True
        seconds = 60 * self.minutes
        if evaluated:
            seconds = seconds * SHARE_OF_MINUTES_AT_EVALUATIONS
        seconds = max(seconds, self._copying / MOST_WAITING)
        return time.perf_counter() - self._last >= seconds

    def end(self, capture: Callable[[], Snapshot]) -> None:
        """Write a checkpoint of the finished training, if one is due or `always` wanted."""
        if self.minutes > 0 and (self.always or self.due(evaluated=True)):
            self.write(capture, wait=True)

    def write(
        self, capture: Callable[[], Snapshot], *, wait: bool = False, announce: bool = False
    ) -> None:
        """Write a checkpoint: `capture` copies the state at once, a thread writes it; a note follows if `announce`."""
        self.settle()
        if self.minutes <= 0:
            return
        began = time.perf_counter()
        try:
            snapshot = capture()
        except MemoryError:
            _warn("there is no memory for a copy of the run's state")
            return
        self._copying = time.perf_counter() - began
        self._last = began
        writer = ThreadPoolExecutor(1, thread_name_prefix="fieldwise-checkpoint")
        self._writing = writer.submit(self._save, snapshot, announce)
        writer.shutdown(wait=False)
        if wait:
            self.settle()

    def settle(self) -> None:
        """Wait until the last checkpoint is written."""
        if self._writing is not None:
            try:
                self._writing.result()
            except (FieldwiseError, OSError, MemoryError) as e:
                _warn(first_line(e))
            finally:
                self._writing = None

    def remove(self) -> None:
        """Remove the checkpoints of this training."""
        self.settle()
        shutil.rmtree(self.folder, ignore_errors=True)
        with contextlib.suppress(OSError):  # the other training's, or a lock
            self.unfinished.folder.rmdir()

    def _save(self, snapshot: Snapshot, announce: bool) -> None:
        facts, tensors = snapshot
        with writing(CHECKPOINT, self.folder / str(self._number % SLOTS)) as writer:
            with writer.open("tensors") as file:
                write_tensors(file, tensors)
            written = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime())
            writer.finish(number=self._number, written=written, about=self._about, run=facts)
        self._number += 1
        if announce:
            self.unfinished.note(
                f"wrote the checkpoint that SIGUSR1 asked for, of epoch {facts['position']:.4g}, to "
                f"{self.unfinished.folder}"
            )

    @contextlib.contextmanager
    def _removing_damaged(self, folder: Path) -> Iterator[None]:
        """A context that reads a checkpoint: an error removes it, with a warning, and goes no further."""
        try:
            yield
        except (FieldwiseError, OSError, ValueError, LookupError, TypeError) as e:
            why = first_line(e)
            warnings.warn(f"a checkpoint is damaged, and is passed over: {why}", stacklevel=4)
            shutil.rmtree(folder, ignore_errors=True)


def _open(folder: Path) -> Artifact:
    """A checkpoint, whose manifest has what reading it needs; else an error says what is damaged."""
    artifact = CHECKPOINT.open(folder)
    number = artifact.about.get("number")
    if type(number) is not int:
        raise CHECKPOINT.damaged(folder, f"its number must be a whole number, found {number!r:.60}")
    for part in ("about", "run"):
        if not isinstance(artifact.about.get(part), dict):
            raise CHECKPOINT.damaged(folder, f"{CHECKPOINT.manifest} must describe its run")
    return artifact


def _warn(why: str) -> None:
    warnings.warn(
        f"a checkpoint could not be written, and training goes on without it: {why}", stacklevel=4
    )


def differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """Where nested plain values differ: the path, and both values as words.

    >>> differences({"training": {"epochs": 3}}, {"training": {"epochs": 4}, "seed": 1})
    [('training.epochs', '3', '4'), ('seed', 'not set', '1')]
    """
    old = _flat_values(before)
    new = _flat_values(now)
    return [
        (name, _in_words(old, name), _in_words(new, name))
        for name in {**old, **new}
        if old.get(name) != new.get(name)
    ]


def _flat_values(nested: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in flat(nested).items() if value != {}}


def _in_words(values: Mapping[str, Any], name: str) -> str:
    text = str(values.get(name, "not set"))
    if len(text) <= MAX_SHOWN_LETTERS:
        return text
    return f"{text[: MAX_SHOWN_LETTERS - 3]}..."


def resumed(
    checkpoints: Checkpoints | None,
    group: ProcessGroup | None,
    step: Step,
    order: torch.Generator,
    new: TrainState,
) -> TrainState:
    """What a run has reached by its last whole checkpoint, to which `step` and `order` are set; `new` without one.

    Process 0 alone reads it (`Checkpoints.newest`), and the others are sent it.
    """
    snapshot = None if checkpoints is None else checkpoints.newest()
    if group is not None:
        snapshot = _broadcast(snapshot, group)
    if snapshot is None:
        return new
    try:
        return restore(snapshot, step, order)
    except (LookupError, RuntimeError, TypeError, ValueError, AttributeError) as e:
        remedy = "remove its folder" if checkpoints is None else checkpoints.unfinished.remedy
        why = first_line(e)
        raise DataError(
            f"the unfinished run's checkpoint is not one of this run ({why}): {remedy}"
        ) from e


def _broadcast(snapshot: Snapshot | None, group: ProcessGroup) -> Snapshot | None:
    """The snapshot of process 0, in all processes."""
    facts: Mapping[str, Any] | None = None
    tensors: Mapping[str, Tensor] = {}
    if snapshot is not None:
        facts, tensors = snapshot
    shapes_and_types = {
        name: [list(tensor.shape), str(tensor.dtype).removeprefix("torch.")]
        for name, tensor in tensors.items()
    }
    facts, shapes_and_types = group.all_gather_object([facts, shapes_and_types])[0]
    if facts is None:
        return None
    if not tensors:
        tensors = {
            name: torch.empty(shape, dtype=getattr(torch, dtype))
            for name, (shape, dtype) in shapes_and_types.items()
        }
    for name in shapes_and_types:
        dist.broadcast(tensors[name], 0)
    return facts, tensors


def check_same_on_all_ranks(group: ProcessGroup, facts: Mapping[str, Any]) -> None:
    """Check that all processes have the facts of process 0, nested plain values; else a ConfigError names one."""
    facts_by_rank = group.all_gather_object(facts)
    for rank, facts_of_rank in enumerate(facts_by_rank):
        different = differences(facts_by_rank[0], facts_of_rank)
        if different:
            name, first, other = different[0]
            more = f", and {len(different) - 1} more differ" if len(different) > 1 else ""
            raise ConfigError(
                f"all {group.size} processes must train with the same settings, rows and versions, but process {rank} "
                f"has {name} {other} where process 0 has {first}{more}: start all of them with the same recipe, files "
                "and version"
            )
