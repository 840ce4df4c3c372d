"""What a training run has reached, and its checkpoints: a killed one resumes from the last and ends with the same bits.

    FOLDER/0, FOLDER/1      the last two, written in turn (`fieldwise.storage.artifact`)
        checkpoint.json     what the run has reached: position, history, learning rates; what it is
        a run of (digests
                            of settings and rows, versions)
        tensors.HASH.safetensors  weights, averaged and best weights, the optimizer's state, states
        of generators

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
from typing import TYPE_CHECKING, Any, get_args

import torch
import torch.distributed as dist
from safetensors import SafetensorError
from torch import Tensor

from fieldwise.config import flat, to_plain
from fieldwise.distributed.process_group import ProcessGroup
from fieldwise.errors import ConfigError, DataError, FieldwiseError, first_line
from fieldwise.ops.devices import CPU, device_of, get_rng_state, set_rng_state
from fieldwise.storage.arrays import read_tensors, write_tensors
from fieldwise.storage.artifact import Artifact, Kind, writing
from fieldwise.storage.files import cannot_write, try_lock
from fieldwise.training.history import Evaluation
from fieldwise.training.state import Stopped, TrainState

if TYPE_CHECKING:
    from fieldwise.training.step import Step

LOCK = "lock"
PART = "-training"
SLOTS = 2
# a checkpoint at an evaluation needs this share of the minutes since the last one
AT_EVALUATIONS = 0.1
MOST_WAITING = 0.02  # of the time, for copies
MAX_SHOWN_LETTERS = 40
MOST_NAMED = 3
NONE_LEFT = "no whole checkpoint is left: training begins anew"
State = tuple[Mapping[str, Any], Mapping[str, Tensor]]
"""What a run has reached between two steps: plain values for JSON, and tensors on the CPU by name."""

COUNTED: dict[str, Callable[[Any], Any]] = {
    "epoch": int, "step": int, "without_gain": int, "position": float, "spent": float, "evaluated": bool
}  # fmt: skip
CHECKPOINT = Kind(
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
        return any(self.folder.glob(f"*{PART}/*/{CHECKPOINT.manifest}"))

    def remove(self) -> None:
        """Remove the checkpoints and the folder: the result is saved."""
        for path in self.folder.glob(f"*{PART}"):
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
        others = sorted(
            p.name for p in self.folder.iterdir() if p.name != LOCK and not p.name.endswith(PART)
        )
        if others:
            raise DataError(
                f"checkpoints need a folder of their own: {self.folder} holds other files, such as {others[0]!r}; "
                "choose another folder"
            )
        with contextlib.ExitStack() as held:
            alone = True
            with contextlib.suppress(OSError):  # a file system without locks
                alone = held.enter_context(try_lock(self.folder / LOCK))
            if not alone:
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

    place: CheckpointFolder
    name: str  # of this training in it, `first` or `second`
    minutes: float  # between two checkpoints; 0 writes none
    # what it is a run of, as nested plain values; equal values resume
    about: Callable[[], Mapping[str, Any]]
    always: bool = False  # write one at the end too, for what follows
    _number: int = 0
    _last: float = field(default_factory=time.perf_counter)
    _copying: float = 0.0
    _writing: Future[None] | None = None

    @property
    def folder(self) -> Path:
        """Where they are."""
        return self.place.folder / f"{self.name}{PART}"

    @cached_property
    def _about(self) -> Mapping[str, Any]:
        plain: Mapping[str, Any] = json.loads(json.dumps(self.about()))  # as it is read back
        return plain

    def newest(self) -> State | None:
        """The last whole checkpoint, or None; a damaged one is a warning, one of another run a ConfigError."""
        results: list[Artifact] = []
        slots = [self.folder / str(slot) for slot in range(SLOTS)]
        there = [folder for folder in slots if (folder / CHECKPOINT.manifest).exists()]
        for folder in there:
            try:
                CHECKPOINT.check_version(folder)
            except DataError as e:
                raise DataError(f"{e}, or {self.place.remedy}") from None
            with self._naming_damage(folder):
                saved = CHECKPOINT.open(folder)
                if type(number := saved.about.get("number")) is not int:
                    raise CHECKPOINT.damaged(
                        folder, f"its number must be a whole number, found {number!r:.60}"
                    )
                if not all(isinstance(saved.about.get(part), dict) for part in ("about", "run")):
                    raise CHECKPOINT.damaged(folder, f"{CHECKPOINT.manifest} must describe its run")
                results.append(saved)
        for saved in sorted(results, key=lambda one: -one.about["number"]):
            if other := differences(saved.about["about"], self._about):
                shown = [
                    f"{name} was {before} and is {now}" for name, before, now in other[:MOST_NAMED]
                ]
                more = (
                    f", and {len(other) - MOST_NAMED} more differ"
                    if len(other) > MOST_NAMED
                    else ""
                )
                raise ConfigError(
                    f"the unfinished run in {self.place.folder} can only be resumed with what it began with, but "
                    f"{', '.join(shown)}{more}: set these back, or remove that folder to train from the start"
                )
            with self._naming_damage(saved.folder):
                tensors = CHECKPOINT.load(
                    saved.folder, lambda one: read_tensors(one.path("tensors")), (SafetensorError,)
                )
                self._number = saved.about["number"] + 1
                self.place.note(
                    f"resumes the unfinished run in {self.place.folder}, which had reached epoch "
                    f"{saved.about['run']['position']:.4g} at {saved.about['written']}"
                )
                return saved.about["run"], tensors
        if there:
            warnings.warn(NONE_LEFT, stacklevel=3)
        return None

    def due(self, *, evaluated: bool, requested: bool = False) -> bool:
        """Whether to write one now, after an evaluation or asked by SIGUSR1; never while the last is being written."""
        if self.minutes <= 0 or (self._writing is not None and not self._writing.done()):
            return False
        wanted = 60 * self.minutes * (AT_EVALUATIONS if evaluated else 1.0)
        return requested or time.perf_counter() - self._last >= max(
            wanted, self._copying / MOST_WAITING
        )

    def end(self, capture: Callable[[], State]) -> None:
        """Write a checkpoint of the finished training, if one is due or `always` wanted."""
        if self.minutes > 0 and (self.always or self.due(evaluated=True)):
            self.write(capture, wait=True)

    def write(
        self, capture: Callable[[], State], *, wait: bool = False, announce: bool = False
    ) -> None:
        """Write a checkpoint: `capture` copies the state at once, a thread writes it; a note follows if `announce`."""
        self.settle()
        if self.minutes <= 0:
            return
        began = time.perf_counter()
        try:
            state = capture()
        except MemoryError:
            _warn("there is no memory for a copy of the run's state")
            return
        self._copying = time.perf_counter() - began
        self._last = began
        writer = ThreadPoolExecutor(1, thread_name_prefix="fieldwise-checkpoint")
        self._writing = writer.submit(self._save, state, announce)
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
            self.place.folder.rmdir()

    def _save(self, state: State, announce: bool) -> None:
        facts, tensors = state
        with writing(CHECKPOINT, self.folder / str(self._number % SLOTS)) as writer:
            with writer.open("tensors") as file:
                write_tensors(file, tensors)
            when = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime())
            writer.finish(number=self._number, written=when, about=self._about, run=facts)
        self._number += 1
        if announce:
            self.place.note(
                f"wrote the checkpoint that SIGUSR1 asked for, of epoch {facts['position']:.4g}, to {self.place.folder}"
            )

    @contextlib.contextmanager
    def _naming_damage(self, folder: Path) -> Iterator[None]:
        try:
            yield
        except (FieldwiseError, OSError, ValueError, LookupError, TypeError) as e:
            why = first_line(e)
            warnings.warn(f"a checkpoint is damaged, and is passed over: {why}", stacklevel=4)
            shutil.rmtree(folder, ignore_errors=True)


def _warn(why: str) -> None:
    warnings.warn(
        f"a checkpoint could not be written, and training goes on without it: {why}", stacklevel=4
    )


def differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """Where nested plain values differ: the path, and both values as words.

    >>> differences({"training": {"epochs": 3}}, {"training": {"epochs": 4}, "seed": 1})
    [('training.epochs', '3', '4'), ('seed', 'not set', '1')]
    """
    old, new = (
        {name: value for name, value in flat(one).items() if value != {}} for one in (before, now)
    )
    names = [name for name in {**old, **new} if old.get(name) != new.get(name)]
    words = []
    for name in names:
        texts = [str(values.get(name, "not set")) for values in (old, new)]
        first, other = (
            t if len(t) <= MAX_SHOWN_LETTERS else f"{t[: MAX_SHOWN_LETTERS - 3]}..." for t in texts
        )
        words.append((name, first, other))
    return words


def snapshot(reached: TrainState, step: "Step", *, copied: bool) -> State:
    """The state of a run, on the CPU; `copied` if its next steps are not to change it.

    PyTorch's global generators, which dropout uses, are part of it.
    """
    of = step.optimizer.state_dict()
    tensors = dict[str, Tensor]()
    for part, held in of.items():
        for number, state in held["state"].items():
            named = ((name, value) for name, value in state.items() if isinstance(value, Tensor))
            tensors |= {f"optimizer.{part}.{number}.{name}": value for name, value in named}
    tensors |= {f"network.{name}": value for name, value in step.network.state_dict().items()}
    if step.mean is not None:
        tensors |= {f"mean.{name}": value for name, value in step.mean.state_dict().items()}
    tensors = {name: value.detach().to(CPU, copy=copied) for name, value in tensors.items()}
    if reached.best is not None:  # replaced as a whole, never changed
        tensors |= {f"best.{name}": value for name, value in reached.best[1].items()}
    if reached.losses:
        tensors["losses"] = torch.stack(reached.losses).to(CPU)
    if reached.order is not None:
        tensors["generator.order"] = reached.order
    if step.oov_dropout is not None:
        tensors["generator.unknown"] = step.oov_dropout.draws.get_state()
    tensors["generator.global"] = torch.get_rng_state()
    if (state := get_rng_state(device_of(step.network))) is not None:
        tensors["generator.device"] = state
    facts = {
        **{name: getattr(reached, name) for name in COUNTED},
        "stopped": reached.stopped,
        "step_seconds": list(reached.step_seconds),
        "seconds": time.perf_counter() - reached.started,
        "history": [to_plain(one) for one in reached.history],
        "best": None if reached.best is None else reached.history.index(reached.best[0]),
        "rates": [group["lr"] for group in step.optimizer.param_groups],
    }
    return facts, tensors


def restore(state: State, step: "Step", order: torch.Generator) -> TrainState:
    """Set a run's step and generators to a state; returns what the run had reached."""
    facts, tensors = state
    step.network.load_state_dict(_below(tensors, "network"))
    if step.mean is not None:
        step.mean.load_state_dict(_below(tensors, "mean"))
    of = step.optimizer.state_dict()
    for part, held in of.items():
        held["state"] = {}
        for name, value in _below(tensors, f"optimizer.{part}").items():
            number, _, what = name.partition(".")
            held["state"].setdefault(int(number), {})[what] = value
    step.optimizer.load_state_dict(of)
    for group, rate in zip(step.optimizer.param_groups, facts["rates"], strict=True):
        group["lr"] = float(rate)
    if step.oov_dropout is not None:
        step.oov_dropout.draws.set_state(tensors["generator.unknown"])
    torch.set_rng_state(tensors["generator.global"])
    device = device_of(step.network)
    set_rng_state(device, tensors.get("generator.device"))
    history = [Evaluation(**one) for one in facts["history"]]
    reached = TrainState(
        history=history,
        best=None if facts["best"] is None else (history[facts["best"]], _below(tensors, "best")),
        losses=list(tensors["losses"].to(device)) if "losses" in tensors else [],
        order=tensors.get("generator.order"),
        started=time.perf_counter() - facts["seconds"],
        step_seconds=[float(one) for one in facts["step_seconds"]],
        stopped=facts["stopped"],
        **{name: kind(facts[name]) for name, kind in COUNTED.items()},
    )
    if reached.stopped not in (None, *get_args(Stopped)):
        raise ValueError(f"it stopped by {reached.stopped!r:.60}")
    if reached.order is not None:
        order.set_state(reached.order)
    return reached


