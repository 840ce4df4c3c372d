"""Stores that lie, hang and die under the server: one user's row is that user's alone, and all is well afterwards."""

import time
from collections.abc import Callable
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import pytest
from serving.commands import Running
from serving.servers import Server, postgres_server, redis_server
from serving.test_store_rows import UNREADABLE_ROWS

from benchmarks.chaos.outcome import Outcome, judge
from benchmarks.chaos.target import result, served, start
from benchmarks.chaos.witness import BAD_USERS
from fieldwise.data.read.sliced_table import SlicedTable
from fieldwise.serving.stores import load_table, open_store

PATIENT = 2.0  # seconds
ATTACKERS = 50  # connections of a hostile client
USERS = ("--user-id", "user")


def stores(folder: Path, seconds: float) -> list[Outcome]:
    """Redis and PostgreSQL, where they are installed."""
    results: list[Outcome] = []
    for name, server, lie in (
        ("redis", redis_server, lie_in_redis),
        ("postgresql", postgres_server, lie_in_postgresql),
    ):
        try:
            with contextmanager(server)() as store:
                results += [
                    lies(folder, name, store, lie, seconds),
                    outage(folder, name, store, seconds),
                ]
        except pytest.skip.Exception as e:
            results.append(Outcome(name=f"{name} lies", left_out=f"not tried: {e}"))
    return results


def lies(
    folder: Path, name: str, store: Server, lie: Callable[[Server], str], seconds: float
) -> Outcome:
    """Rows that cannot be read, asked for by a hostile client; the users of honest ones are whole.

    The store has two seconds to answer, not the default 100 ms: a busy machine exceeds these
    whatever the rows are, and a lookup that is late is no sign that one row's fault reached
    another.
    """
    load_table(SlicedTable(folder / "users.parquet"), open_store(store.url("users"), "user"))
    url = lie(store)
    with over(folder, url, "--store-timeout", PATIENT) as server:
        result(start("witness", server.port, 1), 60)
        attack = start("witness", server.port, seconds + 3, ATTACKERS)
        witness = result(start("witness", server.port, seconds), 60 + seconds)
        sent = result(attack, 60 + seconds)
        one = Outcome(
            name=f"{name} lies", tried=sum(sent["statuses"].values()), broken=sent["faults"]
        )
        judge(one, witness)
        one.figures |= {"statuses": sent["statuses"]}
        state = server.get("/readyz").json()["stores"]["users"]["state"]
        if name == "postgresql":
            with store.client() as client:
                client.execute("DROP VIEW lying")  # it would keep the table from being replaced
        if state != "ok":
            one.broken.append(f"readers of other rows are told that the store is {state}")
    return one


def outage(folder: Path, name: str, store: Server, seconds: float) -> Outcome:
    """The store hangs, then dies, then is back: 503 meanwhile, and whole answers soon after."""
    with over(folder, store.url("users")) as server:
        watching = start("witness", server.port, seconds + 1)
        time.sleep(seconds / 4)
        store.pause()
        time.sleep(seconds / 4)
        store.kill()
        time.sleep(seconds / 4)
        store.start()
        load_table(SlicedTable(folder / "users.parquet"), open_store(store.url("users"), "user"))
        witness = result(watching, 60 + seconds)
        one = Outcome(name=f"{name} hangs and dies", tried=1)
        judge(one, witness, allowed=("200", "503"))
        one.figures |= {"statuses": witness["statuses"]}
        time.sleep(3)  # a pause is at most 2 s
        after = result(start("witness", server.port, 1), 60)
        if after["statuses"].keys() != {"200"}:
            one.broken.append(f"after the store was back: {after['statuses']}")
    return one


def over(folder: Path, url: str, *more: object) -> AbstractContextManager[Running]:
    """The cascade with users of a store."""
    return served(
        folder,
        "ranker",
        "--tower",
        "tower",
        "--index",
        "ix",
        "--users",
        url,
        *USERS,
        *map(str, more),
    )


def lie_in_redis(store: Any) -> str:
    """Texts that are no rows, in the places of rows."""
    client = store.client()
    for number in range(BAD_USERS):
        text = UNREADABLE_ROWS[number % len(UNREADABLE_ROWS)]
        client.hset("users", f"bad{number}", text)
    return str(store.url("users"))


def lie_in_postgresql(store: Any) -> str:
    """A view that fails at some rows, and a column that no model reads and nobody can."""
    with store.client() as client:
        client.execute("DROP VIEW IF EXISTS lying; DROP TABLE IF EXISTS bad")
        client.execute(
            """CREATE TABLE bad AS SELECT 'bad' || n AS "user", n FROM generate_series(0, 99) n"""
        )
        client.execute(
            """CREATE VIEW lying AS SELECT "user", history, timestamp 'infinity' AS unread FROM users
            UNION ALL SELECT "user", (1 / (n - n))::text, timestamp 'infinity' FROM bad"""
        )
    return str(store.url("lying"))
