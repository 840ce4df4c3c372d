"""Rate of a server that looks ten features of users up in Redis, in turns with the same features in the request.

    python -m benchmarks.features_served [--clients N] [--seconds S] [--rounds R]

One server ranks 1,000 items for each request. `redis`: the request has a user, whose features are
in Redis; `given`: it has the features itself. It prints medians over the rounds, and the ratio of
the rates in each, with the server's processor milliseconds of a request, which other processes
disturb less. It needs redis-server.
"""

import argparse
import contextlib
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import polars as pl
import psutil

from fieldwise import simulate

ROOT = Path(__file__).parents[1]
ROWS = 30_000
USERS = 2_000
ITEMS = 1_000
WINDOWS = ("1d", "7d", "30d", "all")
RECIPE = """
data = { path = "log.csv" }
split = { kind = "time" }
model = { name = "fm", embedding_dim = 8 }
training = { epochs = 1 }
[schema]
user = "user_id"
item = "item_id"
time = "timestamp"
label = { column = "liked" }
"""
WAYS = ("redis", "given")


def recipe() -> tuple[str, list[str]]:
    """A recipe with ten features of users, and their columns."""
    features = [
        {"kind": "count", "key": "user_id", "windows": list(WINDOWS)},
        {"kind": "rate", "key": "user_id", "value": "liked", "delay": "1h", "windows": list(WINDOWS)},
        {"kind": "time_since", "key": "user_id"},
        {"kind": "distinct", "key": "user_id", "value": "item_id"},
    ]  # fmt: skip
    columns = [f"user_id_count_{window}" for window in WINDOWS]
    columns += [f"user_id_liked_rate_{window}" for window in WINDOWS]
    columns += ["user_id_time_since", "user_id_item_id_distinct"]
    fields = [{"kind": "numeric", "name": name, "role": "user"} for name in columns]
    fields += [
        {"kind": "categorical", "name": name, "role": "item"} for name in ("item_id", "genres")
    ]
    fields.append({"kind": "categorical", "name": "device"})
    import tomli_w

    text = tomli_w.dumps({"features": features})
    return RECIPE + f"fields = [{', '.join(map(_inline, fields))}]\n" + text, columns


def _inline(table: dict[str, str]) -> str:
    return "{ " + ", ".join(f"{name} = {json.dumps(value)}" for name, value in table.items()) + " }"


def fieldwise(folder: Path, *words: object) -> None:
    """Run a command in a folder."""
    command = [sys.executable, "-m", "fieldwise", *map(str, words)]
    subprocess.run(command, cwd=folder, check=True, stdout=subprocess.DEVNULL)


def prepare(folder: Path, redis: str) -> None:
    """Write a bundle, the items, the users into Redis, and the requests of both ways."""
    log = simulate(ROWS, users=USERS, items=ITEMS)
    log.write_csv(folder / "log.csv")
    text, columns = recipe()
    (folder / "recipe.toml").write_text(text)
    fieldwise(folder, "train", "recipe.toml", "--out", "bundle", "--quiet")
    of_users = ["--bundle", "bundle", "--id", "user_id", "--ttl", "9999d", "--out", "users.parquet"]
    fieldwise(folder, "features", "latest", "log.csv", *of_users)
    fieldwise(folder, "store", "load", "users.parquet", "--to", redis, "--id", "user_id")
    log.unique("item_id").select("item_id", "genres").write_parquet(folder / "items.parquet")
    users = pl.read_parquet(folder / "users.parquet")
    asked = log.select("user_id", "device").sample(2_000, seed=0)
    rows = asked.join(users, on="user_id", maintain_order="left").to_dicts()
    context = {"redis": ("device",), "given": ("device", *columns)}
    for way in WAYS:
        bodies: list[dict[str, Any]] = []
        for row in rows:
            body: dict[str, Any] = {"context": {name: row[name] for name in context[way]}, "k": 20}
            if way == "redis":
                body["user"] = row["user_id"]
            bodies.append(body)
        (folder / f"{way}.json").write_text(json.dumps(bodies))


def free_port() -> int:
    """A port at which nobody listens."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


@contextlib.contextmanager
def running(command: list[str], folder: Path) -> Iterator[psutil.Process]:
    """A process, until the block ends."""
    environ = {**os.environ, "OMP_WAIT_POLICY": "PASSIVE", "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(
        command, cwd=folder, env=environ, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as process:
        try:
            yield psutil.Process(process.pid)
        finally:
            process.terminate()


def load(server: psutil.Process, port: int, bodies: Path, options: argparse.Namespace) -> dict:
    """What the clients found, with the server's processor milliseconds of a request."""
    before = server.cpu_times()
    words = [port, options.clients, options.seconds, bodies]
    command = [sys.executable, "-m", "benchmarks.wire", *map(str, words)]
    output = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, check=True).stdout
    after = server.cpu_times()
    result: dict[str, Any] = json.loads(output)
    assert result["statuses"].keys() == {"200"}, result
    seconds = after.user + after.system - before.user - before.system
    return {**result, "server_ms": 1000 * seconds / result["statuses"]["200"]}


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=5)
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        redis_port = free_port()
        redis = f"redis://127.0.0.1:{redis_port}/0#users"
        server_of_store = ["redis-server", "--port", str(redis_port), "--save", ""]
        stack.enter_context(running(server_of_store, folder))
        prepare(folder, redis)
        port = free_port()
        serve = ["serve", "bundle", "--users", redis, "--items", "items.parquet", "--port", port]
        command = [sys.executable, "-m", "fieldwise", *map(str, serve)]
        server = stack.enter_context(running(command, folder))
        while True:
            with contextlib.suppress(httpx.TransportError):
                httpx.get(f"http://127.0.0.1:{port}/healthz")
                break
            time.sleep(0.1)
        turns: dict[str, list[dict[str, Any]]] = {way: [] for way in WAYS}
        for number in range(options.rounds + 1):
            for way in WAYS if number % 2 else reversed(WAYS):
                turn = load(server, port, folder / f"{way}.json", options)
                if number:  # the first one warms up
                    turns[way].append(turn)
    for way in WAYS:
        figures = {
            name: statistics.median(turn[name] for turn in turns[way])
            for name in ("rate", "p50", "p99", "server_ms")
        }
        print(
            f"{way:>6}: {figures['rate']:.0f} requests/s, p50 {figures['p50']:.1f} ms, p99 {figures['p99']:.1f} ms, "
            f"{figures['server_ms']:.2f} ms of the server's processor"
        )
    for name in ("rate", "server_ms"):
        ratios = sorted(
            first[name] / second[name]
            for first, second in zip(turns["redis"], turns["given"], strict=True)
        )
        print(
            f"{name}, redis to given: {statistics.median(ratios):.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f})"
        )


if __name__ == "__main__":
    main()
