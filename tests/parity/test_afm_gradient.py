"""The gradient of an embedding in AFM, which has a term through the products and a term through the weights.

For one row, with v_i the vector and x_i the number (1 for a category) of field i:

    q_ij  = (v_i * v_j) x_i x_j                      P = F (F - 1) / 2 pairs i < j, each a vector of
    D e_ij  = h . relu(W q_ij + b)
    a_ij  = exp(e_ij) / sum over all pairs of exp(e)
    logit = w0 + sum_i w_i x_i + p . s               with the pooled vector s = sum_ij a_ij q_ij

The logit depends on a product directly, with the weights held, and through the weight of its pair,
which takes from those of all others:

    d logit / d q_ij = a_ij p  +  sum_kl (p . q_kl) (d a_kl / d e_ij) (d e_ij / d q_ij)
    d a_kl  / d e_ij = a_kl ([kl = ij] - a_ij)                                         of the
    softmax d e_ij  / d q_ij = W^T (h * [W q_ij + b > 0])                                      =:
    r_ij

The sum over kl is a_ij (p . q_ij - p . s), so that

    d logit / d q_ij = a_ij p  +  a_ij (p . (q_ij - s)) r_ij

A vector is part of the F - 1 products with all other fields, d q_ij / d v_i = x_i x_j diag(v_j),
hence

    d logit / d v_i  =  sum_{j != i} x_i x_j  a_ij p * v_j                                through
    the products
                      + sum_{j != i} x_i x_j  a_ij (p . (q_ij - s)) r_ij * v_j            through
                      the weights

and of the first order d logit / d w_i = x_i, d logit / d w0 = 1. Over a batch with d loss / d
logit_b = c_b, a row of the table takes the sum of c_b times this over all cells that hold it.
"""

import numpy as np
import pytest
import torch
from parity import lab
from parity.reference.common import pairs, relu

from fieldwise import AFM

# Few rows a field, so that one row of the table stands in several rows of the batch.
LAYOUT = lab.make_layout(
    ("id", "user", 3),
    ("value", "item", 1),
    ("id", "item", 2),
    ("value", "context", 2),
    ("id", "user", 2),
)
ROWS = 6
C = np.array([1.0, -2.0, 0.5, 3.0, -1.0, 0.25])


@pytest.fixture(params=[0, 1, 2])
def problem(request):
    network = lab.randomized(
        AFM(embedding_dim=3, attention_dim=4).build(LAYOUT), seed=request.param
    )
    # so that some units of the attention are on and others off
    network.embedding.weight.data.mul_(3)
    return network, lab.random_batch(LAYOUT, ROWS, seed=request.param), lab.weights(network)


def numbers(batch):
    """x [B, F]: the number of a numeric field, 1 of a category."""
    x = np.ones((ROWS, LAYOUT.num_fields))
    x[:, LAYOUT.positions(kind="value")] = batch.values.numpy()
    return x


def terms(batch, w):
    """Both terms of d loss / d embedding.weight [R, D], by the equations above."""
    ids, x = batch.ids.numpy(), numbers(batch)
    W, b, h, p = (w[name] for name in ("attention.W", "attention.b", "attention.h", "p"))
    through_products, through_weights = (np.zeros_like(w["embedding.weight"]) for _ in range(2))
    for row in range(ROWS):
        v = w["embedding.weight"][ids[row]]
        q = {(i, j): v[i] * v[j] * x[row, i] * x[row, j] for i, j in pairs(LAYOUT.num_fields)}
        e = {pair: h @ relu(W @ q[pair] + b) for pair in q}
        total = sum(np.exp(e_ij) for e_ij in e.values())
        a = {pair: np.exp(e[pair]) / total for pair in q}
        s = sum(a[pair] * q[pair] for pair in q)
        for i, j in q:
            r = W.T @ (h * (W @ q[i, j] + b > 0))
            factor = C[row] * x[row, i] * x[row, j] * a[i, j]
            for one, other in ((i, j), (j, i)):
                through_products[ids[row, one]] += factor * p * v[other]
                through_weights[ids[row, one]] += factor * (p @ (q[i, j] - s)) * r * v[other]
    return through_products, through_weights


def gradients(network, batch):
    network.zero_grad()
    (network(batch) * torch.tensor(C)).sum().backward()
    return {name: p.grad.numpy().copy() for name, p in network.named_parameters()}


def test_the_equation_is_what_autograd_computes(problem):
    network, batch, w = problem
    through_products, through_weights = terms(batch, w)
    result = gradients(network, batch)["embedding.weight"]
    np.testing.assert_allclose(result, through_products + through_weights, atol=1e-10)
    # Neither term alone would do: an AFM whose softmax is over an axis of one has only the first.
    assert np.abs(through_products).max() > 1e-2
    assert np.abs(through_weights).max() > 1e-2
