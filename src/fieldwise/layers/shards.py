"""Embedding tables whose rows are sharded over several processes: each keeps, reads and updates its own.

Row r belongs to process `r % size`, as its row `r // size`, so that frequent rows, which stand together in many
vocabularies, are spread evenly. A lookup sends each distinct id once to its owner and takes the row back; the
gradients go the same way, summed by id, and the owner's gradient is sparse.

Letters: R rows of the whole table, D its width, N ids, U distinct ids, M rows of this process that others ask for.
"""

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from fieldwise.distributed.world import World
from fieldwise.ops.rows import RowGroups, gather_rows, group_rows
from fieldwise.ops.sparse_update import sums_of_groups

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


class Shards:
    """How the rows of a network's tables are sharded over processes.

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
        found_ND: Tensor = _Fetched.apply(weight_MD, self._route(ids, rows))  # type: ignore[no-untyped-call]
        return found_ND.view(*ids.shape, weight_MD.shape[1])

    def drawn(self, rows: int, dim: int, std: float) -> Tensor:
        """This process's rows of a table that `nn.init.normal_` would draw as a whole, which is never in its memory."""
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

    def _route(self, ids: Tensor, rows: int) -> "Route":
        for known, of, route in self._routes:
            if known is ids and of == rows:
                return route
        route = Route(self.world, ids.reshape(-1), rows)
        self._routes = [(ids, rows, route), *self._routes[: REMEMBERED - 1]]
        return route


class Route:
    """Where the rows of some ids are, and how gradients get there; what needs the other processes is asked once.

    Args:
        world: the processes.
        ids_N: in [0, R).
        rows: R.

    Attributes:
        key_N: the ids' numbers where the rows of one process stand before those of the next.

    Errors:
        IndexError: an id that is not a row of the table.
    """

    def __init__(self, world: World, ids_N: Tensor, rows: int) -> None:
        self.world, self.each = world, -(-rows // world.size)  # rows of a process, at most
        if ids_N.numel():
            low, high = (int(found) for found in torch.aminmax(ids_N))
            if not 0 <= low <= high < rows:
                raise IndexError(f"ids must be rows of the table, 0 to {rows - 1}, found {low}, {high}")
        inner_N = torch.div(ids_N, world.size, rounding_mode="trunc")  # faster than `//` and `%`
        self.key_N = inner_N.add_(ids_N - inner_N * world.size, alpha=self.each)

    @cached_property
    def groups(self) -> RowGroups:
        """The keys sorted into groups of equal ones, U of them: by owner, then by row."""
        return group_rows(self.key_N, self.world.size * self.each)

    @cached_property
    def places(self) -> Tensor:
        """Each id's place among the distinct ones."""
        order, starts, _ = self.groups
        begins_N = torch.zeros(len(order), dtype=torch.int32, device=order.device)
        begins_N[starts[1:-1].long()] = 1
        place_N = begins_N.cumsum(0, dtype=torch.int32)
        return torch.empty_like(place_N).scatter_(0, order.long(), place_N)

    @cached_property
    def asked(self) -> list[int]:
        """How many of the U each process owns."""
        distinct = self.groups.distinct
        edges = torch.arange(self.world.size + 1, device=distinct.device, dtype=distinct.dtype) * self.each
        found: list[int] = torch.searchsorted(distinct, edges).diff().tolist()
        return found

    @cached_property
    def given(self) -> list[int]:
        """How many of this process's rows each one asks for; told by the others."""
        ones, asked = [1] * self.world.size, torch.tensor(self.asked, device=self.key_N.device)
        found: list[int] = self.world.swapped(asked, ones, ones).tolist()
        return found

    @cached_property
    def own(self) -> Tensor:
        """The M rows of this process that others, and itself, ask for; told by the others."""
        found = self.world.swapped(self.groups.distinct, self.asked, self.given)
        return found.sub_(self.world.rank * self.each)

    @cached_property
    def indices(self) -> Tensor:
        """`own` as a sparse tensor has it [1, M]; one for all tables, so that the optimizer sorts it once."""
        return self.own.long()[None]

    def fetched(self, weight: Tensor) -> Tensor:
        """Rows from their owners [N, D]."""
        found_UD = self.world.swapped(gather_rows(weight, self.own), self.given, self.asked)
        return gather_rows(found_UD, self.places)

    def returned(self, grad_ND: Tensor) -> Tensor:
        """Gradients of this process's rows, one for each of `own` [M, D]."""
        return self.world.swapped(sums_of_groups(self.groups, grad_ND), self.asked, self.given)


class _Fetched(torch.autograd.Function):
    """Rows by id [N, D]."""

    @staticmethod
    def forward(ctx: Any, weight_MD: Tensor, route: Route) -> Tensor:
        ctx.route, ctx.shape = route, weight_MD.shape
        return route.fetched(weight_MD.detach())

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        route: Route = ctx.route
        own_MD = route.returned(grads[0])
        return torch.sparse_coo_tensor(route.indices, own_MD, ctx.shape, check_invariants=False), None
