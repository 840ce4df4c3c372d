"""From an empty folder to a page in one command; what the terminal shows is what the page recommends."""

import re
from pathlib import Path

import pytest
from cli.test_bad_input import refused
from forked import Command

from fieldwise import Bundle
from fieldwise.cli import quickstart

SMALL = (
    "data.rows=600",
    "data.users=20",
    "data.items=60",
    "training.epochs=1",
    "training.batch_size=256",
)
BEFORE = f"""
from fieldwise.cli import quickstart
quickstart.DEMOS["small"] = quickstart.DEMOS["small"][0], {SMALL!r}
"""


def test_one_command_serves_what_it_printed():
    httpx = pytest.importorskip("httpx", reason="httpx is absent: pip install 'fieldwise[dev]'")
    pytest.importorskip("uvicorn", reason="uvicorn is absent: pip install 'fieldwise[serve]'")
    running = Command("quickstart", "--port", "0", "--quiet", "--out", "q", before=BEFORE)
    try:
        place = running.heard(r"serving at (\S+)")[1]
        assert any(
            line.startswith("next, start the page again later: ")
            for line in running.errors.splitlines()
        )
        user = re.search(r"ten films for user (\S+) by simulated/(\S+) ", running.output)
        assert user
        printed = re.findall(r"^ (m\d{4}) .* (0\.\d{3}) *$", running.output, re.M)
        assert len(printed) == 10
        with httpx.Client(
            transport=httpx.HTTPTransport(retries=8), base_url=place, timeout=120
        ) as page:
            context = page.get(f"/v1/users/{user[1]}").json()["context"]
            asked = {"user": user[1], "context": context, "k": 10}
            items = page.post("/v1/recommend", json=asked).json()["items"]
    finally:
        running.end()
    assert [(item["id"], f"{item['prediction']:.3f}") for item in items] == printed
    assert Bundle.load(Path("q") / user[2]).about.recipe.name == f"simulated/{user[2]}"


def test_without_the_extra_it_says_so_before_any_work(fieldwise, monkeypatch):
    monkeypatch.setattr(quickstart, "find_spec", lambda _: None)
    monkeypatch.setattr(quickstart, "_train", lambda *_, **__: pytest.fail("work was begun"))
    refused(
        fieldwise("quickstart"),
        "the page needs uvicorn: pip install 'fieldwise[serve]'",
        "--no-serve",
    )
