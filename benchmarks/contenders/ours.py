"""fieldwise, scikit-learn's encoders, AFM as a plain PyTorch loop, and the machine's own speed."""

import itertools
import tempfile
import time
import timeit
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import torch
from torch import Tensor, nn

from benchmarks.case import NotAvailableError, Timed, steps_to_time
from benchmarks.log import CATEGORIES, NUMBERS, Log
from fieldwise.bundle.bundle import Bundle
from fieldwise.cli import predict
from fieldwise.cli.options import Reading
from fieldwise.data.encode.encoder import Encoder
from fieldwise.data.prepare.labels import read_labels
from fieldwise.data.read.tables import as_table
from fieldwise.data.table import EncodedTable
from fieldwise.errors import ConfigError
from fieldwise.layout import Layout
from fieldwise.models import parameter_count
from fieldwise.models.build import build_network
from fieldwise.models.serialise import model_from_dict
from fieldwise.ops import use_ops
from fieldwise.ops.devices import open_device, slow_bfloat16
from fieldwise.ops.native import NATIVE
from fieldwise.schema import Categorical, Label, Numeric, Schema
from fieldwise.storage.scratch import NO_LIMIT
from fieldwise.training.fit import Training
from fieldwise.training.objective import Objective
from fieldwise.training.settings import TrainingSettings

SIZE = 1024
SMALL = 256


def epoch(options: dict[str, Any]) -> Timed:
    """The steps of an epoch of `fit`, including batch assembly and shuffling, as in its `seconds_per_epoch`."""
    log = Log.open(options["log"])
    rows, share = steps_to_time(len(log.y), options["batch"], options.get("steps"))
    train = table(log, log.ids[:rows], log.y[:rows])
    few = table(log, log.valid_ids[:256], log.valid_y[:256])
    training = {
        "batch_size": options["batch"],
        "epochs": 1,
        "monitor": "logloss",
        **options.get("training", {}),
    }
    here = training.get("device", "cpu").split(":")[0]
    if training.get("precision") == "bfloat16" and (slow := slow_bfloat16(here)):
        raise NotAvailableError(slow)
    settings = TrainingSettings(**training)
    network = build_network(model_from_dict(options["model"]), train.layout, 0)
    device = device_of(options)

    def turn() -> dict[str, float]:
        with use_ops(options.get("ops", "auto")):
            result = Training(
                network, train, few, settings=settings, objective=Objective(), seed=0
            ).run()
        assert result.seconds_per_epoch is not None
        return {"seconds": result.seconds_per_epoch * share}

    return watched(turn, device), {"parameters": parameter_count(network), "timed rows": rows}


def table(log: Log, ids: np.ndarray, y: np.ndarray) -> EncodedTable:
    """Rows of a log."""
    return EncodedTable(
        Layout.of_sizes(list(log.sizes)),
        (ids + log.offsets).astype(np.int32),
        np.empty((len(y), 0), np.float32),
        np.empty(0, np.int32),
        np.zeros(1, np.int64),
        y,
    )


def device_of(options: Mapping[str, Any]) -> torch.device:
    """The device that the options name, `cpu` if none.

    Errors:
        NotAvailableError: it is not there.
    """
    try:
        return open_device(options.get("device", "cpu"))
    except ConfigError as e:
        raise NotAvailableError(str(e)) from None


def watched(
    turn: Callable[[], dict[str, float]], device: torch.device
) -> Callable[[], dict[str, float]]:
    """A turn that also measures the most memory of the GPU that tensors took; the turn itself on the CPU."""
    if device.type != "cuda":
        return turn

    def measured() -> dict[str, float]:
        torch.cuda.reset_peak_memory_stats(device)
        result = turn()
        return {**result, "peak MB": torch.cuda.max_memory_allocated(device) / 1e6}

    return measured


def parquet(options: dict[str, Any]) -> Timed:
    """`fieldwise predict`: a bundle and a Parquet file of raw values to a Parquet file of keys and scores."""
    folder = Path(options["folder"])
    precision = options.get("precision", "float32")
    bundle = folder / "bundle"
    data = folder / "raw.parquet"
    out = folder / options["out"]
    wanted = {
        "bundle": bundle,
        "data": data,
        "out": out,
        "reading": Reading(),
        "precision": precision,
    }

    def turn() -> dict[str, float]:
        out.unlink(missing_ok=True)
        torch.set_num_threads(options["threads"])
        began = time.perf_counter()
        with use_ops(options.get("ops", "auto")):
            predict.run(predict.PredictOptions(**wanted))
        seconds = time.perf_counter() - began
        if pl.scan_parquet(out).select(pl.len()).collect().item() != options["rows"]:
            raise ValueError("not every row was scored")
        return {"seconds": seconds, "rows per second": options["rows"] / seconds}

    facts = Bundle.load(bundle).about.run_facts
    return turn, {"rows": options["rows"], "parameters": facts["parameters"]}


