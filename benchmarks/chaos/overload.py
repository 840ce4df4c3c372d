"""Three times as many requests as the server can answer, from clients that do not wait for one another.

`python -m benchmarks.chaos.overload PORT SECONDS RATE` sends so many requests a second and prints what came as JSON.
"""

import asyncio
import contextlib
import json
import sys
import time
from pathlib import Path
from typing import Any, cast

from benchmarks.chaos.outcome import Outcome, judge
from benchmarks.chaos.target import CASCADE, OTHER_CORES, SERVER_CORE, result, served, start
from benchmarks.chaos.wire import Answer, post
from benchmarks.chaos.witness import USERS, percentiles

TIMES, GOODPUT, TIMEOUT = 3, 0.9, 10.0
CONNECTIONS = 4000  # the server lets them in
OPENED = 300  # before the first request


def overload(folder: Path, seconds: float) -> Outcome:
    """Capacity by fifty connections that wait for their answers, then three times as many requests."""

    def answered() -> float:
        sent = result(start("flood", "recommendations", server.port, 0, seconds, 0), 60 + seconds)
        return float(sent["statuses"]["200"] / seconds)

    with served(folder, *CASCADE, *MANY) as server:
        result(start("witness", server.port, 2), 60)
        before = answered()
        found = result(start("overload", server.port, seconds, TIMES * before), 120 + seconds)
        capacity = (before + answered()) / 2
        after = result(start("witness", server.port, seconds), 60 + seconds)
    one = Outcome(name=f"{TIMES} times capacity", tried=found["sent"], broken=found["faults"])
    judge(one, after)
    one.figures |= {
        "capacity": capacity,
        "offered": found["sent"] / seconds,
        "unsent": found["unsent"],
        "connections": found["connections"],
        "goodput": found["goodput"],
        "goodput_share": found["goodput"] / capacity,
        "accepted_p99": found["accepted"]["p99"],
        "refused_p50": found["refused"]["p50"],
        "client_core": found["busy"],
        "pinned": SERVER_CORE != OTHER_CORES,
    }
    if found["unsent"] > 0.01 * found["sent"]:
        one.late.append(f"{found['unsent']:,} of {found['sent']:,} requests could not be sent: the load was lower")
    if found["accepted"]["p99"] > 1000 * TIMEOUT:
        one.late.append(f"99 % of accepted answers came within {found['accepted']['p99']:,.0f} ms")
    if one.figures["pinned"] and one.figures["goodput_share"] < GOODPUT:
        one.late.append(f"goodput was {one.figures['goodput_share']:.0%} of capacity, not {GOODPUT:.0%}")
    return one


MANY = ("--max-connections", CONNECTIONS + 100, "--max-connections-per-address", CONNECTIONS + 50)


class Connection(asyncio.Protocol):
    """One request at a time; lean, since the clients have one core for three times what the server does on another."""

    def __init__(self, load: "Overload") -> None:
        self.load, self.began, self.read = load, 0.0, bytearray()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def ask(self, request: bytes, began: float) -> None:
        self.began = began
        self.transport.write(request)

    def data_received(self, data: bytes) -> None:
        self.read += data
        end = self.read.find(b"\r\n\r\n")
        if end < 0:
            return
        lines = bytes(self.read[:end]).lower().split(b"\r\n")
        headers = dict(line.split(b": ", 1) for line in lines[1:])
        whole = end + 4 + int(headers[b"content-length"])
        if len(self.read) >= whole:
            answer = Answer(int(lines[0].split()[1]), headers, bytes(self.read[end + 4 : whole]))
            self.read.clear()
            self.load.answered(self, answer, time.perf_counter() - self.began)

    def connection_lost(self, exc: Exception | None) -> None:
        self.load.lost(self)


class Overload:
    """Connections that are used when a request is due; a request that finds none is sent on a new one."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.free: list[Connection] = []
        self.open = self.asking = self.unsent = 0
        self.good: list[float] = []
        self.refused: list[float] = []
        self.faults: list[str] = []
        self.ended = False

    async def connect(self) -> Connection:
        """A new connection."""
        self.open += 1
        loop = asyncio.get_running_loop()
        return (await loop.create_connection(lambda: Connection(self), "127.0.0.1", self.port))[1]

    def ask(self, request: bytes) -> "asyncio.Task[None] | None":
        """Send a request at once; a task where a connection is opened for it."""
        began = time.perf_counter()
        if self.free:
            self.asking += 1
            self.free.pop().ask(request, began)
        elif self.open >= CONNECTIONS:
            self.unsent += 1
        else:
            return asyncio.create_task(self._ask_newly(request, began))
        return None

    async def _ask_newly(self, request: bytes, began: float) -> None:
        self.asking += 1
        try:
            (await self.connect()).ask(request, began)
        except OSError as e:
            self.open -= 1
            self.asking -= 1
            self.faults.append(f"no connection: {e}")

    def answered(self, connection: Connection, answer: Answer, took: float) -> None:
        """Count an answer; its connection is free."""
        self.asking -= 1
        (self.good if answer.status == 200 else self.refused).append(took)
        if answer.fault is not None:
            self.faults.append(answer.fault)
        self.free.append(connection)

    def lost(self, connection: Connection) -> None:
        """A connection that ended: a fault, if it had not been idle until the server closed it."""
        self.open -= 1
        if connection in self.free:
            self.free.remove(connection)
        elif not self.ended:
            self.asking -= 1
            self.faults.append("a connection ended without an answer")


async def offer(port: int, seconds: float, rate: float) -> dict[str, Any]:
    """Send at an even rate, whatever comes back."""
    requests = [post("/v1/recommend", {"user": f"u{k}", "context": {"device": "tv"}, "k": 5}) for k in range(USERS)]
    found, tasks, sent = Overload(port), set(), 0
    found.free += [await found.connect() for _ in range(OPENED)]
    began, busy = time.perf_counter(), time.process_time()
    while (now := time.perf_counter() - began) < seconds:
        while sent < rate * now:
            if (task := found.ask(requests[sent % USERS])) is not None:
                tasks.add(task)
                task.add_done_callback(tasks.discard)
            sent += 1
        await asyncio.sleep(0.002)
    goodput = len(found.good) / now
    busy = (time.process_time() - busy) / now
    until = time.perf_counter() + 3 * TIMEOUT
    while found.asking and time.perf_counter() < until:
        await asyncio.sleep(0.01)
    if found.asking:
        found.faults.append(f"{found.asking} requests had no answer")
    found.ended = True
    return {
        "sent": sent,
        "unsent": found.unsent,
        "connections": found.open,
        "goodput": goodput,
        "busy": busy,
        "accepted": percentiles(found.good),
        "refused": percentiles(found.refused),
        "faults": found.faults[:10],
    }


if __name__ == "__main__":
    port, seconds, rate = sys.argv[1:]
    with contextlib.suppress(ImportError):
        import uvloop

        uvloop.install()
    print(json.dumps(asyncio.run(offer(int(port), float(seconds), float(rate)))))
