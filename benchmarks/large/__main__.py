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

from polars import CompatLevel
from pyarrow.parquet import ParquetWriter

from benchmarks.criteo import blocks
from benchmarks.large import run
from benchmarks.large.run import MODELS

BUILD = Path("build/large")


def main(arguments: Sequence[str] | None = None) -> int:
    words = list(sys.argv[1:] if arguments is None else arguments)
    options = parser().parse_args(words)
    options.words = words
    status: int = options.run(options)
    return status


def make(options: argparse.Namespace) -> int:
    """The command `make`: a new folder of files part-000.parquet and so on, of nearly equal numbers of rows."""
    rows, files = options.rows, options.files
    if not 0 < files <= rows:
        sys.exit(f"each file needs a row: found {rows} rows and {files} files")
    options.out.mkdir(parents=True)
    ends = [rows * (k + 1) // files for k in range(files)]
    writer, done = None, 0
    for block in blocks(rows, options.seed):
        while block.height:
            piece = block.head(ends[0] - done).to_arrow(compat_level=CompatLevel.oldest())
            if writer is None:
                path = options.out / f"part-{files - len(ends):03}.parquet"
                writer = ParquetWriter(path, piece.schema, store_schema=False)
            writer.write_table(piece)
            block, done = block.slice(piece.num_rows), done + piece.num_rows
            if done == ends[0]:
                writer.close()
                writer, ends = None, ends[1:]
    size = sum(path.stat().st_size for path in options.out.iterdir())
    print(f"{rows:,} rows in {files} files, {size / 1e6:,.0f} MB, written to {options.out}")
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

    runs = commands.add_parser("run", help="train with the command line and all defaults, and measure")
    runs.add_argument("--data", type=Path, required=True, metavar="DIR", help="what `make` wrote")
    runs.add_argument("--memory", metavar="SIZE", help="such as 2GB: `data.memory`")
    runs.add_argument("--model", choices=MODELS, default="fm")
    runs.add_argument("--threads", type=int, default=2)
    runs.add_argument("--processes", type=int, default=1, help="that share the training, and the threads")
    runs.add_argument("--set", action="append", metavar="KEY=VALUE", help="a setting of `train`; may be repeated")
    runs.add_argument("--work", type=Path, default=BUILD / "work", metavar="DIR", help="for all that is written")
    runs.add_argument("--json", type=Path, default=BUILD / "results.jsonl", metavar="FILE", help="added to")
    runs.set_defaults(run=run.run)
    return found


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that what was started is ended too
    sys.exit(main())
