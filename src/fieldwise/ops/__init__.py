"""Pure functions on tensors: the computations that dominate run time.

Each has a plain PyTorch backend, the reference implementation, and faster backends with the same
results, chosen by `use_ops`.
"""

from fieldwise.ops.fm import fm_second_order, pair_indices, pair_products
from fieldwise.ops.interacting import field_attention
from fieldwise.ops.native import use_ops
from fieldwise.ops.pair_attention import pair_attention_pool, pair_attention_pool_plain
from fieldwise.ops.stored_items import max_sim

__all__ = [
    "field_attention",
    "fm_second_order",
    "max_sim",
    "pair_attention_pool",
    "pair_attention_pool_plain",
    "pair_indices",
    "pair_products",
    "use_ops",
]
