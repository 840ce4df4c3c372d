"""`python -m benchmarks.inference`: how often tables are read without options as they are meant."""

import argparse
import tempfile
from collections.abc import Sequence
from pathlib import Path

from benchmarks.inference.judge import Verdict, judged, summary
from benchmarks.inference.public import PUBLIC
from benchmarks.inference.tables import planted


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.inference", description=__doc__)
    parser.add_argument("--anonymous", action="store_true", help="headers c1, c2, ...")
    parser.add_argument("--wrong", action="store_true", help="list the wrong columns with the inference's notes")
    parser.add_argument("--tables", default="", metavar="TEXT", help="tables whose names hold this")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="keep the files there")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as scratch:
        folder = options.keep or Path(scratch)
        folder.mkdir(parents=True, exist_ok=True)
        sets = {"planted": planted, **PUBLIC}
        every: list[Verdict] = []
        for name, make in sets.items():
            found = [judged(table) for table in make(folder, anonymous=options.anonymous, only=options.tables)]
            every += found
            if found:
                _print(name, found, options.wrong)
        _print("all", every, False)
    return 0


def _print(name: str, verdicts: Sequence[Verdict], wrong: bool) -> None:
    for verdict in verdicts if wrong else ():
        if verdict.unread:
            print(f"  {verdict.name}: not read without options: {verdict.unread}")
        for column, what in verdict.wrong.items():
            if what != "not read":
                print(f"  {verdict.name} {column}: {'CHECK ' if column in verdict.checked else ''}{what}")
        for side in [*(f"no {side}" for side, right in verdict.ids.items() if not right), *verdict.extra]:
            print(f"  {verdict.name}: ids: {side}")
    figures = summary(verdicts)
    print(f"{name}: {len(verdicts)} tables")
    for what, (right, count) in figures.items():
        print(f"  {what}: {right} of {count}{f' ({right / count:.0%})' if count else ''}")


if __name__ == "__main__":
    raise SystemExit(main())
