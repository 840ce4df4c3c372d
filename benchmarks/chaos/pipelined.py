"""One connection that sends many requests at once without reading an answer before, beside eight honest clients.

`python -m benchmarks.chaos.pipelined PORT REQUESTS` prints how many were answered, and the seconds, as JSON.
"""

import asyncio
import json
import sys
import time
from pathlib import Path

from benchmarks.chaos.flood import ADDRESS
from benchmarks.chaos.outcome import HEALTH_MS, Outcome, judge, log_trouble
from benchmarks.chaos.target import result, served, start
from benchmarks.chaos.wire import get, read_answer


def pipelined(folder: Path, seconds: float, requests: int) -> Outcome:
    """The requests are sent when the honest clients have begun."""
    with served(folder) as server:
        result(start("witness", server.port, 2), 60)
        witness = start("witness", server.port, seconds)
        sent = result(start("pipelined", server.port, requests), 120 + seconds)
        one = Outcome(name="pipelined on one connection", tried=requests)
        seen = result(witness, 60 + seconds)
        judge(one, seen)
        one.figures |= {"health_max": seen["health"]["max"], **sent}
        if seen["health"]["max"] > HEALTH_MS:  # one outage is less than 1 % of the answers
            one.late.append(f"/healthz took {seen['health']['max']:,.0f} ms once, {HEALTH_MS:g} ms are promised")
        if sent["answered"] < requests:
            one.broken.append(f"{sent['answered']:,} of {requests:,} requests were answered")
        if (trouble := log_trouble(server)) is not None:
            one.broken.append(trouble)
    return one


async def send(port: int, requests: int) -> dict[str, float]:
    """Send all of them, and read the answers."""
    began, answered = time.perf_counter(), 0
    reader, writer = await asyncio.open_connection("127.0.0.1", port, local_addr=(ADDRESS, 0))
    writer.write(get("/healthz") * requests)
    try:
        while answered < requests:
            answered += (await read_answer(reader)).status == 200
    except (OSError, asyncio.IncompleteReadError):
        pass
    writer.close()
    return {"answered": answered, "seconds": time.perf_counter() - began}


if __name__ == "__main__":
    print(json.dumps(asyncio.run(send(int(sys.argv[1]), int(sys.argv[2])))))
