"""The file of a search (Optuna's journal of JSON lines, append-only), and its evaluations on the test rows."""

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
from fieldwise.storage.locks import one_writer

if TYPE_CHECKING:
    from optuna import Study

__all__ = [
    "CHECKPOINTS",
    "begun_alone",
    "counted",
    "open_study",
    "optuna_library",
    "read_test_evaluations",
    "remove_incomplete_line",
    "resume_later",
    "states",
    "with_test_evaluation",
]

CHECKPOINTS = "checkpoints"  # attribute of a trial: what names the folder of its checkpoints
UNFINISHED_SECONDS = 1.0  # an incomplete line that is not continued for this long is abandoned


def open_study(file: Path, name: str, *, maximize: bool, first: Mapping[str, Any]) -> "Study":
    """Open or create the study of a file; trials of dead processes are ended.

    Args:
        file: the journal.
        name: name of the study in it.
        maximize: whether a higher value is better.
        first: values of the first trial of a new study.

    Errors:
        DataError: the file is damaged. ConfigError: Optuna is missing.
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
    except (ValueError, LookupError, RecursionError) as e:
        raise DataError(
            f"the study {file} is damaged ({e}): remove everything after its last complete line, or remove the file "
            "to start a new search"
        ) from None
    with one_writer(file.parent):  # else two processes that begin a study at once both add its first trial
        if not study.get_trials(deepcopy=False):
            study.enqueue_trial(dict(first))
    _end_dead_trials(study)
    return study


def _end_dead_trials(study: "Study") -> None:
    """Mark trials of dead processes of this machine as failed, and have them resumed from their checkpoints."""
    optuna = optuna_library()
    for trial in study.get_trials(deepcopy=False, states=(optuna.trial.TrialState.RUNNING,)):
        host, process = trial.user_attrs.get("process", (None, 0))
        if host == socket.gethostname() and not _alive(int(process)):
            with contextlib.suppress(ValueError):  # another process was quicker
                study.tell(trial.number, state=optuna.trial.TrialState.FAIL)
                if (token := trial.user_attrs.get(CHECKPOINTS)) is not None:
                    resume_later(study, trial.params, token)


def resume_later(study: "Study", values: Mapping[str, Any], token: str) -> None:
    """Have the next process that runs a trial of a study resume an interrupted one.

    Args:
        study: the study.
        values: the trial's.
        token: names its checkpoints.
    """
    study.enqueue_trial(dict(values), user_attrs={CHECKPOINTS: token})


def _alive(process: int) -> bool:
    if os.name != "posix":  # elsewhere signal 0 is not a test
        return True
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True


def counted(study: "Study") -> int:
    """The number of trials that ended by themselves; those of an interrupted or killed process do not count."""
    return sum(
        trial.state.name in ("COMPLETE", "PRUNED") or "failed" in trial.user_attrs
        for trial in study.get_trials(deepcopy=False)
    )


def begun_alone(study: "Study") -> int | None:
    """The number of the next trial if no other process runs one of this study; None if one does."""
    names = [trial.state.name for trial in study.get_trials(deepcopy=False)]
    return None if "RUNNING" in names else len(names) - names.count("WAITING")


def remove_incomplete_line(file: Path, note: Callable[[str], None]) -> None:
    """Remove a last line that a crash left incomplete, to which Optuna would append the next one."""
    content = file.read_bytes() if file.exists() else b""
    if not content or content.endswith(b"\n"):
        return
    time.sleep(UNFINISHED_SECONDS)  # another process may be writing it
    if file.read_bytes() == content:
        write_atomically(file, content[: content.rfind(b"\n") + 1])
        note(f"the last line of {file} was incomplete and has been removed")


def states(study: "Study") -> dict[str, int]:
    """The number of ended trials by state: complete, pruned, fail."""
    names = [trial.state.name.lower() for trial in study.get_trials(deepcopy=False) if trial.state.is_finished()]
    return {name: names.count(name) for name in sorted(set(names))}


def with_test_evaluation(path: Path, study: "Study", values: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Record an evaluation on the test rows in a file; returns all settings evaluated on them so far."""
    evaluations = read_test_evaluations(path)
    plain = to_plain(dict(values))
    if not evaluations or evaluations[-1]["values"] != plain:
        ended = sum(states(study).values())
        evaluations.append({"trial": study.best_trial.number, "after_trials": ended, "values": plain})
        write_atomically(path, (json.dumps(evaluations, indent=1) + "\n").encode())
    return evaluations


def read_test_evaluations(path: Path) -> list[dict[str, Any]]:
    """The recorded evaluations on the test rows; losing count of them would make a search look better than it is."""
    if not path.exists():
        return []
    try:
        evaluations = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError, RecursionError) as e:
        raise DataError(f"the record of test evaluations {path} is damaged ({e}): restore it") from None
    known = {"trial", "after_trials", "values"}
    if (
        not isinstance(evaluations, list)
        or not evaluations
        or not all(isinstance(x, dict) and known <= set(x) for x in evaluations)
    ):
        raise DataError(f"the record of test evaluations {path} is damaged (it is empty): restore it")
    return evaluations


def optuna_library() -> Any:
    """The module optuna, with its logging off.

    Errors:
        ConfigError: it is not installed.
    """
    try:
        import optuna
    except ImportError:
        raise ConfigError("tuning needs Optuna: pip install 'fieldwise[tune]'") from None
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    return optuna
