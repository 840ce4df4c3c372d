"""One bundle that ranks a whole catalogue, and what users have used: against rows scored by hand, and `recommend`."""

import asyncio
import re
from types import SimpleNamespace

import httpx
import numpy as np
import polars as pl
import pytest
from forked import Command

pytest.importorskip("fastapi", reason="FastAPI is absent: pip install 'fieldwise[serve]'")

from serving.conftest import catalogue, log, make

from fieldwise import FM, AutoInt, Categorical, Label, Numeric, Schema
from fieldwise.bundle.bundle import Bundle
from fieldwise.errors import ConfigError, DataError
from fieldwise.evaluation.calibration import fit_calibration
from fieldwise.schema.ids import id_column, id_columns
from fieldwise.scoring.recommend import Catalogue, recommend
from fieldwise.serving import Query, WholeRanking
from fieldwise.serving.http import create_app
from fieldwise.serving.page.log_tables import tables_of_log
from fieldwise.serving.service import Service
from fieldwise.serving.stores import Lookup, Stores, TableStore
from fieldwise.serving.user_log import UserLog

LOG = log(90, seed=3).with_columns(
    time=pl.Series(np.random.default_rng(1).permutation(90)), click=pl.Series([0, 0, 1] * 30)
)
CONTEXT = {"user": "u1", "history": ["i1", "i2"], "device": "tv"}
NAMES = Catalogue(user="user", item="item", title="title")


@pytest.fixture(scope="module")
def whole(ranker):
    return WholeRanking(ranker, catalogue(), "item")


def by_hand(bundle, items, context):
    """Every item's probability in a row of its own, by id."""
    rows = [context | one for one in items.select("item", "genres", "price").to_dicts()]
    return dict(zip(items["item"], bundle.predict(pl.DataFrame(rows)), strict=True))


def best(scores, k):
    return sorted(scores, key=lambda one: -scores[one])[:k]


def test_every_item_is_ranked(whole, ranker):
    found = whole.recommend(Query(context=CONTEXT, k=7))
    expected = by_hand(ranker, catalogue(), CONTEXT)
    assert found.items["item"].to_list() == best(expected, 7)
    np.testing.assert_allclose(found.scores["prediction"], sorted(expected.values())[::-1][:7], rtol=1e-5)
    assert found.counts == {"candidates": 30, "filtered": 30, "ranked": 7}
    assert set(found.seconds) == {"encode", "filter", "rank"}


def test_filters_candidates_and_exclusions(whole, ranker):
    expected = by_hand(ranker, catalogue(), CONTEXT)
    have = [item for item, genres in catalogue().select("item", "genres").iter_rows() if "g1" in genres.split("|")]
    given = [f"i{k}" for k in range(0, 30, 2)]
    query = Query(context=CONTEXT, k=20, where={"genres": ["g1"]}, candidates=given, exclude=[have[0], "i2", "none"])
    found = whole.recommend(query)
    left = {one: expected[one] for one in set(have) & set(given) - {have[0], "i2"}}
    assert found.items["item"].to_list() == best(left, 20)
    assert (found.counts["candidates"], found.counts["filtered"]) == (15, len(left))
    assert whole.recommend(Query(context=CONTEXT, where={"genres": ["none"]})).items.height == 0


def test_several_labels_are_ranked_by_the_main_one(build):
    schema = Schema(fields=make().schema.fields, label=Label("click"), more_labels=(Label("buy"),))
    bundle = build(FM(embedding_dim=3), schema=schema)
    found = WholeRanking(bundle, catalogue(), "item").recommend(Query(context=CONTEXT, k=30))
    rows = pl.DataFrame([CONTEXT | one for one in catalogue().select("item", "genres", "price").to_dicts()])
    main = dict(zip(catalogue()["item"], bundle.predict(rows)[:, 0], strict=True))
    assert found.items["item"].to_list() == best(main, 30)


