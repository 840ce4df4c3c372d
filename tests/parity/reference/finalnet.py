"""FinalNet (Zhu et al., SIGIR 2023), factor by factor."""

import itertools

import numpy as np
from parity.reference.common import batch_norm, blocks, field_vectors, linear, relu, sigmoid

from fieldwise import FinalNet

SMALL = {"embedding_dim": 4, "block1_hidden": (6, 12), "block2_hidden": (6,)}
CASES = {
    "two": FinalNet(**SMALL, block1_dropout=0.2, block2_dropout=0.1),
    "one": FinalNet(**SMALL, blocks="1B", field_gate=False),
    "sum": FinalNet(**SMALL, residual="sum", factor_activation="sigmoid", batch_norm=False),
    "three": FinalNet(**SMALL, factors=3, activation="none", distillation_weight=0.0),
    "three-sum": FinalNet(
        **SMALL, factors=3, residual="sum", factor_activation="relu", field_gate=False
    ),
    "mlp": FinalNet(**SMALL, factors=1),
}


def factorized(settings, x, w, name):
    """h_1 = z_1, h_n = h_{n-1} * act(z_n)."""
    act = {"none": lambda z: z, "relu": relu, "sigmoid": sigmoid}[settings.factor_activation]
    z = np.split(linear(x, w, name), settings.factors, 1)
    h = [z[0]]
    for n in range(1, settings.factors):
        h.append(h[-1] * act(z[n]))
    return np.concatenate(h, 1) if settings.residual == "concat" else sum(h)


def block(settings, x, w, name):
    for i in itertools.count():
        if f"{name}.{i}.0.linear.weight" not in w:
            return x
        x = factorized(settings, x, w, f"{name}.{i}.0.linear")
        if settings.batch_norm:
            x = batch_norm(x, w, f"{name}.{i}.1")
        if settings.activation == "relu":
            x = relu(x)


def block_logits(settings, layout, batch, w):
    x = field_vectors(layout, batch, w["embedding.weight"])
    first = x
    if settings.field_gate:
        weight, bias = w["field_gate.linear.weight"], w["field_gate.linear.bias"]
        gated = np.zeros_like(x)
        for f in range(x.shape[1]):
            g = bias[f] + sum(weight[f, k] * x[:, k] for k in range(x.shape[1]))
            gated[:, f] = g * x[:, f]
        first = np.concatenate([x, gated], 1)
    results = [linear(block(settings, first.reshape(len(x), -1), w, "block1"), w, "head1")[:, 0]]
    if settings.blocks == "2B":
        results.append(
            linear(block(settings, x.reshape(len(x), -1), w, "block2"), w, "head2")[:, 0]
        )
    return results


def logit(settings, layout, batch, w):
    result = block_logits(settings, layout, batch, w)
    return sum(result) / len(result)


def permuted(settings, layout, order, w):
    """A block's inputs are fields; the gated ones of the first block stand in a second half."""
    first, size = "block1.0.0.linear.weight", settings.embedding_dim
    halves = np.split(w[first], 2 if settings.field_gate else 1, 1)
    changed = {first: np.concatenate([blocks(h, order, 1, size) for h in halves], 1)}
    if settings.field_gate:
        weight = blocks(w["field_gate.linear.weight"], order, 0)
        changed["field_gate.linear.weight"] = blocks(weight, order, 1)
        changed["field_gate.linear.bias"] = blocks(w["field_gate.linear.bias"], order, 0)
    if settings.blocks == "2B":
        changed["block2.0.0.linear.weight"] = blocks(w["block2.0.0.linear.weight"], order, 1, size)
    return changed
