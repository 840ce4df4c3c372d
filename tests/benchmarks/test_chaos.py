"""The campaign against server and artifacts: its least size, and that it notices what is broken."""

import threading
import time

import pytest

pytest.importorskip("fastapi", reason="FastAPI is absent: pip install 'fieldwise[serve]'")
pytest.importorskip("schemathesis", reason="schemathesis is absent: pip install schemathesis")

import fastapi
import requests
import uvicorn
from benchmarks.chaos import documents
from benchmarks.chaos.__main__ import Size, campaign, main
from benchmarks.chaos.outcome import Outcome, judge, table
from benchmarks.chaos.writers import training_faults
from benchmarks.wire import Answer
from schemathesis import GenerationMode
from schemathesis.core.transport import Response

ERROR = b'{"error": {"message": "m", "field": null}}'


@pytest.mark.slow
def test_the_least_of_an_attack_on_a_server_finds_nothing_broken():
    """How soon answers come is the machine's; that they come is not (tests/serving/test_replacement.py, each time)."""
    (one,) = campaign(["replacement"], Size(0.01, seed=3))
    assert one.broken == []
    assert one.tried > 0
    assert one.figures["rate"] > 0
    assert one.name in table([one])


def test_a_broken_promise_is_a_status(monkeypatch, capsys):
    for broken, late, status in [([], [], 0), (["b"], [], 1), ([], ["l"], 1)]:
        results = [
            Outcome(
                name="one",
                tried=2,
                broken=broken,
                late=late,
                figures={"rate": 2.25, "kinds": {"a": 1}},
            )
        ]
        monkeypatch.setattr(
            "benchmarks.chaos.__main__.campaign", lambda *_, results=results: results
        )
        assert main(["--minutes", "0.2"]) == status
        printed = capsys.readouterr().out
        assert "rate 2.2, kinds 1 x a" in printed
        assert ("BROKEN" in printed) == bool(status)


def test_what_is_a_fault(subtests):
    for status, headers, body, fault in [
        (200, {}, b"[]", False),
        (500, {}, ERROR, True),
        (502, {b"retry-after": b"1"}, ERROR, True),
        (503, {}, ERROR, True),
        (503, {b"retry-after": b"1"}, ERROR, False),
        (422, {}, ERROR, False),
        (422, {}, b"[]", True),
        (400, {}, b"Invalid HTTP request received.", True),
        (404, {}, b'{"detail": "Not Found"}', True),
    ]:
        with subtests.test(status=status, headers=headers, body=body, fault=fault):
            assert (Answer(status, headers, body).fault is not None) == fault


def test_what_honest_clients_saw_is_judged():
    health = {"p50": 1.0, "p99": 99.0}
    one = Outcome(name="x")
    judge(one, {"health": health, "rate": 1.0, "statuses": {"200": 5}, "faults": []})
    assert (one.broken, one.late) == ([], [])
    worse = {
        "health": health | {"p99": 101.0},
        "rate": 1.0,
        "statuses": {"200": 5, "503": 1},
        "faults": ["500: b''"],
    }
    judge(one, worse)
    assert one.broken == ["honest clients got {'503': 1}", "500: b''"]
    assert one.late == ["/healthz took 101 ms (99 %), 100 ms are promised"]
    silent = Outcome(name="y")
    judge(
        silent,
        {
            "health": {"p50": float("nan"), "p99": float("nan")},
            "rate": 0.0,
            "statuses": {},
            "faults": [],
        },
    )
    assert silent.late, "no answer at all is not in time"


BUSY = (1, "fieldwise: only one training at a time can use x, and another process does")


def test_the_seed_that_won_is_told(subtests):
    for ends, left, fault in [
        ([(0, ""), (0, "")], ["2"], None),
        ([(0, ""), BUSY], ["1"], None),
        ([(0, ""), BUSY], ["2"], "that of 2, and the training that ended well had 1"),
        ([(0, ""), (0, "")], [], "that of neither seed"),
        ([BUSY, BUSY], ["1"], "no training ended well"),
        ([(0, ""), (1, "Traceback")], ["1"], "Traceback"),
    ]:
        with subtests.test(ends=ends, left=left, fault=fault):
            result = training_faults(dict(zip("12", ends, strict=True)), left)
            assert bool(result) == (fault is not None)
            assert fault is None or any(fault in one for one in result)


@pytest.mark.slow
def test_a_wrong_answer_to_a_generated_request_is_one_line_and_uvicorns_to_a_huge_url_none(
    monkeypatch,
):
    app = fastapi.FastAPI()

    @app.get("/things/{name}")
    def thing(name: str) -> str:
        raise ValueError(name)

    server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="critical"))
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        while not server.started:
            assert thread.is_alive()
            time.sleep(0.01)
        port = server.servers[0].sockets[0].getsockname()[1]
        monkeypatch.setattr(
            documents, "PAIRS", [("GET", "/things/{name}", GenerationMode.POSITIVE)]
        )
        result = documents.ask(port, 3, 0, 60)
        assert result["requests"] == len(result["faults"]) == 3
        for fault in result["faults"]:
            assert fault.startswith("GET /things/{name}: ")
            assert "Server error" in fault
            assert "\n" not in fault
            assert len(fault) <= 300
        for length, known in ((65_535, False), (65_536, True)):
            answer = requests.get(f"http://127.0.0.1:{port}/{'x' * (length - 1)}", timeout=60)
            assert documents.is_too_long(Response.from_any(answer)) == known
    finally:
        server.should_exit = True
        thread.join(60)
