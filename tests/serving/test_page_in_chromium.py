"""The page in a real Chromium, against a real server on loopback: what it shows is what the API answers."""

import asyncio
import contextlib
import json
import re
import shutil
import socket
import threading
from urllib.parse import parse_qs, urlsplit

import httpx
import polars as pl
import pytest

pytest.importorskip("fastapi", reason="FastAPI is absent: pip install 'fieldwise[serve]'")
pytest.importorskip("uvicorn", reason="uvicorn is absent: pip install 'fieldwise[serve]'")
pytest.importorskip("playwright.sync_api", reason="playwright is absent: pip install playwright")

import uvicorn
from playwright import sync_api as playwright
from serving.conftest import catalogue, log, make
from serving.test_page import Sorted

from fieldwise import AutoInt
from fieldwise.serving import Ranker, build_index, item_table
from fieldwise.serving.http import ServerSettings, create_app
from fieldwise.serving.service import Service
from fieldwise.serving.stores import Lookup, Stores, TableStore
from fieldwise.serving.user_log import UserLog

CHROMIUM = (
    shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
)
pytestmark = pytest.mark.skipif(
    CHROMIUM is None, reason="no Chromium on this machine: install chromium"
)

ATTACK = "<img src=x onerror=\"document.title='taken'\"><b>bold</b>"
ARGUMENTS = (
    "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update",
    "--disable-sync", "--no-first-run",
)  # fmt: skip
USERS = pl.DataFrame(
    {
        "user": [f"u{k}" for k in range(6)],
        "history": ["i1|i2", None, "i3", "i4|i5|i6|i7", "i8", "i1"],
    }
)
SLOW = pytest.mark.slow
ROW = "#list > li"
SETTLED = "() => document.querySelector('#list').getAttribute('aria-busy') === 'false'"


def items():
    titles = [f"Title {k}" for k in range(30)]
    titles[4] = ATTACK
    return catalogue().with_columns(title=pl.Series(titles))


def users():
    return Stores(users=Lookup("users", TableStore("user", USERS), timeout=30))


@pytest.fixture(scope="module")
def serve(tmp_path_factory):
    """Start servers: `serve(service)` gives an address."""
    running = []

    def start(service, stores=None, **limits):
        app = create_app(service, ServerSettings(**{"timeout": 120, **limits}), stores)
        listening = socket.create_server(("127.0.0.1", 0))
        server = uvicorn.Server(uvicorn.Config(app, log_level="warning", timeout_keep_alive=600))
        thread = threading.Thread(
            target=lambda: asyncio.run(server.serve([listening])), daemon=True
        )
        thread.start()
        running.append((server, thread))
        return f"http://127.0.0.1:{listening.getsockname()[1]}"

    yield start
    for server, thread in running:
        server.should_exit = True
        thread.join(120)


@pytest.fixture(scope="module")
def cascades(tmp_path_factory, tower, ranker):
    index, _ = build_index(tower, items(), tmp_path_factory.mktemp("index") / "ix")
    autoint = make(AutoInt(embedding_dim=4), seed=3)
    return {
        name: Ranker(one, index, tower=tower)
        for name, one in (("afm", ranker), ("autoint", autoint), ("tower", None))
    }


@pytest.fixture(scope="module")
def places(serve, cascades, ranker):
    """Addresses of servers with an AFM, an AutoInt, IntTower alone, and an AFM without a catalogue."""
    results = {name: serve(Service(one.bundle, one), users()) for name, one in cascades.items()}
    return results | {"bare": serve(Service(ranker))}


@pytest.fixture(scope="module")
def chromium():
    with playwright.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=CHROMIUM, args=list(ARGUMENTS))
        yield browser
        browser.close()


@pytest.fixture
def visit(chromium):
    """Open the page: `visit(address)`; in the end there must be no error and no request to another host."""
    opened = []

    def go(address, *, width=1280, wait=ROW, strict=True, **more):
        context = chromium.new_context(
            viewport={"width": width, "height": 900}, reduced_motion="reduce", **more
        )
        page = context.new_page()
        page.set_default_timeout(120_000)
        heard, asked = [], []
        page.on(
            "console",
            lambda message: (
                heard.append(message.text) if message.type in ("error", "warning") else None
            ),
        )
        page.on("pageerror", lambda fault: heard.append(str(fault)))
        page.on("request", lambda request: asked.append(request.url))
        opened.append((context, heard if strict else [], asked, urlsplit(address).netloc))
        page.goto(address)
        page.wait_for_selector(wait)
        if wait == ROW:
            page.wait_for_function(SETTLED)
        return page

    yield go
    for context, heard, asked, host in opened:
        context.close()
        assert heard == []
        assert {urlsplit(url).netloc for url in asked} == {host}


def ask(address, path):
    """What the API answers to a GET request."""
    return httpx.get(f"{address}/v1/{path}", timeout=120).json()


