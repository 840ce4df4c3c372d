"""One bundle that ranks a whole catalogue, and what users have used: against rows scored by hand, and `recommend`."""

import dataclasses
import re

import httpx
import numpy as np
import polars as pl
import pytest
from ids import ITEM, USER
from random_bundle import random_bundle
from serving.asgi import client
from serving.commands import serving
from serving.conftest import SCHEMA, catalogue, log

from fieldwise import (
    FM,
    AutoInt,
    Bag,
    Bundle,
    Categorical,
    ConfigError,
    DataError,
    IdColumns,
    Label,
    Numeric,
    Schema,
)
from fieldwise.evaluation.calibration import fit_isotonic
from fieldwise.scoring.recommend import recommend
from fieldwise.serving import Ranker, item_table
from fieldwise.serving.bodies import ExplainRequest, RecommendRequest
from fieldwise.serving.rows import RequestError
from fieldwise.serving.service import Service
from fieldwise.serving.settings import Sources
from fieldwise.serving.stores import Lookup, Stores, TableStore
from fieldwise.serving.user_log import UserLog, tables_of_log, varying_columns

LOG = log(90, seed=3).with_columns(
    time=pl.Series(np.random.default_rng(1).permutation(90)), click=pl.Series([0, 0, 1] * 30)
)
CONTEXT = {"user": "u1", "history": ["i1", "i2"], "device": "tv"}
NAMES = IdColumns(user="user", item="item", title="title")


@pytest.fixture(scope="module")
def whole(ranker):
    return Ranker(ranker, item_table(catalogue(), "item"))


def by_hand(bundle, items, context):
    """Every item's probability in a row of its own, by id."""
    rows = [context | one for one in items.select("item", "genres", "price").to_dicts()]
    return dict(zip(items["item"], bundle.predict(pl.DataFrame(rows)), strict=True))


def best(scores, k):
    return sorted(scores, key=lambda one: -scores[one])[:k]


def test_items_that_pass_are_ranked(whole, ranker):
    expected = by_hand(ranker, catalogue(), CONTEXT)
    result = whole.recommend(CONTEXT, k=7)
    assert result.items["item"].to_list() == best(expected, 7)
    np.testing.assert_allclose(
        result.scores["prediction"], sorted(expected.values())[::-1][:7], rtol=1e-5
    )
    assert result.counts == {"candidates": 30, "filtered": 30, "ranked": 7}
    assert set(result.seconds) == {"encode", "filter", "rank"}
    have = [
        item
        for item, genres in catalogue().select("item", "genres").iter_rows()
        if "g1" in genres.split("|")
    ]
    given, excluded = [f"i{k}" for k in range(0, 30, 2)], [have[0], "i2", "none"]
    result = whole.recommend(
        CONTEXT, k=20, where={"genres": ["g1"]}, candidates=given, exclude=excluded
    )
    left = {one: expected[one] for one in set(have) & set(given) - set(excluded)}
    assert result.items["item"].to_list() == best(left, 20)
    assert (result.counts["candidates"], result.counts["filtered"]) == (15, len(left))
    assert whole.recommend(CONTEXT, where={"genres": ["none"]}).items.height == 0


def test_several_labels_are_ranked_by_the_main_one(build):
    bundle = build(
        FM(embedding_dim=3), schema=dataclasses.replace(SCHEMA, more_labels=(Label("buy"),))
    )
    result = Ranker(bundle, item_table(catalogue(), "item")).recommend(context=CONTEXT, k=30)
    rows = pl.DataFrame(
        [CONTEXT | one for one in catalogue().select("item", "genres", "price").to_dicts()]
    )
    main = dict(zip(catalogue()["item"], bundle.predict(rows)[:, 0], strict=True))
    assert result.items["item"].to_list() == best(main, 30)
    assert Service(bundle).predict([]) == []


