"""What one hostile client sends, by the name of its attack."""

import copy
import json
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from serving import hostile

from benchmarks.chaos.wire import get, post

BAD_USERS = 20  # of a store that lies
CONTEXT = {"user": "u1", "history": ["i1"], "device": "tv"}


@dataclass(frozen=True)
class Payloads:
    """Requests of one attack; connections send them in turn.

    Args:
        requests: bytes to send, each then waits for an answer.
        tail: bytes to send on and on after it, until the connection breaks.
        patience: seconds to wait for an answer; a connection that has none is opened again.
        reads: whether answers are read.
    """

    requests: list[bytes]
    tail: bytes = b""
    patience: float = 30.0
    reads: bool = True


def large_bodies(_: int) -> Payloads:
    """Bodies of 1 MiB with errors everywhere."""
    return Payloads([post(path, text.encode()) for path, text in hostile.LARGE_BODIES.values()])


GOOD = {
    "/v1/predict": {"rows": [hostile.ROW, {"user": "u3", "item": "i7", "device": "tv", "history": [1, 2.0, None]}]},
    "/v1/recommend": {
        "user": "u2",
        "context": CONTEXT,
        "k": 5,
        "prerank": 20,
        "candidates": ["i1", 2],
        "exclude": ["i3"],
        "where": {"genres": ["g1"]},
        "exclude_seen": False,
    },
    "/v1/explain": {"rows": [], "user": "u2", "context": CONTEXT, "items": ["i1", "i2"], "pairs": True},
}
ODD_TEXTS = [
    "",
    "\0",
    "\ud800",
    "\u202e",
    "x" * 10_000,
    "é" * 99,
    "NaN",
    "-0",
    "1e999",
    "[" * 9_999,
    "' OR 1=1 --",
    "${x}",
    "../..",
]
ODD_NUMBERS = [0, -1, 1 << 31, 1 << 63, 1 << 64, 10**400, 0.1, -0.0, 1e308, -1e-320, float("nan"), float("inf")]
ODD: list[object] = [None, True, *ODD_TEXTS, *ODD_NUMBERS, [], {}, [None], [[]], {"a": 1}, ["i1"] * 999, {"": {}}]


def values(seed: int, count: int = 6000) -> Payloads:
    """Good requests with one to three values, or names, replaced by odd ones."""
    rng = random.Random(seed)
    found = []
    for _ in range(count):
        path = rng.choice(list(GOOD))
        body = copy.deepcopy(GOOD[path])
        for _ in range(rng.randint(1, 3)):
            replace_somewhere(body, rng)
        found.append(post(path, json.dumps(body).encode()))
    return Payloads(found)


def replace_somewhere(part: Any, rng: random.Random) -> None:
    """Put an odd value in a random place of a JSON object or list; seldom under another name."""
    keys = list(part) if isinstance(part, dict) else list(range(len(part)))
    if not keys:
        return
    key = rng.choice(keys)
    if isinstance(part[key], dict | list) and part[key] and rng.random() < 0.7:
        replace_somewhere(part[key], rng)
    elif isinstance(part, dict) and rng.random() < 0.1:
        part[str(rng.choice(ODD))] = part.pop(key)
    else:
        part[key] = copy.deepcopy(rng.choice(ODD))


def raw(seed: int) -> Payloads:
    """Bytes that are no HTTP, heads that are too long, and requests with other bytes at random places."""
    rng = random.Random(seed)
    good = [hostile.GET, post("/v1/recommend", {"context": CONTEXT}), get("/v1/items?search=i")]
    cases = [*hostile.LONG_HEADS.values(), *hostile.MALFORMED.values()]
    cases += [b"GET /healthz HTTP/1.1\r\n" + hosts + b"\r\n" for hosts in hostile.WRONG_HOSTS]
    for _ in range(200):
        one = bytearray(rng.choice(good))
        for _ in range(rng.randint(1, 8)):
            one[rng.randrange(len(one))] = rng.randrange(256)
        cases.append(bytes(one[: rng.randint(1, len(one))]) if rng.random() < 0.3 else bytes(one))
    return Payloads(cases, patience=0.3)


def endless(_: int) -> Payloads:
    """Heads, bodies and framing that never end."""
    starts = [hostile.START, hostile.TOO_LARGE, hostile.CHUNKED]
    return Payloads(starts, tail=b"1;" + b"x" * 3000 + b"\r\na\r\n")


def half_heads(_: int) -> Payloads:
    """Connections that say nothing, or half a head."""
    return Payloads([b"", hostile.GET[:20], b"\r\n"], patience=15)


def deaf(_: int) -> Payloads:
    """Large answers that nobody reads."""
    return Payloads([get("/openapi.json") * 50], patience=10, reads=False)


def explanations(_: int) -> Payloads:
    """The most expensive question: 50 rows with pairs."""
    return Payloads([post("/v1/explain", {"rows": [hostile.ROW] * 50, "pairs": True})])


def recommendations(_: int) -> Payloads:
    """Good requests, as many as are answered."""
    return Payloads([post("/v1/recommend", {"user": f"u{n}", "context": {"device": "tv"}, "k": 5}) for n in range(99)])


def predictions(_: int) -> Payloads:
    """Good requests of as many rows as one may have."""
    return Payloads([post("/v1/predict", {"rows": [hostile.ROW] * 1000})])


def refusals(_: int) -> Payloads:
    """Small requests that are refused, and pages that are cheap to ask for."""
    paths = ("/nothing", "/metrics", "/openapi.json", "/v1/about", "/v1/items?search=e", "/v1/items/none/similar")
    return Payloads([*map(get, paths), post("/v1/recommend", b"{"), post("/v1/predict", {"rows": []})])


def bad_users(_: int) -> Payloads:
    """Users whose rows cannot be read."""
    bodies = [{"user": f"bad{n}", "context": {"device": "tv"}, "k": 5} for n in range(BAD_USERS)]
    return Payloads([post("/v1/recommend", body) for body in bodies])


FLOODS: dict[str, Callable[[int], Payloads]] = {
    "large bodies": large_bodies,
    "values": values,
    "raw sockets": raw,
    "endless": endless,
    "half heads": half_heads,
    "deaf": deaf,
    "explanations": explanations,
    "recommendations": recommendations,
    "predictions": predictions,
    "refusals": refusals,
}
ATTACKS = {**FLOODS, "bad users": bad_users}