def recommended(address, **body):
    answer = httpx.post(f"{address}/v1/recommend", json=body, timeout=120)
    assert answer.status_code == 200, answer.text
    return answer.json()["items"]


def device(address):
    return next(field for field in ask(address, "about")["fields"] if field["name"] == "device")[
        "usual"
    ]


def shown(page):
    """Ids and scores as they stand."""
    rows = page.locator(ROW)
    texts = page.locator(f"{ROW} .score .number").all_inner_texts()
    return [row.get_attribute("data-id") for row in rows.all()], texts


def settle(page):
    page.wait_for_function(SETTLED)


def choose(page, name, text):
    """Take the first choice of a box that holds a text."""
    page.get_by_role("combobox", name=name).fill(text)
    page.wait_for_selector('[role="option"]')
    page.keyboard.press("Enter")
    settle(page)


def moved(before, after):
    """How the page shows an item's move from one place to another."""
    return "=" if before == after else f"{'▲' if before > after else '▼'} {abs(before - after)}"


def percents(found):
    return [f"{100 * item['prediction']:.1f}\u00a0%" for item in found]


SHOWN = f"""wanted => JSON.stringify(wanted) === JSON.stringify([
    [...document.querySelectorAll('{ROW}')].map((one) => one.dataset.id),
    [...document.querySelectorAll('{ROW} .score .number')].map((one) => one.innerText)])"""


def check(page, found):
    """The list shows these items, or will soon: the page asks a moment after a change."""
    wanted = [item["id"] for item in found], percents(found)
    with contextlib.suppress(playwright.TimeoutError):
        page.wait_for_function(SHOWN, arg=list(wanted))
    assert shown(page) == wanted


def asked_of(address, user, **changed):
    """What the page asks for when all else is as it was."""
    own = USERS.filter(pl.col("user") == user)["history"][0]
    history = changed.get("history", own.split("|") if own else [])
    context = {"device": device(address), **changed}
    return {"user": user, "context": context, "k": 10, "exclude": history}


LOADING = """() => new Promise((done) => {
    const bytes = performance.getEntriesByType('resource').reduce((sum, one) => sum + one.encodedBodySize, 0);
    const own = (list) => list.getEntries().filter((one) => !one.hadRecentInput).map((one) => one.value);
    new PerformanceObserver((list) => done([own(list), bytes])).observe({ type: 'layout-shift', buffered: true });
    setTimeout(() => done([[], bytes]), 300);
})"""


@pytest.mark.slow
def test_an_item_that_is_not_in_the_list_is_explained(visit, places):
    page = visit(places["afm"])
    body = asked_of(places["afm"], "u0")
    listed = {item["id"] for item in recommended(places["afm"], **body)}
    absent = next(f"i{row}" for row in range(30) if f"i{row}" not in listed)
    answer = httpx.post(f"{places['afm']}/v1/why-not", json={**body, "item": absent}, timeout=120)
    choose(page, "Why is an item not in the list?", absent)
    page.wait_for_selector(f"#absent p:has-text({json.dumps(answer.json()['sentence'])})")
    page.get_by_role("button", name="Next").click()
    settle(page)
    assert page.inner_text("#absent p") == ""


@pytest.mark.slow
def test_users_are_chosen_with_the_keyboard_alone(visit, places):
    page = visit(places["afm"])
    check(page, recommended(places["afm"], **asked_of(places["afm"], "u0")))
    shifts, weight = page.evaluate(LOADING)
    assert sum(shifts) < 0.05, "the first list moves nothing"
    assert weight < 120_000
    assert page.title() == "Recommendations · fieldwise"
    assert "30 items, pre-ranked by inttower, ranked by afm" in page.inner_text("header")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    for _ in range(2):
        page.keyboard.press("Tab")
    box = page.get_by_role("combobox", name="User")
    assert box.evaluate("one => one === document.activeElement")
    page.keyboard.type("U")
    page.wait_for_selector('[role="option"]')
    assert box.get_attribute("aria-expanded") == "true"
    for key in ("ArrowDown", "ArrowDown", "ArrowDown", "ArrowDown", "ArrowUp"):
        page.keyboard.press(key)
    marked = page.locator('[role="option"][aria-selected="true"]')
    assert marked.inner_text() == "u2"
    assert marked.get_attribute("id") == box.get_attribute("aria-activedescendant")
    page.keyboard.press("Enter")
    page.wait_for_url("**/?user=u2")
    settle(page)
    assert box.get_attribute("aria-expanded") == "false"
    assert box.input_value() == "u2"
    check(page, recommended(places["afm"], **asked_of(places["afm"], "u2")))
    assert "for u2. First:" in page.get_by_role("status").inner_text()
    # Next and random users, and back.
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    page.wait_for_function("() => location.search === '?user=u3'")
    settle(page)
    check(page, recommended(places["afm"], **asked_of(places["afm"], "u3")))
    page.go_back()
    page.wait_for_function("() => document.querySelector('#user').value === 'u2'")
    settle(page)
    check(page, recommended(places["afm"], **asked_of(places["afm"], "u2")))


