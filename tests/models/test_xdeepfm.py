from fieldwise.layout import Layout
from fieldwise.models import XDeepFM

SMALL = {"embedding_dim": 3, "hidden": (6, 5)}


def test_variants(subtests):
    for variant, split_half, activation, biases, output_bias in [
        ("paper", False, "identity", False, False),
        ("authors", True, "identity", False, True),
        ("deepctr", True, "relu", True, False),
        ("fuxictr", False, "identity", True, True),
    ]:
        with subtests.test(
            variant=variant, split_half=split_half, activation=activation, biases=biases, output_bias=output_bias
        ):

            def build(**settings):
                return XDeepFM(**SMALL, cin_layers=(4, 4), **settings).build(Layout.of_sizes([3, 4]))

            def choices(network):
                cin = network.cin
                return cin.split_half, cin.activation, cin.layers[0].bias is not None, network.head.bias is not None

            assert choices(build(variant=variant)) == (split_half, activation, biases, output_bias)
