"""Results of the runs of a tag as text: one block per table, and the number of targets met."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from benchmarks.defaults.runs import MODELS
from benchmarks.defaults.store import BASELINES, Found, Place
from benchmarks.defaults.targets import Verdict, difference, judge, judge_time, mean_of, time_ratio

__all__ = ["load_runs", "shown", "table_rows"]

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


def table_rows(runs: Mapping[str, Sequence[Found]]) -> int:
    """The number of the table's rows, all parts."""
    return int(next(iter(runs.values()))[0].about["rows"])


def shown(store: Path, tag: str, tables: Sequence[str], against: str | None = None) -> str:
    """All blocks and the summary."""
    lines: list[str] = []
    verdicts: list[Verdict] = []
    for table in tables:
        runs = load_runs(store, tag, table)
        if not runs:
            continue
        before = load_runs(store, against, table) if against else {}
        found = [*judge(runs, table_rows(runs)), *judge_time(runs, before)]
        verdicts += found
        lines += [*_block(table, runs, before), *_misses(found), ""]
    lines += _summary(verdicts)
    return "\n".join(lines)


def _block(table: str, runs: Mapping[str, Sequence[Found]], before: Mapping[str, Sequence[Found]]) -> Iterator[str]:
    first = next(iter(runs.values()))[0].about
    counts = first["counts"]
    yield (
        f"{table}: {counts['train_rows']:,} + {counts['valid_rows']:,} + {counts['test_rows']:,} rows, "
        f"{first['fields']} fields, {first['embedding_rows']:,} values, base rate {first['base_rate']:.3f}"
    )
    yield f"  {'model':<13} seeds    AUC  logloss    ECE  seconds epochs   best  valid ll" + (
        "   before AUC / logloss / ECE, difference, CPU time to its AUC and in total" if before else ""
    )
    for name, found in runs.items():
        seconds = np.mean([run.about["seconds"] for run in found])
        epochs = np.mean([run.about.get("epochs", 0) for run in found])
        best = np.mean([run.about.get("best_epoch", 0) for run in found])
        line = (
            f"  {name:<13} {len(found):>5} {mean_of(found, 'test', 'auc'):.4f}  {mean_of(found, 'test', 'logloss'):.4f}"
            f" {mean_of(found, 'test', 'ece'):.4f} {seconds:>8.1f} {epochs:>6.1f} {best:>6.1f}"
            f"    {mean_of(found, 'valid', 'logloss'):.4f}"
        )
        yield line + (_beside(found, before[name]) if name in before and name in MODELS else "")


def _beside(found: Sequence[Found], before: Sequence[Found]) -> str:
    both = min(len(found), len(before))
    gap = difference(found[:both], before[:both])
    to_auc, in_all = time_ratio(found, before)
    return (
        f"   {mean_of(before, 'test', 'auc'):.4f} / {mean_of(before, 'test', 'logloss'):.4f} / "
        f"{mean_of(before, 'test', 'ece'):.4f} {gap.value:+.4f} [{gap.low:+.4f}, {gap.high:+.4f}] "
        f"x{to_auc:.2f}, x{in_all:.2f}"
    )


def _misses(found: Sequence[Verdict]) -> Iterator[str]:
    for one in found:
        if not one.met:
            yield f"  MISS {one.target}: {one.words()}"
        elif not one.mean:
            yield f"  level {one.target}: {one.words()}"


def _summary(verdicts: Sequence[Verdict]) -> Iterator[str]:
    yield "target: met, of which by the mean alone, of how many"
    for target in dict.fromkeys(one.target for one in verdicts):
        mine = [one for one in verdicts if one.target == target]
        yield f"  {target}: {sum(o.met for o in mine)} ({sum(o.met and o.mean for o in mine)}) of {len(mine)}"
