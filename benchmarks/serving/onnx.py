"""`python -m benchmarks.serving.onnx BUNDLE`: latency of scoring rows with fieldwise and with ONNX Runtime."""

import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import onnxruntime
import torch

from fieldwise import Bundle
from fieldwise.bundle.export import export_bundle

ROUNDS = 50


def main(folder: Path, rows: int) -> None:
    torch.set_num_threads(1)
    bundle = Bundle.load(folder)
    settings = onnxruntime.SessionOptions()
    settings.intra_op_num_threads = 1
    with tempfile.TemporaryDirectory() as exported:
        export_bundle(bundle, Path(exported) / "x", "onnx")
        session = onnxruntime.InferenceSession(str(Path(exported) / "x" / "model.onnx"), settings)
    samples = bundle.encoder.transform(bundle.samples)
    batch = samples.batch(torch.arange(rows) % len(samples))[0]
    feed = {part.name: getattr(batch, part.name).numpy() for part in session.get_inputs()}
    with torch.no_grad():
        ways: dict[str, Any] = {
            "fieldwise": lambda: bundle.network(batch).numpy(),
            "ONNX Runtime": lambda: session.run(None, feed)[0],
        }
        difference = abs(ways["fieldwise"]() - ways["ONNX Runtime"]()).max()
        times: dict[str, list[float]] = {name: [] for name in ways}
        for _ in range(ROUNDS):
            for name, way in ways.items():
                began = time.perf_counter()
                way()
                times[name].append(1000 * (time.perf_counter() - began))
    found = ", ".join(f"{name} {statistics.median(own):.2f} ms" for name, own in times.items())
    print(f"{type(bundle.settings).__name__}, {rows:,} rows, one thread: {found}; logits differ by {difference:.0e}")


if __name__ == "__main__":
    for wanted in (200, 1600):
        main(Path(sys.argv[1]), wanted)
