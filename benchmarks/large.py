"""`python -m benchmarks.large`: training on more rows than memory, on a generated log of any size.

In a minute, on a small log:

    python -m benchmarks.large make --rows 200000 --files 4 --out build/large/log
    python -m benchmarks.large run --data build/large/log --memory 500MB

Memory is that of a process and its descendants, what only they can give back (not pages of mapped
files), five times a second.
"""

import argparse
import contextlib
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl
import psutil
import tomli_w
from pyarrow.parquet import ParquetWriter

from benchmarks.criteo import LABEL, TIME, blocks
from benchmarks.log import CATEGORIES, NUMBERS
from fieldwise.runs.environment import environment

ROOT = Path(__file__).parents[1]
BUILD = Path("build/large")
MODELS = ("fm", "autoint", "inttower")
MIN_COUNT = 4  # categories with fewer training rows share a row
ITEM = 13  # the first so many categories are the item's, for models with two towers


def main(arguments: Sequence[str] | None = None) -> int:
    options = parser().parse_args(arguments)
    status: int = options.run(options)
    return status


def parser() -> argparse.ArgumentParser:
    """All commands."""
    result = argparse.ArgumentParser(
        prog="python -m benchmarks.large",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = result.add_subparsers(dest="command", required=True)
    made = commands.add_parser("make", help="write a generated log")
    made.add_argument("--rows", type=int, required=True)
    made.add_argument("--out", type=Path, required=True, metavar="DIR")
    made.add_argument("--seed", type=int, default=0)
    made.add_argument("--files", type=int, default=1, metavar="K")
    made.set_defaults(run=make)

    runs = commands.add_parser(
        "run", help="train with the command line and all defaults, and measure"
    )
    runs.add_argument("--data", type=Path, required=True, metavar="DIR", help="what `make` wrote")
    runs.add_argument("--memory", metavar="SIZE", help="such as 2GB: `data.memory`")
    runs.add_argument("--model", choices=MODELS, default="fm")
    runs.add_argument("--threads", type=int, default=2)
    runs.add_argument(
        "--processes", type=int, default=1, help="that share the training, and the threads"
    )
    runs.add_argument(
        "--set", action="append", metavar="KEY=VALUE", help="a setting of `train`; may be repeated"
    )
    runs.add_argument(
        "--work", type=Path, default=BUILD / "work", metavar="DIR", help="for all that is written"
    )
    runs.add_argument(
        "--json", type=Path, default=BUILD / "results.jsonl", metavar="FILE", help="added to"
    )
    runs.set_defaults(run=run)
    return result


def make(options: argparse.Namespace) -> int:
    """The command `make`: a new folder of files part-000.parquet and so on, of nearly equal numbers of rows."""
    rows = options.rows
    files = options.files
    if not 0 < files <= rows:
        sys.exit(f"each file needs a row: found {rows} rows and {files} files")
    options.out.mkdir(parents=True)
    ends = [rows * (k + 1) // files for k in range(files)]
    writer = None
    done = 0
    for block in blocks(rows, options.seed):
        while block.height:
            chunk = block.head(ends[0] - done).to_arrow(compat_level=pl.CompatLevel.oldest())
            if writer is None:
                path = options.out / f"part-{files - len(ends):03}.parquet"
                writer = ParquetWriter(path, chunk.schema, store_schema=False)
            writer.write_table(chunk)
            block = block.slice(chunk.num_rows)
            done = done + chunk.num_rows
            if done == ends[0]:
                writer.close()
                writer = None
                ends = ends[1:]
    size = sum(path.stat().st_size for path in options.out.iterdir())
    print(f"{rows:,} rows in {files} files, {size / 1e6:,.0f} MB, written to {options.out}")
    return 0


@dataclass(frozen=True)
class Watched:
    """What a command did.

    Args:
        code: exit status.
        out: standard output.
        lines: lines of standard error, each with its second since the start.
        seconds: from start to end.
        cpu: processor seconds of its processes.
        memory: samples of its bytes, each with its second.
    """

    code: int
    out: str
    lines: Sequence[tuple[float, str]]
    seconds: float
    cpu: float
    memory: Sequence[tuple[float, int]]

    def peak(self, start: float = 0.0, stop: float = float("inf")) -> int:
        """The most memory between two seconds, 0 without samples."""
        return max((size for at, size in self.memory if start <= at < stop), default=0)

    def checked(self) -> "Watched":
        """Itself; ends this program if the command failed."""
        if self.code != 0:
            told = "\n".join(line for _, line in self.lines[-20:])
            sys.exit(f"the command failed with status {self.code}:\n{told}")
        return self


def watched(command: Sequence[str], env: Mapping[str, str] | None = None) -> Watched:
    """Run a command to its end, and show its standard error; all of its processes are ended with this one."""
    began = time.perf_counter()
    used = _cpu()
    lines = list[tuple[float, str]]()
    memory = list[tuple[float, int]]()
    with tempfile.TemporaryFile("w+", encoding="utf-8") as out:
        child = subprocess.Popen(
            command,
            env=env,
            cwd=ROOT,
            stdout=out,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

        def read() -> None:
            assert child.stderr is not None
            with child.stderr as errors:
                for line in errors:
                    lines.append((time.perf_counter() - began, line.rstrip("\n")))
                    print(line, end="", file=sys.stderr, flush=True)

        reader = threading.Thread(target=read, daemon=True)
        reader.start()
        try:
            while child.poll() is None:
                memory.append((time.perf_counter() - began, anonymous(child.pid)))
                time.sleep(0.2)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
            code = child.wait()
        seconds = time.perf_counter() - began
        reader.join(10)
        out.seek(0)
        return Watched(code, out.read(), lines, seconds, _cpu() - used, memory)


def anonymous(pid: int) -> int:
    """Bytes of a process and its descendants without mapped files and shared memory."""
    result = 0
    with contextlib.suppress(psutil.Error):
        process = psutil.Process(pid)
        for one in (process, *process.children(recursive=True)):
            with contextlib.suppress(psutil.Error):
                memory = one.memory_info()
                result += memory.rss - getattr(memory, "shared", 0)
    return result


def write_recipe(path: Path, data: Path, model: str, memory: str | None = None) -> Path:
    """Write a recipe that states a model's name and nothing else of it; the newest tenth of the rows tests."""
    numbers = [{"kind": "numeric", "name": name, "transform": "log"} for name in NUMBERS]
    categories = [
        {
            "kind": "categorical",
            "name": name,
            "role": "item" if k < ITEM else "user",
            "min_count": MIN_COUNT,
        }
        for k, name in enumerate(CATEGORIES)
    ]
    recipe = {
        "data": {"path": str(data.absolute())} | ({} if memory is None else {"memory": memory}),
        "schema": {"label": {"column": LABEL}, "time": TIME, "fields": [*numbers, *categories]},
        "split": {"kind": "time", "valid": 0.1, "test": 0.1},
        "model": {"name": model},
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(tomli_w.dumps(recipe), "utf-8")
    return path


def run(options: argparse.Namespace) -> int:
    """The command: one training with an empty cache."""
    work = options.work.absolute() / "run"
    shutil.rmtree(work, ignore_errors=True)
    recipe = write_recipe(work / "recipe.toml", options.data, options.model, options.memory)
    words = ["train", recipe, "--out", work / "bundle", "--progress", "json", "--json"]
    words += [word for setting in options.set or () for word in ("--set", setting)]
    words += ["--processes", options.processes] if options.processes > 1 else []
    threads = str(max(1, options.threads // options.processes))
    (work / "tmp").mkdir()
    env = {**os.environ, "XDG_CACHE_HOME": str(work / "cache"), "TMPDIR": str(work / "tmp")}
    env |= {"POLARS_MAX_THREADS": threads, "OMP_NUM_THREADS": threads}
    done = watched([sys.executable, "-m", "fieldwise", *map(str, words)], env).checked()
    record = json.loads(done.out)
    rows = pl.scan_parquet(options.data / "*.parquet").select(pl.len()).collect().item()
    counted = sum(record["counts"][f"{part}_rows"] for part in ("train", "valid", "test"))
    if counted != rows:
        sys.exit(f"the log has {rows:,} rows, and {counted:,} were prepared")
    result = {"rows": rows} | measures(done, record)
    result["bytes"]["disk"] = sum(one.stat().st_size for one in work.rglob("*") if one.is_file())
    options.json.parent.mkdir(parents=True, exist_ok=True)
    about = {
        "command": " ".join(["python -m benchmarks.large", *sys.argv[1:]]),
        "environment": environment(),
    }
    with options.json.open("a", encoding="utf-8") as file:
        file.write(json.dumps({**about, **result}) + "\n")
    print(f"{rows:,} rows")
    for name, value in result["seconds"].items():
        print(f"  {name:32} {'-' if value is None else f'{value:,.1f} s'}")
    for name, value in result["bytes"].items():
        print(f"  {name:32} {value / 1e6:,.0f} MB")
    print(f"  AUC: validation {result['auc']['valid']:.4f}, test {result['auc']['test']:.4f}")
    shutil.rmtree(work)
    return 0


def measures(done: Watched, record: Mapping[str, Any]) -> dict[str, Any]:
    """Seconds and bytes of a training, by phase."""
    prepared = next(
        (at for at, line in done.lines if " train, " in line and line.endswith(" test rows")), 0.0
    )
    ends = [
        at for at, line in done.lines if line.startswith("{") and "evaluation" in json.loads(line)
    ]
    trained = ends[-1] if ends else prepared
    return {
        "seconds": {
            "all": done.seconds,
            "preparation": record["seconds_preparing"],
            "epoch": record["seconds_per_epoch"],
            "training and evaluation": record["seconds"],
            "processor": done.cpu,
        },
        "bytes": {
            "peak anonymous": done.peak(),
            "peak anonymous in preparation": done.peak(stop=prepared),
            "peak anonymous in training": done.peak(prepared, trained),
            "peak anonymous afterwards": done.peak(trained),
            "parameters": 4 * record["parameters"],
        },
        "auc": {part: record[part].get("auc") for part in ("valid", "test")},
    }


def _cpu() -> float:
    """Processor seconds of all children that have ended."""
    result = resource.getrusage(resource.RUSAGE_CHILDREN)
    return result.ru_utime + result.ru_stime


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that what was started is ended too
    sys.exit(main())
