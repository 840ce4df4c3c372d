import torch

from fieldwise.models import DCNv2

SMALL = {"embedding_dim": 3, "layers": 2, "hidden": (5,)}


def test_every_layer_has_gates_of_its_own(lab):
    layout, batch = lab.layouts["mixed"], lab.batch(lab.layouts["mixed"], 5)
    network = lab.randomized(DCNv2(**SMALL, rank=2, experts=3).build(layout))
    gates = [layer.gates(network.embedding(batch).flatten(1)) for layer in network.cross]
    assert not torch.allclose(*gates)
    for share in gates:
        torch.testing.assert_close(share.sum(1), torch.ones(5, dtype=torch.float64))
