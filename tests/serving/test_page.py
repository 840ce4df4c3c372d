"""What the page asks for: fields and usual values, users, items by name; and its files."""

import dataclasses
import html.parser
import re
import signal
from importlib import resources
from urllib.parse import quote

import httpx
import numpy as np
import polars as pl
import pytest
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
    Encoder,
    Label,
    Numeric,
    Schema,
)
from fieldwise.bundle.about import About
from fieldwise.evaluation.calibration import Platt
from fieldwise.explain import Subject, explain
from fieldwise.explain.attribution import pair_interactions
from fieldwise.models.build import build_network
from fieldwise.serving import ItemTable, Ranker, build_index, item_table
from fieldwise.serving.browser import title_column
from fieldwise.serving.service import Service
from fieldwise.serving.stores import FeatureStore, Lookup, StoreError, Stores, TableStore
from fieldwise.serving.user_log import tables_of_log, varying_columns

USERS = pl.DataFrame(
    {"user": ["u1", "u2", "U10"], "history": ["i1|i2", None, "i3"], "since": ["2026", None, "2025"]}
)
CONTEXT = {"user": "u1", "history": ["i1", "i2"], "device": "tv"}


@pytest.fixture(scope="module")
def server(ranker, cascade):
    return client(
        Service(ranker, cascade), Stores(users=Lookup("users", TableStore("user", USERS)))
    )


def test_about_names_bundles_fields_and_limits(server, ranker, tower):
    about = server.get("/v1/about").json()
    assert about["model"] == {"name": "afm", "digest": ranker.digest, "quality": []}
    meaning = "probability that “click” is 1"
    assert about["labels"] == [
        {"name": "click", "task": "binary", "range": None, "meaning": meaning}
    ]
    assert about["users"] == {"column": "user", "count": 3}
    assert about["limits"] == {"k": 1000, "rows": 1000, "explained": 50, "prerank": 200}
    items = about["items"]
    assert (items["count"], items["column"], items["title"], items["ranked"]) == (
        30,
        "item",
        "title",
        True,
    )
    assert items["tower"] == {"name": "inttower", "digest": tower.digest}
    assert (items["seen"], items["positive"], items["exclude_seen"]) == (False, None, False)
    assert [field["column"] for field in about["fields"] if field["user"]] == ["user"]
    assert [field["column"] for field in about["fields"]] == list(SCHEMA.columns)
    fields = {field["name"]: field for field in about["fields"]}
    rows = log()
    assert fields["device"]["values"] == ["phone", "tv"]
    assert fields["device"]["usual"] == rows["device"].mode().sort()[0]
    assert fields["genres"]["values"] == ["g0", "g1", "g2", "g3"]
    assert (
        fields["history"]["items"],
        fields["history"]["max_length"],
        fields["history"]["usual"],
    ) == (True, 3, [])
    assert not fields["genres"]["items"]
    assert fields["price"]["usual"] == pytest.approx(
        float(np.median(rows["price"].head(7))), rel=1e-5
    )
    values = {column["name"]: column["values"] for column in items["columns"]}
    assert values["genres"] == ["g0", "g1", "g2", "g3"]
    assert list(values) == ["item", "title", "genres", "price"]


def test_test_metrics_in_words(ranker):
    test = {
        "auc": 0.8412,
        "logloss": 0.45,
        "normalized_entropy": 0.9,
        "ece": 0.021,
        "positive_rate": 0.58,
        "rows": 900,
    }
    tested = dataclasses.replace(ranker, about=About(run={"test": test}))
    said = client(Service(tested)).get("/v1/about").json()["model"]["quality"]
    assert len(said) == 3
    assert "higher 84 times of 100" in said[0]
    assert "(58 of 100) costs 0.500; the model costs 10 % less" in said[1]
    assert "2.1 percentage points" in said[2]
    kept = dataclasses.replace(tested, calibration={"click": Platt(slope=1.0, intercept=0.5)})
    assert client(Service(kept)).get("/v1/about").json()["model"]["quality"] == said[:1]


