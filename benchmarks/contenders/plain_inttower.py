"""IntTower in plain PyTorch, as a user would write it from the paper: one module per field, einsum MaxSim, dense Adam.

Letters: B batch, F fields of a tower, D embedding size, L levels, H user heads, K item heads, P size of a head.
"""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.case import Timed
from benchmarks.device import device_of, watched
from benchmarks.timing import steps_to_time
from fieldwise.data.table import EncodedTable
from fieldwise.layout import FieldLayout


class Field(nn.Module):
    """One field's vectors: of a category, of a number times a vector, or the mean of several categories."""

    def __init__(self, field: FieldLayout, dim: int) -> None:
        super().__init__()
        self.kind = field.kind
        self.table = nn.Embedding(
            field.rows + (field.kind == "bag"), dim, padding_idx=field.rows if field.kind == "bag" else None
        )
        nn.init.normal_(self.table.weight, std=0.1)

    def forward(self, column: Tensor | tuple[Tensor, Tensor]) -> Tensor:
        if self.kind == "id":
            return self.table(column)
        if self.kind == "value":
            ids, numbers = column
            return self.table(ids) * numbers.unsqueeze(1)
        used = (column != self.table.padding_idx).unsqueeze(2)
        return (self.table(column) * used).sum(1) / used.sum(1).clamp(min=1)


class Tower(nn.Module):
    def __init__(self, fields: Sequence[FieldLayout], dim: int, hidden: Sequence[int], dropout: float) -> None:
        super().__init__()
        self.names = [f.name for f in fields]
        self.fields = nn.ModuleList(Field(f, dim) for f in fields)
        self.excite = nn.Linear(len(fields), len(fields))
        sizes = [len(fields) * dim, *hidden]
        self.layers = nn.ModuleList(
            nn.Sequential(nn.Linear(a, b), nn.BatchNorm1d(b), nn.ReLU(), nn.Dropout(dropout))
            for a, b in zip(sizes, hidden, strict=False)
        )

    def forward(self, columns: dict[str, Any]) -> list[Tensor]:
        x = torch.stack([field(columns[name]) for name, field in zip(self.names, self.fields, strict=True)], 1)
        weights = torch.softmax(self.excite(x.mean(2)), 1)
        x = (x + weights.unsqueeze(2) * x).flatten(1)
        levels = []
        for layer in self.layers:
            x = layer(x)
            levels.append(x)
        return levels


class IntTower(nn.Module):
    def __init__(self, fields: Sequence[FieldLayout], model: dict[str, Any]) -> None:
        super().__init__()
        sides = [[f for f in fields if (f.role == "item") == item] for item in (False, True)]
        hidden, self.dim, self.heads = model["hidden"], model["head_dim"], (model["user_heads"], model["item_heads"])
        self.user, self.item = (Tower(side, model["embedding_dim"], hidden, model["dropout"]) for side in sides)
        self.user_heads = nn.ModuleList(nn.Linear(n, self.heads[0] * self.dim) for n in hidden)
        self.item_heads = nn.Linear(hidden[-1], self.heads[1] * self.dim)

    def forward(self, columns: dict[str, Any]) -> tuple[Tensor, Tensor, Tensor]:
        user, item = self.user(columns), self.item(columns)
        item_BKP = self.item_heads(item[-1]).view(-1, self.heads[1], self.dim)
        score: Tensor = item_BKP.new_zeros(item_BKP.shape[0])
        for project, level in zip(self.user_heads, user, strict=True):
            user_BHP = project(level).view(-1, self.heads[0], self.dim)
            score = score + torch.einsum("bhp,bkp->bhk", user_BHP, item_BKP).max(2).values.sum(1)
        return score, user[-1], item[-1]


def contrastive(user: Tensor, item: Tensor, y: Tensor, temperature: float = 0.07) -> Tensor:
    """The mean over positive rows of InfoNCE against the batch's items."""
    scores = F.normalize(user, dim=1) @ F.normalize(item, dim=1).t() / temperature
    losses = F.cross_entropy(scores, torch.arange(len(y), device=y.device), reduction="none")
    return (losses * y).sum() / y.sum().clamp(min=1)


def columns_of(table: EncodedTable, rows: int) -> dict[str, Any]:
    """One tensor per field: categories from 0, lists padded to the longest."""
    found: dict[str, Any] = {}
    single = value = bag = 0
    fields, bags = table.layout.fields, len(table.layout.positions(kind="bag"))
    for field in fields:
        if field.kind == "bag":
            starts = table.bag_offsets[bag : rows * bags + 1 : bags]
            ends = table.bag_offsets[bag + 1 : rows * bags + 1 : bags]
            longest = int((ends - starts[: len(ends)]).max())
            padded = torch.full((rows, longest), field.rows)
            for r, (start, end) in enumerate(zip(starts, ends, strict=False)):
                padded[r, : end - start] = torch.from_numpy(table.bag_ids[start:end].astype("int64")) - field.offset
            found[field.name], bag = padded, bag + 1
            continue
        ids = torch.from_numpy(table.ids[:rows, single].astype("int64")) - field.offset
        single += 1
        if field.kind == "value":
            found[field.name] = ids, torch.from_numpy(table.values[:rows, value])
            value += 1
        else:
            found[field.name] = ids
    return found


def epoch(options: dict[str, Any]) -> Timed:
    """A shuffled pass: rows by index field by field, the loss read at every step."""
    table = EncodedTable.open(Path(options["table"]))
    rows, share = steps_to_time(len(table), options["batch"], options["steps"])
    torch.manual_seed(0)
    model = IntTower(table.layout.fields, options["model"])
    device = device_of(options)
    model.to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    loss_of = nn.BCEWithLogitsLoss()
    columns = columns_of(table, rows)
    assert table.y is not None
    y = torch.from_numpy(table.y[:rows, 0])

    def turn() -> dict[str, float]:
        model.train()
        began = time.perf_counter()
        total = 0.0
        for chosen in torch.randperm(rows).split(options["batch"]):
            batch = {
                name: tuple(part[chosen].to(device) for part in column)
                if isinstance(column, tuple)
                else column[chosen].to(device)
                for name, column in columns.items()
            }
            target = y[chosen].to(device)
            optimizer.zero_grad()
            score, user, item = model(batch)
            loss = loss_of(score, target) + options["model"]["cir_weight"] * contrastive(user, item, target)
            loss.backward()
            optimizer.step()
            total += loss.item()
        return {"seconds": (time.perf_counter() - began) * share}

    return watched(turn, device), {"parameters": sum(p.numel() for p in model.parameters()), "timed rows": rows}
