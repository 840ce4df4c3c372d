"""A minimal reference server of the cascade: FastAPI, plain PyTorch, one request at a time.

`python -m benchmarks.serving.plain FOLDER PORT THREADS` serves the data that `prepare` wrote to
FOLDER. Networks, weights and encoders are fieldwise's, so both servers give the same responses.
Operations are plain PyTorch, the item heads are in memory, and contexts are encoded by fieldwise's
encoder of single rows: making a table for each request would take 10 ms.
"""

import sys
from pathlib import Path
from typing import Any

import polars as pl
import torch
import uvicorn
from fastapi import FastAPI, HTTPException
from pydantic import BaseModel

from fieldwise import Bundle
from fieldwise.data.encode.encoder import encode_row
from fieldwise.layers.candidates import Split
from fieldwise.ops import use_ops
from fieldwise.scoring.candidates import joined
from fieldwise.serving.index import open_index


class Ask(BaseModel):
    user: str
    context: dict[str, Any]
    k: int = 20
    prerank: int = 200
    where: dict[str, list[str]] = {}


class Item(BaseModel):
    id: str
    fields: dict[str, Any]
    prerank_score: float
    prediction: float


class Answer(BaseModel):
    items: list[Item]


class Side:
    """A bundle with its items encoded."""

    def __init__(self, folder: Path, items: pl.DataFrame) -> None:
        self.bundle = Bundle.load(folder)
        encoder = self.bundle.encoder
        context = [k for k, field in enumerate(encoder.fields) if field.role != "item"]
        self.split = Split.of(encoder.layout, context)
        self.items = encoder.transform(items, part=self.split.candidates.layout)

    def batch(self, values: dict[str, Any], rows: torch.Tensor) -> Any:
        encoded = encode_row(self.bundle.encoder, self.split.context.layout, values)
        assert encoded is not None
        return joined(self.split, encoded, self.items.batch(rows)[0])


def application(folder: Path) -> FastAPI:
    index = open_index(folder / "index")
    items = index.items
    heads_NKP = index.stored.heads.clone()
    tower = Side(folder / "inttower", items)
    ranker = Side(folder / "autoint", items)
    users = {
        row["user_id"]: row
        for row in pl.read_parquet(folder / "users.parquet").iter_rows(named=True)
    }
    app = FastAPI()

    @app.post("/v1/recommend")
    async def recommend(ask: Ask) -> Answer:
        if ask.user not in users:
            raise HTTPException(404, "unknown user")
        values = {**users[ask.user], **ask.context}
        values["history"] = (values["history"] or "").split("|")
        with torch.inference_mode(), use_ops("plain"):
            mask = torch.ones(items.height, dtype=torch.bool)
            for column, wanted in ask.where.items():
                mask &= torch.from_numpy(items[column].is_in(wanted).to_numpy())
            rows = mask.nonzero().flatten()
            user_HP = tower.bundle.network.user(tower.batch(values, rows[:1]))[0].flatten(0, 1)
            chosen = heads_NKP[rows]
            score = torch.einsum("hp,nkp->nhk", user_HP, chosen).amax(2).sum(1)
            prerank_score, best = torch.topk(score, min(ask.prerank, len(rows)))
            rows = rows[best]
            logit = ranker.bundle.network(ranker.batch(values, rows))
            order = torch.argsort(logit, descending=True, stable=True)[: ask.k]
            result = items[rows[order].numpy()]
            prediction = torch.sigmoid(logit[order]).tolist()
            prerank = prerank_score[order].tolist()
        rows_of = zip(result.iter_rows(named=True), prerank, prediction, strict=True)
        return Answer(
            items=[
                Item(id=row["item_id"], fields=row, prerank_score=s, prediction=p)
                for row, s, p in rows_of
            ]
        )

    return app


if __name__ == "__main__":
    torch.set_num_threads(int(sys.argv[3]))
    uvicorn.run(
        application(Path(sys.argv[1])), port=int(sys.argv[2]), log_level="warning", access_log=False
    )
