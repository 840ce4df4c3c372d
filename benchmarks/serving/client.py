"""A load generator in its own process: each connection sends a request as soon as it has the last response.

`python -m benchmarks.serving.client PORT CLIENTS SECONDS BODIES` posts the bodies of a JSON file (a list) to
`/v1/recommend` and prints requests per second, percentiles of the latency in milliseconds, counts of statuses, and its
own processor seconds.
"""

import asyncio
import json
import sys
import time
from collections import Counter
from pathlib import Path

import numpy as np

HEAD = b"POST /v1/recommend HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"


class Load:
    """The state that the connections share."""

    def __init__(self, port: int, bodies: list[bytes]) -> None:
        self.port, self.next = port, 0
        self.requests = [HEAD % len(body) + body for body in bodies]
        self.seconds: list[float] = []
        self.statuses: Counter[str] = Counter()

    async def connection(self, until: float) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        try:
            while (began := time.perf_counter()) < until:
                self.next += 1
                writer.write(self.requests[self.next % len(self.requests)])
                head = await reader.readuntil(b"\r\n\r\n")
                lines = head.split(b"\r\n")
                length = next(int(line[15:]) for line in lines if line[:15].lower() == b"content-length:")
                await reader.readexactly(length)
                self.seconds.append(time.perf_counter() - began)
                self.statuses[lines[0].split()[1].decode()] += 1
        except (OSError, asyncio.IncompleteReadError) as e:
            self.statuses[type(e).__name__] += 1
        finally:
            writer.close()


async def load(port: int, clients: int, seconds: float, bodies: list[bytes]) -> dict[str, object]:
    """Send requests for some seconds."""
    found = Load(port, bodies)
    began, cpu = time.perf_counter(), time.process_time()
    await asyncio.gather(*(found.connection(began + seconds) for _ in range(clients)))
    took, cpu = time.perf_counter() - began, time.process_time() - cpu
    milliseconds = 1000 * np.array(found.seconds or [np.nan])
    p50, p95, p99 = np.percentile(milliseconds, [50, 95, 99]).tolist()
    return {
        "rate": len(found.seconds) / took,
        "p50": p50,
        "p95": p95,
        "p99": p99,
        "statuses": dict(found.statuses),
        "cpu": cpu,
    }


if __name__ == "__main__":
    port, clients, seconds, path = sys.argv[1:]
    asked = [json.dumps(body).encode() for body in json.loads(Path(path).read_text("utf-8"))]
    print(json.dumps(asyncio.run(load(int(port), int(clients), float(seconds), asked))))