def test_values_are_offered_where_they_are_few():
    """Numbers by size, and nothing for a long vocabulary or a hashed one, which still has a usual value."""
    schema = Schema(
        fields=(
            Categorical("hour"),
            Categorical("user", role="user"),
            Categorical("device", hash_buckets=9),
        ),
        label=Label("click"),
    )
    frame = pl.DataFrame(
        {
            "hour": [9, 10, 9] * 30,
            "user": [f"u{k}" for k in range(90)],
            "device": ["tv", "tv", "phone"] * 30,
        }
    )
    encoder, settings = Encoder.fit(frame, schema), FM(embedding_dim=2)
    network = build_network(settings, encoder.layout, 0, labels=1).eval()
    bundle = Bundle(schema, encoder, settings, network, frame.head(7))
    fields = client(Service(bundle)).get("/v1/about").json()["fields"]
    assert [field["values"] for field in fields] == [["9", "10"], None, None]
    assert [field["usual"] for field in fields] == ["9", "u0", "tv"]


def test_a_ranking_bundle_alone_and_titles(ranker, cascade):
    bare = client(Service(ranker))
    about = bare.get("/v1/about").json()
    assert (about["items"], about["users"]) == (None, None)
    assert bare.get("/v1/users").json() == {"users": [], "count": 0}
    assert bare.get("/v1/users/u1").json()["error"]["field"] == "user"
    assert bare.get("/v1/items").status_code == 404
    with pytest.raises(ConfigError, match="a title must be a column of the items, found 'name'"):
        Service(ranker, title="name")
    assert (
        client(Service(ranker, cascade, title="price")).get("/v1/about").json()["items"]["title"]
        == "price"
    )
    with pytest.raises(ConfigError, match="did you mean 'title'"):
        Service(ranker, cascade, title="titel")


def test_users_by_the_beginning_of_their_ids(server):
    assert server.get("/v1/users").json() == {"users": ["U10", "u1", "u2"], "count": 3}, "sorted"
    assert server.get("/v1/users?search=U1").json() == {"users": ["U10", "u1"], "count": 2}
    assert server.get("/v1/users?search=u1&offset=1").json() == {"users": ["u1"], "count": 2}
    assert server.get("/v1/users?limit=1&offset=9").json() == {"users": [], "count": 3}
    assert server.get("/v1/users?search=.").json()["count"] == 0


def test_a_user_has_its_fields_as_requests_give_them(server, ranker):
    result = server.get("/v1/users/u1").json()
    fields = {"user": "u1", "history": ["i1", "i2"]}
    assert result == {
        "id": "u1",
        "fields": fields,
        "context": {},
        "seen": None,
        "position": 1,
        "degraded": [],
    }
    assert server.get("/v1/users/u2").json()["fields"]["history"] is None
    answer = server.get("/v1/users/nobody")
    assert (answer.status_code, answer.json()["error"]["field"]) == (404, "user")
    # An empty text is an empty history.
    table = pl.DataFrame({"user": ["u1", "u2"], "history": ["", "i1| |i2|"], "device": ["", "tv"]})
    users = client(Service(ranker), Stores(users=Lookup("users", TableStore("user", table))))
    assert users.get("/v1/users/u1").json()["fields"] == {
        "user": "u1",
        "history": [],
        "device": None,
    }
    assert users.get("/v1/users/u2").json()["fields"] == {
        "user": "u2",
        "history": ["i1", "i2"],
        "device": "tv",
    }


ODD = ["a/b", "a/similar", "similar", "..", ".", "%", "/", "a b?c#d", "%2F"]


@pytest.fixture(scope="module")
def odd(tmp_path_factory, tower, ranker):
    items = catalogue(len(ODD)).with_columns(item=pl.Series(ODD))
    whole = Ranker(
        ranker, build_index(tower, items, tmp_path_factory.mktemp("odd") / "ix")[0], tower=tower
    )
    users = pl.DataFrame({"user": ODD, "history": ["i1"] * len(ODD)})
    return client(Service(ranker, whole), Stores(users=Lookup("users", TableStore("user", users))))


