"""Clients of a server by HTTP/1.1 written by hand: requests as bytes, and answers read no further than is needed.

`python -m benchmarks.wire PORT CLIENTS SECONDS BODIES` posts the bodies of a JSON file (a list) to
`/v1/recommend`, one after the other on each connection, and prints requests per second, percentiles
of the latency in milliseconds and counts of statuses.
"""

import asyncio
import json
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Answer:
    """Status, header fields with lower-case names, body."""

    status: int
    headers: dict[bytes, bytes]
    body: bytes

    @property
    def fault(self) -> str | None:
        """What is wrong with it: a 5xx other than 503 with `Retry-After`, an error without the common form; or None."""
        if self.status >= 500 and (self.status != 503 or b"retry-after" not in self.headers):
            return f"{self.status}: {self.body[:200]!r}"
        if self.status >= 400:
            try:
                if json.loads(self.body)["error"].keys() == {"message", "field"}:
                    return None
            except (ValueError, KeyError, TypeError, AttributeError):
                pass
            return f"{self.status} without the common form: {self.body[:200]!r}"
        return None


@dataclass
class Seen:
    """What clients saw: the seconds of answers, counts of statuses and of broken connections, faults."""

    seconds: list[float] = field(default_factory=list)
    statuses: Counter[str] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)

    async def ask(
        self,
        port: int,
        requests: Iterator[bytes],
        until: float,
        *,
        address: str = "127.0.0.1",
        rest: float = 0,
    ) -> None:
        """One client from an address: each request follows the last answer, and the rest after it."""
        while time.perf_counter() < until:
            try:
                reader, writer = await asyncio.open_connection(
                    "127.0.0.1", port, local_addr=(address, 0)
                )
                while (began := time.perf_counter()) < until:
                    writer.write(next(requests))
                    answer = await read_answer(reader)
                    self.seconds.append(time.perf_counter() - began)
                    self.statuses[str(answer.status)] += 1
                    if answer.fault is not None:
                        self.faults.append(answer.fault)
                    if rest:
                        await asyncio.sleep(rest)
                writer.close()
            except (OSError, asyncio.IncompleteReadError) as e:
                self.statuses[type(e).__name__] += 1
                await asyncio.sleep(0.05)

    def percentiles(self) -> dict[str, float]:
        """Percentiles of the answers in milliseconds."""
        result = 1000 * np.percentile(self.seconds or [np.nan], [50, 95, 99])
        return dict(zip(("p50", "p95", "p99"), result.tolist(), strict=True))


def recommend(body: dict[str, Any]) -> bytes:
    """A request of recommendations."""
    content = json.dumps(body).encode()
    head = "POST /v1/recommend HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: "
    return f"{head}{len(content)}\r\n\r\n".encode() + content


async def read_answer(reader: asyncio.StreamReader) -> Answer:
    """The next answer.

    Errors:
        OSError, asyncio.IncompleteReadError: the connection ended.
    """
    first, *lines = (await reader.readuntil(b"\r\n\r\n"))[:-4].split(b"\r\n")
    fields = (line.partition(b":") for line in lines)
    headers = {name.strip().lower(): value.strip() for name, _, value in fields}
    body = await reader.readexactly(int(headers.get(b"content-length", b"0")))
    return Answer(int(first.split()[1]), headers, body)


async def load(
    port: int, clients: int, seconds: float, bodies: list[dict[str, Any]]
) -> dict[str, object]:
    """Ask for recommendations for some seconds."""
    result = Seen()
    requests = cycle([recommend(body) for body in bodies])
    began = time.perf_counter()
    await asyncio.gather(*(result.ask(port, requests, began + seconds) for _ in range(clients)))
    rate = len(result.seconds) / (time.perf_counter() - began)
    return {"rate": rate, **result.percentiles(), "statuses": dict(result.statuses)}


if __name__ == "__main__":
    asked = json.loads(Path(sys.argv[4]).read_text("utf-8"))
    print(
        json.dumps(asyncio.run(load(int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]), asked)))
    )
