"""`python -m benchmarks.serving compare`: throughput and latency of /v1/recommend and of a plain server, in turns."""

import argparse
import contextlib
import dataclasses
import json
import os
import socket
import statistics
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import polars as pl
import psutil

from fieldwise import Recommender, simulate
from fieldwise.runs.environment import environment
from fieldwise.runs.recipe_files import load_recipe
from fieldwise.serving import build_index
from fieldwise.storage.files import write_atomically

ROOT = Path(__file__).parents[2]
FIGURES = ("rate", "p50", "p95", "p99", "server_ms")
NEAR = 1e-5  # smaller differences of predictions are rounding
ROWS = 1_500_000
ITEMS = 100_000
USERS = 5_000
BODIES = 2_000
DECADE = "1970s"  # of a tenth of the items
USER_COLUMNS = ("user_id", "age_group", "gender", "city", "history")
ITEM_COLUMNS = ("item_id", "title", "genres", "release_decade", "length")


def parser() -> argparse.ArgumentParser:
    whole = argparse.ArgumentParser(prog="python -m benchmarks.serving", description=__doc__)
    whole.add_argument(
        "--folder", type=Path, default=ROOT / "build" / "serving", help="bundles, index, requests"
    )
    commands = whole.add_subparsers(dest="command", required=True)
    result = commands.add_parser("compare", help="both servers in turns")
    result.add_argument("--clients", type=int, nargs="+", default=[1, 8, 32])
    result.add_argument("--seconds", type=float, default=10, help="seconds of load per turn")
    result.add_argument("--rounds", type=int, default=5)
    result.add_argument("--threads", type=int, default=1, help="PyTorch threads of each server")
    result.add_argument(
        "--json", type=Path, default=ROOT / "benchmarks" / "serving" / "results.json"
    )
    result.add_argument(
        "serve", nargs="*", metavar="-- OPTION", help="more options of fieldwise serve"
    )
    return whole


