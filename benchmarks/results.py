"""Results of all cases in one JSON file; cases are merged one by one, so a long run can be done in parts."""

import datetime
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.case import Case, Settings, Target
from benchmarks.summary import ratio, summarize
from benchmarks.turns import Outcome
from fieldwise.runs.environment import commit, machine
from fieldwise.storage.files import write_atomically

__all__ = ["FORMAT", "judge", "load", "merge", "record"]

FORMAT = 1


def record(
    case: Case, settings: Settings, outcomes: Sequence[Outcome], *, repeats: int, command: str
) -> dict[str, Any]:
    """The stored record of a case, as plain values."""
    return {
        "title": case.title,
        "about": case.about,
        "measures": list(case.measures),
        "plot": {"x": case.plot.x, "y": case.plot.y} if case.plot else None,
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
    """Write a record into a results file, replacing an older one of that name; other records stay."""
    results = load(path, part)
    results[part][name] = found
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, (json.dumps(results, indent=1, ensure_ascii=False) + "\n").encode())
