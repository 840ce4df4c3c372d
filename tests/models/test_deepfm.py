import pytest
import torch

from fieldwise.errors import ConfigError
from fieldwise.layout import Layout
from fieldwise.models import FM, DeepFM, WideDeep, parameter_count

SMALL = {"embedding_dim": 3, "hidden": (6, 5), "mlp_dropout": 0.0}


def test_one_row_by_hand_and_the_deep_part_is_linear(lab):
    """NOTE[DIFF]: the MLP's last unit has no activation; a sigmoid could not give -5.5."""
    layout = Layout.of_sizes([1, 1])
    network = DeepFM(embedding_dim=2, hidden=(2,)).build(layout).double().eval()
    state = network.state_dict()
    for name, value in {
        "embedding.weight": [[1.0, 2.0], [3.0, -1.0]],
        "first_order.embedding.weight": [[0.1], [0.2]],
        "mlp.layers.0.0.weight": [[1.0, 0.0, 1.0, 0.0], [0.0, -1.0, 0.0, 1.0]],
        "mlp.layers.0.0.bias": [-1.0, 1.0],
        "mlp.output.weight": [[-2.0, 7.0]],
        "mlp.output.bias": [0.5],
    }.items():
        state[name].copy_(torch.tensor(value))
    # First order 0.3; <x1, x2> = 3 - 2 = 1; hidden relu(1 + 3 - 1, -2 - 1 + 1) = (3, 0), so -6 + 0.5 = -5.5.
    assert network(lab.batch(layout, 1)).item() == pytest.approx(0.3 + 1.0 - 5.5)


def test_with_a_silent_mlp_it_is_fm(lab, layout):
    deepfm = lab.randomized(DeepFM(**SMALL).build(layout))
    torch.nn.init.zeros_(deepfm.mlp.output.weight)
    fm = FM(embedding_dim=3).build(layout).double()
    shared = {n: p for n, p in deepfm.state_dict().items() if not n.startswith("mlp.")}
    fm.load_state_dict(shared | {"first_order.bias": deepfm.mlp.output.bias.detach()[0]})
    batch = lab.batch(layout, 6)
    torch.testing.assert_close(deepfm(batch), fm(batch), atol=1e-12, rtol=1e-12)


def test_it_is_wide_and_deep_plus_the_pairs_of_the_same_embeddings(lab, layout):
    deepfm = lab.randomized(DeepFM(**SMALL).build(layout))
    widedeep = WideDeep(**SMALL).build(layout).double()
    widedeep.load_state_dict(deepfm.state_dict())
    batch = lab.batch(layout, 6)
    x = lab.fields(layout, batch, deepfm.embedding.weight.detach())
    pairs = [(x[:, i] * x[:, j]).sum(1) for j in range(layout.num_fields) for i in range(j)]
    torch.testing.assert_close(deepfm(batch) - widedeep(batch), torch.from_numpy(sum(pairs)), atol=1e-10, rtol=1e-10)


def test_both_parts_train_the_one_table(lab):
    layout, batch = lab.layouts["categorical"], lab.batch(lab.layouts["categorical"], 6)
    deepfm = lab.randomized(DeepFM(**SMALL).build(layout))
    deepfm(batch).sum().backward()
    whole = deepfm.embedding.weight.grad.clone()
    deepfm.zero_grad()
    x = deepfm.embedding(batch)
    deepfm.mlp(x.flatten(1)).sum().backward()
    deep = deepfm.embedding.weight.grad.clone()
    fm = lab.randomized(FM(embedding_dim=3).build(layout))
    fm.embedding.load_state_dict(deepfm.embedding.state_dict())
    fm(batch).sum().backward()
    torch.testing.assert_close(whole, deep + fm.embedding.weight.grad)


def test_the_defaults_are_the_papers():
    s = DeepFM()
    assert (s.embedding_dim, s.hidden, s.mlp_dropout, s.batch_norm) == (10, (400, 400, 400), 0.5, False)


@pytest.mark.parametrize("batch_norm", [False, True])
def test_parameter_count_is_the_formula(batch_norm):
    rows, fields, d = 42, 2, 5
    mlp = (fields * d * 7 + 7) + (7 * 4 + 4) + (4 + 1) + (2 * (7 + 4) if batch_norm else 0)
    network = DeepFM(embedding_dim=d, hidden=(7, 4), batch_norm=batch_norm).build(Layout.of_sizes([30, 12]))
    assert parameter_count(network) == rows * (d + 1) + mlp


def test_bad_settings_name_themselves(subtests):
    for settings, message in [
        ({"embedding_dim": 1.5}, "embedding_dim must be a whole number of at least 1, found 1.5"),
        ({"hidden": ()}, r"hidden must name the size of at least one layer, as in \(400, 400\), found \(\)"),
        ({"hidden": (-4,)}, r"hidden\[0\] must be a whole number of at least 1, found -4"),
        ({"mlp_dropout": 1}, "mlp_dropout must be at least 0 and less than 1, found 1"),
        ({"embedding_std": 0.0}, "embedding_std must be above 0 and finite, found 0.0"),
    ]:
        with subtests.test(settings=settings, message=message), pytest.raises(ConfigError, match=message):
            DeepFM(**settings)
