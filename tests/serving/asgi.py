"""Requests that call an application as a server would, without a network."""

import asyncio
from types import SimpleNamespace

import httpx
import pytest

pytest.importorskip(
    "fastapi", reason="FastAPI is absent: pip install 'fieldwise[serve]'"
)  # skips the tests that import this

from fieldwise.serving.http import ServerSettings, create_app

HEADERS = [(b"host", b"server"), (b"content-type", b"application/json")]


def client(service, stores=None, **settings):
    """Ask the application of a service in this process, as `client_of` does."""
    return client_of(patient_app(service, stores, **settings))


def patient_app(service, stores=None, **settings):
    """The application of a service, whose answers may take long: a busy machine is no failure."""
    return create_app(service, ServerSettings(**{"timeout": 120, **settings}), stores)


def client_of(app):
    """Ask an application in this process: `post(path, body)`, `get(path)` and `ask(method, path)`."""

    def ask(method, path, **content):
        async def run():
            async with talking(app) as asking:
                return await asking.request(method, path, **content)

        return asyncio.run(run())

    return SimpleNamespace(
        app=app,
        ask=ask,
        post=lambda path, body, **more: ask("POST", path, json=body, **more),
        get=lambda path, **more: ask("GET", path, **more),
    )


def talking(app):
    """An asynchronous client of an application in this process."""
    transport = httpx.ASGITransport(app=app, raise_app_exceptions=False)
    return httpx.AsyncClient(transport=transport, base_url="http://server", timeout=120)


async def post(app, path, content, *, client=("a", 1), whole=True):
    """The status of the answer to a POST request; the rest of a body that is not `whole` never arrives."""
    messages = [{"type": "http.request", "body": content, "more_body": not whole}]
    statuses = []

    async def receive():
        return messages.pop() if messages else await asyncio.Future()

    async def send(message):
        if message["type"] == "http.response.start":
            statuses.append(message["status"])

    scope = {
        "type": "http",
        "method": "POST",
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
    }
    more = {
        "root_path": "",
        "scheme": "http",
        "http_version": "1.1",
        "server": ("server", 80),
        "client": client,
    }
    await app({**scope, **more, "headers": HEADERS, "asgi": {"version": "3.0"}}, receive, send)
    return statuses[0]
