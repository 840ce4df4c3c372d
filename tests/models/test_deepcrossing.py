import torch

from fieldwise.models.deepcrossing import ResidualUnit


def test_dropout_falls_on_the_outputs_of_units():
    unit = ResidualUnit(4, 3, dropout=0.5).double()
    x = torch.rand(64, 4, dtype=torch.float64) + 0.5
    for layer in (unit.inner, unit.outer):
        torch.nn.init.zeros_(layer.weight)
    torch.manual_seed(0)
    assert set((unit.train()(x) / x).round(decimals=6).flatten().tolist()) == {0.0, 2.0}
    assert torch.equal(unit.eval()(x), x)