def test_bundles_and_items_that_cannot_be_ranked(ranker, build):
    for items, words in (
        (pl.concat([catalogue(), catalogue().head(1)]), "which occurs twice"),
        (
            catalogue().drop("price"),
            r"catalogue's items must hold every column .* 'price' is missing",
        ),
        (catalogue().with_columns(prediction=0.5), "the items must not have a column"),
    ):
        with pytest.raises(DataError, match=words):
            Ranker(ranker, item_table(items, "item"))
    fields = tuple(f for f in ranker.schema.fields if f.role != "item" and f.name != "history")
    alone = build(FM(embedding_dim=2), schema=Schema(fields=fields, label=Label("click")))
    with pytest.raises(ConfigError, match="a schema without fields of role item"):
        Ranker(alone, item_table(catalogue(), "item"))


@pytest.fixture(scope="module")
def users():
    table = LOG.sort("time").unique("user", keep="last").select("user", "history")
    return Stores(users=Lookup("users", TableStore("user", table)))


@pytest.fixture(scope="module")
def server(whole, ranker, users):
    return client(Service(ranker, whole, log=UserLog(LOG, [ranker.schema], "user", "item")), users)


def used(user, *rows):
    return set(LOG.filter(pl.col("user") == user, *rows)["item"])


def liked(user):
    return used(user, pl.col("click") == 1)


def test_an_answer_has_counts_and_the_kind_of_ranking(server, ranker):
    answer = server.post(
        "/v1/recommend", {"user": "u2", "context": {"device": "tv"}, "k": 4}
    ).json()
    history = LOG.filter(pl.col("user") == "u2").sort("time")["history"][-1]
    expected = by_hand(ranker, catalogue(), {"user": "u2", "history": history, "device": "tv"})
    assert [item["id"] for item in answer["items"]] == best(
        {k: v for k, v in expected.items() if k not in liked("u2")}, 4
    )
    assert (answer["ranked"], answer["seen"]) == ("all", len(liked("u2")))
    assert answer["counts"] == {"candidates": 30, "filtered": 30 - len(liked("u2")), "ranked": 4}
    assert "prerank_score" not in answer["items"][0]
    about = server.get("/v1/about").json()["items"]
    assert (about["tower"], about["ranked"], about["seen"], about["exclude_seen"]) == (
        None,
        True,
        True,
        "positive",
    )
    assert about["positive"] == "“click” is 1"
    assert server.get("/readyz").json()["ranked"] == "all"
    similar = server.get("/v1/items/i1/similar")
    assert similar.status_code == 404
    assert "start it with --tower" in similar.json()["error"]["message"]
    for user in ("u0", "u1"):
        result = server.get(f"/v1/users/{user}").json()
        assert result["context"] == {"device": LOG.filter(pl.col("user") == user)["device"][-1]}
        assert (result["fields"]["user"], result["seen"]) == (user, len(used(user)))
    counted = server.get("/metrics").text
    assert float(re.search(r'fieldwise_recommendations_total{ranked="all"} (\S+)', counted)[1]) >= 1
    assert float(re.search(r"(?m)^fieldwise_seen_items_total (\S+)", counted)[1]) >= len(
        liked("u2")
    )


def test_which_items_of_a_users_rows_are_excluded(server):
    body = {"user": "u2", "context": {"device": "tv"}, "k": 30}
    settings = {}, {"exclude_seen": "positive"}, {"exclude_seen": True}, {"exclude_seen": False}
    results = [server.post("/v1/recommend", {**body, **more}).json() for more in settings]
    usual, positive, without, whole = ({item["id"] for item in one["items"]} for one in results)
    assert (len(whole), whole - without, whole - positive, usual) == (
        30,
        used("u2"),
        liked("u2"),
        positive,
    )
    assert used("u2") > liked("u2") > set()
    assert [one["seen"] for one in results] == [len(liked("u2"))] * 2 + [len(used("u2")), 0]
    wrong = server.post("/v1/recommend", {**body, "exclude_seen": "some"})
    assert (wrong.status_code, wrong.json()["error"]["field"].split(".")[0]) == (
        422,
        "exclude_seen",
    )
    unlabelled = UserLog(LOG.drop("click"), [SCHEMA], "user", "item")
    assert (unlabelled.positive, set(unlabelled.used("u2", "positive"))) == (None, used("u2"))
    odd = LOG.with_columns(click=pl.when(pl.col("item") == "i1").then(None).otherwise(1))
    assert set(UserLog(odd, [SCHEMA], "user", "item").used("u2", "positive")) == used("u2") - {"i1"}


