"""A summary of two tags' runs as plain values for the page; the runs themselves are not committed."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.defaults.runs import MODELS
from benchmarks.defaults.store import BASELINES, Found, Place
from benchmarks.defaults.tables import TABLES
from benchmarks.defaults.targets import Verdict, difference, judge, judge_time, mean_of, time_ratio

__all__ = ["environments", "load_runs", "summary"]


SEEDS = range(100)


def load_runs(store: Path, tag: str, table: str) -> dict[str, list[Found]]:
    """The runs of a tag on a table by model, ordered by seed, and the baselines of the same rows."""
    runs: dict[str, list[Found]] = {}
    for model in MODELS:
        found = [run for seed in SEEDS if (run := Place(store, tag, table, f"{model}-{seed}").get()) is not None]
        if found:
            runs[model] = found
    most = max(runs.values(), key=len, default=[])
    digests = list(dict.fromkeys(run.about["data"] for run in most))
    for name in ("constant", "sklearn-lr", "lightgbm"):
        found = [Place(store, BASELINES, table, f"{name}-{digest}").get() for digest in digests]
        if found and all(found):
            runs[name] = [run for run in found if run is not None]
    return runs


def summary(store: Path, tag: str, before: str | None, table: str) -> dict[str, Any] | None:
    """A table's figures of a tag and of an older tag, with the targets of both; None without a run of either."""
    now, then = load_runs(store, tag, table), load_runs(store, before, table) if before else {}
    ours = [name for name in now if name in MODELS]
    if not (ours or then):
        return None
    if not ours:
        now = {name: runs for name, runs in then.items() if name not in MODELS}  # baselines are compared with both
    first = next(iter((now if ours else then).values()))[0].about
    found: dict[str, Any] = {
        "about": TABLES[table.partition("@")[0]].about,
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