def test_an_id_may_be_any_text(subtests, odd):
    for one in ODD:
        with subtests.test(one=one):
            # as they are, clients take dots for a path's own
            whole = quote(one, safe="").replace(".", "%2E")
            user = odd.get(f"/v1/users/{whole}")
            assert (user.status_code, user.json().get("id")) == (200, one)
            near = odd.get(f"/v1/items/{whole}/similar?k=20")
            assert near.status_code == 200, near.text
            assert {item["id"] for item in near.json()["items"]} == {*ODD} - {one}
    for path, field in (("items/a%2Fc/similar", "id"), ("users/a%2Fc", "user")):
        answer = odd.get(f"/v1/{path}")
        assert (answer.status_code, answer.json()["error"]["field"]) == (404, field)
        assert "found 'a/c'" in answer.json()["error"]["message"]
    text = odd.get("/metrics").text
    assert 'path="/v1/users/{id}",status="404"' in text
    assert 'path="/v1/items/{id}/similar",status="404"' in text


class Sorted(FeatureStore):
    """A store that finds users by the beginnings of their ids and counts nothing, as databases do; or fails."""

    kind, column, columns = "database", "user", ("user", "history")

    def __init__(self, fails=False):
        self.fails = fails

    async def get(self, ids, columns=None):
        if self.fails:
            raise StoreError("gone", "no answer")
        return [{"user": one, "history": "i1|i2"} if one.startswith("u") else None for one in ids]

    async def search(self, prefix, offset, limit):
        if self.fails:
            raise StoreError("gone", "no answer")
        return [one for one in ("u1", "u10", "u2") if one.startswith(prefix)][:limit], None


def test_users_of_a_database_are_found_and_not_counted(ranker):
    result = client(Service(ranker), Stores(users=Lookup("users", Sorted())))
    assert result.get("/v1/about").json()["users"] == {"column": "user", "count": None}
    assert result.get("/v1/users?search=u1").json() == {"users": ["u1", "u10"], "count": None}
    assert result.get("/v1/users?offset=1").json()["error"]["field"] == "offset"
    user = result.get("/v1/users/u1").json()
    assert (user["fields"], user["position"]) == ({"user": "u1", "history": ["i1", "i2"]}, None)
    assert result.get("/v1/users/x").status_code == 404
    broken = client(Service(ranker), Stores(users=Lookup("users", Sorted(fails=True))))
    for path, status in {"users": 503, "users/u1": 503, "about": 200}.items():
        assert broken.get(f"/v1/{path}").status_code == status
    without = client(
        Service(ranker), Stores(users=Lookup("users", Sorted(fails=True)), on_failure="degrade")
    )
    assert [one["columns"] for one in without.get("/v1/users/u1").json()["degraded"]] == [
        ["history"]
    ]
    assert (
        'fieldwise_degraded_total{reason="gone",store="users"} 1.0' in without.get("/metrics").text
    )


def test_items_by_id_or_title(server):
    result = server.get("/v1/items?search=title 1").json()
    titles = [f"Title {k}" for k in range(30)]
    expected = [f"i{k}" for k, title in enumerate(titles) if title.startswith("Title 1")]
    assert ([item["id"] for item in result["items"]], result["count"]) == (
        expected[:10],
        len(expected),
    )
    assert server.get("/v1/items?search=I2&limit=3").json()["count"] == 11
    chosen = server.get("/v1/items", params={"id": ["i7", "none", "i3"]}).json()
    assert [item["fields"]["title"] for item in chosen["items"]] == ["Title 7", "Title 3"]
    assert server.get("/v1/items?search=(").json()["items"] == []


WORDS = [f"The film {k}" for k in range(30)]


def test_which_column_names_items(subtests):
    for columns, title in [
        ({}, "title"),
        ({"slug": [f"s{k}" for k in range(30)], "title": ["same"] * 30}, "slug"),
        ({"slug": [f"s{k}" for k in range(30)]}, "title"),
        ({"title": [f"t{k % 14}" for k in range(30)]}, None),
        ({"title": [None] * 30}, None),
        ({"title": list(range(30))}, None),
        ({"title": ["same"] * 30, "maker": WORDS}, "maker"),
        ({"title": ["same"] * 30, "maker": [f"m{k}" for k in range(30)]}, None),
        (
            {
                "title": ["same"] * 30,
                "item_name": [f"m{k % 20}" for k in range(30)],
                "maker": WORDS,
            },
            "item_name",
        ),
        (
            {"title": ["same"] * 30, "maker": WORDS, "blurb": [f"b{k % 16}" for k in range(30)]},
            "blurb",
        ),
    ]:
        with subtests.test(columns=columns, title=title):
            items = catalogue().with_columns(
                pl.Series(name, values) for name, values in columns.items()
            )
            read = [Bag("genres", role="item"), Numeric("price", role="item")]
            read += [
                Categorical(name, role="item") for name in ("maker", "item_name") if name in columns
            ]
            assert title_column(ItemTable(id_column="item", items=items), read) == title


