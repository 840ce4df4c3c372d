"""`duckdb`: DuckDB alone reads the same files and counts every column's values, within the same memory.

`python -m benchmarks.large.duck PATH MEMORY THREADS FOLDER` is the part that is measured: it prints JSON.
"""

import argparse
import json
import shutil
import sys
import time
from importlib.util import find_spec
from pathlib import Path

from benchmarks.large.log import CATEGORIES, LABEL, NUMBERS, TIME, about
from benchmarks.large.process import environment_with, watched
from benchmarks.large.results import store

__all__ = ["run"]

COLUMNS = (LABEL, TIME, *(one.name for one in NUMBERS), *(one.name for one in CATEGORIES))


def run(options: argparse.Namespace) -> int:
    """The command."""
    if find_spec("duckdb") is None:
        sys.exit("DuckDB is not installed: python -m pip install -r benchmarks/large/needs.txt")
    log, work = about(options.data), options.work.absolute() / "duckdb"
    shutil.rmtree(work, ignore_errors=True)
    words = [log["path"], options.memory or "2GB", options.threads, work / "spill"]
    command = [sys.executable, "-m", "benchmarks.large.duck", *(str(word) for word in words)]
    done = watched(command, env=environment_with(work), show=True).checked()
    told = json.loads(done.out)
    rates = {"counting": round(log["rows"] / told["seconds"])}
    found = {
        "seconds": {"counting": told["seconds"], "all": round(done.seconds, 2), "processor": round(done.cpu, 2)},
        "rows a second": rates,
        "bytes": {"peak anonymous": done.memory.peak()},
        "version": told["version"],
        "log": log,
    }
    store(options.json, "duckdb", options.words, found)
    print(
        f"DuckDB {told['version']}: {log['rows']:,} rows, {len(COLUMNS)} columns counted one after the other in "
        f"{told['seconds']:.1f} s ({done.cpu:.1f} processor seconds), {rates['counting']:,} rows/s, "
        f"peak anonymous memory {done.memory.peak() / 1e6:,.0f} MB, "
        f"{sum(told['values'].values()):,} distinct values"
    )
    shutil.rmtree(work, ignore_errors=True)
    return 0


def count(path: str, memory: str, threads: int, spill: Path) -> dict[str, object]:
    """Seconds of counting every column's values, and how many each has."""
    import duckdb

    spill.mkdir(parents=True)
    connection = duckdb.connect(config={"memory_limit": memory, "threads": threads, "temp_directory": str(spill)})
    files = f"{path}/*.parquet" if Path(path).is_dir() else path
    began, values = time.perf_counter(), {}
    for name in COLUMNS:
        query = f"SELECT count(*), sum(n) FROM (SELECT {name}, count(*) AS n FROM read_parquet(?) GROUP BY {name})"
        row = connection.execute(query, [files]).fetchone()
        assert row is not None
        values[name] = int(row[0])
    return {"seconds": round(time.perf_counter() - began, 3), "values": values, "version": duckdb.__version__}


if __name__ == "__main__":
    json.dump(count(sys.argv[1], sys.argv[2], int(sys.argv[3]), Path(sys.argv[4])), sys.stdout)
