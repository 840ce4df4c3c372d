"""Embedding tables whose rows several processes share out: each keeps, reads and updates its own.

Row r belongs to process `r % size`, as its row `r // size`, so that frequent rows, which stand together in many
vocabularies, are spread evenly. A lookup sends each distinct id once to its owner and takes the row back; the
gradients go the same way, summed by id, and the owner's gradient is sparse.

Letters: R rows of the whole table, D its width, N ids, U distinct ids, P processes, M rows that others ask for.
"""

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fieldwise.distributed.world import World
from fieldwise.ops.rows import gather_rows, group_rows

__all__ = ["BUILDING", "Shards", "building_shards"]

DRAWN = 1 << 16  # rows; PyTorch draws 16 numbers at once
REMEMBERED = 2  # lookups by the same ids, as of a table and its first-order weights, find their routes again


BUILDING: ContextVar["Shards | None"] = ContextVar("shards", default=None)


@contextlib.contextmanager
def building_shards(shards: "Shards | None") -> Iterator[None]:
    """A context in which embedding tables are made with this process's rows alone; None changes nothing."""
    token = BUILDING.set(shards)
    try:
        yield
    finally:
        BUILDING.reset(token)


class Route(NamedTuple):
    """Where the rows of some ids come from.

    Shape:
        places: [N], each id's place among the distinct ones, which are in the order of their owners.
        own: [M], rows of this process that others (and itself) ask for.
        asked, given: [P] each, how many of the U go to each process, and how many of the M come from each.
    """

    places: Tensor
    own: Tensor
    asked: list[int]
    given: list[int]


class Shards:
    """How the rows of a network's tables are shared out among processes.

    Args:
        world: the processes.
    """

    def __init__(self, world: World) -> None:
        self.world = world
        self._routes: list[tuple[Tensor, int, Route]] = []

    def __deepcopy__(self, _: object) -> "Shards":
        return self

    def rows(self, weight_MD: Tensor, ids: Tensor, rows: int) -> Tensor:
        """Rows of a table by id; all processes call this in the same order.

        Args:
            weight_MD: this process's rows of the table.
            ids: in [0, R), of any shape.
            rows: R.

        Shape:
            returns [*, D].

        Errors:
            IndexError: an id that is not a row of the table.
        """
        route = self._route(ids, rows)
        found_UD: Tensor = _Fetched.apply(weight_MD, route, self.world)  # type: ignore[no-untyped-call]
        return gather_rows(found_UD, route.places.view(ids.shape))

    def drawn(self, rows: int, dim: int, std: float) -> Tensor:
        """This process's rows of a table that `nn.init.normal_` would draw as a whole, which is never in memory."""
        rank, size = self.world.rank, self.world.size
        own, first = torch.empty(len(range(rank, rows, size)), dim), 0
        room = torch.empty(min(rows, 2 * DRAWN), dim)  # once: the C library would keep much of what is freed
        while first < rows:
            end = rows if rows - first < 2 * DRAWN else first + DRAWN  # a short last piece would be drawn otherwise
            piece = room[: end - first]
            torch.nn.init.normal_(piece, std=std)
            start = -(-(first - rank) // size)  # the first own row in it, counted among the own
            own[start : -(-(end - rank) // size)] = piece[start * size + rank - first :: size]
            first = end
        return own

    def own(self, table_RD: Tensor) -> Tensor:
        """This process's rows of a whole table, copied."""
        return table_RD[self.world.rank :: self.world.size].clone()

    def _route(self, ids: Tensor, rows: int) -> Route:
        for known, of, route in self._routes:
            if known is ids and of == rows:
                return route
        route = self._made(ids.reshape(-1), rows)
        self._routes = [(ids, rows, route), *self._routes[: REMEMBERED - 1]]
        return route

    def _made(self, ids_N: Tensor, rows: int) -> Route:
        world, size = self.world, self.world.size
        if ids_N.numel():
            low, high = (int(found) for found in torch.aminmax(ids_N))
            if not 0 <= low <= high < rows:
                raise IndexError(f"ids must be rows of the table, 0 to {rows - 1}, found {low}, {high}")
        each = -(-rows // size)  # rows of a process, at most
        groups = group_rows(ids_N % size * each + ids_N // size, size * each)  # sorted by owner, then by row there
        edges = torch.arange(size + 1, device=ids_N.device) * each
        asked_P = torch.searchsorted(groups.distinct, edges.to(groups.distinct.dtype)).diff()
        ones = [1] * size
        asked, given = asked_P.tolist(), world.swapped(asked_P, ones, ones).tolist()
        own_M = world.swapped(groups.distinct % each, asked, given)
        place_U = torch.arange(len(groups.distinct), device=ids_N.device)
        place_N = torch.repeat_interleave(place_U, groups.starts.diff().long(), output_size=len(ids_N))
        return Route(torch.empty_like(place_N).scatter_(0, groups.order.long(), place_N), own_M, asked, given)


class _Fetched(torch.autograd.Function):
    """The rows of the distinct ids [U, D], from their owners."""

    @staticmethod
    def forward(ctx: Any, weight_MD: Tensor, route: Route, world: World) -> Tensor:
        ctx.route, ctx.world, ctx.shape = route, world, weight_MD.shape
        return world.swapped(gather_rows(weight_MD.detach(), route.own), route.given, route.asked)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        route: Route = ctx.route
        world: World = ctx.world
        own_MD = world.swapped(grads[0], route.asked, route.given)
        return torch.sparse_coo_tensor(route.own.long()[None], own_MD, ctx.shape, check_invariants=False), None, None