def test_a_field_may_be_the_title_and_a_list_may_not(build, ranker):
    schema = dataclasses.replace(SCHEMA, fields=(*SCHEMA.fields, Categorical("title", role="item")))
    reading = build(FM(embedding_dim=2), schema=schema)
    about = (
        client(Service(reading, Ranker(reading, item_table(catalogue(), "item"))))
        .get("/v1/about")
        .json()
    )
    assert about["items"]["title"] == "title"
    assert "title" in [field["column"] for field in about["fields"]]
    lists = Ranker(
        ranker, item_table(catalogue().with_columns(pl.col("genres").str.split("|")), "item")
    )
    with pytest.raises(ConfigError, match="found 'genres' with lists"):
        Service(ranker, lists, title="genres")
    columns = {
        one["name"]: one
        for one in client(Service(ranker, lists)).get("/v1/about").json()["items"]["columns"]
    }
    assert columns["genres"]["values"] == ["g0", "g1", "g2", "g3"]


def test_measured_pairs_are_those_of_occlusion(build):
    bundle = build(AutoInt(embedding_dim=4))
    explanation = explain(bundle, log(3, seed=4))
    subject = Subject.of(bundle, log(3, seed=4))
    others = np.broadcast_to(np.arange(len(subject.background)), (1, len(subject.background)))
    together = pair_interactions(subject.mixer, subject.logit, others, np.array([1]))[0].mean(0)
    fields = subject.fields
    names = {
        (fields[i], fields[j]): value for (i, j), value in zip(subject.pairs, together, strict=True)
    }
    result = explanation.measured_pairs(1)
    assert len(result) == len(names) == 15
    for pair in result:
        assert pair["effect"] == pytest.approx(names[tuple(pair["fields"])], abs=1e-5)
        assert pair["values"] == [subject.values[name][1] for name in pair["fields"]]
    assert [abs(pair["effect"]) for pair in result] == sorted(
        (abs(pair["effect"]) for pair in result), reverse=True
    )


def test_pairs_are_measured_for_models_without_pair_terms(build, cascade, tower, server):
    body = {"context": CONTEXT, "items": ["i4"]}
    autoint = build(AutoInt(embedding_dim=4))
    measuring = client(Service(autoint, Ranker(autoint, cascade.index, tower=tower)))
    plain = measuring.post("/v1/explain", body).json()["explanations"][0]
    asked = measuring.post("/v1/explain", {**body, "pairs": True}).json()["explanations"][0]
    assert set(asked) - set(plain) == {"measured_pairs"}
    assert len(asked["measured_pairs"]) == 15
    exact = server.post("/v1/explain", {**body, "pairs": True}).json()["explanations"][0]
    assert "measured_pairs" not in exact
    assert len(exact["pairs"]) == 15


def test_the_pages_run_only_what_the_server_gives(server):
    page = server.get("/")
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    policy = page.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "script-src 'self';" in policy
    assert "unsafe" not in policy
    results = []
    reader = html.parser.HTMLParser()
    reader.handle_starttag = lambda tag, attributes: results.append((tag, dict(attributes)))
    reader.feed(page.text)
    assert [attributes["src"] for tag, attributes in results if tag == "script"] == ["page/page.js"]
    assert not [
        tag
        for tag, attributes in results
        if tag == "style" or any(a.startswith("on") for a in attributes)
    ]
    for name in [
        own.get("href") or own.get("src") for tag, own in results if tag in ("link", "script")
    ]:
        answer = server.get(f"/{name}")
        assert answer.status_code == 200
        assert answer.headers["content-security-policy"] == policy
        again = server.get(f"/{name}", headers={"If-None-Match": answer.headers["etag"]})
        assert (again.status_code, again.content) == (304, b"")
    page = server.get("/docs")
    assert "script-src 'self';" in page.headers["content-security-policy"]
    assert re.findall(r"<script(?! src=)", page.text) == []
    names = re.findall(r'(?:src|href)="([^"]+)"', page.text)
    assert len(names) == 4
    for name in names:
        assert server.get(f"/{name}").status_code == 200


