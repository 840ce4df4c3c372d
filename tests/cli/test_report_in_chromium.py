"""The report in a real browser, at the widths of a desk and of a telephone."""

import shutil

import polars as pl
import pytest
from cli.conftest import make_log, write_recipe

from fieldwise.cli import run

CHROMIUM = (
    shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
)
QUIET = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
)
SIZES = {"desk": (1280, 900), "telephone": (390, 844)}


@pytest.fixture(scope="module")
def browser():
    sync_api = pytest.importorskip("playwright.sync_api", reason="Playwright is not installed")
    if CHROMIUM is None:
        pytest.skip("no Chromium among the programs of this machine")
    with sync_api.sync_playwright() as playwright:
        result = playwright.chromium.launch(
            executable_path=CHROMIUM, args=[*QUIET, "--disable-sync", "--no-first-run"]
        )
        yield result
        result.close()


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    """Two runs, one with attention; a value of the data is a script, another one long."""
    folder = tmp_path_factory.mktemp("report")
    values = {"i0": "<script>alert(1)</script>", "i1": "a value " * 30, "i2": "x" * 200}
    make_log().with_columns(pl.col("item").replace(values)).write_csv(folder / "log.csv")
    for name, model in (("fm", {}), ("int", {"name": "autoint", "layers": 2, "heads": 2})):
        write_recipe(folder / "mine.toml", **model)
        assert (
            run(
                [
                    "train",
                    str(folder / "mine.toml"),
                    "--out",
                    str(folder / name),
                    "--quiet",
                    "--json",
                ]
            )
            == 0
        )
    ask = "--slice", "item", "--slice", "price", "--out", str(folder / "r.html"), "--quiet"
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("fieldwise.runs.leaderboard.REPLICATES", (50, 50))
        assert run(["report", str(folder / "fm"), str(folder / "int"), *ask]) == 0
    return folder / "r.html"


def test_the_page_makes_no_requests_logs_nothing_and_fits(browser, report):
    for width, height in SIZES.values():
        page = browser.new_page(viewport={"width": width, "height": height})
        said, asked, dialogs = [], [], []
        page.on("console", lambda message, said=said: said.append(message.text))
        page.on("pageerror", lambda error, said=said: said.append(str(error)))
        page.on("request", lambda request, asked=asked: asked.append(request.url))
        page.on(
            "dialog",
            lambda dialog, dialogs=dialogs: (dialogs.append(dialog.message), dialog.dismiss()),
        )
        page.goto(report.as_uri())
        page.eval_on_selector_all("details", "all => all.forEach(one => { one.open = true })")
        assert (said, dialogs) == ([], [])
        assert page.eval_on_selector_all("script", "all => all.length") == 0
        assert page.get_by_text("<script>alert(1)</script>", exact=True).count() >= 2, (
            "values are shown as words"
        )
        assert asked == [report.as_uri()]
        assert page.evaluate("document.documentElement.scrollWidth") <= width, (
            "the page itself never scrolls sideways"
        )
        boxes = page.eval_on_selector_all(
            ".scroll, pre, .drawing", "all => all.map(o => [o.scrollWidth, o.clientWidth])"
        )
        wide = [own for own, seen in boxes if own > seen + 1]
        assert wide or width > 1000, (
            "tables that are wider than a telephone scroll in their own box"
        )
        assert all(seen <= width for _, seen in boxes)
        page.close()


def test_tables_are_whole_on_a_desk_and_what_is_wider_scrolls_in_its_box(browser, report):
    """All but a square of fields by fields, which has as many columns as the model has fields."""
    page = browser.new_page(viewport={"width": 1280, "height": 900})
    page.goto(report.as_uri())
    page.eval_on_selector_all("details", "all => all.forEach(one => { one.open = true })")
    tables = page.eval_on_selector_all(
        ".scroll",
        """all => all.map(box => [
            [...box.querySelectorAll('thead th')].map(head => head.textContent).join(' | '),
            box.scrollWidth,
            box.clientWidth,
            getComputedStyle(box).overflowX,
        ])""",
    )
    heads = [head for head, *_ in tables]
    assert any(
        head.startswith("run | AUC | ") and head.endswith("DeLong p | parameters | s/epoch")
        for head in heads
    )
    cut = [
        head
        for head, whole, seen, _ in tables
        if whole > seen + 1 and not head.startswith("field | user | item")
    ]
    assert cut == []
    assert {overflow for *_, overflow in tables} == {"auto"}
    page.close()


def test_the_style_is_applied_and_follows_the_system(browser, report):
    papers = []
    for scheme in ("light", "dark"):
        page = browser.new_page(color_scheme=scheme)
        page.goto(report.as_uri())
        papers.append(page.evaluate("getComputedStyle(document.body).backgroundColor"))
        ink = page.evaluate("getComputedStyle(document.querySelector('svg text')).fill")
        assert ink != papers[-1]
        assert (
            page.evaluate("getComputedStyle(document.querySelector('svg .line')).strokeWidth")
            == "2px"
        )
        page.close()
    assert papers == ["rgb(255, 255, 255)", "rgb(20, 23, 28)"]


def test_links_lead_to_headings_by_keyboard(browser, report):
    page = browser.new_page(viewport={"width": 1280, "height": 900})
    page.goto(report.as_uri())
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Skip to the report"
    page.eval_on_selector_all("nav details", "all => all.forEach(one => { one.open = true })")
    links = page.eval_on_selector_all("nav a", "all => all.map(a => a.getAttribute('href'))")
    assert len(links) == 3 + 2 * 13, (
        "the comparison's two sections, each run's twelve, and an overview of each"
    )
    for link in links:
        assert page.eval_on_selector(link, "o => o.tagName") in ("H1", "H2")
    page.focus(f"nav a[href='{links[-1]}']")
    page.keyboard.press("Enter")
    assert page.evaluate("location.hash") == links[-1]
    assert page.evaluate(
        "[...document.querySelectorAll('[role=img]')].every(o => o.getAttribute('aria-label'))"
    )
    figures = page.eval_on_selector_all(
        "figure", "all => all.map(f => f.querySelectorAll('details table').length)"
    )
    assert figures
    assert set(figures) == {1}, "a table behind each figure"
    page.close()
