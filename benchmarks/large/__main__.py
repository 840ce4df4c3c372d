"""`python -m benchmarks.large`: training on more rows than memory, on a generated log of any size.

In a minute, on a small log:

    python -m benchmarks.large make --rows 200000 --files 4 --out build/large/log
    python -m benchmarks.large run --data build/large/log --memory 500MB
"""

import argparse
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.large import kills, run
from benchmarks.large.log import write_log
from benchmarks.large.run import MODELS

BUILD = Path("build/large")


def main(arguments: Sequence[str] | None = None) -> int:
    words = list(sys.argv[1:] if arguments is None else arguments)
    options = parser().parse_args(words)
    options.words = words
    status: int = options.run(options)
    return status


def make(options: argparse.Namespace) -> int:
    """The command `make`."""
    found = write_log(options.out, options.rows, seed=options.seed, files=options.files)
    rate = found["rows"] / max(found["seconds"], 1e-9)
    print(
        f"{found['rows']:,} rows in {found['files']} files, {found['bytes'] / 1e6:,.0f} MB, written to {options.out} "
        f"in {found['seconds']:.1f} s: {rate:,.0f} rows/s"
    )
    return 0


def parser() -> argparse.ArgumentParser:
    """All commands."""
    found = argparse.ArgumentParser(
        prog="python -m benchmarks.large", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = found.add_subparsers(dest="command", required=True)
    made = commands.add_parser("make", help="write a generated log")
    made.add_argument("--rows", type=int, required=True)
    made.add_argument("--out", type=Path, required=True, metavar="DIR")
    made.add_argument("--seed", type=int, default=0)
    made.add_argument("--files", type=int, default=1, metavar="K")
    made.set_defaults(run=make)

    runs = _on_a_log(commands, "run", "train with the command line and all defaults, and measure", run.run)
    runs.add_argument("--epochs", type=int, help="at most; until early stopping if omitted")
    runs.add_argument("--set", action="append", metavar="KEY=VALUE", help="a setting of training; may be repeated")
    runs.add_argument("--keep", action="store_true", help="keep the bundle and the cache in the work folder")

    killed = _on_a_log(commands, "kills", "kill -9 at random moments, and compare what comes out in the end", kills.run)
    killed.add_argument("--what", choices=("preparation", "training"), required=True)
    killed.add_argument("--times", type=int, default=50)
    killed.add_argument("--seed", type=int, default=0)
    return found


def _on_a_log(
    commands: "argparse._SubParsersAction[argparse.ArgumentParser]", name: str, told: str, run: object
) -> argparse.ArgumentParser:
    """A command that measures something on a log."""
    found: argparse.ArgumentParser = commands.add_parser(name, help=told)
    found.add_argument("--data", type=Path, required=True, metavar="DIR", help="what `make` wrote")
    found.add_argument("--memory", metavar="SIZE", help="such as 2GB: `data.memory`")
    found.add_argument("--model", choices=MODELS, default="fm")
    found.add_argument("--threads", type=int, default=2)
    found.add_argument("--work", type=Path, default=BUILD / "work", metavar="DIR", help="for all that is written")
    found.add_argument("--json", type=Path, default=BUILD / "results.jsonl", metavar="FILE", help="added to")
    found.set_defaults(run=run)
    return found


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that what was started is ended too
    sys.exit(main())
