"""Every way to score gives the figures of trees as whole rows do: candidates, ranker, cascade, files, the server."""

import dataclasses
import warnings

import numpy as np
import polars as pl
import pytest
from serving.asgi import client
from serving.conftest import SCHEMA, catalogue, log

from fieldwise import BundleError, CatBoost, ConfigError, LightGBM, Recommender
from fieldwise.bundle.export import export_bundle
from fieldwise.explain import explain
from fieldwise.explain.faithfulness import faithfulness
from fieldwise.explain.subject import Subject
from fieldwise.scoring.recommend import IdColumns, recommend
from fieldwise.serving import Ranker, build_index, evaluate_cascade, item_table
from fieldwise.serving.service import Service

ITEMS = catalogue()
CONTEXTS = [
    {"user": "u1", "history": ["i1", "i2"], "device": "tv"},
    {"user": "u4", "history": [], "device": "phone"},
    {"user": "stranger", "history": ["i3"], "device": None},
]


def rows_of(context, items=ITEMS):
    """A context with each item."""
    texts = {**context, "history": "|".join(context["history"])}
    return items.with_columns(pl.lit(value, pl.String).alias(name) for name, value in texts.items())


@pytest.fixture(scope="module", params=["lightgbm", "catboost"])
def bundle(request):
    """Trees that have learned from the log."""
    settings = LightGBM(max_trees=30, min_data_in_leaf=2)
    if request.param == "catboost":
        pytest.importorskip("catboost", reason="CatBoost: pip install 'fieldwise[catboost]'")
        settings = CatBoost(max_trees=30)
    rows = log(600, seed=1)
    rng = np.random.default_rng(0)
    likes = (rows["user"].str.slice(1).cast(int) + rows["item"].str.slice(1).cast(int)) % 3 == 0
    rows = rows.with_columns(click=pl.Series(likes.to_numpy() ^ (rng.random(600) < 0.1)).cast(int))
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*does not read history")
        return Recommender(SCHEMA, settings, seed=1).fit(rows, eval_set=rows[:200]).bundle_


def test_candidates_ranker_and_server_score_as_whole_rows(bundle, subtests):
    ranker = Ranker(bundle, item_table(ITEMS, "item"))
    ask = client(Service(bundle=bundle, ranker=ranker))
    for context in CONTEXTS:
        with subtests.test(context=context):
            expected = bundle.score(rows_of(context))
            assert len(np.unique(expected)) > 5
            one_by_one = [bundle.score(rows_of(context)[k : k + 1])[0] for k in range(30)]
            np.testing.assert_array_equal(one_by_one, expected)
            plain = {**context, "history": "|".join(context["history"])}
            np.testing.assert_array_equal(bundle.score_candidates(plain, ITEMS), expected)

            best = np.argsort(-expected, kind="stable")
            found = ranker.recommend(context, k=30)
            np.testing.assert_array_equal(found.rows, best)
            probability = 1 / (1 + np.exp(-expected[best]))
            np.testing.assert_allclose(found.scores["prediction"], probability, rtol=1e-12)

            answer = ask.post("/v1/recommend", {"context": context, "k": 30}).json()
            assert [item["id"] for item in answer["items"]] == ITEMS["item"][best].to_list()
            served = [item["prediction"] for item in answer["items"]]
            np.testing.assert_allclose(served, probability, rtol=1e-6)
            body = {"rows": rows_of(context).drop("title").to_dicts()}
            scored = ask.post("/v1/predict", body)
            assert scored.status_code == 200, scored.text
            predicted = [row["prediction"] for row in scored.json()["predictions"]]
            np.testing.assert_allclose(predicted, bundle.predict(rows_of(context)), rtol=1e-6)
            explained = ask.post("/v1/explain", {"rows": body["rows"][:2]})
            assert explained.json()["explanations"][0]["method"] == "tree_shap"


def test_trees_rank_behind_an_inttower(bundle, tower, tmp_path):
    index, _ = build_index(tower, ITEMS, tmp_path / "ix")
    cascade = Ranker(bundle, index, tower=tower)
    for context in CONTEXTS:
        found = cascade.recommend(context, k=5, prerank=12)
        first = np.argsort(-tower.score(rows_of(context)), kind="stable")[:12]
        best = first[np.argsort(-bundle.score(rows_of(context))[first], kind="stable")][:5]
        np.testing.assert_array_equal(found.rows, best)
    report = evaluate_cascade(cascade, log(20, seed=3), k=5, prerank=12)
    assert 0 < report.recall <= 1


def test_all_users_get_their_best_items(bundle):
    table = recommend(bundle, log(80), IdColumns(user="user", item="item"), n=3, exclude_seen=False)
    frame = pl.DataFrame(table)
    one = frame.filter(pl.col("user") == "u1")
    latest = log(80).filter(pl.col("user") == "u1")[-1]
    context = {
        "user": "u1",
        "history": latest["history"][0].split("|"),
        "device": latest["device"][0],
    }
    offered = log(80).unique("item", keep="last", maintain_order=True).select(ITEMS.columns)
    expected = bundle.predict(rows_of(context, offered))
    np.testing.assert_allclose(one["prediction"], np.sort(expected)[::-1][:3], rtol=1e-6)


def test_contributions_add_up_to_the_score_and_are_the_librarys(bundle, subtests):
    rows = log(40, seed=9)
    explanation = explain(bundle, rows)
    assert explanation.method == "tree_shap"
    np.testing.assert_allclose(explanation.gap, 0, atol=1e-9)
    history = SCHEMA.fields.index(next(f for f in SCHEMA.fields if f.name == "history"))
    assert not explanation.contributions[:, history].any(), "trees do not read it"

    network = bundle.network
    batch, _ = bundle.encoder.transform(rows).batch(slice(None))
    x, model = network.features.matrix(batch), network.model()
    if isinstance(bundle.settings, LightGBM):
        theirs = model.predict(x, pred_contrib=True)
    else:
        theirs = model.get_feature_importance(network._pool(x), type="ShapValues")
    for field in range(len(SCHEMA.fields)):
        columns = np.flatnonzero(network.features.fields == field)
        np.testing.assert_allclose(
            explanation.contributions[:, field], theirs[:, columns].sum(1), atol=1e-12
        )
    np.testing.assert_allclose(explanation.base, theirs[:, -1])
    assert "%" in explanation.row(0, pairs=True)["sentence"]

    orders = {curve.order for curve in faithfulness(Subject.of(bundle, rows), draws=4)}
    assert orders == {"tree_shap", "occlusion", "random"}
    for method in ("terms", "integrated_gradients"):
        with subtests.test(method=method), pytest.raises(ConfigError, match="use 'tree_shap'"):
            explain(bundle, rows, method=method)


def test_tree_shap_is_refused_for_networks(ranker):
    with pytest.raises(ConfigError, match=r"'tree_shap' needs trees .* found AFM: use 'terms'"):
        explain(ranker, log(5), method="tree_shap")


def test_a_calibration_is_part_of_the_prediction(bundle):
    from fieldwise.evaluation.calibration import Platt

    calibrated = dataclasses.replace(
        bundle, calibration={"click": Platt(slope=0.5, intercept=-1.0)}
    )
    rows = rows_of(CONTEXTS[0])
    expected = 1 / (1 + np.exp(-(0.5 * bundle.score(rows) - 1)))
    np.testing.assert_allclose(calibrated.predict(rows), expected, rtol=1e-9)


def test_trees_are_not_exported(bundle, tmp_path):
    with pytest.raises(BundleError, match="only networks are exported, found trees"):
        export_bundle(bundle, tmp_path / "onnx")
