"""Eight honest clients, each from an address of its own, and one that asks `/healthz` a hundred times a second.

`python -m benchmarks.chaos.witness PORT SECONDS [CLIENTS]` prints rates, percentiles in
milliseconds and statuses as JSON. With CLIENTS, so many hostile ones ask instead for users whose
rows cannot be read, and give way to others.
"""

import asyncio
import json
import os
import sys
import time
from collections.abc import Iterator
from itertools import cycle
from typing import Any

from benchmarks.wire import Seen, recommend

CLIENTS = 8
EVERY = 0.01
USERS = 200  # the server's first users are asked for
BAD_USERS = 20  # of a store that lies
HEALTH = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"


def asking(users: list[str]) -> Iterator[bytes]:
    """Requests of these users' recommendations, again and again."""
    return cycle([recommend({"user": user, "context": {"device": "tv"}, "k": 5}) for user in users])


async def watch(port: int, seconds: float, attackers: int = 0) -> dict[str, Any]:
    """Ask for some seconds."""
    result = Seen()
    health = Seen()
    until = time.perf_counter() + seconds
    if attackers:
        os.nice(10)
        bad = [f"bad{n}" for n in range(BAD_USERS)]
        clients = [
            result.ask(port, asking(bad), until, address="127.0.3.1") for _ in range(attackers)
        ]
    else:
        clients = [health.ask(port, cycle([HEALTH]), until, address="127.0.2.1", rest=EVERY)]
        for number in range(CLIENTS):
            users = [f"u{k}" for k in range(number, USERS, CLIENTS)]
            clients.append(result.ask(port, asking(users), until, address=f"127.0.1.{number + 1}"))
    await asyncio.gather(*clients)
    del health.statuses["200"]
    return {
        "rate": result.statuses["200"] / seconds,
        "health": health.percentiles(),
        "statuses": dict(result.statuses + health.statuses),
        "faults": (result.faults + health.faults)[:10],
    }


if __name__ == "__main__":
    print(
        json.dumps(
            asyncio.run(watch(int(sys.argv[1]), float(sys.argv[2]), *map(int, sys.argv[3:])))
        )
    )
