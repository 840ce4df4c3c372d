"""Requests drawn from the published OpenAPI document, allowed and not, against the running server.

`python -m benchmarks.chaos.documents PORT REQUESTS SEED SECONDS` prints how many were asked, and
what was wrong, as JSON. Each operation has an equal part of the requests and of the seconds,
whichever ends first; what is missing then is asked in further rounds.
"""

import json
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any
from unittest import SkipTest

import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import seed as seeded
from hypothesis import strategies as st
from schemathesis import GenerationMode
from schemathesis.core.failures import FailureGroup
from schemathesis.core.transport import Response
from serving.test_openapi import CHECKS, NOTHING_TAKEN, OPERATIONS

from benchmarks.chaos.outcome import Outcome, judge
from benchmarks.chaos.target import ENDS, result, served, start

ROUNDS = 10  # the last ones ask for little
REPORTED = 300  # characters of a fault, whose URL may be huge
INVALID = "Invalid HTTP request received."
PAIRS = [
    (*one, mode) for one in OPERATIONS for mode in GenerationMode if one[1] not in NOTHING_TAKEN
]


def documents(folder: Path, requests: int, seed: int, seconds: float) -> Outcome:
    """Ask so many, or for so long, with honest clients beside."""
    with served(folder) as server:
        asking = start("documents", server.port, requests, seed, seconds)
        witnesses = []
        while asking.poll() is None:
            witnesses.append(result(start("witness", server.port, 5), ENDS))
        results = result(asking, ENDS)
    one = Outcome(name="schemathesis", tried=results["requests"], broken=results["faults"])
    if one.tried < requests:
        one.late.append(f"{one.tried:,} of {requests:,} requests were asked in {seconds:.0f} s")
    judge(one, max(witnesses, key=lambda witness: witness["health"]["p99"]))
    return one


def ask(port: int, requests: int, seed: int, seconds: float) -> dict[str, Any]:
    """Ask from one thread; every answer is checked against the document."""
    document = schemathesis.openapi.from_url(f"http://127.0.0.1:{port}/openapi.json")
    faults, asked, end = [], 0, time.monotonic() + seconds
    quick = settings(
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )

    def run(data: st.DataObject, cases: Any, where: str, until: float) -> None:
        nonlocal asked
        case = data.draw(cases)
        if time.monotonic() > until:
            raise SkipTest  # Hypothesis passes it on at once
        asked += 1
        try:
            answer = case.call()
            if not is_too_long(answer):
                case.validate_response(answer, checks=CHECKS)
        except (Exception, FailureGroup) as e:  # a group of failures is no Exception
            faults.append(" ".join(f"{where}: {e}".split())[:REPORTED])

    for number in range(ROUNDS):
        each = -(-(requests - asked) // len(PAIRS))
        for place, (method, path, mode) in enumerate(PAIRS):
            until = time.monotonic() + (end - time.monotonic()) / (len(PAIRS) - place)
            cases = document[path][method].as_strategy(generation_mode=mode)
            test = given(st.data(), st.just(cases), st.just(f"{method} {path}"), st.just(until))(
                run
            )
            with suppress(SkipTest):
                seeded(seed + number)(settings(quick, max_examples=each)(test))()
        if asked >= requests or time.monotonic() > end:
            break
    return {"requests": asked, "faults": faults[:10]}


def is_too_long(answer: Response) -> bool:
    """Whether it is uvicorn's own answer to a URL of 64 KiB or more, which the server cannot change."""
    return (
        answer.status_code == 400
        and answer.text == INVALID
        and len(answer.request.path_url) >= 65_536
    )


if __name__ == "__main__":
    print(json.dumps(ask(*map(int, sys.argv[1:4]), float(sys.argv[4]))))
