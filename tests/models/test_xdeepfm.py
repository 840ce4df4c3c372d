from fieldwise import Layout, XDeepFM


def test_which_variants_have_biases(subtests):
    """Of the maps, and of the CIN's last unit; the equations of parity take whatever a network has."""
    for variant, expected in {
        "paper": (False, False), "authors": (False, True), "deepctr": (True, False), "fuxictr": (True, True),
    }.items():  # fmt: skip
        with subtests.test(variant=variant):
            settings = XDeepFM(embedding_dim=3, hidden=(6,), cin_layers=(4, 4), variant=variant)
            network = settings.build(Layout.of_sizes([3, 4]))
            assert (
                network.cin.layers[0].bias is not None,
                network.head.bias is not None,
            ) == expected
