"""AFM in plain PyTorch, as a user would write it from the paper: one embedding per field, index lists for the pairs."""

import itertools
import time
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.case import Timed
from benchmarks.device import device_of, watched
from benchmarks.log import Log
from benchmarks.timing import steps_to_time


class AFM(nn.Module):
    def __init__(self, sizes: tuple[int, ...], dim: int, attention: int) -> None:
        super().__init__()
        self.embeddings = nn.ModuleList(nn.Embedding(n, dim) for n in sizes)
        self.weights = nn.ModuleList(nn.Embedding(n, 1) for n in sizes)
        for table in [*self.embeddings, *self.weights]:
            nn.init.normal_(table.weight, std=0.01)
        pairs = list(itertools.combinations(range(len(sizes)), 2))
        self.left, self.right = [i for i, _ in pairs], [j for _, j in pairs]
        self.attention = nn.Sequential(nn.Linear(dim, attention), nn.ReLU(), nn.Linear(attention, 1, bias=False))
        self.output = nn.Linear(dim, 1)

    def forward(self, ids: Tensor) -> Tensor:
        x = torch.stack([table(ids[:, f]) for f, table in enumerate(self.embeddings)], 1)
        products = x[:, self.left] * x[:, self.right]
        weights = torch.softmax(self.attention(products), 1)
        first = torch.stack([table(ids[:, f]) for f, table in enumerate(self.weights)], 1).sum(1)
        return (first + self.output((weights * products).sum(1))).squeeze(1)


def epoch(options: dict[str, Any]) -> Timed:
    """A shuffled pass: rows by index, dense Adam, the loss read at every step."""
    log = Log.open(options["log"])
    rows, share = steps_to_time(len(log.y), options["batch"], options.get("steps"))
    torch.manual_seed(0)
    model = AFM(log.sizes, options["settings"]["embedding_dim"], options["settings"]["attention_dim"])
    device = device_of(options)
    model.to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    loss_of = nn.BCEWithLogitsLoss()
    ids, y = torch.from_numpy(log.ids[:rows]).long(), torch.from_numpy(log.y[:rows])

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

    return watched(turn, device), {"parameters": sum(p.numel() for p in model.parameters()), "timed rows": rows}
