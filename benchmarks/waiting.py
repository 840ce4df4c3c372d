"""Cost of spinning threads in training: `python -m benchmarks.waiting` alternates PyTorch's and fieldwise's default.

Each measurement trains two epochs of AutoInt on 7,200 rows of the simulated log in its own process, first alone, then
with two busy processes running. GCC's OpenMP runtime spins 300,000 times by default; passing that number restores it.
"""

import os
import statistics
import subprocess
import sys

SCRIPT = """
import time
import torch
from fieldwise import AutoInt, Categorical, Label, Recommender, Schema, TrainingSettings, simulate

log = simulate(8_000)
fields = (Categorical("user_id"), Categorical("item_id"), Categorical("hour"))
model = AutoInt(embedding_dim=16)
training = TrainingSettings(epochs=2, batch_size=256, learning_rate=0.001)
recommender = Recommender(Schema(fields=fields, label=Label("liked")), model, training=training)
wall, processor = time.perf_counter(), time.process_time()
recommender.fit(log)
print(time.perf_counter() - wall, time.process_time() - processor)
"""
WAYS = {"spinning": {"GOMP_SPINCOUNT": "300000"}, "resting": {}}
ROUNDS = 3


def _seconds(settings: dict[str, str]) -> tuple[float, float]:
    clean = {name: value for name, value in os.environ.items() if name not in ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT")}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], env={**clean, **settings}, capture_output=True, text=True, check=True
    )
    wall, processor = map(float, done.stdout.split())
    return wall, processor


def main() -> None:
    """Measure and print medians."""
    print(f"{os.cpu_count()} processors, load {os.getloadavg()[0]:.1f} before")
    for beside in (0, 2):
        others = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(beside)]
        try:
            found = [{way: _seconds(settings) for way, settings in WAYS.items()} for _ in range(ROUNDS)]
        finally:
            for other in others:
                other.kill()
        for way in WAYS:
            wall, processor = (statistics.median(one[way][k] for one in found) for k in (0, 1))
            print(
                f"beside {beside}: {way:9s} {wall:6.1f} s, {processor:5.1f} processor seconds (medians of {ROUNDS})",
                flush=True,
            )


if __name__ == "__main__":
    main()
