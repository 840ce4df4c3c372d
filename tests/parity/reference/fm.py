"""Factorization Machine (Rendle, ICDM 2010), pair by pair."""

from parity.reference.common import field_vectors, first_order, pairs

from fieldwise import FM

CASES = {"plain": FM(embedding_dim=4)}


def logit(settings, layout, batch, w):
    x = field_vectors(layout, batch, w["embedding.weight"])
    out = first_order(layout, batch, w["first_order.embedding.weight"], w["first_order.bias"])
    return out + sum((x[:, i] * x[:, j]).sum(1) for i, j in pairs(layout.num_fields))