def _below(tensors: Mapping[str, Tensor], name: str) -> dict[str, Tensor]:
    return {
        key[len(name) + 1 :]: value for key, value in tensors.items() if key.startswith(f"{name}.")
    }


def resumed(
    checkpoints: Checkpoints | None,
    group: ProcessGroup | None,
    step: "Step",
    order: torch.Generator,
    new: TrainState,
) -> TrainState:
    """What a run has reached by its last whole checkpoint, to which `step` and `order` are set; `new` without one.

    Process 0 alone reads it (`Checkpoints.newest`), and the others are sent it.
    """
    state = None if checkpoints is None else checkpoints.newest()
    if group is not None:
        facts, tensors = (None, {}) if state is None else state
        kinds = {
            name: [list(t.shape), str(t.dtype).removeprefix("torch.")]
            for name, t in tensors.items()
        }
        facts, kinds = group.all_gather_object([facts, kinds])[0]
        made = {
            name: torch.empty(shape, dtype=getattr(torch, dtype))
            for name, (shape, dtype) in kinds.items()
        }
        tensors = tensors or made
        for name in kinds:
            dist.broadcast(tensors[name], 0)
        state = None if facts is None else (facts, tensors)
    if state is None:
        return new
    try:
        return restore(state, step, order)
    except (LookupError, RuntimeError, TypeError, ValueError, AttributeError) as e:
        remedy = "remove its folder" if checkpoints is None else checkpoints.place.remedy
        why = first_line(e)
        raise DataError(
            f"the unfinished run's checkpoint is not one of this run ({why}): {remedy}"
        ) from e


def check_same_on_all_ranks(group: ProcessGroup, facts: Mapping[str, Any]) -> None:
    """Check that all processes have the facts of process 0, nested plain values; else a ConfigError names one."""
    every = group.all_gather_object(facts)
    for rank, own in enumerate(every):
        if unequal := differences(every[0], own):
            name, first, other = unequal[0]
            more = f", and {len(unequal) - 1} more differ" if len(unequal) > 1 else ""
            raise ConfigError(
                f"all {group.size} processes must train with the same settings, rows and versions, but process {rank} "
                f"has {name} {other} where process 0 has {first}{more}: start all of them with the same recipe, files "
                "and version"
            )
