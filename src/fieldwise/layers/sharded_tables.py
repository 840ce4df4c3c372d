"""Sharding the embedding tables of a network over processes (`fieldwise.layers.shards`), and collecting them again."""

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from fieldwise.distributed.world import World
from fieldwise.layers.embedding import FieldEmbedding
from fieldwise.layers.shards import Shards
from fieldwise.storage.folders import scratch_folder
from fieldwise.storage.scratch import Scratch

__all__ = ["make_whole", "shard_tables", "sharded_tables", "whole_rows"]

PIECE = 1 << 16  # rows


def sharded_tables(network: nn.Module) -> Iterator[tuple[str, FieldEmbedding]]:
    """The network's embeddings with sharded tables, by their weights' names."""
    for name, module in network.named_modules():
        if isinstance(module, FieldEmbedding) and module.shards is not None:
            yield f"{name}.weight" if name else "weight", module


def shard_tables(network: nn.Module, world: World) -> None:
    """Leave each process only its rows of a network's embedding tables, in place."""
    shards = Shards(world)
    own: dict[int, nn.Parameter] = {}
    for module in network.modules():
        if isinstance(module, FieldEmbedding) and module.shards is None:
            whole = module.weight
            if id(whole) not in own:
                own[id(whole)] = nn.Parameter(shards.own(whole.detach()), requires_grad=whole.requires_grad)
            module.weight, module.shards = own[id(whole)], shards


def make_whole(network: nn.Module) -> None:
    """Give process 0 the whole tables again, on disk behind a mapping; the other processes keep their rows.

    Errors:
        DataError: the disk is full.
    """
    whole: dict[int, nn.Parameter] = {}
    for _, module in list(sharded_tables(network)):
        shards, part = module.shards, module.weight
        assert shards is not None, "sharded_tables chooses them"
        if id(part) not in whole:
            pieces = whole_rows(module)
            whole[id(part)] = _mapped(module, pieces) if shards.world.first else _passed(part, pieces)
        if shards.world.first:
            module.weight, module.shards = whole[id(part)], None


def _mapped(module: FieldEmbedding, pieces: Iterator[Tensor]) -> nn.Parameter:
    shape, kind = (module.num_rows, module.weight.shape[1]), module.weight.detach()[:0].cpu().numpy().dtype
    with scratch_folder() as folder:
        rows = torch.from_numpy(Scratch(folder).empty(shape, kind.type))  # mapped, also after the folder is gone
    at = 0
    for piece in pieces:
        rows[at : at + len(piece)] = piece
        at += len(piece)
    return nn.Parameter(rows, requires_grad=module.weight.requires_grad)


def _passed(own: nn.Parameter, pieces: Iterator[Tensor]) -> nn.Parameter:
    for _ in pieces:
        pass
    return own


def whole_rows(module: FieldEmbedding) -> Iterator[Tensor]:
    """The whole table's rows in order, piece by piece: in process 0; the others yield empty pieces."""
    assert module.shards is not None, "the table is sharded"
    world, rows = module.shards.world, module.num_rows
    most = -(-rows // world.size)
    for first in range(0, most, PIECE):
        end = min(first + PIECE, most)
        own = module.weight.detach()[first:end]
        lengths = [max(0, min(end, -(-(rows - rank) // world.size)) - first) for rank in range(world.size)]
        joined = world.collected(own, lengths)
        if joined is None:
            yield own[:0]
            continue
        piece = joined.new_empty(sum(lengths), joined.shape[1])
        for rank, part in enumerate(torch.split(joined, lengths)):
            piece[rank :: world.size] = part
        yield piece
