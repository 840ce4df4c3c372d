"""FuxiCTR 2.3.10 from Parquet files to the end of the first epoch, in the environment of other libraries.

`python -m benchmarks.large.fuxictr_worker OPTIONS`, with OPTIONS as JSON. Lines on standard error say when a phase has
ended; standard output is the metrics as JSON. Its own loader, training loop, evaluation and checkpoint are used.
"""

import json
import logging
import sys
from pathlib import Path
from typing import Any

import torch
from fuxictr.features import FeatureMap
from fuxictr.preprocess import FeatureProcessor, build_dataset
from fuxictr.pytorch.dataloaders import RankDataLoader
from fuxictr.pytorch.layers import FactorizationMachine, FeatureEmbedding
from fuxictr.pytorch.models import BaseModel
from torch import Tensor

from benchmarks.contenders.fuxictr import AutoInt, ready

logging.disable(logging.WARNING)


class FM(BaseModel):
    """As in FuxiCTR's model zoo."""

    def __init__(self, feature_map: FeatureMap, *, embedding_dim: int, **common: Any) -> None:
        super().__init__(feature_map, **common)
        self.embeddings = FeatureEmbedding(feature_map, embedding_dim)
        self.fm = FactorizationMachine(feature_map)
        ready(self)

    def forward(self, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
        fields = self.get_inputs(inputs)
        return {"y_pred": self.output_activation(self.fm(fields, self.embeddings(fields)))}


MODELS = {"fm": FM, "autoint": AutoInt}


def main() -> None:
    options = json.loads(sys.argv[1])
    torch.set_num_threads(options["threads"])
    root = Path(options["folder"])
    processor = FeatureProcessor(
        feature_cols=columns(options),
        label_col={"name": options["label"], "dtype": "float"},
        dataset_id="log",
        data_root=str(root),
    )
    files = {f"{part}_data": str(Path(options["data"]) / f"{part}.parquet") for part in ("train", "valid", "test")}
    train, valid, _ = build_dataset(
        processor,
        **files,
        data_format="parquet",
        min_categr_count=options["min_count"],
        data_block_size=options["block_rows"],
    )
    tell("prepared")
    torch.manual_seed(0)
    found = processor.feature_map
    common = {"verbose": 0, "model_root": str(root / "models"), "metrics": ["AUC", "logloss"], "monitor": "AUC"}
    model = MODELS[options["model"]](found, **options["settings"], **common)
    model.optimizer = getattr(torch.optim, options["optimizer"])(model.parameters(), lr=options["learning_rate"])
    Path(model.model_dir).mkdir(parents=True, exist_ok=True)
    train_rows, valid_rows = RankDataLoader(
        found, "train", train_data=train, valid_data=valid, batch_size=options["batch"], data_format="parquet"
    )
    evaluate = model.evaluate
    metrics: dict[str, float] = {}

    def told(*given: Any, **named: Any) -> dict[str, float]:
        tell("steps of the epoch done")
        metrics.update(evaluate(*given, **named))
        return metrics

    model.evaluate = told
    model.fit(train_rows, epochs=1, validation_data=valid_rows)
    tell("epoch done")
    parameters = sum(p.numel() for p in model.parameters() if p.requires_grad)
    json.dump({"parameters": parameters, "valid": {k: float(v) for k, v in metrics.items()}}, sys.stdout)


def columns(options: dict[str, Any]) -> list[dict[str, Any]]:
    """Columns in FuxiCTR's format; missing numbers are 0, as in its examples."""
    numbers = {"active": True, "dtype": "float", "type": "numeric", "normalizer": "StandardScaler", "fill_na": 0.0}
    categories = {"active": True, "type": "categorical"}
    return [
        {"name": options["numbers"], **numbers},
        {"name": options["texts"], "dtype": "str", "fill_na": "", **categories},
        {"name": options["integers"], "dtype": "int", "fill_na": 0, **categories},
    ]


def tell(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
