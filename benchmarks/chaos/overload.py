"""Three times as many requests as the server can answer, from clients that do not wait for one another.

`python -m benchmarks.chaos.overload PORT SECONDS RATE` sends so many requests a second and prints what came as JSON.
"""

import asyncio
import contextlib
import json
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.chaos.outcome import Outcome, judge
from benchmarks.chaos.target import OTHER_CORES, SERVER_CORE, result, served, start
from benchmarks.chaos.wire import post, read_answer
from benchmarks.chaos.witness import USERS, percentiles

TIMES, GOODPUT, TIMEOUT = 3, 0.9, 10.0
CONNECTIONS = 900  # as many as the server lets in, less some for others


def overload(folder: Path, seconds: float) -> Outcome:
    """Capacity by fifty connections that wait for their answers, then three times as many requests."""

    def answered() -> float:
        sent = result(start("flood", "recommendations", server.port, 0, seconds, 0), 60 + seconds)
        return float(sent["statuses"]["200"] / seconds)

    with served(folder, *CASCADE_OF_MANY) as server:
        result(start("witness", server.port, 2), 60)
        before = answered()
        found = result(start("overload", server.port, seconds, TIMES * before), 120 + seconds)
        capacity = (before + answered()) / 2
        after = result(start("witness", server.port, seconds), 60 + seconds)
    one = Outcome(name=f"{TIMES} times capacity", tried=found["sent"], broken=found["faults"])
    judge(one, after)
    one.figures |= {
        "capacity": capacity,
        "unsent": found["unsent"],
        "goodput": found["goodput"],
        "goodput_share": found["goodput"] / capacity,
        "accepted_p99": found["accepted"]["p99"],
        "refused_p50": found["refused"]["p50"],
        "client_core": found["busy"],
        "pinned": SERVER_CORE != OTHER_CORES,
    }
    if found["accepted"]["p99"] > 1000 * TIMEOUT:
        one.late.append(f"99 % of accepted answers came within {found['accepted']['p99']:,.0f} ms")
    if one.figures["pinned"] and one.figures["goodput_share"] < GOODPUT:
        one.late.append(f"goodput was {one.figures['goodput_share']:.0%} of capacity, not {GOODPUT:.0%}")
    return one


CASCADE_OF_MANY = (
    *("ranker", "--prerank", "tower", "--index", "ix", "--users", "users.parquet"),
    *("--max-connections-per-address", "1000"),
)


class Overload:
    """Connections that are used when a request is due; a request that finds none is sent on a new one."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.free: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []
        self.open = 0
        self.good: list[float] = []
        self.refused: list[float] = []
        self.faults: list[str] = []
        self.unsent = 0

    async def ask(self, request: bytes) -> None:
        began = time.perf_counter()
        if not self.free and self.open >= CONNECTIONS:
            self.unsent += 1
            return
        try:
            if self.free:
                reader, writer = self.free.pop()
            else:
                self.open += 1
                reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
            writer.write(request)
            answer = await read_answer(reader)
        except (OSError, asyncio.IncompleteReadError) as e:
            self.open -= 1
            self.faults.append(f"a connection ended: {type(e).__name__}")
            return
        took = time.perf_counter() - began
        (self.good if answer.status == 200 else self.refused).append(took)
        if answer.fault is not None:
            self.faults.append(answer.fault)
        self.free.append((reader, writer))


async def offer(port: int, seconds: float, rate: float) -> dict[str, Any]:
    """Send at an even rate, whatever comes back."""
    requests = [post("/v1/recommend", {"user": f"u{k}", "context": {"device": "tv"}, "k": 5}) for k in range(USERS)]
    found, tasks, sent = Overload(port), set(), 0
    began, busy = time.perf_counter(), time.process_time()
    while (now := time.perf_counter() - began) < seconds:
        while sent < rate * now:
            task = asyncio.create_task(found.ask(requests[sent % USERS]))
            tasks.add(task)
            task.add_done_callback(tasks.discard)
            sent += 1
        await asyncio.sleep(0.002)
    goodput = len(found.good) / seconds
    busy = (time.process_time() - busy) / seconds
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(asyncio.gather(*tasks), 3 * TIMEOUT)
    return {
        "sent": sent,
        "unsent": found.unsent,
        "goodput": goodput,
        "busy": busy,
        "accepted": percentiles(found.good),
        "refused": percentiles(found.refused),
        "faults": found.faults[:10],
    }


if __name__ == "__main__":
    port, seconds, rate = sys.argv[1:]
    print(json.dumps(asyncio.run(offer(int(port), float(seconds), float(rate)))))