@SLOW
def test_escape_keeps_the_user_and_an_unknown_one_is_an_error_at_the_box(visit, places):
    page = visit(f"{places['afm']}/?user=u1", strict=False)  # Chromium reports the 404 itself
    box = page.get_by_role("combobox", name="User")
    box.fill("u4")
    page.wait_for_selector('[role="option"]')
    page.keyboard.press("Escape")
    assert box.input_value() == "u1"
    box.fill("nobody")
    page.keyboard.press("Enter")
    page.wait_for_selector("#user-error:not(:empty)")
    assert "must be known to the server, found 'nobody'" in page.inner_text("#user-error")
    assert [box.get_attribute(name) for name in ("aria-invalid", "aria-describedby")] == [
        "true",
        "user-error",
    ]
    # The list of the user before is removed, also after a change and after loading the page again.
    assert page.locator(ROW).count() == 0
    assert "does not know the user “nobody”" in page.inner_text("#single")
    page.get_by_label("device", exact=True).select_option("tv")
    settle(page)
    assert page.locator(ROW).count() == 0
    page.reload()
    page.wait_for_selector("#user-error:not(:empty)")
    assert (page.locator(ROW).count(), box.input_value()) == (0, "nobody")
    page.get_by_role("button", name="Next").click()
    page.wait_for_selector(ROW)
    settle(page)
    check(page, recommended(places["afm"], **asked_of(places["afm"], "u0")))
    assert page.inner_text("#user-error") == ""


@SLOW
def test_a_user_in_the_form_is_compared_with_its_own_list(visit, serve, cascades):
    """Where the server knows no users, the id is a field like others, but no change to the usual user."""
    one = cascades["autoint"]
    address = serve(Service(one.bundle, one))
    page = visit(address)
    usual = {field["column"]: field["usual"] for field in ask(address, "about")["fields"]}
    own = {"user": "u4" if usual["user"] != "u4" else "u3", "history": []}
    other = "phone" if usual["device"] == "tv" else "tv"
    page.get_by_label("device", exact=True).select_option(other)
    page.wait_for_selector(".was:not([hidden])")
    page.get_by_label("user", exact=True).select_option(own["user"])
    page.wait_for_function(
        f"() => document.querySelector('#meaning').textContent.includes('values for {own['user']}.')"
    )
    settle(page)
    check(page, recommended(address, context={**own, "device": other}, k=10))
    before = recommended(address, context={**own, "device": usual["device"]}, k=30)
    ranks = {item["id"]: place for place, item in enumerate(before, 1)}
    expected = [moved(ranks[item], place) for place, item in enumerate(shown(page)[0], 1)]
    assert page.locator(f"{ROW} .places").all_inner_texts() == expected


def test_a_changed_field_gives_the_scores_of_the_api(visit, places):
    address = places["afm"]
    page = visit(f"{address}/?user=u3")
    before = recommended(address, **{**asked_of(address, "u3"), "k": 26})
    other = "phone" if device(address) == "tv" else "tv"
    page.get_by_label("device").select_option(other)
    page.wait_for_selector(".was:not([hidden])")
    settle(page)
    result = recommended(address, **asked_of(address, "u3", device=other))
    check(page, result)
    was = {item["id"]: (place, item["prediction"]) for place, item in enumerate(before, 1)}
    deltas, moves = (
        page.locator(f"{ROW} .{name}").all_inner_texts() for name in ("delta", "places")
    )
    for place, (item, delta, move) in enumerate(zip(result, deltas, moves, strict=True), 1):
        rank, prediction = was[item["id"]]
        change = 100 * (item["prediction"] - prediction)
        assert delta == ("±0" if abs(change) < 0.05 else f"{change:+.1f}".replace("-", "\u2212"))
        assert move == moved(rank, place)
    assert page.inner_text("#changes") == "1 changed"
    assert parse_qs(urlsplit(page.url).query) == {
        "user": ["u3"],
        "context": [f'{{"device":"{other}"}}'],
    }
    # Another sees the same by the address; another user starts from the own values.
    other = visit(page.url)
    check(other, result)
    other.get_by_role("combobox", name="User").fill("u4")
    other.keyboard.press("Enter")
    other.wait_for_function("() => location.search === '?user=u4'")
    settle(other)
    check(other, recommended(address, **asked_of(address, "u4")))
    assert other.inner_text("#changes") == ""
    assert other.locator(".was:not([hidden])").count() == 0
    page.get_by_role("button", name="Reset to the user’s own values").click()
    settle(page)
    check(page, before[:10])
    assert page.locator(".was:not([hidden])").count() == 0
    page.get_by_label("device", exact=True).select_option(label="Another value…")
    page.get_by_label("Another value").fill("fridge")
    settle(page)
    check(page, recommended(address, **asked_of(address, "u3", device="fridge")))
    page.get_by_label("device", exact=True).select_option(label="(not known)")
    settle(page)
    check(page, recommended(address, **asked_of(address, "u3", device=None)))


