"""`python -m benchmarks.serving compare`: throughput and latency of /v1/recommend and of a reference server, in turns.

`workers`: one process against several on one port, in turns, with the processor time and the memory of each.
`soak`: memory during minutes of load, while the index and the bundles are replaced repeatedly.
"""

import argparse
import contextlib
import json
import os
import shutil
import socket
import statistics
import subprocess
import sys
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.serving.prepare import prepare
from benchmarks.serving.processes import cpu_seconds, idle_seconds, memory, pss
from fieldwise.runs.environment import environment
from fieldwise.storage.files import write_atomically

ROOT = Path(__file__).parents[2]
FIGURES = ("rate", "p50", "p95", "p99", "server_ms", "kernel_ms", "client_ms", "idle")
NEAR = 1e-5  # smaller differences of predictions are rounding


def main() -> None:
    options = parser().parse_args()
    prepare(options.folder)
    if options.command == "compare":
        compare(options)
    elif options.command == "workers":
        workers(options)
    else:
        soak(options)


def parser() -> argparse.ArgumentParser:
    found = argparse.ArgumentParser(prog="python -m benchmarks.serving", description=__doc__)
    found.add_argument("--folder", type=Path, default=ROOT / "build" / "serving", help="bundles, index, requests")
    commands = found.add_subparsers(dest="command", required=True)
    against = _in_turns(commands.add_parser("compare", help="both servers in turns"), [1, 8, 32])
    against.add_argument("--json", type=Path, default=ROOT / "benchmarks" / "serving" / "results.json")
    several = _in_turns(commands.add_parser("workers", help="one process and several in turns"), [8, 32])
    several.add_argument("--workers", type=int, default=2)
    several.add_argument("--json", type=Path, default=ROOT / "build" / "serving-workers.json")
    for command in (against, several):
        command.add_argument("serve", nargs="*", metavar="-- OPTION", help="more options of fieldwise serve")
    soaking = commands.add_parser("soak", help="memory under load, with replacements")
    soaking.add_argument("--minutes", type=float, default=10)
    soaking.add_argument("--clients", type=int, default=8)
    soaking.add_argument("--every", type=float, default=60, help="seconds between replacements; 0: none")
    soaking.add_argument("--threads", type=int, default=1)
    soaking.add_argument("serve", nargs="*", metavar="-- OPTION", help="more options of fieldwise serve")
    return found


def _in_turns(command: argparse.ArgumentParser, clients: list[int]) -> argparse.ArgumentParser:
    command.add_argument("--clients", type=int, nargs="+", default=clients)
    command.add_argument("--seconds", type=float, default=10, help="seconds of load per turn")
    command.add_argument("--rounds", type=int, default=5)
    command.add_argument("--threads", type=int, default=1, help="PyTorch threads of each server")
    return command


def compare(options: argparse.Namespace) -> None:
    """The server against the reference server."""
    with contextlib.ExitStack() as stack:
        ports = {name: stack.enter_context(serving(name, options)) for name in ("fieldwise", "plain")}
        first = {name: answer(port, options.folder) for name, port in ports.items()}
        same = "yes" if same_answers(first["fieldwise"], first["plain"]) else "NO"
        print(f"same items in the same order in the first responses, apart from equal predictions: {same}")
        store(options, {"rows": in_turns(ports, options)})


def workers(options: argparse.Namespace) -> None:
    """Several processes against one, and the memory of all processes of each (proportional set size, PSS).

    Memory is measured of each server alone: pages of libraries that both map would count in parts for each.
    """
    counts = {f"{count} worker{'s' if count > 1 else ''}": str(count) for count in (options.workers, 1)}
    with contextlib.ExitStack() as stack:
        ports = {
            name: stack.enter_context(serving("fieldwise", options, "--workers", count))
            for name, count in counts.items()
        }
        rows = in_turns(ports, options)
    sizes = {}
    for name, count in counts.items():
        with serving("fieldwise", options, "--workers", count) as port:
            for clients in (4, *options.clients):
                load(port, clients, options.seconds, options.folder)
            sizes[name] = pss(PROCESSES[port])
    several, one = sizes.values()
    print(", ".join(f"{name}: {size:,.0f} MiB" for name, size in sizes.items()) + f": {several / one:.2f} times")
    store(options, {"rows": rows, "pss_mib": sizes})