def test_static_files_import_each_other_and_write_no_html():
    folder = resources.files("fieldwise.serving") / "static"
    files = {one.name: one.read_text("utf-8") for one in folder.iterdir()}
    assert sum(len(text) for text in files.values()) < 84_000
    for name, text in files.items():
        if name.endswith(".js"):
            for other in re.findall(r'from "\./([^"]+)"', text):
                assert other in files
            assert not re.search(
                r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\b|new Function",
                text,
            )
        assert not re.search(r"https?://(?!www\.w3\.org/2000/svg)", text)


def test_the_page_needs_no_token_and_its_answers_do(ranker):
    closed = client(Service(ranker), token="secret")
    assert closed.get("/").status_code == 200
    assert closed.get("/page/page.js").status_code == 200
    assert closed.get("/docs").status_code == 200
    document = closed.get("/openapi.json").json()
    assert "example" not in str(document["paths"])
    for path in (
        "/docs/",
        "/docs/oauth2-redirect",
        "/redoc",
        "/v1/about",
        "/v1/users",
        "/v1/users/u1",
        "/v1/items",
    ):
        assert closed.get(path).status_code == 401
    assert closed.get("/page/none.js").status_code == 404
    assert closed.get("/page/../v1/about").status_code in (401, 404)


def test_a_log_gives_items_and_users_with_their_latest_values():
    rows = pl.DataFrame(
        [(3, "a", 31, "x", 2.0, None, "tv", 1, 0), (1, "a", 30, "y", 5.0, "Y", "tv", 2, 1),
         (2, "b", 20, "x", 1.0, "X", "tv", 3, 0), (4, None, 99, "y", 6.0, "Y", "phone", 4, 1)],
        ["day", "user", "age", "item", "price", "title", "device", "rank", "click"], orient="row",
    )  # fmt: skip
    schema = Schema(
        fields=(
            Numeric("age", role="user"),
            Categorical("item", role="item"),
            Numeric("price", role="item"),
            Categorical("device"),
        ),
        label=Label("click"),
        time="day",
    )
    items, users = tables_of_log(rows, [schema], "item", "user")
    assert items.to_dict(as_series=False) == {
        "item": ["x", "y"],
        "price": [2.0, 6.0],
        "title": ["X", "Y"],
    }
    assert users.to_dict(as_series=False) == {"user": ["a", "b"], "age": [31, 20]}
    assert varying_columns(rows, [schema], "item") == ["price"]
    with pytest.raises(DataError, match="the log must have the column 'who'"):
        tables_of_log(rows, [schema], "item", "who")


def test_two_bundles_and_their_log_are_enough_for_the_page(tmp_path, tower, ranker):
    """One command: items, users and the index come from the log, and nothing of them is left behind."""
    tower.save(tmp_path / "tower")
    ranker.save(tmp_path / "ranker")
    rows = log().with_row_index("click").with_columns(pl.col("click") % 2)
    rows.write_csv(tmp_path / "log.csv")
    (tmp_path / "tmp").mkdir()
    arguments = ["ranker", "--tower", "tower", "--log", "log.csv"]
    with serving(tmp_path, *arguments, TMPDIR=str(tmp_path / "tmp")) as server:
        lines = server.log.splitlines()
        assert "users by 'user' (--user-id), items by 'item' (--item-id)" in lines[0]
        assert server.place in lines[2]
        about = server.get("/v1/about").json()
        assert (about["items"]["count"], about["items"]["title"]) == (
            log()["item"].n_unique(),
            "title",
        )
        assert about["users"] == {"column": "user", "count": 6}
        assert server.get("/").status_code == 200
        assert list((tmp_path / "tmp").glob("*fieldwise-*")) == []
        ask = {"user": "u1", "context": {"device": "tv"}, "k": 2}
        answer = httpx.post(f"{server.place}/v1/recommend", json=ask, timeout=120).json()
        assert len(answer["items"]) == 2
        used = set(rows.filter(pl.col("user") == "u1", pl.col("click") == 1)["item"])
        assert answer["seen"] == len(used)
        assert not used & {item["id"] for item in answer["items"]}
    assert server.process.returncode in (0, -signal.SIGTERM)
    assert "Traceback" not in server.log