@pytest.mark.slow
def test_a_history_filters_and_how_many(visit, places):
    address = places["afm"]
    page = visit(f"{address}/?user=u3", strict=False)  # Chromium reports the 422 itself
    page.wait_for_selector(".chips li >> text=Title 5")
    page.get_by_role("button", name="Remove Title 7").click()
    settle(page)
    check(page, recommended(address, **asked_of(address, "u3", history=["i4", "i5", "i6"])))
    choose(page, "history", "title 29")
    body = asked_of(address, "u3", history=["i4", "i5", "i6", "i29"])
    check(page, recommended(address, **body))
    assert page.locator(".chips li.unread").count() == 1, "the model reads the last three"
    choose(page, "genres", "g1")
    body |= {"where": {"genres": ["g1"]}}
    check(page, recommended(address, **body))
    page.get_by_label("Leave out").select_option(label="nothing")
    settle(page)
    body |= {"exclude": []}
    check(page, recommended(address, **body))
    page.get_by_label("How many").fill("3")
    settle(page)
    check(page, recommended(address, **{**body, "k": 3}))
    page.get_by_label("How many").fill("31")
    page.wait_for_selector(".error:not(:empty)")
    assert "at most the 30 items of the index, found 31" in page.inner_text(
        ".field:has([aria-invalid]) .error"
    )
    assert page.locator(ROW).count() == 3, "the old list stays"


@SLOW
def test_limits_and_pinned_items(visit, places):
    address = places["afm"]
    page = visit(f"{address}/?user=u3")
    page.wait_for_selector(ROW)
    choose(page, "Pinned first", "title 29")
    body = asked_of(address, "u3") | {"pinned": {"1": "i29"}}
    check(page, recommended(address, **body))
    page.get_by_label("At most of one genres").fill("2")
    settle(page)
    body |= {"limits": {"genres": 2}}
    found = recommended(address, **body)
    check(page, found)
    answer = httpx.post(f"{address}/v1/recommend", json=body, timeout=120).json()
    assert page.locator("#rules li").all_inner_texts() == answer["changed"]
    moved = [item["by_score"] for place, item in enumerate(found) if item["by_score"] != place + 1]
    words = [text for text in page.locator(f"{ROW} .by-score").all_inner_texts() if text]
    assert words == [f"by score at {place}" for place in moved]
    query = parse_qs(urlsplit(page.url).query)
    assert (query["limits"], query["pinned"]) == (['{"genres":2}'], ['{"1":"i29"}'])
    again = visit(page.url)
    again.wait_for_selector(ROW)
    check(again, found)
    again.get_by_role("button", name="Remove Title 29").click()
    again.get_by_label("At most of one genres").fill("")
    settle(again)
    check(again, recommended(address, **asked_of(address, "u3")))
    assert again.locator("#rules li").count() == 0


@SLOW
def test_stale_answers_are_dropped(visit, places):
    """An answer that comes late does not replace the one to a later question."""
    address = places["afm"]
    page = visit(address)
    held = []

    def hold(route):
        if '"device":"slow"' in route.request.post_data:
            held.append(route)
        else:
            route.continue_()

    page.route("**/v1/recommend", hold)
    page.get_by_label("device", exact=True).select_option(label="Another value…")
    free = page.get_by_label("Another value")
    with page.expect_request(lambda request: '"device":"slow"' in (request.post_data or "")):
        free.fill("slow")
    assert page.locator("#list").get_attribute("aria-busy") == "true"
    assert page.locator(ROW).count() == 10, "the old list stays until the new one is there"
    free.fill("quick")
    settle(page)
    result = recommended(address, **asked_of(address, "u0", device="quick"))
    check(page, result)
    for route in held:
        with contextlib.suppress(playwright.Error):  # the page may have given it up
            route.fulfill(json={"items": [], "counts": {}, "milliseconds": {}})
    page.wait_for_timeout(200)
    check(page, result)


