"""What hostile clients send."""

from collections.abc import Callable
from dataclasses import dataclass

from benchmarks.chaos.wire import post

BAD_USERS = 20  # of a store that lies


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


def bad_users(_: int) -> Payloads:
    """Users whose rows cannot be read."""
    bodies = [{"user": f"bad{n}", "context": {"device": "tv"}, "k": 5} for n in range(BAD_USERS)]
    return Payloads([post("/v1/recommend", body) for body in bodies])


ATTACKS: dict[str, Callable[[int], Payloads]] = {"bad users": bad_users}
