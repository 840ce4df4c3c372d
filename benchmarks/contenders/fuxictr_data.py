"""FuxiCTR 2.3.10's preprocessing: its FeatureProcessor and build_dataset, from a CSV file to its Parquet file."""

import logging
import shutil
import time
from pathlib import Path
from typing import Any

import polars as pl
from fuxictr.preprocess import FeatureProcessor, build_dataset

from benchmarks.case import Timed

logging.disable(logging.WARNING)

NUMBERS = [f"I{k}" for k in range(1, 14)]
CATEGORIES = [f"C{k}" for k in range(1, 27)]


def preprocess(options: dict[str, Any]) -> Timed:
    """A turn fits and encodes the whole file as training data, with its caches removed before."""
    path = Path(options["path"])
    root = path.parent / "fuxictr"
    common = {"active": True, "fill_na": ""}
    numbers = {"active": True, "dtype": "float", "type": "numeric", "normalizer": "StandardScaler", "fill_na": 0.0}
    columns = [
        {"name": NUMBERS, **numbers},
        {"name": CATEGORIES, "dtype": "str", "type": "categorical", **common},
    ]

    def turn() -> dict[str, float]:
        shutil.rmtree(root, ignore_errors=True)
        began = time.perf_counter()
        processor = FeatureProcessor(
            feature_cols=columns, label_col={"name": "label", "dtype": "float"}, dataset_id="log", data_root=str(root)
        )
        build_dataset(processor, train_data=str(path), data_format="csv")
        seconds = time.perf_counter() - began
        found = pl.scan_parquet(root / "log" / "train.parquet").select(pl.len()).collect().item()
        if found != options["rows"]:
            raise ValueError(f"{options['rows']} rows were to be encoded, found {found}")
        return {"seconds": seconds, "rows per second": options["rows"] / seconds}

    return turn, {"rows": options["rows"], "polars": pl.__version__}
