"""A bundle on the device scores, explains, indexes and recommends as on the CPU, and is the same bundle."""

import copy
import dataclasses

import numpy as np
import polars as pl
import pytest

from fieldwise import Bundle, ConfigError, IntTower, Label, Recommender, TrainingSettings
from fieldwise.bundle.export import export_bundle
from fieldwise.explain import Subject, explain
from fieldwise.models import NETWORKS
from fieldwise.ops.devices import CPU, device_of
from fieldwise.serving import Ranker, build_index, item_table
from fieldwise.serving.bodies import RecommendRequest
from fieldwise.serving.service import Service
from fieldwise.testing import small_log, small_schema

LOG = small_log(120)
ITEMS = LOG.unique("item", maintain_order=True).select("item", "genres", "price")
CONTEXT = LOG.select("user", "history", "hour").row(0, named=True)
OFTEN = ("lr", "fm", "afm", "din", "dat", "inttower")  # one of each way to score and to explain
MODELS_HERE = [
    pytest.param(one, marks=() if one in OFTEN else pytest.mark.slow) for one in NETWORKS
]
# each device draws unknown values of its own
QUICK = TrainingSettings(epochs=1, batch_size=64, unknown_share=0.0)


@pytest.fixture(scope="module")
def both(name, tmp_path_factory):
    """A model's bundle on the CPU and on the device, from one folder."""
    kept = {}

    def made(model):
        if model not in kept:
            folder = tmp_path_factory.mktemp("bundle") / "b"
            Recommender(small_schema(), NETWORKS[model](), training=QUICK).fit(LOG).save(folder)
            kept[model] = Bundle.load(folder), Bundle.load(folder, device=name)
        return kept[model]

    return made


@pytest.mark.parametrize("model", MODELS_HERE)
def test_rows_requests_and_explanations(both, device, model):
    here, there = both(model)
    assert device_of(there.network) == device
    assert there.digest == here.digest
    np.testing.assert_allclose(there.score(LOG), here.score(LOG), atol=1e-4)
    np.testing.assert_allclose(
        there.score_candidates(CONTEXT, ITEMS), here.score_candidates(CONTEXT, ITEMS), atol=1e-4
    )
    result, expected = explain(there, LOG[:4]), explain(here, LOG[:4])
    np.testing.assert_allclose(result.contributions, expected.contributions, atol=1e-4)


@pytest.mark.parametrize(
    ("model", "method"),
    [
        ("afm", "terms"),
        ("autoint", "terms"),
        ("inttower", "terms"),
        ("autoint+", "integrated_gradients"),
    ],
)
def test_other_methods_of_explanation(both, model, method):
    here, there = both(model)
    subjects = [Subject.of(bundle, LOG[:5]) for bundle in (here, there)]
    if method == "terms":
        results = [{**one.terms.added, **one.terms.shown} for one in subjects]
        assert results[1].keys() == results[0].keys() != set()
        for key, value in results[0].items():
            np.testing.assert_allclose(results[1][key], value, atol=1e-4, err_msg=key)
    else:
        results = [
            explain(bundle, LOG[:5], method=method).contributions for bundle in (here, there)
        ]
        np.testing.assert_allclose(results[1], results[0], atol=1e-4)


@pytest.mark.parametrize("nprobe", [None, 3])
def test_an_index_and_two_stages(both, nprobe, tmp_path):
    here, there = both("inttower")
    made = [build_index(bundle, ITEMS, tmp_path / place, id_column="item")[0]
            for bundle, place in ((here, "here"), (there, "there"))]  # fmt: skip
    np.testing.assert_allclose(made[1].stored.heads, made[0].stored.heads, atol=1e-5)
    results = []
    for bundle in (here, there):
        service = Service(bundle, Ranker(bundle, made[0], tower=bundle, nprobe=nprobe))
        service.warm_up()
        items = service.recommend(RecommendRequest(context=CONTEXT, k=4, prerank=6))["items"]
        scores = [one for row in service.predict(LOG[:3].to_dicts()) for one in row.values()]
        results.append(
            ([item["id"] for item in items], scores + [item["prediction"] for item in items])
        )
    assert results[1][0] == results[0][0]
    assert results[1][1] == pytest.approx(results[0][1], abs=1e-5)


@pytest.mark.parametrize("model", ["fm", "din", "inttower"])
def test_every_item_ranked_by_one_bundle(both, model):
    results = [
        Ranker(bundle, item_table(ITEMS, "item")).recommend(context=CONTEXT, k=3).items
        for bundle in both(model)
    ]
    assert results[1]["item"].to_list() == results[0]["item"].to_list()
    np.testing.assert_allclose(results[1]["prediction"], results[0]["prediction"], atol=1e-5)


@pytest.mark.slow
def test_an_export_is_that_of_the_cpu(both, tmp_path):
    pytest.importorskip("onnxscript")
    assert export_bundle(both("fm")[1], tmp_path / "exported", "onnx") < 1e-4


def test_what_copies_and_pickles_keep_is_on_the_cpu(both):
    here, there = both("afm")
    assert here.on_cpu() is here
    for copied in (copy.deepcopy(there), copy.copy(there), there.on_cpu()):
        assert device_of(copied.network) == CPU
        assert copied.digest == here.digest
        np.testing.assert_array_equal(copied.score(LOG), here.score(LOG))


def test_a_grown_bundle_and_the_one_before_stay_on_the_device(both, device):
    here, there = both("afm")
    rows = LOG.with_columns(user=pl.Series(np.arange(len(LOG)) // 10))
    grown, added = there.grow(rows)
    assert added["user"] > 0
    former = grown.before_growth()
    assert device_of(grown.network) == device_of(former.network) == device
    assert grown.digest == here.grow(rows)[0].digest
    assert former.digest == here.digest
    np.testing.assert_array_equal(former.score(LOG), there.score(LOG))


def test_an_estimator_on_the_device(name, device, tmp_path):
    both = [Recommender(small_schema(), IntTower(embedding_dim=4, hidden=(8, 8)), training=QUICK, device=where)
            for where in (None, name)]  # fmt: skip
    for estimator in both:
        estimator.fit(LOG)
    assert device_of(both[1].bundle_.network) == device
    np.testing.assert_allclose(both[1].predict_proba(LOG), both[0].predict_proba(LOG), atol=1e-3)
    both[1].save(tmp_path / "b")
    loaded = Recommender.load(tmp_path / "b")
    assert device_of(loaded.bundle_.network) == CPU
    assert (loaded.device, loaded.training.device) == (None, "cpu")
    assert device_of(Recommender.load(tmp_path / "b", device=name).bundle_.network) == device
    with pytest.raises(ConfigError, match="'cuda:77'"):
        Recommender(small_schema(), device="cuda:77").fit(LOG)
    with pytest.raises(ConfigError, match="device must be a name"):
        Recommender(small_schema(), device=0).fit(LOG)


def test_several_labels(name):
    schema = dataclasses.replace(small_schema(), more_labels=(Label("late"),))
    log = LOG.with_columns(late=(LOG["hour"] > 12).cast(int))
    both = [
        Recommender(schema, NETWORKS["afm"](embedding_dim=4), training=QUICK, device=d).fit(log)
        for d in ("cpu", name)
    ]
    scores = [one.bundle_.score(log) for one in both]
    assert scores[1].shape == (120, 2)
    np.testing.assert_allclose(scores[1], scores[0], atol=1e-3)