@pytest.mark.parametrize(
    "model", [pytest.param("afm", marks=SLOW), pytest.param("autoint", marks=SLOW), "tower"]
)
def test_an_explanation_is_that_of_the_api(visit, places, model):
    address = places[model]
    page = visit(f"{address}/?user=u3")
    first = page.locator(f"{ROW} >> nth=0")
    button = first.get_by_role("button").first
    button.focus()
    page.keyboard.press("Enter")
    page.wait_for_selector(".bars")
    assert button.get_attribute("aria-expanded") == "true"
    body = asked_of(address, "u3")
    asked = {
        "user": "u3",
        "context": body["context"],
        "items": [first.get_attribute("data-id")],
        "pairs": True,
    }
    why = httpx.post(f"{address}/v1/explain", json=asked, timeout=120).json()["explanations"][0]
    titles = dict(zip(items()["item"], items()["title"], strict=True))

    def value(name, text):
        return (
            ", ".join(titles.get(one, one) for one in text.split(", "))
            if name in ("item", "history")
            else text
        )

    def lines(heading):
        section = first.locator(
            "section", has=page.get_by_role("heading", name=heading, exact=True)
        )
        if section.get_by_role("button").count():
            section.get_by_role("button", name=re.compile("Show all")).click()
        return [
            (
                " ".join(line.locator(".words").text_content().split()),
                line.locator(".amount").text_content(),
            )
            for line in section.locator("li").all()
        ]

    def amount(x):
        return ("+" if x >= 0 else "\u2212") + f"{abs(x):.2f}"

    kind, name = ("pairs", "contribution") if model == "afm" else ("measured_pairs", "effect")
    expected = [
        (
            " × ".join(
                f"{f} {value(f, v)}" for f, v in zip(pair["fields"], pair["values"], strict=True)
            ),
            pair[name],
        )
        for pair in why[kind]
    ]
    result = lines("Pairs that mattered")
    assert [words for words, _ in result] == [words for words, _ in expected]
    for (_, text), (_, x) in zip(result, expected, strict=True):
        assert text == amount(x) or abs(abs(x) * 100 % 1 - 0.5) < 1e-6
    fields = lines("Fields")
    assert [words for words, _ in fields] == [
        f"{one['field']} {value(one['field'], one['value'])}" for one in why["fields"]
    ]
    said = first.locator(".why > *").first.inner_text()
    assert said.endswith(why["sentence"].partition(", ")[2])
    assert re.match(
        r"\S+, .*mainly because " if model == "tower" else r"[\d.]+ %, .*mainly because ", said
    )
    amounts = first.locator(".columns .amount")
    assert first.locator(".sum").is_hidden()
    assert amounts.first.bounding_box()["width"] <= 1
    first.get_by_text("Figures in logits").click()
    # whose score is a logit
    assert ("a logit of" in first.locator(".sum").inner_text()) == (model != "tower")
    assert amounts.first.bounding_box()["width"] > 20
    levels = first.get_by_text("IntTower’s levels and gates")
    assert levels.count() == (model == "tower")
    if model == "tower":
        levels.click()
        assert [text for _, text in lines("Levels")] == [
            amount(level["contribution"]) for level in why["levels"]
        ]
    first.get_by_role("button", name="Similar items").click()
    page.wait_for_selector(".similar li")
    near = ask(address, f"items/{first.get_attribute('data-id')}/similar?k=5")["items"]
    assert first.locator(".similar .number").all_inner_texts() == [
        f"{item['similarity']:.2f}" for item in near
    ]
    assert first.locator(".similar .title").all_inner_texts() == [
        item["fields"]["title"] for item in near
    ]
    # The address opens the explanation, another one closes it.
    assert parse_qs(urlsplit(page.url).query)["why"] == asked["items"]
    page.locator(f"{ROW} >> nth=1").get_by_role("button").first.click()
    page.wait_for_selector(f"{ROW}:nth-child(2) .bars")
    assert button.get_attribute("aria-expanded") == "false"


def test_directions_are_those_of_the_api_on_one_scale(visit, places):
    address = places["autoint"]
    page = visit(f"{address}/?user=u3")
    first = page.locator(f"{ROW} >> nth=0")
    first.get_by_role("button").first.click()
    page.wait_for_selector(".directions:not([hidden])")
    effects = ask(address, "effects")["effects"]
    assert first.locator("figcaption").all_inner_texts() == [one["field"] for one in effects]
    every = [prediction for one in effects for prediction in one["predictions"]]
    for one, figure in zip(effects, first.locator("figure").all(), strict=True):
        share = [
            (prediction - min(every)) / (max(every) - min(every))
            for prediction in one["predictions"]
        ]
        if one["numbers"]:
            heights = figure.locator("circle").evaluate_all(
                "all => all.map(c => c.getAttribute('cy'))"
            )
            assert [68 - float(y) for y in heights] == pytest.approx(
                [64 * place for place in share]
            )
            assert figure.locator("line").count() == 1
        else:
            results = {
                line.locator(".words").inner_text(): line for line in figure.locator("li").all()
            }
            for value, place in zip(one["values"], share, strict=True):
                style = results[value].locator(".dot").get_attribute("style")
                assert float(re.search(r"([\d.]+)%", style)[1]) == pytest.approx(
                    100 * place, abs=1e-3
                )
    mine = next(line.inner_text() for line in first.locator("figure .own .words").all())
    assert mine in {value for one in effects for value in one["values"]}


