"""Results of all cases in one JSON file; cases are merged one by one, so a long run can be done in parts."""

import datetime
import json
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.case import Case, Settings, Target
from benchmarks.turns import Outcome
from fieldwise.runs.environment import commit, machine
from fieldwise.storage.files import write_atomically

__all__ = ["FORMAT", "Summary", "judge", "load", "merge", "ratio", "record", "summarize", "write"]

FORMAT = 1


@dataclass(frozen=True)
class Summary:
    """The median of some samples, and the quartiles around it."""

    median: float
    low: float
    high: float


def summarize(samples: Sequence[float]) -> Summary:
    """Median and quartiles (linear interpolation, as in NumPy).

    >>> summarize([4.0, 1.0, 2.0, 3.0, 5.0])
    Summary(median=3.0, low=2.0, high=4.0)
    """
    if not samples:
        raise ValueError("samples must not be empty")
    if len(samples) == 1:
        return Summary(samples[0], samples[0], samples[0])
    low, middle, high = statistics.quantiles(samples, n=4, method="inclusive")
    return Summary(middle, low, high)


def ratio(top: Sequence[float], bottom: Sequence[float]) -> Summary:
    """The ratio of the medians, with the quartiles of the ratios per round, whose two runs are close in time.

    >>> ratio([10.0, 20.0, 60.0], [1.0, 2.0, 3.0])
    Summary(median=10.0, low=10.0, high=15.0)
    """
    rounds = summarize([a / b for a, b in zip(top, bottom, strict=True)])
    return Summary(summarize(top).median / summarize(bottom).median, rounds.low, rounds.high)


def record(
    case: Case, settings: Settings, outcomes: Sequence[Outcome], *, repeats: int, command: str
) -> dict[str, Any]:
    """The stored record of a case, as plain values."""
    return {
        "title": case.title,
        "about": case.about,
        "measures": list(case.measures),
        "size": settings.size,
        "threads": settings.threads,
        "repeats": repeats,
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "machine": machine(),
        "commit": commit(),
        "command": command,
        "contenders": [_contender(outcome) for outcome in outcomes],
        "targets": [found for target in case.targets if (found := judge(target, outcomes))],
    }


def _contender(outcome: Outcome) -> dict[str, Any]:
    kept: dict[str, Any] = {"name": outcome.contender.name, "facts": outcome.facts}
    if outcome.contender.threads:
        kept["threads"] = outcome.contender.threads
    if outcome.absent or outcome.error:
        return kept | ({"absent": outcome.absent} if outcome.absent else {"error": outcome.error})
    measures = {}
    for name, samples in outcome.samples.items():
        found = summarize(samples)
        measures[name] = {"median": found.median, "low": found.low, "high": found.high, "samples": samples}
    return kept | {"measures": measures}


def judge(target: Target, outcomes: Sequence[Outcome]) -> dict[str, Any] | None:
    """The target's ratio with its spread; None if one of its two sides was not measured."""
    samples = {outcome.contender.name: outcome.samples for outcome in outcomes}
    top, bottom = (samples.get(name, {}).get(measure) for name, measure in (target.top, target.bottom))
    if not top or not bottom:
        return None
    found = ratio(top, bottom)
    return {
        "what": target.what,
        "unit": target.unit,
        "value": found.median,
        "low": found.low,
        "high": found.high,
        "goal": target.goal,
        "met": found.median >= target.goal,
    }


def load(path: Path, part: str = "cases") -> dict[str, Any]:
    """The results of a file, by name below `part`; empty if there is no file."""
    if not path.exists():
        return {"format": FORMAT, part: {}}
    results: dict[str, Any] = json.loads(path.read_text("utf-8"))
    if results.get("format") != FORMAT:
        raise SystemExit(f"{path} has results of format {results.get('format')!r}, this version reads {FORMAT}")
    return results


def merge(path: Path, name: str, found: dict[str, Any], part: str = "cases") -> None:
    """Put a record into a results file, replacing an older one of that name; other records stay."""
    records = load(path, part)[part]
    write(path, {**records, name: found}, part)


def write(path: Path, records: Mapping[str, Any], part: str = "cases") -> None:
    """Write a results file: one JSON object, with one line a record."""
    lines = (f"{json.dumps(name)}: {json.dumps(record, ensure_ascii=False)}" for name, record in records.items())
    path.parent.mkdir(parents=True, exist_ok=True)
    text = f'{{"format": {FORMAT}, {json.dumps(part)}: {{\n' + ",\n".join(lines) + "\n}}\n"
    write_atomically(path, text.encode())
