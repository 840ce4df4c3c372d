"""Requests that call an application as a server would, without a network."""

import asyncio

HEADERS = [(b"host", b"server"), (b"content-type", b"application/json")]


async def post(app, path, content, *, client=("a", 1), whole=True):
    """The status of the answer to a POST request; the rest of a body that is not `whole` never arrives."""
    messages = [{"type": "http.request", "body": content, "more_body": not whole}]
    statuses = []

    async def receive():
        return messages.pop() if messages else await asyncio.Future()

    async def send(message):
        if message["type"] == "http.response.start":
            statuses.append(message["status"])

    scope = {"type": "http", "method": "POST", "path": path, "raw_path": path.encode(), "query_string": b""}
    more = {"root_path": "", "scheme": "http", "http_version": "1.1", "server": ("server", 80), "client": client}
    await app({**scope, **more, "headers": HEADERS, "asgi": {"version": "3.0"}}, receive, send)
    return statuses[0]
