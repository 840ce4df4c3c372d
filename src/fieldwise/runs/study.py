"""The file of a search: JSON lines that are only appended (Optuna's journal), and its looks at the test rows."""

import contextlib
import json
import os
import socket
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fieldwise.config import to_plain
from fieldwise.errors import ConfigError, DataError
from fieldwise.storage.files import write_atomically

if TYPE_CHECKING:
    from optuna import Study

__all__ = ["counted", "mend", "open_study", "optuna_library", "read_test_looks", "states", "with_test_look"]

UNFINISHED_SECONDS = 1.0  # a line that nobody goes on with for so long will not be finished


def open_study(file: Path, name: str, *, maximize: bool, first: Mapping[str, Any]) -> "Study":
    """The study of a file, begun where there is none; trials of processes that are gone are ended.

    Args:
        file: the journal.
        name: of the study in it.
        maximize: whether a higher value is better.
        first: values of the first trial of a new study.

    Errors:
        DataError: the file is damaged. ConfigError: Optuna is absent.
    """
    optuna = optuna_library()
    try:
        study: Study = optuna.create_study(
            storage=optuna.storages.JournalStorage(optuna.storages.journal.JournalFileBackend(str(file))),
            study_name=name,
            direction="maximize" if maximize else "minimize",
            load_if_exists=True,
            pruner=optuna.pruners.MedianPruner(n_startup_trials=5, n_warmup_steps=1),
        )
    except (ValueError, LookupError) as e:
        raise DataError(
            f"the study {file} is damaged ({e}): cut off what follows its last whole line, or remove it to search anew"
        ) from None
    if not study.get_trials(deepcopy=False):
        study.enqueue_trial(dict(first))
    _end_dead_trials(study)
    return study


def _end_dead_trials(study: "Study") -> None:
    """Trials of processes of this machine that are gone count as failed: they will never end by themselves."""
    optuna = optuna_library()
    for trial in study.get_trials(deepcopy=False, states=(optuna.trial.TrialState.RUNNING,)):
        host, process = trial.user_attrs.get("process", (None, 0))
        if host == socket.gethostname() and not _alive(int(process)):
            with contextlib.suppress(ValueError):  # another process was quicker
                study.tell(trial.number, state=optuna.trial.TrialState.FAIL)


def _alive(process: int) -> bool:
    if os.name != "posix":  # elsewhere a signal of 0 is no question
        return True
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True


def counted(study: "Study") -> int:
    """Trials that ended by themselves; those of an interrupted or killed process are made up for."""
    return sum(
        trial.state.name in ("COMPLETE", "PRUNED") or "failed" in trial.user_attrs
        for trial in study.get_trials(deepcopy=False)
    )


def mend(file: Path, note: Callable[[str], None]) -> None:
    """Cut off a last line that a crash left unfinished: Optuna would write the next one behind it."""
    content = file.read_bytes() if file.exists() else b""
    if not content or content.endswith(b"\n"):
        return
    time.sleep(UNFINISHED_SECONDS)  # another process may be writing it
    if file.read_bytes() == content:
        write_atomically(file, content[: content.rfind(b"\n") + 1])
        note(f"the last line of {file} was unfinished: it was cut off")


def states(study: "Study") -> dict[str, int]:
    """How many trials ended, by how: complete, pruned, fail."""
    names = [trial.state.name.lower() for trial in study.get_trials(deepcopy=False) if trial.state.is_finished()]
    return {name: names.count(name) for name in sorted(set(names))}


def with_test_look(path: Path, study: "Study", values: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The settings that were measured on the test rows so far, these among them; kept in a file."""
    looks = read_test_looks(path)
    plain = to_plain(dict(values))
    if not looks or looks[-1]["values"] != plain:
        ended = sum(states(study).values())
        looks.append({"trial": study.best_trial.number, "after_trials": ended, "values": plain})
        write_atomically(path, (json.dumps(looks, indent=1) + "\n").encode())
    return looks


def read_test_looks(path: Path) -> list[dict[str, Any]]:
    """The looks that are written down; to lose count of them silently would make a search look better than it is."""
    if not path.exists():
        return []
    try:
        looks = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as e:
        raise DataError(f"the record of looks at the test rows {path} is damaged ({e}): restore it") from None
    known = {"trial", "after_trials", "values"}
    if not isinstance(looks, list) or not looks or not all(isinstance(x, dict) and known <= set(x) for x in looks):
        raise DataError(f"the record of looks at the test rows {path} is damaged (no looks in it): restore it")
    return looks


def optuna_library() -> Any:
    """The module optuna, quiet.

    Errors:
        ConfigError: it is not installed.
    """
    try:
        import optuna
    except ImportError:
        raise ConfigError("tuning needs Optuna: pip install 'fieldwise[tune]'") from None
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    return optuna