def store(options: argparse.Namespace, found: dict[str, Any]) -> None:
    about = {
        "command": " ".join(["python -m benchmarks.serving", *sys.argv[1:]]),
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "environment": environment(),
        **found,
    }
    options.json.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(options.json, json.dumps(about, indent=1).encode())


def in_turns(ports: dict[str, int], options: argparse.Namespace) -> list[dict[str, Any]]:
    """Load on two servers in turns: medians, and the ratios of the first's rate to the second's."""
    turns: dict[str, dict[int, list[dict[str, Any]]]] = {name: {n: [] for n in options.clients} for name in ports}
    for name, port in ports.items():
        load(port, 4, 2, options.folder)
        print(f"{name}: warmed up")
    for number in range(options.rounds):
        for clients in options.clients:
            for name in ports if number % 2 else reversed(ports):
                turns[name][clients].append(load(ports[name], clients, options.seconds, options.folder))
    rows = [row(clients, {name: turns[name][clients] for name in ports}) for clients in options.clients]
    print(f"\n{'':>18} {'':>10} {'latency in ms':>26} {'processor ms of a request':>30} {'cores':>6}")
    print(
        f"{'clients':>7} {'':>10} {'requests/s':>10} {'p50':>8} {'p95':>8} {'p99':>8} "
        f"{'server':>10} {'kernel':>9} {'client':>9} {'idle':>6}"
    )
    for found in rows:
        for name in ports:
            own = found[name]
            print(
                f"{found['clients']:>7} {name:>10} {own['rate']:>10.0f} {own['p50']:>8.1f} {own['p95']:>8.1f} "
                f"{own['p99']:>8.1f} {own['server_ms']:>10.2f} {own['kernel_ms']:>9.2f} {own['client_ms']:>9.2f} "
                f"{own['idle']:>6.2f}"
            )
        low, high = min(found["ratios"]), max(found["ratios"])
        print(f"{'':>7} {'ratio':>10} {statistics.median(found['ratios']):>10.2f}   ({low:.2f} to {high:.2f})")
    return rows


def row(clients: int, turns: dict[str, list[dict[str, Any]]]) -> dict[str, Any]:
    """Medians over the rounds, and the ratio of throughputs in each round."""
    found: dict[str, Any] = {"clients": clients}
    for name, own in turns.items():
        found[name] = {key: statistics.median(turn[key] for turn in own) for key in FIGURES}
        found[name]["statuses"] = dict(sum((Counter(turn["statuses"]) for turn in own), Counter()))
    found["ratios"] = [first["rate"] / second["rate"] for first, second in zip(*turns.values(), strict=True)]
    return found