@SLOW
def test_uniform_attention_is_a_sentence_and_an_explanation_needs_no_directions(visit, places):
    page = visit(places["afm"], strict=False)  # Chromium reports the 503 itself
    busy = {"error": {"message": "busy", "field": None}}
    page.route("**/v1/effects", lambda route: route.fulfill(status=503, json=busy))

    def answer(route):
        result = route.fetch()
        why = result.json()
        pairs = why["explanations"][0]["pairs"]
        for place, pair in enumerate(pairs):
            pair["attention"] = 0.5 if shown and place == 0 else 1.004 / len(pairs)
        route.fulfill(response=result, json=why)

    page.route("**/v1/explain", answer)
    for shown, number in ((True, 0), (False, 1)):
        one = page.locator(f"{ROW} >> nth={number}")
        one.get_by_role("button").first.click()
        one.locator(".reason").wait_for()
        text = one.locator(".why").text_content()
        assert ("attention" in one.locator(".columns").text_content()) == shown
        assert ("Attention is uniform over the pairs" in text) != shown
    assert page.locator(".directions").first.is_hidden()


@SLOW
def test_an_open_explanation_follows_a_changed_field(visit, places):
    address = places["afm"]
    page = visit(f"{address}/?user=u3&why=i1", strict=False)  # Chromium reports the 503 itself
    page.get_by_label("Leave out").select_option(label="nothing")
    page.get_by_label("How many").fill("26")
    page.wait_for_function("() => document.querySelectorAll('#list > li').length === 26")
    settle(page)
    panel = page.locator(f'{ROW}[data-id="i1"] .why')
    if panel.is_hidden():
        page.locator(f'{ROW}[data-id="i1"]').get_by_role("button").first.click()
    panel.locator(".bars").first.wait_for()
    held = []
    page.route("**/v1/explain", lambda route: held.append(route))
    with page.expect_request("**/v1/explain"):
        page.get_by_label("device", exact=True).select_option(label="(not known)")
    settle(page)
    page.wait_for_selector(".was:not([hidden])")
    assert panel.inner_text() == "Computing the explanation…"
    for route in held:
        route.fulfill(status=503, json={"error": {"message": "too busy", "field": "server"}})
    panel.get_by_role("alert").wait_for()
    page.unroute("**/v1/explain")
    panel.get_by_role("button", name="Try again").click()
    panel.locator(".words", has_text="device (absent)").first.wait_for()
    body = {**asked_of(address, "u3", device=None), "exclude": [], "k": 26}
    scored = [item for item in recommended(address, **body) if item["id"] == "i1"]
    if scored:
        assert panel.locator(".sum strong").text_content() == percents(scored)[0]


@SLOW
def test_addresses_with_wrong_or_unusual_values(visit, places):
    address = places["afm"]
    page = visit(
        f"{address}/?where=%7B%22genres%22%3A%5B%22none%22%5D%7D", wait=".empty", strict=False
    )
    assert "No item to recommend" in page.inner_text("#results")
    assert page.get_by_role("status").inner_text() == "No recommendations for u0"
    page.get_by_role("button", name="Remove the filters").click()
    page.wait_for_selector(ROW)
    for query, rows in {"context=x&k=-1&why=none": 10, "where=7&context=[]&k=1e9": 28}.items():
        page.goto(f"{address}/?{query}")
        page.wait_for_selector(ROW)
        settle(page)
        assert page.locator(ROW).count() == rows, query
    page.goto(f"{address}/?context=%7B%22history%22%3A%5B%22i9%22%5D%7D")
    page.wait_for_selector(ROW)
    settle(page)
    check(page, recommended(address, **asked_of(address, "u0", history=["i9"])))
    page.goto(f"{address}/?context=%7B%22device%22%3A%7B%7D%7D")  # Chromium reports the 422 itself
    page.wait_for_selector("#fields .error:not(:empty)")
    assert "context.device must be text, a number" in page.inner_text(
        "#fields .field:has([aria-invalid]) .error"
    )
    assert page.get_by_label("device", exact=True).get_attribute("aria-invalid") == "true"


def test_titles_are_text_whatever_they_hold(visit, places):
    page = visit(f"{places['afm']}/?user=u5&k=30&leave=nothing")
    row = page.locator(f'{ROW}[data-id="i4"]')
    assert row.locator(".title").text_content() == ATTACK
    row.get_by_role("button").first.click()
    page.wait_for_selector(".bars")
    assert page.locator("#list img, #list b").count() == 0
    choose(page, "history", "<img")
    assert page.locator(".chips").first.inner_text().startswith("Title 1")
    assert page.locator(".chips img").count() == 0
    assert page.title() == "Recommendations · fieldwise"