def test_what_cannot_be_ranked_is_told(ranker, build):
    with pytest.raises(DataError, match="more than once"):
        WholeRanking(ranker, pl.concat([catalogue(), catalogue().head(1)]), "item")
    with pytest.raises(DataError, match=r"catalogue's items must hold every column .* 'price' is missing"):
        WholeRanking(ranker, catalogue().drop("price"), "item")
    with pytest.raises(ConfigError, match="the items must not have a column"):
        WholeRanking(ranker, catalogue().with_columns(prediction=0.5), "item")
    fields = tuple(f for f in ranker.schema.fields if f.role != "item" and f.name != "history")
    alone = build(FM(embedding_dim=2), schema=Schema(fields=fields, label=Label("click")))
    with pytest.raises(ConfigError, match="a schema without fields of role item"):
        WholeRanking(alone, catalogue(), "item")


# over HTTP, with a log


def asking(service, stores=None):
    app = create_app(service, None, stores)

    def ask(path, body=None):
        async def run():
            transport = httpx.ASGITransport(app=app, raise_app_exceptions=False)
            async with httpx.AsyncClient(transport=transport, base_url="http://server") as client:
                return await client.request("GET" if body is None else "POST", path, json=body)

        return asyncio.run(run())

    return SimpleNamespace(ask=ask)


@pytest.fixture(scope="module")
def users():
    table = LOG.sort("time").unique("user", keep="last").select("user", "history")
    return Stores(users=Lookup("users", TableStore("user", table)))


@pytest.fixture(scope="module")
def server(whole, ranker, users):
    return asking(Service(ranker, whole, log=UserLog(LOG, [ranker.schema], "user", "item")), users)


def used(user, *rows):
    return set(LOG.filter(pl.col("user") == user, *rows)["item"])


def liked(user):
    return used(user, pl.col("click") == 1)


def test_an_answer_says_how_it_was_made(server, ranker):
    answer = server.ask("/v1/recommend", {"user": "u2", "context": {"device": "tv"}, "k": 4}).json()
    history = LOG.filter(pl.col("user") == "u2").sort("time")["history"][-1]
    expected = by_hand(ranker, catalogue(), {"user": "u2", "history": history, "device": "tv"})
    assert [item["id"] for item in answer["items"]] == best(
        {k: v for k, v in expected.items() if k not in liked("u2")}, 4
    )
    assert (answer["ranked"], answer["seen"]) == ("all", len(liked("u2")))
    assert answer["counts"] == {"candidates": 30, "filtered": 30 - len(liked("u2")), "ranked": 4}
    assert "prerank_score" not in answer["items"][0]
    about = server.ask("/v1/about").json()["items"]
    assert (about["prerank"], about["ranked"], about["seen"], about["exclude_seen"]) == (None, True, True, "positive")
    assert about["positive"] == "“click” is 1"
    assert server.ask("/readyz").json()["ranked"] == "all"
    counted = server.ask("/metrics").text
    assert float(re.search(r'fieldwise_recommendations_total{ranked="all"} (\S+)', counted)[1]) >= 1
    assert float(re.search(r"(?m)^fieldwise_seen_items_total (\S+)", counted)[1]) >= len(liked("u2"))


def test_similar_items_need_a_tower(server):
    answer = server.ask("/v1/items/i1/similar")
    assert answer.status_code == 404
    assert "start it with --prerank" in answer.json()["error"]["message"]


def test_what_a_user_has_used_may_come_when_asked_for(server):
    body = {"user": "u2", "context": {"device": "tv"}, "k": 30}
    settings = {}, {"exclude_seen": "positive"}, {"exclude_seen": True}, {"exclude_seen": False}
    found = [server.ask("/v1/recommend", {**body, **more}).json() for more in settings]
    usual, positive, without, whole = ({item["id"] for item in one["items"]} for one in found)
    assert (len(whole), whole - without, whole - positive, usual) == (30, used("u2"), liked("u2"), positive)
    assert used("u2") > liked("u2") > set()
    assert [one["seen"] for one in found] == [len(liked("u2"))] * 2 + [len(used("u2")), 0]
    wrong = server.ask("/v1/recommend", {**body, "exclude_seen": "some"})
    assert (wrong.status_code, wrong.json()["error"]["field"].split(".")[0]) == (422, "exclude_seen")
    unlabelled = UserLog(LOG.drop("click"), [make().schema], "user", "item")
    assert (unlabelled.positive, set(unlabelled.used("u2", "positive"))) == (None, used("u2"))
    odd = LOG.with_columns(click=pl.when(pl.col("item") == "i1").then(None).otherwise(1))
    assert set(UserLog(odd, [make().schema], "user", "item").used("u2", "positive")) == used("u2") - {"i1"}


