"""What checkpoints cost: time of training with and without, in alternation.

python -m benchmarks.checkpoints --rows 200000 --minutes 0.1
"""

import argparse
import shutil
import statistics
import tempfile
import time
from pathlib import Path

from fieldwise import Categorical, Label, Schema, simulate
from fieldwise.data.encode.encoder import Encoder
from fieldwise.models import FM
from fieldwise.models.build import build_network
from fieldwise.training.checkpoint import Checkpoints
from fieldwise.training.fit import Training
from fieldwise.training.objective import Objective
from fieldwise.training.settings import TrainingSettings
from fieldwise.training.unfinished import Unfinished


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--minutes", type=float, default=0.1, help="training.checkpoint_minutes")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--pairs", type=int, default=3)
    asked = parser.parse_args()
    log = simulate(asked.rows, users=20_000, items=5_000, seed=1)
    schema = Schema(
        fields=(Categorical("user_id", role="user"), Categorical("item_id", role="item")), label=Label("liked")
    )
    cut = asked.rows * 9 // 10
    y = log["liked"].to_numpy().astype("float32")
    encoder = Encoder.fit(log[:cut], schema)
    train, valid = encoder.transform(log[:cut], y=y[:cut]), encoder.transform(log[cut:], y=y[cut:])
    settings = TrainingSettings(epochs=asked.epochs, patience=asked.epochs, checkpoint_minutes=asked.minutes)
    folder = Path(tempfile.mkdtemp())

    def seconds(kept: Checkpoints | None) -> float:
        network = build_network(FM(embedding_dim=32), encoder.layout, 0, labels=1)
        began = time.perf_counter()
        Training(
            network=network, train=train, valid=valid, settings=settings, objective=Objective(), seed=0,
            checkpoints=kept,
        ).run()  # fmt: skip
        return time.perf_counter() - began

    ratios = []
    for pair in range(asked.pairs):
        place = Unfinished(folder=folder / str(pair))
        kept = Checkpoints(place=place, name="first", minutes=asked.minutes, about=dict)
        without, with_them = seconds(None), seconds(kept)
        ratios.append(with_them / without)
        print(f"without {without:.1f} s, with {with_them:.1f} s: {ratios[-1]:.3f}", flush=True)
    print(f"median ratio {statistics.median(ratios):.3f}")
    shutil.rmtree(folder)


if __name__ == "__main__":
    main()
