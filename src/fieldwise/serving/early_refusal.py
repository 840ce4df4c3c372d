"""Refusal of requests before their bodies are read, and admission by path."""

import asyncio
import re
import time
from collections.abc import Callable, Mapping

from prometheus_client import Counter, Histogram

from fieldwise.serving.admission import Admission
from fieldwise.serving.forms import ErrorBody, ErrorResponse
from fieldwise.serving.shares import Shares

__all__ = ["COMPUTED", "FULL", "SIMILAR", "EarlyRefusal", "admissions", "plain_path"]

FULL = "the server is overloaded: retry later"
COMPUTED = ("/v1/predict", "/v1/recommend", "/v1/explain")
SIMILAR = "/v1/items/{id}/similar"
REST = 0.004  # seconds that the event loop rests in a turn in which it refused requests
REFUSAL = 5e-5  # assumed seconds of a request that is refused before its body is read

PLAIN = re.compile(rb"POST (/[!-~]{1,200}) HTTP/1\.1(?=\r\n)")
LENGTH = re.compile(rb"\r\ncontent-length: ?([0-9]{1,6})(?![^\r])")
SPECIAL = re.compile(  # what changes where a request ends, or what an answer must be
    rb"\r\n(?:transfer-encoding|expect|upgrade|connection(?!: ?keep-alive(?![^\r]))|[ \t])|(?<!\r)\n|\r(?!\n)"
)


def admissions(waiting: int, batch: int, timeout: float) -> dict[str, Admission]:
    """Admission by path.

    Args:
        waiting: maximum number of waiting requests.
        batch: maximum number of requests in a batch.
        timeout: maximum seconds for a response.
    """

    def admission() -> Admission:
        return Admission(waiting + batch, timeout, batch=2 * batch, work=time.process_time)

    answers = admission()
    return {"/v1/predict": answers, "/v1/recommend": answers, "/v1/explain": admission(), SIMILAR: admission()}


class EarlyRefusal:
    """Refuses requests as soon as their heads are read, if they could not be answered in time.

    This costs a small part of what it costs to refuse them in the application. While requests are refused, the event
    loop rests in each of its turns: what arrives meanwhile is handled together, and the model's thread, which needs
    Python's lock too, is not interrupted by each of them.

    Args:
        requests: metric of answers.
        seconds: metric of their durations.
        admissions: by path.
        shares: of addresses.
        rest: blocks the caller for the given number of seconds, or until the model's thread is idle.
    """

    answer = ErrorResponse(error=ErrorBody(message=FULL, field="server")).model_dump_json().encode()

    def __init__(
        self,
        requests: Counter,
        seconds: Histogram,
        admissions: Mapping[str, Admission],
        shares: Shares,
        rest: Callable[[float], None],
    ) -> None:
        self.shares, self._answers, self._let_run = shares, admissions["/v1/recommend"], rest
        self._resting = False
        self._paths = {
            path.encode(): (
                admissions[path],
                requests.labels("POST", path, "503"),
                seconds.labels(path),
            )
            for path in COMPUTED
        }

    def is_overloaded(self, address: str) -> bool:
        """Whether a prediction or recommendation for an address would be refused."""
        return self._answers.is_full(address)

    def refuses(self, path: bytes, address: str) -> bool:
        """Whether a POST request is refused; it is counted."""
        known = self._paths.get(path)
        if known is None or not known[0].is_full(address):
            return False
        known[1].inc()
        known[2].observe(REFUSAL)
        self.shares.add(address, REFUSAL)
        if known[0] is self._answers and not self._resting:
            self._resting = True
            asyncio.get_running_loop().call_soon(self._rest)
        return True

    def announce(self, path: bytes) -> None:
        """Count a request that is let in until it enters: otherwise as many as come in one turn would seem to fit."""
        known = self._paths.get(path)
        if known is not None:
            if not known[0].announced:
                asyncio.get_running_loop().call_soon(setattr, known[0], "announced", 0)  # before their tasks begin
            known[0].announced += 1

    def _rest(self) -> None:
        self._let_run(REST)
        self._resting = False


def plain_path(data: bytes) -> bytes:
    r"""The path of a POST request, if the data are exactly one whole and plain request; otherwise nothing.

    >>> plain_path(b"POST /a HTTP/1.1\r\nHost: b\r\nContent-Length: 2\r\n\r\n{}")
    b'/a'
    >>> plain_path(b"POST /a HTTP/1.1\r\nHost: b\r\nContent-Length: 3\r\n\r\n{}")
    b''
    """
    head, _, body = data.partition(b"\r\n\r\n")
    first = PLAIN.match(head)
    if first is None:
        return b""
    fields = head[first.end() :].lower()
    length = LENGTH.search(fields)
    if length is None or int(length[1]) != len(body) or fields.count(b"content-length") != 1 or SPECIAL.search(fields):
        return b""
    return first[1]
