import numpy as np
import pytest
import torch

from fieldwise import FFM, Layout


def libffm(table, nodes, normalize):
    """The logit as LIBFFM has it, from nodes (field, feature, value) and a table [features, F, D]."""
    scale = 1 / sum(value**2 for _, _, value in nodes) if normalize else 1.0
    out = 0.0
    for n, (f1, j1, v1) in enumerate(nodes):
        for f2, j2, v2 in nodes[n + 1 :]:
            out += (table[j1, f2] @ table[j2, f1]) * v1 * v2 * scale
    return out


def ours(table, layout, dim):
    """LIBFFM's table without each field's vectors toward itself."""
    out = np.zeros((layout.num_rows, (layout.num_fields - 1) * dim))
    for i, f in enumerate(layout.fields):
        rows = slice(f.offset, f.offset + f.rows)
        out[rows] = np.delete(table[rows], i, axis=1).reshape(f.rows, -1)
    return torch.from_numpy(out)


@pytest.mark.parametrize("name", ["categorical", "numeric"])
def test_is_libffm_without_its_unused_vectors_and_its_scale(lab, name):
    """NOTE[DIFF]: of F vectors a row, one is never read; categories alone are scaled by 1 / F there."""
    layout, dim, rng = lab.layouts[name], 3, np.random.default_rng(0)
    fields, batch = layout.num_fields, lab.batch(layout, 5)
    table = rng.normal(size=(layout.num_rows, fields, dim))
    network = FFM(embedding_dim=dim).build(layout).double()
    network.embedding.weight.data = ours(table, layout, dim)
    values = batch.values.numpy() if name == "numeric" else np.ones((5, fields))
    rows = [[(f, int(batch.ids[b, f]), values[b, f]) for f in range(fields)] for b in range(5)]
    logit = network(batch).detach().numpy()
    np.testing.assert_allclose(logit, [libffm(table, nodes, False) for nodes in rows], atol=1e-12)
    for i, f in enumerate(layout.fields):
        table[f.offset : f.offset + f.rows, i] = 1e6
    np.testing.assert_allclose(logit, [libffm(table, nodes, False) for nodes in rows], atol=1e-12)
    if name == "categorical":
        np.testing.assert_allclose(
            logit / fields, [libffm(table, nodes, True) for nodes in rows], atol=1e-12
        )


def test_starts_from_a_normal_distribution():
    """NOTE[DIFF]: LIBFFM's first numbers are all positive."""
    torch.manual_seed(0)
    weight = FFM(embedding_std=0.2).build(Layout.of_sizes([1000, 1000])).embedding.weight
    assert weight.mean().abs() < 0.01
    assert weight.std().item() == pytest.approx(0.2, rel=0.05)
