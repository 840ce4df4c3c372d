"""A model that ended as its mean with LR says so on every surface, from the one share in its bundle."""

import pytest

from fieldwise import Bundle


@pytest.fixture
def share(bundle):
    """The share of the shared bundle's network, and the sentence on it."""
    trained = Bundle.load(bundle)
    assert 0 < trained.network_share < 1
    return trained.network_share, trained.mean_sentence


def test_train_says_it(done, as_json, recipe, share):
    value, sentence = share
    assert sentence in done("train", recipe, "--out", "b", "--quiet")[0]
    result = as_json("train", recipe, "--out", "again", "--quiet")
    assert result["network_share"] == value == Bundle.load("again").network_share
    alone = as_json(
        "train", recipe, "--out", "alone", "--quiet", "--set", "training.mean_with_lr=false"
    )
    assert alone["network_share"] == 1.0
    assert "mean of the network" not in done("explain", "alone", "--data", "log.csv", "--row", 0)[0]


def test_explain_says_it(done, as_json, bundle, share):
    value, sentence = share
    log = bundle.parent / "log.csv"
    for more in (["--row", 0], []):
        assert sentence in done("explain", bundle, "--data", log, *more)[0]
        assert as_json("explain", bundle, "--data", log, *more)["network_share"] == value


def test_compare_says_it(done, as_json, recipe, share):
    value = share[0]
    (board,) = as_json("compare", recipe, "--seeds", 1, "--quiet")["boards"]
    assert board["lines"][0]["network_shares"] == [value]
    out = done("compare", recipe, "--seeds", 1, "--quiet")[0]
    assert (
        f"1 of 1 run ended as the mean of the network and LR, in which the network has {value:.0%}."
        in out
    )


def test_the_report_says_it(done, bundle, share):
    done("report", bundle, "--out", "report.html", "--quiet")
    with open("report.html", encoding="utf-8") as page:
        assert page.read().count(share[1]) >= 2
