"""HTTP/1.1 by hand: requests as bytes, and answers read no further than is needed. Any bytes can be sent."""

import asyncio
import json
from dataclasses import dataclass
from typing import Any


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


def get(path: str) -> bytes:
    """A GET request."""
    return f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode()


def post(path: str, body: bytes | dict[str, Any]) -> bytes:
    """A POST request of JSON."""
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: "
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
