"""`python -m benchmarks.chaos`: all attacks in turn, a table of what was found, and status 1 if a promise is broken."""

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.chaos.documents import documents
from benchmarks.chaos.outcome import Outcome, table
from benchmarks.chaos.replacement import replacement
from benchmarks.chaos.stores import stores
from benchmarks.chaos.target import CORES, prepare
from benchmarks.chaos.writers import saves, trainings
from fieldwise.runs.environment import environment
from fieldwise.storage.files import write_atomically

MINUTES = 10.0  # how long everything takes at full size, about


@dataclass(frozen=True)
class Size:
    """How much of everything: 1 is all of it."""

    part: float
    seed: int

    def count(self, whole: int, least: int = 1) -> int:
        """So many of a number."""
        return max(least, round(whole * self.part))

    def seconds(self, whole: float) -> float:
        """So much of a time, at least half a second."""
        return max(0.5, whole * self.part)


Attack = Callable[[Path, Size], list[Outcome]]
ATTACKS: dict[str, Attack] = {
    "documents": lambda at, size: [
        documents(at, size.count(3000, 14), size.seed, max(30, size.seconds(80)))
    ],
    "replacement": lambda at, size: [replacement(at, size.seconds(20), size.seed)],
    "stores": lambda at, size: stores(at, size.seconds(8)),
    "writers": lambda at, size: [
        saves(at, size.count(40, 4)),
        trainings(at, size.count(4), size.seconds(150)),
    ],
}


def main(arguments: list[str] | None = None) -> int:
    options = parser().parse_args(arguments)
    result = campaign(options.only or ATTACKS, Size(options.minutes / MINUTES, options.seed))
    print(table(result))
    about = {
        "command": " ".join(
            ["python -m benchmarks.chaos", *(sys.argv[1:] if arguments is None else arguments)]
        ),
        "cores": len(CORES),
        "environment": environment(),
        "outcomes": [asdict(one) for one in result],
    }
    if options.json is not None:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(options.json, json.dumps(about, indent=1).encode())
    broken = sum(len(one.broken) + len(one.late) for one in result)
    print(f"\n{broken} broken promises" if broken else "\nno promise was broken")
    return 1 if broken else 0


def campaign(names: Iterable[str], size: Size) -> list[Outcome]:
    """Attack in turn, each time in a new folder."""
    began = time.monotonic()
    result = []
    with tempfile.TemporaryDirectory(prefix="fieldwise-chaos-") as made:
        for name in names:
            folder = Path(made) / name
            folder.mkdir()
            prepare(folder)
            result += ATTACKS[name](folder, size)
            print(f"{time.monotonic() - began:.0f} s: {name} done", file=sys.stderr, flush=True)
    return result


def parser() -> argparse.ArgumentParser:
    result = argparse.ArgumentParser(prog="python -m benchmarks.chaos", description=__doc__)
    result.add_argument(
        "--minutes", type=float, default=MINUTES, help=f"of {MINUTES:g} for all; more ask for more"
    )
    result.add_argument("--seed", type=int, default=0)
    result.add_argument(
        "--only",
        nargs="+",
        choices=ATTACKS,
        metavar="ATTACK",
        help=f"of {', '.join(ATTACKS)} these",
    )
    result.add_argument("--json", type=Path, help="a file for all figures")
    return result


if __name__ == "__main__":
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    os.environ["FIELDWISE_CACHE"] = "off"
    sys.exit(main())