def test_a_user_in_the_context_is_known_too(server):
    answer = server.post("/v1/recommend", {"context": {**CONTEXT, "user": "u3"}, "k": 30}).json()
    assert not {item["id"] for item in answer["items"]} & liked("u3")
    assert answer["seen"] == len(liked("u3"))
    nobody = server.post("/v1/recommend", {"context": {**CONTEXT, "user": None}, "k": 30}).json()
    assert (len(nobody["items"]), nobody["seen"]) == (30, 0)
    refused = server.post(
        "/v1/recommend", {"context": {**CONTEXT, "user": None}, "exclude_seen": True}
    )
    assert (refused.status_code, refused.json()["error"]["field"]) == (422, "user")


def test_a_server_that_lets_them_come_by_default_or_has_no_log(whole, ranker, users):
    lets = client(
        Service(
            ranker, whole, log=UserLog(LOG, [ranker.schema], "user", "item"), exclude_seen=False
        ),
        users,
    )
    body = {"user": "u2", "context": {"device": "tv"}, "k": 30}
    assert lets.post("/v1/recommend", body).json()["seen"] == 0
    assert lets.post("/v1/recommend", {**body, "exclude_seen": True}).json()["seen"] == len(
        used("u2")
    )
    none = client(Service(ranker, whole), users)
    assert none.post("/v1/recommend", body).json()["seen"] == 0
    refused = none.post("/v1/recommend", {**body, "exclude_seen": True})
    assert (refused.status_code, refused.json()["error"]["field"]) == (422, "exclude_seen")


def test_ids_may_be_numbers_in_python_too(ranker):
    numbered = LOG.with_columns(pl.col("user", "item").str.slice(1).cast(pl.Int64))
    cascade = Ranker(
        ranker,
        item_table(catalogue().with_columns(pl.col("item").str.slice(1).cast(pl.Int64)), "item"),
    )
    service = Service(ranker, cascade, log=UserLog(numbered, [ranker.schema], "user", "item"))
    for user in (3, 3.0, "3"):
        answer = service.recommend(
            RecommendRequest(user=user, context={**CONTEXT, "user": user}, k=30)
        )
        assert answer["seen"] == len(liked("u3")) > 0
        assert not {f"i{item['id']}" for item in answer["items"]} & liked("u3")
    asked = RecommendRequest(
        context=CONTEXT, candidates=[1.0, 2, "4"], exclude=[2.0], exclude_seen=False
    )
    assert {item["id"] for item in service.recommend(asked)["items"]} == {"1", "4"}
    assert service.explained_rows(ExplainRequest(items=[4.0], context=CONTEXT))[
        "item"
    ].to_list() == [4]
    with pytest.raises(RequestError, match="exclude must be one value"):
        RecommendRequest(exclude=[None])


