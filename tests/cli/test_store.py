"""`fieldwise store load`, and `fieldwise serve` with stores."""

import json
import re
import signal

import polars as pl
import pytest
from cli.test_bad_input import refused
from serving.commands import serving
from serving.servers import PASSWORD, QUOTED

httpx = pytest.importorskip("httpx", reason="httpx is absent: pip install 'fieldwise[dev]'")


@pytest.fixture
def users(log):
    frame = log.select("user").unique().sort("user").with_columns(age=pl.int_range(pl.len()))
    frame.write_csv("users.csv")
    return frame


@pytest.fixture
def items(log):
    frame = log.select("item", "tags", "price").unique("item", keep="first").sort("item")
    frame.write_parquet("items.parquet")
    return frame


def test_load_and_replace(fieldwise, users, server):
    load = "store", "load", "users.csv", "--to", server.url("cli"), "--id", "user"
    code, out, err = fieldwise(*load)
    assert (code, err) == (0, "")
    assert re.fullmatch(
        r"9 rows in (redis|postgresql)://127.0.0.1:\d+/\w+#cli: user, age; \d+\.\d s\n", out
    )
    users.head(4).write_csv("users.csv")
    result = json.loads(fieldwise(*load, "--json")[1])
    assert (result["rows"], result["before"], result["columns"]) == (4, 9, ["user", "age"])
    assert QUOTED not in json.dumps(result)


def test_errors_of_loading(fieldwise, users, server, monkeypatch):
    url = server.url("cli")
    for change, parts in (
        (
            {"--id": "nobody"},
            ("must have the column 'nobody'", "known: age, user (--id names another)"),
        ),
        ({"--to": "users.parquet"}, ("begins with redis://",)),
        ({"--to": url.partition("#")[0]}, ("must name the table",)),
        ({"--to": url.replace(QUOTED, "wrong")}, ("was not written",)),
        ({"--to": url.replace(QUOTED, PASSWORD)}, ("%2F %23",)),
    ):
        options = {"--to": url, "--id": "user", **change}
        outcome = fieldwise(
            "store", "load", "users.csv", *(word for pair in options.items() for word in pair)
        )
        refused(outcome, *parts)
        assert PASSWORD not in outcome[2]
        assert "p@ss" not in outcome[2]
        assert QUOTED not in outcome[2]
    refused(fieldwise("store", "load", "none.csv", "--to", url), "none.csv")
    monkeypatch.setenv("FIELDWISE_STORE", url)
    assert fieldwise("store", "load", "users.csv", "--id", "user")[0] == 0


def test_a_server_whose_store_does_not_fit_does_not_start(fieldwise, bundle, users, server):
    url = server.url("fits")
    assert fieldwise("store", "load", "users.csv", "--to", url, "--id", "user")[0] == 0
    serve = "serve", bundle, "--user-id", "user", "--users"
    refused(fieldwise(*serve, url.replace(QUOTED, "wrong")), "must answer")
    refused(fieldwise(*serve, url.replace("#fits", "#nothing")), "holds no table", "#nothing")
    refused(fieldwise(*serve, url.replace(f":{server.port}/", ":1/")), "must answer")
    refused(fieldwise(*serve[:2], "--users", url, "--user-id", "who"), "column", "'who'")
    refused(
        fieldwise(*serve[:2], "--users", "users.csv", "--user-id", "id"),
        "users.csv: ",
        "found 'id': known: ",
    )
    refused(fieldwise(*serve, url, "--on-store-failure", "degraded"), "did you mean 'degrade'")


def test_the_command_serves_from_stores(fieldwise, bundle, users, items, redis, postgres):
    """Addresses in the environment; rows that name users and items score as whole ones; no secret is printed."""
    addresses = {"FIELDWISE_USERS": redis.url("users"), "FIELDWISE_ITEMS": postgres.url("items")}
    for file, url, column in zip(
        ("users.csv", "items.parquet"), addresses.values(), ("user", "item"), strict=True
    ):
        assert fieldwise("store", "load", file, "--to", url, "--id", column)[0] == 0
    options = ["--user-id", "user", "--item-id", "item", "--store-timeout", "120"]
    with serving(".", bundle, *options, **addresses) as server:

        def predicted(rows):
            return httpx.post(f"{server.place}/v1/predict", json={"rows": rows}, timeout=120).json()

        result = predicted([{"user": "u1", "item": item} for item in items["item"]])
        assert result == predicted([{**row, "user": "u1"} for row in items.to_dicts()])
        assert result["degraded"] == []
        states = server.get("/readyz").json()["stores"]
        assert states == {
            "users": {"kind": "redis", "state": "ok"},
            "items": {"kind": "postgresql", "state": "ok"},
        }
    assert server.process.returncode in (0, -signal.SIGTERM)
    for word in ("Traceback", QUOTED, PASSWORD):
        assert word not in server.log
