from fieldwise.layout import Layout
from fieldwise.models import FiBiNET

TINY = Layout.of_sizes([1, 1])


def test_the_logit_has_one_bias():
    deep, shallow = (set(FiBiNET(hidden=h).build(TINY).state_dict()) for h in [(4,), ()])
    assert {"mlp.output.bias"} == {n for n in deep if n.endswith("bias")} - {"mlp.layers.0.0.bias"}
    assert {n for n in shallow if n.endswith("bias")} == {"first_order.bias"}
