"""Results of all cases in one JSON file; cases are merged one by one, so a long run can be done in parts."""

import json
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.case import Case, Settings, Target
from benchmarks.turns import Outcome
from fieldwise.runs.environment import environment
from fieldwise.runs.records import RunRecord
from fieldwise.storage.files import write_atomically

__all__ = ["FORMAT", "environments", "judge", "load", "merge", "record", "say", "summarize"]

FORMAT = 1


def summarize(samples: Sequence[float]) -> dict[str, float]:
    """Median and quartiles.

    >>> summarize([4.0, 1.0, 2.0, 3.0, 5.0])
    {'median': 3.0, 'low': 2.0, 'high': 4.0}
    """
    low, median, high = np.quantile(samples, (0.25, 0.5, 0.75)).tolist()
    return {"median": median, "low": low, "high": high}


def record(
    case: Case, settings: Settings, outcomes: Sequence[Outcome], *, repeats: int, command: str
) -> dict[str, Any]:
    """The stored record of a case, as plain values."""
    here = environment()
    return {
        "title": case.title,
        "about": case.about,
        "measures": list(case.measures),
        "size": settings.size,
        "threads": settings.threads,
        "repeats": repeats,
        **{name: here[name] for name in ("date", "machine", "commit")},
        "command": command,
        "contenders": [_contender(outcome) for outcome in outcomes],
        "targets": [result for target in case.targets if (result := judge(target, outcomes))],
    }


def _contender(outcome: Outcome) -> dict[str, Any]:
    kept: dict[str, Any] = {"name": outcome.contender.name, "facts": outcome.facts}
    if outcome.absent or outcome.error:
        return kept | ({"absent": outcome.absent} if outcome.absent else {"error": outcome.error})
    measures = {
        name: {**summarize(samples), "samples": samples}
        for name, samples in outcome.samples.items()
    }
    return kept | {"measures": measures}


def judge(target: Target, outcomes: Sequence[Outcome]) -> dict[str, Any] | None:
    """The ratio of the medians, with the quartiles of the ratios per round, whose two runs are close in time.

    None if one of the target's two sides was not measured.
    """
    samples = {outcome.contender.name: outcome.samples.get("seconds", []) for outcome in outcomes}
    ours = samples.get(target.contender)
    theirs = samples.get(target.reference)
    if not ours or not theirs:
        return None
    rounds = summarize([a / b for a, b in zip(theirs, ours, strict=True)])
    value = summarize(theirs)["median"] / summarize(ours)["median"]
    what = f"{target.contender} against {target.reference}"
    met = value >= target.goal
    return {
        "what": what,
        "value": value,
        "low": rounds["low"],
        "high": rounds["high"],
        "goal": target.goal,
        "met": met,
    }


def environments(runs: Iterable[RunRecord]) -> dict[str, list[str]]:
    """The distinct dates, machines and commits of runs."""
    results = [run["environment"] for run in runs]
    return {
        name: sorted({str(one[name]) for one in results}) for name in ("date", "machine", "commit")
    }


def load(path: Path, part: str = "cases") -> dict[str, Any]:
    """The results of a file, by name below `part`; empty if there is no file."""
    if not path.exists():
        return {"format": FORMAT, part: {}}
    results: dict[str, Any] = json.loads(path.read_text("utf-8"))
    if results.get("format") != FORMAT:
        raise SystemExit(
            f"{path} has results of format {results.get('format')!r}, this version reads {FORMAT}"
        )
    return results


def merge(path: Path, name: str, found: dict[str, Any], part: str = "cases") -> None:
    """Put a record into a results file, one line of it, replacing an older one of that name; other records stay."""
    records = {**load(path, part)[part], name: found}
    lines = (
        f"{json.dumps(name)}: {json.dumps(record, ensure_ascii=False)}"
        for name, record in records.items()
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    text = f'{{"format": {FORMAT}, {json.dumps(part)}: {{\n' + ",\n".join(lines) + "\n}}\n"
    write_atomically(path, text.encode())


def say(sentence: str) -> None:
    """Tell about progress, on standard error."""
    print(sentence, file=sys.stderr, flush=True)