def test_a_single_row_where_there_is_no_catalogue(visit, places):
    page = visit(places["bare"], wait="#single .bars")
    assert page.get_by_role("heading", level=1).inner_text() == "Score a row"
    assert not page.locator("#who").is_visible()
    row = {field["column"]: field["usual"] for field in ask(places["bare"], "about")["fields"]}

    def prediction():
        answer = httpx.post(
            f"{places['bare']}/v1/predict", json={"rows": [row]}, timeout=120
        ).json()
        return answer["predictions"][0]["prediction"]

    usual = prediction()
    assert page.inner_text(".card .number") == percents([{"prediction": usual}])[0]
    page.get_by_label("price", exact=True).fill("0.9")
    row["price"] = 0.9
    settle(page)
    page.wait_for_function(
        "text => document.querySelector('.card .number')?.textContent === text",
        arg=percents([{"prediction": prediction()}])[0],
    )
    change = 100 * (prediction() - usual)
    assert abs(change) >= 0.05
    assert page.inner_text(".card .delta") == f"{change:+.1f}".replace("-", "\u2212")


WIDER = """() => [...document.querySelectorAll('main *')]
    .filter((one) => one.checkVisibility() && one.getBoundingClientRect().right > innerWidth)
    .map((one) => one.outerHTML.slice(0, 150))"""


NAMELESS = """() => [...document.querySelectorAll('button, input, select, a[href], summary')]
    .filter((one) => !(one.ariaLabel || one.labels?.length || one.textContent.trim()))
    .map((one) => one.outerHTML)"""
SMALL = """() => [...document.querySelectorAll('button, select, input, summary')]
    .filter((one) => one.checkVisibility())
    .map((one) => [one.outerHTML.slice(0, 80), one.getBoundingClientRect()])
    .filter(([, box]) => box.height < 24 || box.width < 17).map(([text]) => text)"""
REFERENCES = """() => ['for', 'aria-controls', 'aria-labelledby', 'aria-describedby', 'aria-activedescendant'].flatMap(
    (name) => [...document.querySelectorAll(`[${name}]`)].map((one) => one.getAttribute(name)))"""
HEADINGS = """() => [...document.querySelectorAll('h1, h2, h3')]
    .filter((one) => one.checkVisibility()).map((one) => one.tagName)"""


def test_a_token_is_kept_in_session_storage(visit, serve, ranker):
    address = serve(Service(ranker), token="a secret")
    page = visit(address, wait="dialog[open]", strict=False)  # Chromium reports the 401 itself
    page.get_by_role("textbox", name="Token").fill("wrong")
    page.keyboard.press("Enter")
    page.wait_for_selector("#token-error:not(:empty)")
    page.get_by_role("textbox", name="Token").fill("a secret")
    page.get_by_role("button", name="Continue").click()
    page.wait_for_selector("#single .bars")
    assert page.evaluate("Object.values(sessionStorage)") == ["a secret"]
    assert page.evaluate("[localStorage.length, document.cookie]") == [0, ""]
    assert "secret" not in page.url
    page.reload()
    page.wait_for_selector("#single .bars")


@SLOW
def test_swagger_shows_the_api_with_this_servers_files(visit, places):
    page = visit(f"{places['afm']}/docs", wait=".opblock")
    document = httpx.get(f"{places['afm']}/openapi.json", timeout=120).json()
    assert page.locator(".opblock").count() == sum(map(len, document["paths"].values()))


def test_a_server_that_does_not_answer_can_be_tried_again(visit, places):
    page = visit(places["afm"], strict=False)
    page.route("**/v1/recommend", lambda route: route.abort())
    page.get_by_label("device", exact=True).select_option(label="(not known)")
    page.wait_for_selector("#trouble:not(:empty)")
    assert "does not answer" in page.get_by_role("alert").first.inner_text()
    assert page.locator(ROW).count() == 10
    page.unroute("**/v1/recommend")
    page.get_by_role("button", name="Try again").click()
    page.wait_for_selector(".was:not([hidden])")
    page.wait_for_selector("#trouble:empty", state="attached")


@SLOW
def test_a_degraded_answer_has_a_notice(visit, serve, cascades):
    one = cascades["afm"]
    stores = Stores(users=Lookup("users", Sorted(fails=True)), on_failure="degrade")
    # a search while one types answers 503
    page = visit(serve(Service(one.bundle, one), stores), strict=False)
    assert not page.get_by_role("button", name="Next").is_visible(), (
        "users of this store are not counted"
    )
    page.get_by_role("combobox", name="User").fill("u7")
    page.keyboard.press("Enter")
    page.wait_for_selector("#trouble:not(:empty)")
    settle(page)
    assert "history taken as null" in page.inner_text("#trouble")
    assert page.locator(ROW).count() == 10


