import numpy as np
import pytest
import torch
from parity.reference import widedeep as reference

from fieldwise import Batch, ConfigError, Layout, WideDeep
from fieldwise.models.widedeep import CrossProducts

SMALL = {"embedding_dim": 3, "hidden": (6, 5)}
CROSSED = [
    ("categorical", (("f0", "f3"), ("f2", "f1"), ("f3", "f2"))),
    ("mixed", (("f4", "f1"),)),
    ("history", (("f0", "f1"), ("f3", "f0"))),
]


def ids(rows):
    return Batch.of_ids(torch.tensor(rows))


def test_crosses_are_the_equations(subtests, lab):
    for name, crosses in CROSSED:
        with subtests.test(name=name, crosses=crosses):
            layout, settings = lab.layouts[name], WideDeep(**SMALL, crosses=crosses)
            network, batch = lab.randomized(settings.build(layout)), lab.batch(layout, 7)
            expected = reference.logit(settings, layout, batch, lab.weights(network))
            np.testing.assert_allclose(network(batch).detach(), expected, atol=1e-10, rtol=1e-10)
            without = reference.logit(WideDeep(**SMALL), layout, batch, lab.weights(network))
            assert not np.isclose(expected, without).any()


@pytest.mark.slow
def test_crosses_export_and_compile(lab):
    layout, crosses = lab.layouts["history"], dict(CROSSED)["history"]
    network, batch = (
        lab.randomized(WideDeep(**SMALL, crosses=crosses).build(layout)),
        lab.batch(layout, 6),
    )
    rows, values = (
        torch.export.Dim("rows", min=0, max=10_000),
        torch.export.Dim("values", min=0, max=100_000),
    )
    bag = {0: values}
    program = torch.export.export(
        network, (batch,), dynamic_shapes=(Batch({0: rows}, {0: rows}, bag, bag, bag),)
    )
    other = lab.batch(layout, 9, seed=9)
    torch.testing.assert_close(program.module()(other), network(other), atol=1e-12, rtol=0)
    torch.compiler.reset()
    torch.testing.assert_close(
        torch.compile(network, backend="eager", fullgraph=True)(batch), network(batch)
    )
    assert network(lab.batch(layout, 0)).shape == (0,)


def test_crosses_start_silent_and_learn_the_combinations_present():
    layout = Layout.of_sizes([2, 3])
    torch.manual_seed(0)
    crossed = WideDeep(**SMALL, crosses=(("field_0", "field_1"),)).build(layout)
    torch.manual_seed(0)
    plain = WideDeep(**SMALL).build(layout)
    batch = ids([[0, 3], [1, 2], [1, 2]])
    assert torch.equal(crossed(batch), plain(batch))
    crossed(batch).sum().backward()
    assert crossed.crosses.weight.grad[:, 0].tolist() == [0.0, 1.0, 0.0, 2.0, 0.0, 0.0]


def test_crosses_of_32_bit_ids_do_not_overflow(monkeypatch):
    """The last combination of 46,341 by 46,341 categories has a number above 2^31."""
    layout, zeros = Layout.of_sizes([46_341, 46_341]), torch.zeros
    # one number in memory, not 2^31
    monkeypatch.setattr(torch, "zeros", lambda *shape: zeros(1, 1).expand(shape))
    crosses = CrossProducts(layout, (("field_0", "field_1"),))
    last = ids([[46_340, 92_681]])
    assert crosses(last._replace(ids=last.ids.int())).tolist() == [0.0]


def test_crosses_of_other_fields_are_refused(subtests, lab):
    for pair, message in [
        (("f1", "g4"), "crosses must name fields of the schema, found 'g4': did you mean 'f4'"),
        (("f1", "f2"), "crosses must name single-valued categorical fields, found 'f2', a number"),
        (("f3", "f1"), "crosses must name single-valued categorical fields, found 'f3', a bag"),
    ]:
        with subtests.test(pair=pair, message=message), pytest.raises(ConfigError, match=message):
            WideDeep(crosses=(pair,)).build(lab.layouts["mixed"])
