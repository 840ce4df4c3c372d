"""FuxiCTR 2.3.10. Its wheel contains neither AFM nor AutoInt: they are built here from its own layers, exactly as in
its published model zoo, and trained by its own `BaseModel.train_step`.
"""

import itertools
import logging
import math
import shutil
import tempfile
import time
from collections import OrderedDict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import torch
from fuxictr.features import FeatureMap
from fuxictr.preprocess import FeatureProcessor, build_dataset
from fuxictr.pytorch.dataloaders import RankDataLoader
from fuxictr.pytorch.layers import (
    FeatureEmbedding,
    InnerProductInteraction,
    LogisticRegression,
    ScaledDotProductAttention,
)
from fuxictr.pytorch.models import BaseModel
from torch import Tensor, nn

from benchmarks.case import NotAvailableError, Timed, steps_to_time
from benchmarks.log import CATEGORIES, NUMBERS, Log

logging.disable(logging.WARNING)


class AFM(BaseModel):
    """Pairs, attention over them, a linear unit, and the first-order sum."""

    def __init__(
        self, feature_map: FeatureMap, *, embedding_dim: int, attention_dim: int, **common: Any
    ) -> None:
        super().__init__(feature_map, **common)
        self.embeddings = FeatureEmbedding(feature_map, embedding_dim)
        self.pairs = InnerProductInteraction(feature_map.num_fields, output="elementwise_product")
        self.first_order = LogisticRegression(feature_map, use_bias=True)
        self.attention = nn.Sequential(
            nn.Linear(embedding_dim, attention_dim),
            nn.ReLU(),
            nn.Linear(attention_dim, 1, bias=False),
            nn.Softmax(dim=1),
        )
        self.dropouts = nn.ModuleList([nn.Dropout(0.0), nn.Dropout(0.0)])
        self.last = nn.Linear(embedding_dim, 1, bias=False)
        ready(self)

    def forward(self, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
        fields = self.get_inputs(inputs)
        products = self.pairs(self.embeddings(fields))
        weights = self.dropouts[0](self.attention(products))
        pooled = self.dropouts[1]((weights * products).sum(1))
        return {"y_pred": self.output_activation(self.first_order(fields) + self.last(pooled))}


class SelfAttention(nn.Module):
    """One interacting layer on FuxiCTR's scaled dot-product attention, without scaling, with its residual."""

    def __init__(self, inputs: int, size: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.head_size = size // heads
        self.query, self.key, self.value = (nn.Linear(inputs, size, bias=False) for _ in range(3))
        self.residual = nn.Linear(inputs, size, bias=False) if inputs != size else None
        self.attend = ScaledDotProductAttention(0.0)

    def forward(self, x: Tensor) -> Tensor:
        rows = x.size(0)
        q, k, v = (
            part(x).view(rows, -1, self.heads, self.head_size).transpose(1, 2)
            for part in (self.query, self.key, self.value)
        )
        joined, _ = self.attend(q, k, v, scale=None)
        joined = joined.transpose(1, 2).contiguous().view(rows, -1, self.heads * self.head_size)
        joined += x if self.residual is None else self.residual(x)
        return joined.relu()


class AutoInt(BaseModel):
    """Interacting layers and a linear unit; no MLP."""

    def __init__(
        self,
        feature_map: FeatureMap,
        *,
        embedding_dim: int,
        attention_dim: int,
        layers: int,
        heads: int,
        **common: Any,
    ) -> None:
        super().__init__(feature_map, **common)
        self.embeddings = FeatureEmbedding(feature_map, embedding_dim)
        sizes = [embedding_dim] + [attention_dim] * layers
        self.layers = nn.Sequential(
            *(SelfAttention(a, b, heads) for a, b in itertools.pairwise(sizes))
        )
        self.last = nn.Linear(feature_map.num_fields * attention_dim, 1)
        ready(self)

    def forward(self, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
        x = self.embeddings(self.get_inputs(inputs))
        return {
            "y_pred": self.output_activation(self.last(torch.flatten(self.layers(x), start_dim=1)))
        }


MODELS = {"afm": AFM, "autoint": AutoInt}


def ready(model: BaseModel) -> None:
    """The common last part of the constructors of FuxiCTR's models."""
    model.compile("adam", "binary_crossentropy", 1e-3)
    model.reset_parameters()
    model.model_to_device()


def feature_map(log: Log, folder: str) -> FeatureMap:
    """The log's fields in FuxiCTR's format: one more row per field, since row 0 is padding."""
    result = FeatureMap("benchmark", folder)
    result.features = OrderedDict(
        (f"f{f}", {"source": "", "type": "categorical", "padding_idx": 0, "vocab_size": size + 1})
        for f, size in enumerate(log.sizes)
    )
    result.labels = ["y"]
    result.num_fields = result.get_num_fields()
    result.set_column_index()
    return result


def build(log: Log, name: str, settings: dict[str, Any], device: str = "cpu") -> BaseModel:
    torch.manual_seed(0)
    if device == "cuda" and not torch.cuda.is_available():
        raise NotAvailableError("PyTorch of the peers' environment sees no GPU")
    folder = tempfile.gettempdir()
    common = {
        "verbose": 0,
        "model_root": folder,
        "metrics": ["AUC"],
        "gpu": 0 if device == "cuda" else -1,
    }
    model: BaseModel = MODELS[name](feature_map(log, folder), **settings, **common)
    return model


def columns(ids: np.ndarray, y: np.ndarray, batch: int) -> Iterator[dict[str, Tensor]]:
    """Batches as its loaders return them: one tensor per column."""
    tensors = {
        f"f{f}": torch.from_numpy(column + 1) for f, column in enumerate(ids.T.astype(np.int64))
    }
    tensors["y"] = torch.from_numpy(y)
    for start in range(0, len(y), batch):
        yield {name: column[start : start + batch] for name, column in tensors.items()}


def epoch(options: dict[str, Any]) -> Timed:
    """Training steps on batches prepared in memory, without the time of FuxiCTR's loader."""
    log = Log.open(options["log"])
    rows, share = steps_to_time(len(log.y), options["batch"], options.get("steps"))
    device = options.get("device", "cpu")
    model = build(log, options["model"], options["settings"], device)
    batches = list(columns(log.ids[:rows], log.y[:rows], options["batch"]))

    def turn() -> dict[str, float]:
        model._max_gradient_norm = 10.0
        model._eval_steps = math.inf
        model._total_steps = 0
        model._stop_training = False
        if device == "cuda":
            torch.cuda.reset_peak_memory_stats()
        began = time.perf_counter()
        model.train_epoch(batches)
        if device != "cuda":
            return {"seconds": (time.perf_counter() - began) * share}
        torch.cuda.synchronize()
        seconds = (time.perf_counter() - began) * share
        return {"seconds": seconds, "peak MB": torch.cuda.max_memory_allocated() / 1e6}

    return turn, {
        "parameters": sum(p.numel() for p in model.parameters() if p.requires_grad),
        "timed rows": rows,
    }


def predict(options: dict[str, Any]) -> Timed:
    """From a Parquet file of encoded rows, by its own loader, to a Parquet file of scores."""
    data = options["data"]
    rows = options["rows"]
    model = build(Log.open(options["log"]), "autoint", options["settings"])

    def turn() -> dict[str, float]:
        began = time.perf_counter()
        loader = RankDataLoader(
            model.feature_map,
            stage="test",
            test_data=data,
            batch_size=options["batch"],
            data_format="parquet",
        )
        scores = model.predict(loader)
        pl.DataFrame({"score": scores}).write_parquet(options["out"])
        seconds = time.perf_counter() - began
        if len(scores) != rows:
            raise ValueError(f"{rows} rows were to be scored, found {len(scores)}")
        return {"seconds": seconds, "rows per second": rows / seconds}

    return turn, {
        "rows": rows,
        "parameters": sum(p.numel() for p in model.parameters() if p.requires_grad),
    }


def preprocess(options: dict[str, Any]) -> Timed:
    """A turn fits and encodes the whole file as training data, with its caches removed before."""
    path = Path(options["path"])
    root = path.parent / "fuxictr"
    common = {"active": True, "fill_na": ""}
    numbers = {
        "active": True,
        "dtype": "float",
        "type": "numeric",
        "normalizer": "StandardScaler",
        "fill_na": 0.0,
    }
    columns = [
        {"name": list(NUMBERS), **numbers},
        {"name": list(CATEGORIES), "dtype": "str", "type": "categorical", **common},
    ]

    def turn() -> dict[str, float]:
        shutil.rmtree(root, ignore_errors=True)
        began = time.perf_counter()
        processor = FeatureProcessor(
            feature_cols=columns,
            label_col={"name": "label", "dtype": "float"},
            dataset_id="log",
            data_root=str(root),
        )
        build_dataset(processor, train_data=str(path), data_format="csv")
        seconds = time.perf_counter() - began
        result = pl.scan_parquet(root / "log" / "train.parquet").select(pl.len()).collect().item()
        if result != options["rows"]:
            raise ValueError(f"{options['rows']} rows were to be encoded, found {result}")
        return {"seconds": seconds, "rows per second": options["rows"] / seconds}

    return turn, {"rows": options["rows"], "polars": pl.__version__}
