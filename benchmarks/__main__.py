"""`python -m benchmarks`: measure cases (`run`), write docs/performance.md from the results (`write`), or `list`.

Every case merges into one results file as soon as it is done, so a long run can be done in parts.
"""

import argparse
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from benchmarks.case import MACHINE, Contender, Settings
from benchmarks.cases import CASES, GPU_CASES
from benchmarks.page import number, page
from benchmarks.results import load, merge, record, say
from benchmarks.turns import Outcome, take_turns
from fieldwise.storage.files import write_atomically

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results.json"
PAGE = ROOT / "docs" / "performance.md"
EVERY = {**CASES, **GPU_CASES}
NO_GPU = "the cases of a GPU need one that PyTorch can use (`fieldwise doctor` shows the devices), found none"
REPEATS = {"full": 7, "quick": 3, "tiny": 2}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns 1 if a contender failed."""
    options = parser().parse_args(arguments)
    if options.command == "list":
        for name, build in EVERY.items():
            print(f"{name:18} {(build.__doc__ or '').splitlines()[0]}")
        return 0
    if options.command == "write":
        return write(options.json, options.page)
    wanted = {"all": tuple(CASES), "gpu": tuple(GPU_CASES)}
    unknown = [name for name in options.cases if name not in EVERY and name not in wanted]
    if unknown:
        sys.exit(f"a case must be one of {', '.join(EVERY)}, all or gpu; found {unknown[0]!r}")
    names = dict.fromkeys(case for name in options.cases for case in wanted.get(name, (name,)))
    if not torch.cuda.is_available() and GPU_CASES.keys() & names.keys():
        sys.exit(NO_GPU)
    failed = [name for name in names if not run(name, options)]
    if failed:
        say(f"a contender failed in {', '.join(failed)}")
    return 1 if failed else 0


def parser() -> argparse.ArgumentParser:
    result = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    commands = result.add_subparsers(dest="command", required=True)
    runs = commands.add_parser("run", help="measure cases and merge them into the results")
    runs.add_argument(
        "cases", nargs="+", metavar="CASE", help=f"{', '.join(EVERY)}; all (of the CPU); gpu"
    )
    runs.add_argument(
        "--json", type=Path, default=RESULTS, metavar="FILE", help="results file to merge into"
    )
    runs.add_argument(
        "--size", choices=REPEATS, default="full", help="quick: a minute or less; tiny: for tests"
    )
    runs.add_argument("--rows", type=int, help="number of rows, in cases with rows")
    runs.add_argument("--threads", type=int, default=2)
    runs.add_argument("--repeats", type=int, help="number of rounds; 7 at the full size")
    runs.add_argument(
        "--only", action="append", metavar="CONTENDER", help="only this contender; may be repeated"
    )
    writes = commands.add_parser("write", help="write the page from the results")
    writes.add_argument(
        "--json", type=Path, default=RESULTS, metavar="FILE", help="results file to read"
    )
    writes.add_argument("--page", type=Path, default=PAGE)
    commands.add_parser("list", help="the cases")
    return result


def run(name: str, options: argparse.Namespace) -> bool:
    """Measure one case, merge it and print its table; returns whether no contender failed."""
    repeats = options.repeats or REPEATS[options.size]
    began = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="fieldwise-benchmarks-") as folder:
        settings = Settings(
            folder=Path(folder), size=options.size, rows=options.rows, threads=options.threads
        )
        say(f"{name}: making its data")
        case = EVERY[name](settings)
        contenders = [c for c in case.contenders if not options.only or c.name in options.only]
        outcomes = take_turns(
            [*contenders, Contender(name=MACHINE, make="ours:rates")],
            threads=options.threads,
            repeats=repeats,
            say=say,
        )
    result = record(case, settings, outcomes, repeats=repeats, command=command_line(name, options))
    merge(options.json, name, result)
    show(outcomes, result["targets"], case.measures)
    say(f"{name}: {time.perf_counter() - began:.0f} s in total, merged into {options.json.name}")
    return not any(outcome.error for outcome in outcomes)


def show(
    outcomes: Sequence[Outcome], targets: Sequence[Mapping[str, Any]], measures: Sequence[str]
) -> None:
    """The case's medians on standard output."""
    for outcome in outcomes:
        own = outcome.contender.name == MACHINE
        names = (
            [m for m in outcome.samples if m != "seconds"]
            if own
            else [m for m in measures if m in outcome.samples]
        )
        medians = ", ".join(
            f"{m} {number(sorted(outcome.samples[m])[len(outcome.samples[m]) // 2])}" for m in names
        )
        print(
            f"  {outcome.contender.name:34} {medians or outcome.error or outcome.absent}",
            flush=True,
        )
    for target in targets:
        met = "met" if target["met"] else "not met"
        print(
            f"  {target['what']}: {number(target['value'])}, target {target['goal']}: {met}",
            flush=True,
        )


def command_line(name: str, options: argparse.Namespace) -> str:
    """The command that repeats this case, without paths of this machine."""
    parts = ["python -m benchmarks run", name]
    parts += [f"--size {options.size}"] if options.size != "full" else []
    parts += [f"--{k} {getattr(options, k)}" for k in ("rows", "repeats") if getattr(options, k)]
    parts += [f"--threads {options.threads}"] if options.threads != 2 else []
    parts += [f'--only "{name}"' for name in options.only or ()]
    return " ".join(parts)


def write(results: Path, target: Path) -> int:
    """Write the page."""
    result = load(results)
    known = [name for name in EVERY if name in result["cases"]]
    ordered = {**result, "cases": {name: result["cases"][name] for name in known}}
    write_atomically(target, page(ordered).encode())
    say(f"{target.name} written: {len(known)} of {len(EVERY)} cases measured")
    return 0


if __name__ == "__main__":
    sys.exit(main())