@pytest.mark.parametrize("scheme", [pytest.param("light", marks=SLOW), "dark"])
def test_a_phone_and_a_screen_reader_have_everything(visit, places, scheme):
    page = visit(
        f"{places['autoint']}/?user=u3&why=i0", width=390, color_scheme=scheme, has_touch=True
    )
    page.get_by_text("Fields and filters").click()
    page.get_by_label("device", exact=True).select_option(label="(not known)")
    page.wait_for_selector(".was:not([hidden])")
    settle(page)
    page.locator(f"{ROW} >> nth=0").get_by_role("button").first.click()
    page.wait_for_selector(".bars")
    assert page.evaluate(WIDER) == []
    assert page.evaluate("document.documentElement.scrollWidth") == 390
    assert page.get_by_role("status").is_visible(), "what moved, while the fields are in view"
    assert page.evaluate(SMALL) == []
    assert page.evaluate(CONTRASTS) == []
    assert page.evaluate(NAMELESS) == []
    ids = page.evaluate("[...document.querySelectorAll('[id]')].map((one) => one.id)")
    assert len(ids) == len(set(ids))
    assert set(page.evaluate(REFERENCES)) <= set(ids)
    assert page.evaluate("document.documentElement.lang") == "en"
    levels = page.evaluate(HEADINGS)
    assert levels[0] == "H1"
    assert levels.count("H1") == 1
    for role in ("main", "banner", "status", "list", "form"):
        assert page.get_by_role(role).count() >= 1


CONTRASTS = """() => {
    const rgb = (text) => text.match(/[\\d.]+/g).map(Number);
    const linear = (v) => (v /= 255) <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4;
    const light = ([r, g, b]) => 0.2126 * linear(r) + 0.7152 * linear(g) + 0.0722 * linear(b);
    const behind = (one) => {
        for (; one; one = one.parentElement) {
            const color = rgb(getComputedStyle(one).backgroundColor);
            if (color.length === 3 || color[3] === 1) return color;
        }
        return [255, 255, 255];
    };
    const ratio = (one) => {
        const [a, b] = [light(rgb(getComputedStyle(one).color)), light(behind(one))];
        return (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    };
    return [...document.querySelectorAll('body *')]
        .filter((one) => [...one.childNodes].some((node) => node.nodeType === 3 && node.data.trim()))
        .filter((one) => one.checkVisibility() && !one.closest(':disabled, noscript, option'))
        .filter((one) => ratio(one) < 4.5).map((one) => one.outerHTML.slice(0, 90));
}"""


@SLOW
def test_one_bundle_with_a_log(serve, visit):
    """All items ranked; items that were shown and not clicked stay; an empty list has its reason and a way out."""
    bundle = make(AutoInt(embedding_dim=4))
    everything = log().head(1).select("device", "history").join(items(), how="cross")
    rows = everything.with_columns(user=pl.lit("u3"), click=pl.Series([0, 0, 1] * 10))
    known = UserLog(rows, [bundle.schema], "user", "item")
    address = serve(
        Service(bundle, Ranker(bundle, item_table(items(), "item")), log=known),
        Stores(users=Lookup("users", TableStore("user", USERS.select("user")))),
    )
    page = visit(f"{address}/?user=u3")
    body = {"user": "u3", "context": {"device": rows["device"][0], "history": []}}

    def listed(number=20):
        page.wait_for_function(f"() => document.querySelectorAll('#list > li').length === {number}")
        settle(page)
        return shown(page)[0]

    assert page.get_by_label("device", exact=True).input_value() == rows["device"][0]
    assert page.locator("#models").inner_text() == "30 items, all ranked by autoint"
    assert "Left out: 10 items" in page.locator("#meaning").inner_text()
    assert listed(10) == [item["id"] for item in recommended(address, **body, k=10)]
    page.get_by_text("What the figures mean").click()
    assert (
        "about 80 of 100 such cases are expected to be positive"
        in page.locator("#quality").inner_text()
    )
    page.locator(f"{ROW} >> nth=0").get_by_role("button").first.click()
    page.wait_for_selector(".bars")
    assert not page.get_by_role("button", name="Similar items").count(), "they need a tower"
    page.get_by_label("How many").fill("30")
    assert {*listed()} == {f"i{k}" for k in range(30) if k % 3 != 2}
    page.get_by_label("Leave out").select_option(label="every item of the user’s rows")
    page.wait_for_selector(".empty")
    assert (
        "No item to recommend: 30 items are left out: every item of the user’s rows."
        in page.inner_text("#single")
    )
    page.get_by_role("button", name="Leave out only the user’s items where “click” is 1").click()
    assert len(listed()) == 20
    assert page.get_by_label("Leave out").input_value() == "positive"
    page.goto(f"{address}/?user=u3&leave=seen&where=%7B%22genres%22%3A%5B%22g1%22%5D%7D")
    page.wait_for_selector(".empty")
    page.get_by_role("button", name="Leave out nothing").click()
    page.wait_for_selector(ROW)
    settle(page)
    every = recommended(address, **body, exclude_seen=False, where={"genres": ["g1"]})
    assert shown(page)[0] == [item["id"] for item in every]
    assert parse_qs(urlsplit(page.url).query)["leave"] == ["nothing"]
