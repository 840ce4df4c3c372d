"""A summary of two tags' runs as plain values for the page; the runs themselves are not committed."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.defaults.runs import MODELS
from benchmarks.defaults.show import load_runs
from benchmarks.defaults.store import Found
from benchmarks.defaults.tables import TABLES
from benchmarks.defaults.targets import Verdict, difference, judge, judge_time, mean_of, time_ratio

__all__ = ["environments", "summary"]


def summary(store: Path, tag: str, before: str, table: str) -> dict[str, Any] | None:
    """A table's figures of a tag and of an older tag, with the targets of both; None without a run of either."""
    now, then = load_runs(store, tag, table), load_runs(store, before, table)
    ours = [name for name in now if name in MODELS]
    if not (ours or then):
        return None
    if not ours:
        now = {name: runs for name, runs in then.items() if name not in MODELS}  # baselines are compared with both
    first = next(iter((now if ours else then).values()))[0].about
    found: dict[str, Any] = {
        "about": TABLES[table].about,
        "counts": {part: first["counts"][f"{part}_rows"] for part in ("train", "valid", "test")},
        "dropped": first["counts"]["dropped_by_label"],
        "fields": first["fields"],
        "values": first["embedding_rows"],
        "base_rate": first["base_rate"],
        "now": {name: _figures(runs) for name, runs in now.items()},
        "before": {name: _figures(runs) for name, runs in then.items() if name in MODELS},
        "verdicts": [_plain(one) for one in (*judge(now, first["rows"]), *judge_time(now, then))],
        "verdicts_before": [_plain(one) for one in judge(then, first["rows"])],
    }
    for name in ours:
        if name in then:
            both = min(len(now[name]), len(then[name]))
            gap = difference(now[name][:both], then[name][:both])
            to_auc, in_all = time_ratio(now[name], then[name])
            reached = None if np.isinf(to_auc) else to_auc
            found["now"][name]["less_before"] = {**asdict(gap), "time_to_auc": reached, "time_in_all": in_all}
    runs = [run for name in MODELS for run in (*now.get(name, []), *then.get(name, []))]
    found["environment"] = environments(run.about["environment"] for run in runs)
    return found


def _plain(one: Verdict) -> dict[str, Any]:
    found = asdict(one)
    if one.value is not None and np.isinf(one.value):
        found["value"] = None  # JSON has no infinity
    return found


def _figures(runs: Sequence[Found]) -> dict[str, Any]:
    found = {metric: mean_of(runs, "test", metric) for metric in ("auc", "logloss", "ece")}
    spread = float(np.std([run.about["test"]["logloss"] for run in runs], ddof=1)) if len(runs) > 1 else None
    found |= {"seeds": len(runs), "logloss_deviation": spread, "seconds": _mean(runs, "seconds")}
    for name in ("cpu_seconds", "epochs", "parameters"):
        if name in runs[0].about:
            found[name] = _mean(runs, name)
    if "chosen" in runs[0].about:
        found["chosen"] = runs[0].about["chosen"]
    return found


def _mean(runs: Sequence[Found], name: str) -> float:
    return float(np.mean([run.about[name] for run in runs]))


def environments(found: Iterable[Mapping[str, Any]]) -> dict[str, list[str]]:
    """The distinct dates, machines and commits of runs."""
    kept = list(found)
    return {name: sorted({str(one[name]) for one in kept}) for name in ("date", "machine", "commit")}
