import torch

from fieldwise.models.deepcrossing import ResidualUnit


def test_batch_norm_is_between_the_sum_and_its_relu():
    torch.manual_seed(0)
    unit = ResidualUnit(4, 3, batch_norm=True).double().train()
    x = torch.randn(16, 4, dtype=torch.float64)
    total = x + unit.outer(torch.relu(unit.inner(x)))
    expected = torch.relu((total - total.mean(0)) / (total.var(0, unbiased=False) + 1e-5).sqrt())
    torch.testing.assert_close(unit(x), expected)


def test_dropout_falls_on_the_outputs_of_units():
    unit = ResidualUnit(4, 3, dropout=0.5).double()
    x = torch.rand(64, 4, dtype=torch.float64) + 0.5
    for layer in (unit.inner, unit.outer):
        torch.nn.init.zeros_(layer.weight)
    torch.manual_seed(0)
    assert set((unit.train()(x) / x).round(decimals=6).flatten().tolist()) == {0.0, 2.0}
    assert torch.equal(unit.eval()(x), x)
