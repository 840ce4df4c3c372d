"""Pure functions on tensors: the few computations that decide speed, in plain PyTorch, which is the truth."""

from fieldwise.ops.field_attention import field_attention
from fieldwise.ops.maxsim import max_sim
from fieldwise.ops.pairs import fm_second_order, pair_attention_pool, pair_indices, pair_products

__all__ = ["field_attention", "fm_second_order", "max_sim", "pair_attention_pool", "pair_indices", "pair_products"]