@pytest.mark.parametrize("calibrated", [False, True])
def test_the_server_recommends_what_recommend_does(build, calibrated):
    """Items of changing fields, a context in time, equal probabilities by an isotonic calibration."""
    schema = Schema(
        fields=(USER, ITEM, Numeric("price", role="item"), Categorical("device")),
        label=Label("click"),
        time="time",
    )
    changing = LOG.with_columns(price=pl.Series(np.random.default_rng(2).random(90)))
    bundle = build(AutoInt(embedding_dim=4), schema=schema, seed=4)
    if calibrated:
        score, label = np.linspace(-6, 6, 12), np.array([0, 0, 0, 1, 0, 1, 0, 1, 0, 1, 1, 1])
        calibration = fit_isotonic(label, score)
        bundle = Bundle(
            schema,
            bundle.encoder,
            bundle.settings,
            bundle.network,
            bundle.samples,
            calibration={"click": calibration},
        )
    expected = recommend(bundle, changing, NAMES, "u4", n=30)
    latest = changing.sort("time").unique("item", keep="last").select("item", "price")
    own = changing.filter(pl.col("user") == "u4").sort("time")[-1:].select("user", "device")
    by_hand = dict(zip(latest["item"], bundle.predict(latest.join(own, how="cross")), strict=True))
    np.testing.assert_allclose(
        expected["prediction"], [by_hand[item] for item in expected["item"]], rtol=1e-5
    )
    items, people = tables_of_log(changing, [schema], "item", "user")
    known = UserLog(changing, [schema], "user", "item")
    varying = varying_columns(changing, [schema], "item")
    service = Service(bundle, Ranker(bundle, item_table(items, "item")), log=known, varying=varying)
    server = client(service, Stores(users=Lookup("users", TableStore("user", people))))
    assert server.get("/v1/about").json()["items"]["varying"] == ["price"]
    page = server.get("/v1/users/u4").json()
    body = {"user": "u4", "context": page["context"], "k": items.height}
    result = server.post("/v1/recommend", body).json()["items"]
    assert [item["id"] for item in result] == expected["item"].to_list()
    assert [item["fields"]["title"] for item in result] == expected["title"].to_list()
    np.testing.assert_allclose(
        [item["prediction"] for item in result], expected["prediction"], rtol=1e-6
    )
    if calibrated:
        assert expected["prediction"].n_unique() < expected.height


def latest_known(log, item, column):
    """By plain loops: the last cell of an item, in time, that is neither empty nor a mark."""
    result = dict.fromkeys(log[item])
    for row in log.sort("time").iter_rows(named=True):
        if row[column] not in (None, "", "NULL", []):
            result[row[item]] = row[column]
    return result


@pytest.mark.parametrize("kind", [pl.Float64, pl.String])
def test_an_empty_cell_is_no_latest_value(kind):
    """An item whose last rows have no price has the last price that is known: in recommend, the server and tables."""
    fields = (
        USER,
        ITEM,
        Numeric("price", role="item"),
        Bag("tags", role="item"),
        Categorical("device"),
    )
    schema = Schema(fields=fields, label=Label("click"), time="time")
    rng = np.random.default_rng(5)
    price = pl.Series(rng.random(90), dtype=pl.Float64).cast(kind)
    gone = pl.Series(rng.random(90) < 0.5)
    empty = price.clear(90) if kind == pl.Float64 else pl.Series(rng.choice(["", "NULL"], 90))
    tags = pl.Series([[] if k % 2 else [f"t{k % 5}"] for k in range(90)])
    log = LOG.with_columns(price=price.zip_with(~gone, empty), tags=tags)
    prices, lists = latest_known(log, "item", "price"), latest_known(log, "item", "tags")
    last = dict(log.sort("time").select("item", "price").iter_rows())
    assert sum(last[item] != prices[item] for item in prices) > 5, "items whose last cell is empty"
    items, _ = tables_of_log(log, [schema], "item", "user")
    assert dict(items.select("item", "price").iter_rows()) == prices
    assert dict(items.select("item", "tags").iter_rows()) == lists
    bundle = random_bundle(AutoInt(embedding_dim=4), schema, log)
    expected = recommend(bundle, log, NAMES, "u4", n=30)
    own = log.filter(pl.col("user") == "u4").sort("time")[-1:].select("user", "device")
    rows = pl.DataFrame(
        {"item": list(prices), "price": list(prices.values()), "tags": [lists[i] for i in prices]}
    )
    by_hand = dict(zip(prices, bundle.predict(rows.join(own, how="cross")), strict=True))
    np.testing.assert_allclose(
        expected["prediction"], [by_hand[item] for item in expected["item"]], rtol=1e-5
    )
    assert varying_columns(log, [schema], "item") == ["price", "tags"]
    one_price = pl.DataFrame(
        {"user": "u1", "item": ["a", "a"], "price": ["2", "NULL"], "tags": [["x"], []]}
    )
    assert varying_columns(one_price, [schema], "item") == []