def fieldwise_encode(path: Path, folder: Path) -> int:
    """Read, fit and encode with fieldwise; the encoded table and the encoder are in `folder`. Returns the rows."""
    fields = (*(Numeric(name) for name in NUMBERS), *(Categorical(name) for name in CATEGORIES))
    schema = Schema(fields=fields, label=Label("label"))
    rows = read_labels(as_table(path), schema.labels, budget=NO_LIMIT)
    encoder = Encoder.fit(rows.frame, schema)
    encoder.transform(rows.frame, y=rows.main).save(folder / "table")
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
    steps = [
        ("numbers", StandardScaler(), list(NUMBERS)),
        ("categories", ordinal, list(CATEGORIES)),
    ]
    encoded = ColumnTransformer(steps).fit_transform(frame)
    np.save(folder / "encoded.npy", encoded)
    np.save(folder / "y.npy", frame["label"].to_numpy(dtype=np.float32))
    return len(frame)


def encoding(options: dict[str, Any]) -> Timed:
    """A turn encodes a CSV file into a fresh folder, with fieldwise or scikit-learn."""
    encode = fieldwise_encode if options["by"] == "fieldwise" else sklearn_encode
    path = Path(options["path"])
    rows = options["rows"]

    def turn() -> dict[str, float]:
        with tempfile.TemporaryDirectory(dir=path.parent) as folder:
            began = time.perf_counter()
            result = encode(path, Path(folder))
            seconds = time.perf_counter() - began
        if result != rows:
            raise NotAvailableError(f"it encoded {result} of {rows} rows")
        return {"seconds": seconds, "rows per second": rows / seconds}

    return turn, {"rows": rows}


class PlainAFM(nn.Module):
    """AFM as a user would write it from the paper: one embedding per field, index lists for the pairs."""

    def __init__(self, sizes: tuple[int, ...], dim: int, attention: int) -> None:
        super().__init__()
        self.embeddings = nn.ModuleList(nn.Embedding(n, dim) for n in sizes)
        self.weights = nn.ModuleList(nn.Embedding(n, 1) for n in sizes)
        for table in [*self.embeddings, *self.weights]:
            nn.init.normal_(table.weight, std=0.01)
        pairs = list(itertools.combinations(range(len(sizes)), 2))
        self.left = [i for i, _ in pairs]
        self.right = [j for _, j in pairs]
        self.attention = nn.Sequential(
            nn.Linear(dim, attention), nn.ReLU(), nn.Linear(attention, 1, bias=False)
        )
        self.output = nn.Linear(dim, 1)

    def forward(self, ids: Tensor) -> Tensor:
        x = torch.stack([table(ids[:, f]) for f, table in enumerate(self.embeddings)], 1)
        products = x[:, self.left] * x[:, self.right]
        weights = torch.softmax(self.attention(products), 1)
        first = torch.stack([table(ids[:, f]) for f, table in enumerate(self.weights)], 1).sum(1)
        return (first + self.output((weights * products).sum(1))).squeeze(1)


def plain_afm_epoch(options: dict[str, Any]) -> Timed:
    """A shuffled pass: rows by index, dense Adam, the loss read at every step."""
    log = Log.open(options["log"])
    rows, share = steps_to_time(len(log.y), options["batch"], options.get("steps"))
    torch.manual_seed(0)
    model = PlainAFM(
        log.sizes, options["settings"]["embedding_dim"], options["settings"]["attention_dim"]
    )
    device = device_of(options)
    model.to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    loss_of = nn.BCEWithLogitsLoss()
    ids = torch.from_numpy(log.ids[:rows]).long()
    y = torch.from_numpy(log.y[:rows])

    def turn() -> dict[str, float]:
        began = time.perf_counter()
        total = 0.0
        for chosen in torch.randperm(rows).split(options["batch"]):
            optimizer.zero_grad()
            loss = loss_of(model(ids[chosen].to(device)), y[chosen].to(device))
            loss.backward()
            optimizer.step()
            total += loss.item()
        return {"seconds": (time.perf_counter() - began) * share}

    return watched(turn, device), {
        "parameters": sum(p.numel() for p in model.parameters()),
        "timed rows": rows,
    }


def rates(_: dict[str, Any]) -> Timed:
    """Matrix products of 1024 x 1024 in float32, of 256 x 256 in bfloat16; a copy of 64 MB (bytes read and written).

    The bfloat16 matrices are small, since a processor without bfloat16 instructions is hundreds of
    times slower.
    """
    torch.manual_seed(0)
    a = torch.randn(SIZE, SIZE)
    b = torch.randn(SIZE, SIZE)
    out = torch.empty(SIZE, SIZE)
    low_a, low_b, low_out = (x[:SMALL, :SMALL].bfloat16().contiguous() for x in (a, b, out))
    source = torch.randn(2**24)
    target = torch.empty(2**24)

    def best(work: Callable[[], object]) -> float:
        return min(timeit.repeat(work, number=1, repeat=5))

    def turn() -> dict[str, float]:
        return {
            "GFLOP/s float32": 2e-9 * SIZE**3 / best(lambda: torch.mm(a, b, out=out)),
            "GFLOP/s bfloat16": 2e-9 * SMALL**3 / best(lambda: torch.mm(low_a, low_b, out=low_out)),
            "copy GB/s": 2 * source.nbytes / 1e9 / best(lambda: target.copy_(source)),
        }

    facts = {
        "PyTorch": torch.__version__,
        "CPU instructions": torch.backends.cpu.get_cpu_capability(),
    }
    return turn, {**facts, "native ops": NATIVE.isa if NATIVE.ready else f"none ({NATIVE.why})"}