def prepare(folder: Path) -> None:
    """Write `inttower`, `autoint`, `index`, `users.parquet` and `bodies.json` into a folder, if they are missing.

    Training takes one epoch: the speed of requests does not depend on the weights.
    """
    if (folder / "bodies.json").exists():
        return
    folder.mkdir(parents=True, exist_ok=True)
    log = simulate(ROWS, users=USERS, items=ITEMS + ITEMS // 50, seed=0)
    catalogue = (
        log.unique("item_id", keep="first", maintain_order=True).select(ITEM_COLUMNS).head(ITEMS)
    )
    users = log.unique("user_id", keep="last", maintain_order=True).select(USER_COLUMNS)
    users.write_parquet(folder / "users.parquet")
    for name in ("inttower", "autoint"):
        recipe = load_recipe(f"simulated/{name}")
        settings = dataclasses.replace(recipe.training, epochs=1)
        recommender = Recommender(recipe.schema, recipe.model, training=settings).fit(
            log.head(ROWS // 10)
        )
        recommender.save(folder / name, overwrite=True)
        if name == "inttower":
            build_index(recommender.bundle_, catalogue, folder / "index")
    rng = np.random.default_rng(0)
    names = users["user_id"].to_list()
    contexts = log.select("hour", "weekday", "device").sample(BODIES, seed=0).to_dicts()
    same = {"k": 20, "prerank": 200, "where": {"release_decade": [DECADE]}}
    bodies = [
        {"user": names[rng.integers(len(names))], "context": context, **same}
        for context in contexts
    ]
    (folder / "bodies.json").write_text(json.dumps(bodies), "utf-8")
    share = catalogue.filter(pl.col("release_decade") == DECADE).height
    print(f"{catalogue.height:,} items, {share:,} of the {DECADE}, which each request pre-ranks")


def main() -> None:
    options = parser().parse_args()
    prepare(options.folder)
    with contextlib.ExitStack() as stack:
        ports = {
            name: stack.enter_context(serving(name, options)) for name in ("fieldwise", "plain")
        }
        first = {name: answer(port, options.folder) for name, port in ports.items()}
        same = "yes" if same_answers(first["fieldwise"], first["plain"]) else "NO"
        print(
            f"same items in the same order in the first responses, apart from equal predictions: {same}"
        )
        store(options, in_turns(ports, options))


def store(options: argparse.Namespace, rows: list[dict[str, Any]]) -> None:
    """Write the results file, one line of it for a number of clients."""
    about = {
        "command": " ".join(["python -m benchmarks.serving", *sys.argv[1:]]),
        "environment": environment(),
    }
    options.json.parent.mkdir(parents=True, exist_ok=True)
    lines = ",\n".join(map(json.dumps, rows))
    write_atomically(options.json, f'{json.dumps(about)[:-1]}, "rows": [\n{lines}\n]}}\n'.encode())


def in_turns(ports: dict[str, int], options: argparse.Namespace) -> list[dict[str, Any]]:
    """Load on two servers in turns: medians, and the ratios of the first's rate to the second's."""
    turns: dict[str, dict[int, list[dict[str, Any]]]] = {
        name: {n: [] for n in options.clients} for name in ports
    }
    for name, port in ports.items():
        load(port, 4, 2, options.folder)
        print(f"{name}: warmed up")
    for number in range(options.rounds):
        for clients in options.clients:
            for name in ports if number % 2 else reversed(ports):
                turns[name][clients].append(
                    load(ports[name], clients, options.seconds, options.folder)
                )
    rows = [
        row(clients, {name: turns[name][clients] for name in ports}) for clients in options.clients
    ]
    print(
        f"\n{'clients':>7} {'':>10} {'requests/s':>10} {'p50, ms':>8} {'p95':>8} {'p99':>8} {'processor ms':>12}"
    )
    for result in rows:
        for name in ports:
            rate, *times, processor_ms = (result[name][figure] for figure in FIGURES)
            shown = " ".join(f"{one:>8.1f}" for one in times)
            print(f"{result['clients']:>7} {name:>10} {rate:>10.0f} {shown} {processor_ms:>12.2f}")
        low = min(result["ratios"])
        high = max(result["ratios"])
        print(
            f"{'':>7} {'ratio':>10} {statistics.median(result['ratios']):>10.2f}   ({low:.2f} to {high:.2f})"
        )
    return rows


def row(clients: int, turns: dict[str, list[dict[str, Any]]]) -> dict[str, Any]:
    """Medians over the rounds, and the ratio of throughputs in each round."""
    results: dict[str, Any] = {"clients": clients}
    for name, own in turns.items():
        results[name] = {key: statistics.median(turn[key] for turn in own) for key in FIGURES}
        results[name]["statuses"] = dict(
            sum((Counter(turn["statuses"]) for turn in own), Counter())
        )
    results["ratios"] = [
        first["rate"] / second["rate"] for first, second in zip(*turns.values(), strict=True)
    ]
    return results


@contextlib.contextmanager
def serving(name: str, options: argparse.Namespace) -> Iterator[int]:
    """The port of a running server, `fieldwise` or `plain`."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    at = options.folder.resolve()
    words = ["benchmarks.serving.plain", at, port, options.threads]
    if name == "fieldwise":
        words = [
            "fieldwise",
            "serve",
            at / "autoint",
            "--tower",
            at / "inttower",
            "--index",
            at / "index",
        ]
        words += ["--users", at / "users.parquet", "--port", port, *options.serve]
    command = [sys.executable, "-m", *map(str, words)]
    environ = {**os.environ, "OMP_WAIT_POLICY": "PASSIVE", "OMP_NUM_THREADS": str(options.threads)}
    with subprocess.Popen(command, cwd=ROOT, env=environ, stderr=subprocess.DEVNULL) as process:
        try:
            for _ in range(600):
                with contextlib.suppress(httpx.TransportError):
                    httpx.get(f"http://127.0.0.1:{port}/openapi.json")
                    break
                if process.poll() is not None:
                    sys.exit(f"the {name} server did not start: {' '.join(command)}")
                time.sleep(0.1)
            PROCESSES[port] = process.pid
            yield port
        finally:
            process.terminate()


PROCESSES: dict[int, int] = {}


def load(port: int, clients: int, seconds: float, folder: Path) -> dict[str, Any]:
    """What the clients found, with the server's processor milliseconds of a request."""
    before = processor(PROCESSES[port])
    arguments = [str(port), str(clients), str(seconds), str(folder / "bodies.json")]
    command = [sys.executable, "-m", "benchmarks.wire", *arguments]
    result: dict[str, Any] = json.loads(
        subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, check=True).stdout
    )
    answers = max(1, sum(result["statuses"].values()))
    return {**result, "server_ms": 1000 * (processor(PROCESSES[port]) - before) / answers}


def processor(pid: int) -> float:
    """Processor seconds of a process and its children."""
    process = psutil.Process(pid)
    times = [one.cpu_times() for one in (process, *process.children(recursive=True))]
    return sum(one.user + one.system for one in times)


def answer(port: int, folder: Path) -> list[tuple[str, float]]:
    """Ids and predictions in the response to the first request."""
    body = json.loads((folder / "bodies.json").read_text("utf-8"))[0]
    result = httpx.post(f"http://127.0.0.1:{port}/v1/recommend", json=body).json()
    return [(item["id"], item["prediction"]) for item in result["items"]]


def same_answers(ours: list[tuple[str, float]], theirs: list[tuple[str, float]]) -> bool:
    """Whether two responses have the same predictions in order, and the same items where predictions differ.

    Items that are not in the training rows have equal predictions if their fields are equal.
    Fieldwise returns them in the catalogue's order, the reference server in any order.

    >>> same_answers([("a", 0.9), ("b", 0.5)], [("a", 0.9), ("c", 0.5)])  # more items may have the last prediction
    True
    >>> same_answers([("a", 0.9), ("b", 0.5)], [("b", 0.9), ("a", 0.5)])
    False
    """
    if len(ours) != len(theirs) or any(
        abs(a - b) > NEAR for (_, a), (_, b) in zip(ours, theirs, strict=True)
    ):
        return False
    last = min((p for _, p in ours), default=0.0) + NEAR
    place = dict(theirs)
    return all(p <= last or (item in place and abs(place[item] - p) <= NEAR) for item, p in ours)


if __name__ == "__main__":
    main()