def test_one_bundle_and_its_log_recommend(tmp_path, ranker):
    """Also with more items than one bundle may rank: they are not ranked, and complete rows that name them."""
    ranker.save(tmp_path / "ranker")
    LOG.write_csv(tmp_path / "log.txt", separator=";", include_header=False)
    reading = "--read", "separator=;", "--read", "columns=" + ",".join(LOG.columns)
    with serving(tmp_path, "ranker", "--log", "log.txt", *reading) as server:
        heard, _ = server.log.splitlines()
        assert heard.startswith(
            "log.txt: 90 rows; users by 'user' (--user-id), items by 'item' (--item-id); "
        )
        assert "items of a user's rows where “click” is 1 are excluded" in heard
        context = server.get("/v1/users/u2").json()["context"]
        asked = {"user": "u2", "context": context, "k": 5}
        result = httpx.post(f"{server.place}/v1/recommend", json=asked, timeout=120).json()
    rows = pl.read_csv(
        tmp_path / "log.txt", separator=";", has_header=False, new_columns=LOG.columns
    )
    expected = recommend(Bundle.load(tmp_path / "ranker"), rows, NAMES, "u2", n=5)
    assert result["ranked"] == "all"
    # The schema has no time, so the last row of the log counts, in both.
    assert [item["id"] for item in result["items"]] == expected["item"].to_list()
    catalogue().write_csv(tmp_path / "items.csv")
    row = {"user": "u1", "history": [], "device": "tv", "item": "i3"}
    whole = row | catalogue().drop("title").row(3, named=True)
    with serving(tmp_path, "ranker", "--items", "items.csv", "--max-items", 29) as server:
        heard, _ = server.log.splitlines()
        assert "30 items exceed --max-items 29" in heard
        assert "--tower, with its --index" in heard
        assert server.get("/v1/about").json()["items"] is None
        answers = httpx.post(
            f"{server.place}/v1/predict", json={"rows": [row, whole]}, timeout=120
        ).json()
    assert answers["predictions"][0] == pytest.approx(answers["predictions"][1])


def test_files_become_an_application_in_python(tmp_path, ranker):
    http = pytest.importorskip("fieldwise.serving.http")
    from serving.asgi import client_of

    ranker.save(tmp_path / "ranker")
    LOG.write_parquet(tmp_path / "log.parquet")
    sources = http.Sources(
        bundle=tmp_path / "ranker", log=tmp_path / "log.parquet", user_id="user", item_id="item"
    )
    notes = []
    asking = client_of(http.load_app(sources, http.ServerSettings(timeout=120), note=notes.append))
    assert notes[0].startswith(f"{sources.log}: 90 rows; users by 'user' (--user-id)")
    row = log(1, seed=9).to_dicts()
    answer = asking.post("/v1/predict", {"rows": row}).json()
    assert answer["predictions"][0]["score"] == pytest.approx(ranker.score(pl.DataFrame(row))[0])
    context = LOG.filter(pl.col("user") == "u1").select("user", "history", "device").to_dicts()[-1]
    answer = asking.post("/v1/recommend", {"context": context, "k": 3}).json()
    wanted = recommend(ranker, LOG, NAMES, "u1", n=3)
    assert [item["id"] for item in answer["items"]] == wanted["item"].to_list()


def test_sources_that_do_not_fit_are_refused_before_any_is_read():
    for given, rule in (
        ({"index": "ix"}, "--index is for recommendations with two bundles"),
        ({"tower": "tower"}, "--tower needs items to recommend"),
        ({"tower": "tower", "items": "redis://host/0"}, "an index is built from a table"),
        ({"exclude_seen": True}, "--exclude-seen needs a log"),
    ):
        with pytest.raises(ConfigError, match=rule):
            Sources(bundle="b", **given)
