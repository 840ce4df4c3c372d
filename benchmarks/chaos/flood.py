"""One hostile client: 50 connections from one address that send an attack's requests as soon as they can.

`python -m benchmarks.chaos.flood NAME PORT SEED SECONDS REQUESTS` prints an empty line when it begins, and what was
answered as JSON. It goes on after these seconds until so many requests are sent, at most ten times as long.
"""

import asyncio
import contextlib
import json
import os
import sys
import time
from collections import Counter

from benchmarks.chaos.payloads import ATTACKS, Payloads
from benchmarks.chaos.wire import read_answer

CONNECTIONS, ADDRESS = 50, "127.0.3.1"


class Flood:
    """What the connections share."""

    def __init__(self, port: int, payloads: Payloads, seconds: float, wanted: int) -> None:
        self.port, self.payloads, self.wanted = port, payloads, wanted
        self.until, self.last = time.monotonic() + seconds, time.monotonic() + 10 * seconds
        self.sent = 0
        self.statuses: Counter[str] = Counter()
        self.faults: list[str] = []

    async def connection(self) -> None:
        while self._on():
            try:
                opened = asyncio.open_connection("127.0.0.1", self.port, local_addr=(ADDRESS, 0))
                reader, writer = await asyncio.wait_for(opened, 5)
            except (OSError, TimeoutError) as e:
                self.statuses[f"connect: {type(e).__name__}"] += 1
                await asyncio.sleep(0.05)
                continue
            try:
                while self._on():
                    await self._ask(reader, writer)
            except (OSError, ValueError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, TimeoutError) as e:
                self.statuses[type(e).__name__] += 1
            finally:
                with contextlib.suppress(OSError):
                    writer.transport.abort()

    def _on(self) -> bool:
        return time.monotonic() < (self.until if self.sent >= self.wanted else self.last)

    async def _ask(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(self.payloads.requests[self.sent % len(self.payloads.requests)])
        self.sent += 1
        while self.payloads.tail and self._on() and not reader.at_eof() and not reader._buffer:  # type: ignore[attr-defined]
            writer.write(self.payloads.tail)
            await asyncio.wait_for(writer.drain(), self.payloads.patience)
        if not self.payloads.reads:
            reader._transport.pause_reading()  # type: ignore[attr-defined]
            await asyncio.sleep(min(self.payloads.patience, self._left()))
            raise TimeoutError
        answer = await asyncio.wait_for(read_answer(reader), min(self.payloads.patience, self._left()))
        self.statuses[str(answer.status)] += 1
        if answer.fault is not None:
            self.faults.append(answer.fault)
        if answer.headers.get(b"connection") == b"close":
            raise ConnectionResetError

    def _left(self) -> float:
        return max(0.0, self.until - time.monotonic()) + 1


async def flood(port: int, payloads: Payloads, seconds: float, wanted: int) -> dict[str, object]:
    """Attack for some seconds."""
    found = Flood(port, payloads, seconds, wanted)
    began, used = time.monotonic(), time.process_time()
    await asyncio.gather(*(found.connection() for _ in range(CONNECTIONS)))
    busy = (time.process_time() - used) / (time.monotonic() - began)
    return {"requests": found.sent, "busy": busy, "statuses": dict(found.statuses), "faults": found.faults[:10]}


if __name__ == "__main__":
    name, port, seed, seconds, wanted = sys.argv[1:]
    os.nice(10)  # who measures shares the core
    prepared = ATTACKS[name](int(seed))
    print(flush=True)
    print(json.dumps(asyncio.run(flood(int(port), prepared, float(seconds), int(wanted)))))