def test_a_user_in_the_context_is_known_too(server):
    answer = server.ask("/v1/recommend", {"context": {**CONTEXT, "user": "u3"}, "k": 30}).json()
    assert not {item["id"] for item in answer["items"]} & liked("u3")
    assert answer["seen"] == len(liked("u3"))
    nobody = server.ask("/v1/recommend", {"context": {**CONTEXT, "user": None}, "k": 30}).json()
    assert (len(nobody["items"]), nobody["seen"]) == (30, 0)
    refused = server.ask("/v1/recommend", {"context": {**CONTEXT, "user": None}, "exclude_seen": True})
    assert (refused.status_code, refused.json()["error"]["field"]) == (422, "user")


def test_a_server_that_lets_them_come_by_default_or_has_no_log(whole, ranker, users):
    lets = asking(Service(ranker, whole, log=UserLog(LOG, [ranker.schema], "user", "item"), exclude_seen=False), users)
    body = {"user": "u2", "context": {"device": "tv"}, "k": 30}
    assert lets.ask("/v1/recommend", body).json()["seen"] == 0
    assert lets.ask("/v1/recommend", {**body, "exclude_seen": True}).json()["seen"] == len(used("u2"))
    none = asking(Service(ranker, whole), users)
    assert none.ask("/v1/recommend", body).json()["seen"] == 0
    refused = none.ask("/v1/recommend", {**body, "exclude_seen": True})
    assert (refused.status_code, refused.json()["error"]["field"]) == (422, "exclude_seen")


def test_a_user_has_the_latest_context(server):
    for user in ("u0", "u1"):
        found = server.ask(f"/v1/users/{user}").json()
        assert found["context"] == {"device": LOG.filter(pl.col("user") == user)["device"][-1]}
        assert (found["fields"]["user"], found["seen"]) == (user, len(used(user)))


# the same as in Python


@pytest.mark.parametrize("calibrated", [False, True])
def test_the_server_recommends_what_recommend_does(build, calibrated):
    """Items of changing fields, a context in time, equal probabilities by an isotonic calibration."""
    schema = Schema(
        fields=(
            Categorical("user", role="user"),
            Categorical("item", role="item"),
            Numeric("price", role="item"),
            Categorical("device"),
        ),
        label=Label("click"),
        time="time",
    )
    changing = LOG.with_columns(price=pl.Series(np.random.default_rng(2).random(90)))
    bundle = build(AutoInt(embedding_dim=4), schema=schema, seed=4)
    if calibrated:
        score, label = np.linspace(-6, 6, 12), np.array([0, 0, 0, 1, 0, 1, 0, 1, 0, 1, 1, 1])
        calibration = fit_calibration(label, score, "isotonic")
        bundle = Bundle(
            schema, bundle.encoder, bundle.settings, bundle.network, bundle.samples, {}, {"click": calibration}
        )
    expected = recommend(bundle, changing, NAMES, "u4", n=30)
    items, people = tables_of_log(changing, [schema], "item", "user")
    known = UserLog(changing, [schema], "user", "item")
    service = Service(bundle, WholeRanking(bundle, items, "item"), log=known)
    server = asking(service, Stores(users=Lookup("users", TableStore("user", people))))
    page = server.ask("/v1/users/u4").json()
    body = {"user": "u4", "context": page["context"], "k": items.height, "exclude_seen": True}
    found = server.ask("/v1/recommend", body).json()["items"]
    assert [item["id"] for item in found] == expected["item"].to_list()
    assert [item["fields"]["title"] for item in found] == expected["title"].to_list()
    np.testing.assert_allclose([item["prediction"] for item in found], expected["score"], rtol=1e-6)
    if calibrated:
        assert expected["score"].n_unique() < expected.height


# which columns name users and items


def schema_of(*fields, group=None):
    return Schema(fields=fields, label=Label("click"), group=group)


GENDER, ITEM = Categorical("gender", role="user"), Categorical("sku", role="item")


