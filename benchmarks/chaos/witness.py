"""Eight honest clients, each from an address of its own, and one that asks `/healthz` a hundred times a second.

`python -m benchmarks.chaos.witness PORT SECONDS` prints rates, percentiles in milliseconds and statuses as JSON.
"""

import asyncio
import json
import sys
import time
from collections import Counter
from typing import Any

import numpy as np

from benchmarks.chaos.wire import get, post, read_answer

CLIENTS, EVERY = 8, 0.01
USERS = 200  # the server's first users are asked for


class Witness:
    """What the clients saw."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.seconds: list[float] = []
        self.health: list[float] = []
        self.statuses: Counter[str] = Counter()
        self.faults: list[str] = []

    async def client(self, number: int, until: float) -> None:
        bodies = [{"user": f"u{k}", "context": {"device": "tv"}, "k": 5} for k in range(number, USERS, CLIENTS)]
        requests = [post("/v1/recommend", body) for body in bodies]
        await self._ask(f"127.0.1.{number + 1}", requests, until, self.seconds)

    async def probe(self, until: float) -> None:
        await self._ask("127.0.2.1", [get("/healthz")], until, self.health, EVERY)

    async def _ask(self, address: str, requests: list[bytes], until: float, took: list[float], rest: float = 0) -> None:
        asked = 0
        while time.perf_counter() < until:
            try:
                reader, writer = await asyncio.open_connection("127.0.0.1", self.port, local_addr=(address, 0))
                while (began := time.perf_counter()) < until:
                    writer.write(requests[asked % len(requests)])
                    asked += 1
                    answer = await read_answer(reader)
                    took.append(time.perf_counter() - began)
                    if not rest or answer.status != 200:
                        self.statuses[str(answer.status)] += 1
                    if answer.fault is not None:
                        self.faults.append(answer.fault)
                    if rest:
                        await asyncio.sleep(rest)
                writer.close()
            except (OSError, asyncio.IncompleteReadError) as e:
                self.statuses[type(e).__name__] += 1
                await asyncio.sleep(0.05)


async def watch(port: int, seconds: float) -> dict[str, Any]:
    """Ask for some seconds."""
    found, until = Witness(port), time.perf_counter() + seconds
    await asyncio.gather(found.probe(until), *(found.client(number, until) for number in range(CLIENTS)))
    return {
        "rate": found.statuses["200"] / seconds,
        "answers": percentiles(found.seconds),
        "health": percentiles(found.health),
        "statuses": dict(found.statuses),
        "faults": found.faults[:10],
    }


def percentiles(seconds: list[float]) -> dict[str, float]:
    """Number, and milliseconds."""
    p50, p99, most = (1000 * np.percentile(seconds or [np.nan], [50, 99, 100])).tolist()
    return {"count": len(seconds), "p50": p50, "p99": p99, "max": most}


if __name__ == "__main__":
    print(json.dumps(asyncio.run(watch(int(sys.argv[1]), float(sys.argv[2])))))
