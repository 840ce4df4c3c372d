"""What training in windows (`training.shuffle_rows`) costs in quality and in speed.

python -m benchmarks.windows quality --models fm,autoint --seeds 5   (MovieLens-1M, from FIELDWISE_DATA or --data-dir)
python -m benchmarks.windows speed --rows 2000000 --models fm,autoint

`quality` sorts the ratings by time, and trains with a full shuffle and with windows of a 20th of the training rows, for
each seed: it prints the test AUCs and the mean paired difference with its 95 % interval (Student's t over seeds).
`speed` trains one epoch on a table in memory and on the same table mapped from disk in windows, in alternation.
"""

import argparse
import dataclasses
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from scipy import stats

from fieldwise.data.table import EncodedTable
from fieldwise.evaluation.ranking import auc
from fieldwise.layout import Layout
from fieldwise.models import FM, AutoInt
from fieldwise.models.build import build_network
from fieldwise.runs.data import load_frame, prepare_recipe
from fieldwise.runs.fitting import fit_recipe
from fieldwise.runs.recipe import load_recipe
from fieldwise.scoring.batches import SCORING_BATCH, score_batches
from fieldwise.training.fit import Training
from fieldwise.training.objective import Objective
from fieldwise.training.settings import TrainingSettings
from fieldwise.training.waiting import rest_while_waiting

FIELDS = 39
VALID_ROWS = 1_000  # evaluated once, outside of the measured time


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command."""
    options = _parser().parse_args(arguments)
    torch.set_num_threads(options.threads)
    rest_while_waiting()
    return quality(options) if options.what == "quality" else speed(options)


def quality(options: argparse.Namespace) -> int:
    """Test AUC with windows against that of a full shuffle."""
    for model in options.models:
        words = [f"training.{word}" for word in (f"epochs={options.epochs}", f"patience={options.epochs}")]
        recipe = load_recipe(f"movielens-1m/{model}-ids", [*words, *options.set], protocol="time")
        frame = load_frame(recipe.data, options.data_dir)
        if options.rows is not None and options.rows < frame.height:
            frame = frame[np.random.default_rng(0).choice(frame.height, options.rows, replace=False)]
        prepared = prepare_recipe(recipe, options.data_dir, frame.sort("timestamp", "user_id", "movie_id"))
        rows = len(prepared.train.table)
        window = rows // options.windows
        print(
            f"{model}: {rows:,} training rows sorted by time, windows of {window:,}, {options.epochs} epochs",
            flush=True,
        )
        differences = []
        for seed in range(options.seeds):
            found = []
            for wanted in (rows, window):
                training = dataclasses.replace(recipe.training, shuffle_rows=wanted)
                fitted = fit_recipe(dataclasses.replace(recipe, training=training, seed=seed), prepared)
                table = prepared.test.table
                found.append(auc(prepared.test.main, score_batches(fitted.network, table.batches(SCORING_BATCH))))
            differences.append(found[1] - found[0])
            print(f"  seed {seed}: full {found[0]:.5f}, windows {found[1]:.5f}, {differences[-1]:+.5f}", flush=True)
        mean = statistics.fmean(differences)
        half = stats.t.ppf(0.975, len(differences) - 1) * stats.sem(differences)
        print(f"  mean difference {mean:+.5f}, 95 % interval [{mean - half:+.5f}, {mean + half:+.5f}]", flush=True)
    return 0


def speed(options: argparse.Namespace) -> int:
    """Seconds of an epoch in windows against those in memory."""
    table, valid = made(options.rows, 0), made(VALID_ROWS, 1)
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        table.save(Path(folder) / "table")
        mapped = EncodedTable.open(Path(folder) / "table")
        window = options.window or options.rows // options.windows
        print(f"{options.rows:,} rows of {FIELDS} fields, {table.nbytes / 2**20:,.0f} MiB, windows of {window:,} rows")
        for model in options.models:
            ratios = []
            for turn in range(options.pairs):
                kinds = [(table, options.rows), (mapped, window)]
                seconds = {wanted: epoch(model, one, valid, wanted) for one, wanted in kinds[:: (-1) ** turn]}
                ratios.append(seconds[options.rows] / seconds[window])
                words = f"in memory {seconds[options.rows]:.2f} s, in windows {seconds[window]:.2f} s"
                print(f"  {model}: {words}, rate {ratios[-1]:.3f}", flush=True)
            print(f"  {model}: median rate {statistics.median(ratios):.3f} of that in memory", flush=True)
    return 0


def epoch(model: str, table: EncodedTable, valid: EncodedTable, window: int) -> float:
    """Seconds of one epoch, without evaluation."""
    settings = TrainingSettings(epochs=1, batch_size=4096, shuffle_rows=window)
    kinds = {
        "fm": (FM(embedding_dim=16), {"optimizer": "adagrad", "embedding_update": "lazy"}),
        "autoint": (AutoInt(embedding_dim=16, layers=2, heads=2), {"embedding_update": "lazy"}),
    }
    kind, more = kinds[model]
    network = build_network(kind, table.layout, 0)
    settings = dataclasses.replace(settings, **more)
    training = Training(network=network, train=table, valid=valid, settings=settings, objective=Objective(), seed=0)
    began = time.perf_counter()
    result = training.run()
    return result.seconds_per_epoch or time.perf_counter() - began


def made(rows: int, seed: int) -> EncodedTable:
    """Random ids of fields of 1,000 to 100,000 values, and labels."""
    draws = np.random.default_rng(seed)
    sizes = np.geomspace(1_000, 100_000, FIELDS).astype(int)
    ids = np.empty((rows, FIELDS), np.int32)
    for field, size in enumerate(sizes):
        ids[:, field] = draws.integers(0, size, rows) + sizes[:field].sum()
    y = draws.integers(0, 2, rows).astype(np.float32)
    return EncodedTable(
        Layout.of_sizes(sizes.tolist()), ids, np.zeros((rows, 0), np.float32), np.zeros(0, np.int32),
        np.zeros(1, np.int64), y=y,
    )  # fmt: skip


def _parser() -> argparse.ArgumentParser:
    found = argparse.ArgumentParser(
        prog="python -m benchmarks.windows", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    found.add_argument("what", choices=["quality", "speed"])
    found.add_argument("--models", type=lambda text: text.split(","), default=["fm", "autoint"])
    found.add_argument("--windows", type=int, default=20, help="windows of an epoch")
    found.add_argument("--window", type=int, help="speed: rows of a window")
    found.add_argument("--rows", type=int, help="quality: a random sample of the ratings")
    found.add_argument("--epochs", type=int, default=5)
    found.add_argument("--seeds", type=int, default=5)
    found.add_argument("--pairs", type=int, default=5)
    found.add_argument("--threads", type=int, default=2)
    found.add_argument("--set", action="append", default=[], help="quality: a setting of the recipe")
    found.add_argument("--folder", type=Path, help="speed: where the mapped table is written")
    found.add_argument("--data-dir", type=Path, default=Path(os.environ.get("FIELDWISE_DATA", "data")))
    return found


if __name__ == "__main__":
    sys.exit(main())