def test_ids_are_named_by_the_schema(subtests):
    for role, schema, columns, given, found in [
        ("user", schema_of(GENDER, Categorical("member_no", role="user"), ITEM), None, None, "member_no"),
        ("user", schema_of(GENDER, ITEM, group="visitor"), ["visitor", "gender"], None, "visitor"),
        ("user", schema_of(GENDER, ITEM, group="visitor"), ["user_id", "gender"], None, "user_id"),
        ("user", schema_of(GENDER, ITEM, group="sku"), ["gender", "sku"], None, "gender"),
        ("user", schema_of(GENDER, Categorical("member_no", role="user")), ["gender", "member_no"], None, "member_no"),
        ("user", schema_of(GENDER, ITEM), None, "gender", "gender"),
        ("item", schema_of(GENDER, Numeric("price", role="item"), ITEM), None, None, "sku"),
        ("item", schema_of(GENDER), ["item_id", "x"], None, "item_id"),
    ]:
        with subtests.test(role=role, schema=schema, columns=columns, given=given, found=found):
            assert id_column(role, [schema], columns, given) == found
            if columns is not None and given is None:  # reports and ranking go by the same rule
                assert id_columns(columns, schema)[role] == found


def test_ids_that_no_column_names():
    with pytest.raises(ConfigError, match="of item ids: by the schema 'sku' or 'item_id', found a, b; give --item-id"):
        id_column("item", [schema_of(GENDER, ITEM)], ["a", "b"], None)
    with pytest.raises(ConfigError, match="--user-id must be a column of the table, found 'who': known: a"):
        id_column("user", [schema_of(GENDER, ITEM)], ["a"], "who")


# the command


@pytest.fixture
def started(tmp_path):
    """Start `fieldwise serve` with some arguments: its first lines, and its address where it has one."""
    running = []

    def start(*arguments, lines):
        running.append(Command("serve", *arguments, "--port", "0", "--watch", "0", folder=tmp_path))
        place = running[-1].heard(r"(http://[^ /]+).*\n")
        heard = running[-1].errors.splitlines(keepends=True)
        assert len(heard) == lines, heard
        return heard, httpx.Client(transport=httpx.HTTPTransport(retries=8), base_url=place[1], timeout=20)

    yield start
    for one in running:
        one.end()
        assert "Traceback" not in one.errors


def test_one_bundle_and_its_log_recommend(started, tmp_path, ranker):
    ranker.save(tmp_path / "ranker")
    LOG.write_csv(tmp_path / "log.txt", separator=";", include_header=False)
    reading = "--separator", ";", "--columns", ",".join(LOG.columns)
    heard, server = started("ranker", "--log", "log.txt", *reading, lines=2)
    assert heard[0].startswith("log.txt: 90 rows; users by 'user' (--user-id), items by 'item' (--item-id); ")
    assert "items of a user's rows where “click” is 1 are excluded" in heard[0]
    page = server.get("/v1/users/u2").json()
    asked = {"user": "u2", "context": page["context"], "k": 5, "exclude_seen": True}
    found = server.post("/v1/recommend", json=asked).json()
    rows = pl.read_csv(tmp_path / "log.txt", separator=";", has_header=False, new_columns=LOG.columns)
    expected = recommend(Bundle.load(tmp_path / "ranker"), rows, NAMES, "u2", n=5)
    assert found["ranked"] == "all"
    # The schema has no time, so the last row of the log counts, in both.
    assert [item["id"] for item in found["items"]] == expected["item"].to_list()
    server.close()


def test_more_items_than_one_bundle_may_rank(started, tmp_path, ranker):
    ranker.save(tmp_path / "ranker")
    catalogue().write_csv(tmp_path / "items.csv")
    heard, server = started("ranker", "--items", "items.csv", "--max-items", "29", lines=2)
    assert "30 items exceed --max-items 29" in heard[0]
    assert "--prerank, with its --index" in heard[0]
    assert server.get("/v1/about").json()["items"] is None
    row = {"user": "u1", "history": [], "device": "tv", "item": "i3"}
    whole = row | catalogue().row(3, named=True)
    answers = server.post("/v1/predict", json={"rows": [row, {k: v for k, v in whole.items() if k != "title"}]}).json()
    assert answers["predictions"][0] == pytest.approx(answers["predictions"][1])
    server.close()
