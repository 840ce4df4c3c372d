"""The accept loop of several servers on one socket."""

import asyncio
import logging
import socket

import uvicorn

from fieldwise.serving.balanced import BalancedServer, OpenCounts


class Greets(asyncio.Protocol):
    """Sends two letters and closes."""

    def connection_made(self, transport):
        transport.write(b"ok")
        transport.close()


def test_one_connection_that_cannot_be_served_does_not_end_the_others(tmp_path, monkeypatch, caplog):
    """A fault in the loop that accepts would leave a process that answers nobody."""
    made = []

    def protocol():
        made.append(Greets())
        if len(made) == 1:
            raise RuntimeError("no protocol for the first one")
        return made[-1]

    async def answers(listening, server):
        listening.setblocking(False)
        task = asyncio.create_task(server._accept())
        found = []
        for _ in range(2):
            reader, writer = await asyncio.open_connection(*listening.getsockname())
            found.append(await asyncio.wait_for(reader.read(), 30))
            writer.close()
        task.cancel()
        return found

    with socket.create_server(("127.0.0.1", 0)) as listening, caplog.at_level(logging.ERROR):
        counts = OpenCounts(tmp_path / "open", 1, 0)
        server = BalancedServer(uvicorn.Config(lambda *_: None), listening, counts)
        monkeypatch.setattr(server, "_protocol", protocol)
        assert asyncio.run(answers(listening, server)) == [b"", b"ok"]
    assert "no protocol for the first one" in caplog.text
