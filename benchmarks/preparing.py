"""Seconds from a CSV file of clicks to encoded rows on disk: fieldwise and scikit-learn's encoders, in alternation.

`python -m benchmarks.preparing --rows 500000 --json`. The simulated log has the shape of Criteo's: a 0/1 label, 13
counts with missing values and 26 hexadecimal categories of 10 to 1,000,000 values with frequencies near 1/rank.
Every contestant reads the CSV file and must write all rows to disk as integers and scaled numbers.
"""

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import polars as pl

NUMBERS = tuple(f"I{k}" for k in range(1, 14))
CATEGORIES = tuple(f"C{k}" for k in range(1, 27))
CHUNK = 500_000


def write_log(path: Path, rows: int, seed: int = 0) -> None:
    """Write `rows` rows with a header: label, I1 to I13, C1 to C26; a missing cell is empty.

    The same rows and seed give the same file.
    """
    rng = np.random.default_rng(seed)
    sizes = np.geomspace(10, 1_000_000, len(CATEGORIES)).astype(int)
    # An odd factor permutes the numbers below 2^32: every value gets its own name.
    names = [pl.Series([f"{(k * 2654435761 + 97 * c) % 2**32:08x}" for k in range(n)]) for c, n in enumerate(sizes)]
    scales = np.linspace(0.5, 3.0, len(NUMBERS))
    gaps = np.linspace(0.0, 0.45, len(NUMBERS))
    with path.open("wb") as file:
        for start in range(0, rows, CHUNK):
            n = min(CHUNK, rows - start)
            columns: dict[str, object] = {"label": (rng.random(n) < 0.25).astype(np.int8)}
            for name, scale, gap in zip(NUMBERS, scales, gaps, strict=True):
                number = pl.Series(np.floor(rng.lognormal(scale, 1.2, n)).astype(np.int64) - 1)
                columns[name] = number.set(pl.Series(rng.random(n) < gap), None)
            for name, size, known in zip(CATEGORIES, sizes, names, strict=True):
                value = known.gather((size ** rng.random(n)).astype(np.int64) - 1)
                columns[name] = value.set(pl.Series(rng.random(n) < 0.02), None)
            pl.DataFrame(columns).write_csv(file, include_header=start == 0)


def fieldwise_encode(path: Path, folder: Path) -> int:
    """Read, fit and encode with fieldwise; the encoded table and the encoder are in `folder`. Returns the rows."""
    from fieldwise.data.encode.encoder import Encoder
    from fieldwise.data.prepare.labels import read_labels
    from fieldwise.data.read.tables import as_table
    from fieldwise.schema import Categorical, Label, Numeric, Schema

    fields = (*(Numeric(name) for name in NUMBERS), *(Categorical(name) for name in CATEGORIES))
    schema = Schema(fields=fields, label=Label("label"))
    rows = read_labels(as_table(path), schema.labels)
    encoder, table = Encoder.fit_transform(rows.frame, schema, y=rows.main)
    table.save(folder / "table")
    (folder / "encoder.json").write_text(encoder.to_json(), "utf-8")
    return rows.frame.height


def sklearn_encode(path: Path, folder: Path) -> int:
    """The same with pandas and scikit-learn: OrdinalEncoder and StandardScaler, saved as NumPy arrays."""
    import pandas as pd
    from sklearn.compose import ColumnTransformer
    from sklearn.preprocessing import OrdinalEncoder, StandardScaler

    frame = pd.read_csv(path, dtype=dict.fromkeys(CATEGORIES, "str"))
    # Missing numbers stay NaN in StandardScaler, as OrdinalEncoder keeps missing categories.
    ordinal = OrdinalEncoder(dtype=np.float64, handle_unknown="use_encoded_value", unknown_value=-1)
    steps = [("numbers", StandardScaler(), list(NUMBERS)), ("categories", ordinal, list(CATEGORIES))]
    encoded = ColumnTransformer(steps).fit_transform(frame)
    np.save(folder / "encoded.npy", encoded)
    np.save(folder / "y.npy", frame["label"].to_numpy(dtype=np.float32))
    return len(frame)


CONTESTANTS: dict[str, Callable[[Path, Path], int]] = {"fieldwise": fieldwise_encode, "scikit-learn": sklearn_encode}


def measure(encode: Callable[[Path, Path], int], path: Path, rows: int) -> float:
    """Wall seconds of one run into a fresh folder; the rows are counted."""
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        began = time.perf_counter()
        found = encode(path, Path(folder))
        seconds = time.perf_counter() - began
    if found != rows:
        sys.exit(f"{rows} rows were to be encoded, found {found}")
    return seconds


def compare(path: Path, rows: int, names: Sequence[str], repeats: int) -> dict[str, list[float]]:
    """Seconds of every contestant, in alternation."""
    seconds: dict[str, list[float]] = {name: [] for name in names}
    for _ in range(repeats):
        for name in names:
            seconds[name].append(measure(CONTESTANTS[name], path, rows))
    return seconds


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.preparing", description=__doc__)
    parser.add_argument("--rows", type=int, default=500_000)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--only", choices=CONTESTANTS, action="append", help="may be repeated; by default all")
    parser.add_argument("--file", type=Path, help="path of the CSV file, which is kept and reused")
    parser.add_argument("--json", action="store_true", help="one JSON object on standard output")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = arguments.file or Path(folder) / "log.csv"
        if not path.exists():
            write_log(path, arguments.rows)
        names = arguments.only or list(CONTESTANTS)
        seconds = compare(path, arguments.rows, names, arguments.repeats)
        size = path.stat().st_size
    report = {
        "rows": arguments.rows,
        "csv_mb": round(size / 1e6, 1),
        "threads": pl.thread_pool_size(),
        "seconds": {
            name: {"median": statistics.median(s), "least": min(s), "most": max(s)} for name, s in seconds.items()
        },
    }
    if arguments.json:
        json.dump(report, sys.stdout, indent=1)
        print()
        return
    print(f"{arguments.rows:,} rows, {size / 1e6:,.0f} MB of CSV, {pl.thread_pool_size()} threads")
    for name, s in seconds.items():
        print(f"{name:14} {statistics.median(s):8.2f} s (least {min(s):.2f}, most {max(s):.2f})")


if __name__ == "__main__":
    main()
