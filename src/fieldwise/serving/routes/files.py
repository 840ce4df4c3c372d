"""The page's own files: plain HTML, CSS and JavaScript modules, all from this server; `/` and `/docs` show them.

The files hold no data and need no token.
"""

import hashlib
from collections.abc import Awaitable, Callable
from importlib import resources

from fastapi import APIRouter, Request, Response

__all__ = ["PAGE", "is_page", "router"]

PAGE = "/"
PAGES = {"index.html": PAGE, "docs.html": "/docs"}
FILES = "/page/"
TYPES = {"html": "text/html", "css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "Cache-Control": "no-cache",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


def is_page(path: str) -> bool:
    """Whether a path is one of the page's files, which need no token.

    >>> is_page("/"), is_page("/docs"), is_page("/page/page.js"), is_page("/v1/about")
    (True, True, True, False)
    """
    return path in PAGES.values() or path.startswith(FILES)


def router() -> APIRouter:
    """The routes of the files; they are not in the OpenAPI document."""
    routes = APIRouter(include_in_schema=False)
    for name, content in _files().items():
        routes.add_api_route(PAGES.get(name, FILES + name), _sender(name, content))
    return routes


def _files() -> dict[str, bytes]:
    folder = resources.files("fieldwise.serving") / "static"
    return {one.name: one.read_bytes() for one in folder.iterdir() if one.name.rpartition(".")[2] in TYPES}


def _sender(name: str, content: bytes) -> Callable[[Request], Awaitable[Response]]:
    tag = f'"{hashlib.sha256(content).hexdigest()[:16]}"'
    kind = TYPES[name.rpartition(".")[2]]

    async def send(request: Request) -> Response:
        headers = {**HEADERS, "ETag": tag}
        if request.headers.get("if-none-match") == tag:
            return Response(status_code=304, headers=headers)
        return Response(content, media_type=kind, headers=headers)

    return send
