"""A load generator in its own process: each connection sends a request as soon as it has the last response.

`python -m benchmarks.serving.client PORT CLIENTS SECONDS BODIES` posts the bodies of a JSON file (a list) to
`/v1/recommend` and prints requests per second, percentiles of the latency in milliseconds, counts of statuses, and its
own processor seconds.
"""

import asyncio
import json
import sys
import time
from itertools import cycle
from pathlib import Path
from typing import Any

from benchmarks.wire import Seen, recommend


async def load(port: int, clients: int, seconds: float, bodies: list[dict[str, Any]]) -> dict[str, object]:
    """Send requests for some seconds."""
    found, requests = Seen(), cycle([recommend(body) for body in bodies])
    began, cpu = time.perf_counter(), time.process_time()
    await asyncio.gather(*(found.ask(port, requests, began + seconds) for _ in range(clients)))
    took, cpu = time.perf_counter() - began, time.process_time() - cpu
    rate = len(found.seconds) / took
    return {"rate": rate, **found.percentiles(), "statuses": dict(found.statuses), "cpu": cpu}


if __name__ == "__main__":
    port, clients, seconds, path = sys.argv[1:]
    asked = json.loads(Path(path).read_text("utf-8"))
    print(json.dumps(asyncio.run(load(int(port), int(clients), float(seconds), asked))))