def soak(options: argparse.Namespace) -> None:
    """Print request rate, memory and statuses at intervals, with replacements in between."""
    live = options.folder / "live"
    shutil.rmtree(live, ignore_errors=True)
    for name in ("inttower", "autoint", "index"):
        shutil.copytree(options.folder / name, live / name)
    for name in ("users.parquet", "bodies.json"):
        shutil.copy(options.folder / name, live / name)
    options.folder = live
    statuses: Counter[str] = Counter()
    with serving("fieldwise", options) as port:
        load(port, options.clients, 5, live)
        began, replaced = time.time(), time.time()
        client = None
        print(f"{'minute':>6} {'requests/s':>10} {'p99 ms':>8} {'memory MiB':>10} {'replaced':>8}  statuses")
        while time.time() - began < 60 * options.minutes:
            client = start_load(port, options.clients, 10, live)
            if options.every and time.time() - replaced > options.every:
                replace(live)
                replaced = time.time()
            found = json.loads(client.communicate()[0])
            statuses.update(found["statuses"])
            ready = json.load(urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz"))
            print(
                f"{(time.time() - began) / 60:>6.1f} {found['rate']:>10.0f} {found['p99']:>8.1f} "
                f"{memory(PROCESSES[port]):>10.0f} {ready['replaced']:>8}  {found['statuses']}",
                flush=True,
            )
    print(f"total: {dict(statuses)}")


def replace(folder: Path) -> None:
    """Save both bundles and the index again, as new files with new manifests; the index's rows are in another order."""
    from fieldwise import Bundle
    from fieldwise.serving import build_index, open_index

    Bundle.load(folder / "autoint").save(folder / "autoint")
    tower = Bundle.load(folder / "inttower")
    tower.save(folder / "inttower")
    items = open_index(folder / "index").items
    turned = items.sample(fraction=1, shuffle=True, seed=int(time.time()))
    build_index(tower, turned, folder / "index")


@contextlib.contextmanager
def serving(name: str, options: argparse.Namespace, *more: str) -> Iterator[int]:
    """The port of a running server, `fieldwise` (with more options) or `plain`."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    folder = options.folder.resolve()
    command = [sys.executable, "-m", "benchmarks.serving.plain", str(folder), str(port), str(options.threads)]
    if name == "fieldwise":
        own = ["autoint", "--prerank", "inttower", "--index", "index", "--users", "users.parquet"]
        own += ["--port", str(port), "--threads", str(options.threads), *more, *options.serve]
        command = [sys.executable, "-m", "fieldwise", "serve", *own]
    paths = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    environ = {**os.environ, "PYTHONPATH": paths, "OMP_WAIT_POLICY": "PASSIVE"}
    with subprocess.Popen(command, cwd=folder, env=environ, stderr=subprocess.DEVNULL) as process:
        try:
            for _ in range(600):
                with contextlib.suppress(OSError):
                    urllib.request.urlopen(f"http://127.0.0.1:{port}/openapi.json")
                    break
                if process.poll() is not None:
                    sys.exit(f"the {name} server did not start: {' '.join(command)}")
                time.sleep(0.1)
            PROCESSES[port] = process.pid
            yield port
        finally:
            process.terminate()


PROCESSES: dict[int, int] = {}


def start_load(port: int, clients: int, seconds: float, folder: Path) -> "subprocess.Popen[str]":
    arguments = [str(port), str(clients), str(seconds), str(folder / "bodies.json")]
    command = [sys.executable, "-m", "benchmarks.serving.client", *arguments]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)


def load(port: int, clients: int, seconds: float, folder: Path) -> dict[str, Any]:
    """What the clients found, with the processor milliseconds of a request and the mean number of idle cores."""
    (user, system), idle, began = cpu_seconds(PROCESSES[port]), idle_seconds(), time.perf_counter()
    found: dict[str, Any] = json.loads(start_load(port, clients, seconds, folder).communicate()[0])
    took = time.perf_counter() - began
    more_user, more_system = cpu_seconds(PROCESSES[port])
    answers = max(1, sum(found["statuses"].values()))
    found["server_ms"] = 1000 * (more_user - user) / answers
    found["kernel_ms"] = 1000 * (more_system - system) / answers
    found["client_ms"] = 1000 * found.pop("cpu") / answers
    found["idle"] = (idle_seconds() - idle) / took
    return found


def answer(port: int, folder: Path) -> list[tuple[str, float]]:
    """Ids and predictions in the response to the first request."""
    body = json.dumps(json.loads((folder / "bodies.json").read_text("utf-8"))[0]).encode()
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/v1/recommend", body, {"content-type": "application/json"}
    )
    return [(item["id"], item["prediction"]) for item in json.load(urllib.request.urlopen(request))["items"]]


def same_answers(ours: list[tuple[str, float]], theirs: list[tuple[str, float]]) -> bool:
    """Whether two responses have the same predictions in order, and the same items where predictions differ.

    Items that are not in the training rows have equal predictions if their fields are equal. Fieldwise returns them in
    the catalogue's order, the reference server in any order.

    >>> same_answers([("a", 0.9), ("b", 0.5)], [("a", 0.9), ("c", 0.5)])  # more items may have the last prediction
    True
    >>> same_answers([("a", 0.9), ("b", 0.5)], [("b", 0.9), ("a", 0.5)])
    False
    """
    if len(ours) != len(theirs) or any(abs(a - b) > NEAR for (_, a), (_, b) in zip(ours, theirs, strict=True)):
        return False
    last = min((p for _, p in ours), default=0.0) + NEAR
    place = dict(theirs)
    return all(p <= last or (item in place and abs(place[item] - p) <= NEAR) for item, p in ours)


if __name__ == "__main__":
    main()
