"""Catalogues with columns that no request could have: answers show what can be shown, and ids still name items."""

import asyncio
from datetime import date, timedelta

import polars as pl
import pytest
from serving.asgi import client
from serving.conftest import catalogue

from fieldwise import ConfigError
from fieldwise.serving import Ranker, build_index
from fieldwise.serving.rows import plain_table
from fieldwise.serving.service import Service
from fieldwise.serving.stores import memory

INF, NAN = float("inf"), float("nan")
DAY, LONG = date(2026, 1, 2), timedelta(hours=3)
SHOWN = {
    "since": (DAY, "2026-01-02"), "length": (LONG, "3:00:00"), "rate": (INF, None),
    "rates": ([0.5, NAN, INF, None], [0.5, None, None, None]), "days": ([DAY], ["2026-01-02"]),
    "lengths": ([LONG], ["3:00:00"]), "fixed": (pl.Series([[1, 2]], dtype=pl.Array(pl.Int64, 2)), [1, 2]),
    "prizes": (pl.Series([["gold"]], dtype=pl.List(pl.Categorical)), ["gold"]),
}  # fmt: skip
LEFT_OUT = {
    "embedding": [[0.1, 0.2], [0.3, 0.4]],
    "made": {"by": "x"},
    "bytes": b"\xff\x00",
    "parts": [{"a": 1}],
}


def odd():
    """Every column twice: with a value in each row, and `no_...` with none."""
    cells = {name: shown for name, (shown, _) in SHOWN.items()} | LEFT_OUT
    series = {
        name: value if isinstance(value, pl.Series) else pl.Series([value])
        for name, value in cells.items()
    }
    columns = [value.alias(name).new_from_index(0, 30) for name, value in series.items()]
    return catalogue().with_columns(
        *columns, *(pl.Series(f"no_{c.name}", [None] * 30, c.dtype) for c in columns)
    )


@pytest.fixture(scope="module")
def service(tmp_path_factory, tower, ranker):
    return Service(
        ranker,
        Ranker(
            ranker,
            build_index(tower, odd(), tmp_path_factory.mktemp("odd") / "ix")[0],
            tower=tower,
        ),
    )


@pytest.fixture(scope="module")
def server(service):
    return client(service)


def test_answers_show_what_they_can_hold(server):
    context = {"user": "u1", "history": ["i1"], "device": "tv"}
    answers = [
        server.get("/v1/items/i1/similar"),
        server.get("/v1/items?limit=1"),
        server.post("/v1/recommend", {"context": context, "k": 1}),
    ]
    plain = catalogue()
    expected = {name: shown for name, (_, shown) in SHOWN.items()}
    for answer in answers:
        assert answer.status_code == 200, answer.text
        item = answer.json()["items"][0]
        own = plain.row(by_predicate=pl.col("item") == item["id"], named=True)
        assert item["fields"] == own | expected | {f"no_{name}": None for name in expected}
    assert server.get("/v1/about").status_code == 200


def test_ids_name_items_whatever_else_the_catalogue_holds(server, ranker):
    row = {"user": "u1", "history": ["i1"], "device": "tv", "item": "i7"}
    answer = server.post("/v1/predict", {"rows": [row]})
    assert answer.status_code == 200, answer.text
    whole = pl.DataFrame([{**row, "history": "i1"}]).join(catalogue(), on="item")
    assert answer.json()["predictions"][0]["score"] == pytest.approx(
        ranker.score(whole)[0], rel=1e-5
    )


def test_items_are_made_plain_once_an_index(service, monkeypatch):
    made = []
    monkeypatch.setattr(
        memory, "plain_table", lambda frame: made.append(frame.columns) or plain_table(frame)
    )
    again = Service(service.bundle, service.ranker)
    again.warm_up()
    for _ in range(2):
        (row,) = asyncio.run(again.item_rows.get(["i7"]))
    assert row == {"item": "i7", **catalogue().select("genres", "price").row(7, named=True)}
    assert made == [["item", "genres", "price"]]


@pytest.mark.parametrize(
    ("title", "what"), [("bytes", "bytes"), ("length", "durations"), ("embedding", "lists")]
)
def test_a_title_must_be_text(service, title, what):
    with pytest.raises(ConfigError, match=f"found '{title}' with {what}"):
        Service(service.bundle, service.ranker, title=title)
