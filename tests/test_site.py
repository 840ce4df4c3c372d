"""The documentation as a site: it builds without a warning, says what the code says, and needs no network."""

import importlib.util
import re
import runpy
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import typer.main

import fieldwise
from fieldwise.cli.app import app

ROOT = Path(__file__).parents[1]
CHROMIUM = Path("/usr/bin/chromium")


class Page(HTMLParser):
    """The ids, the loaded addresses and the text of a page."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.loaded: list[str] = []
        self.ids: set[str] = set()
        self.text = ""
        self.feed(html)

    def handle_starttag(self, tag, attributes):
        given = dict(attributes)
        self.ids |= {given["id"]} if given.get("id") else set()
        if tag in ("script", "img", "iframe") and given.get("src"):
            self.loaded.append(given["src"])
        elif tag == "link" and given.get("href"):
            self.loaded.append(given["href"])

    def handle_data(self, data):
        self.text += data


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The site, in a folder whose name has a space."""
    if (
        importlib.util.find_spec("material") is None
        or importlib.util.find_spec("mkdocstrings") is None
    ):
        pytest.skip("the site needs MkDocs: pip install 'fieldwise[docs]'")
    from mkdocs.commands.build import build
    from mkdocs.config import load_config

    folder = tmp_path_factory.mktemp("the site")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NO_MKDOCS_2_WARNING", "1")
        build(load_config(str(ROOT / "mkdocs.yml"), site_dir=str(folder), strict=True))
    return folder


@pytest.fixture(scope="module")
def pages(site):
    return {path: Page(path.read_text("utf-8")) for path in site.rglob("*.html")}


def test_the_navigation_names_every_page_of_docs():
    """But those of models, which `scripts/site_pages.py` adds; those of the reference are made with the site."""
    text = (ROOT / "mkdocs.yml").read_text("utf-8").partition("\nnav:\n")[2]
    named = set(re.findall(r"[\w/-]+\.md\b", text))
    pages = {path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs").rglob("*.md")}
    made = runpy.run_path(str(ROOT / "scripts" / "site_pages.py"))["model_pages"]()
    assert pages - named == {path.relative_to(ROOT / "docs").as_posix() for path in made}
    assert {name for name in named - pages if not name.startswith("reference/")} == {
        "development/changelog.md",
        "development/contributing.md",
    }


@pytest.mark.slow
def test_nothing_is_loaded_from_a_network(site, pages):
    for path, page in pages.items():
        assert [address for address in page.loaded if urlsplit(address).netloc] == [], path.name
    for path in site.rglob("*.css"):
        assert not re.search(r"url\(['\"]?(https?:)?//", path.read_text("utf-8")), path.name


@pytest.mark.slow
def test_the_reference_has_every_command_and_option(site):
    text = Page((site / "reference" / "command-line.html").read_text("utf-8")).text
    commands = {"fieldwise": typer.main.get_command(app)}
    while commands:
        name, command = commands.popitem()
        commands |= {
            f"{name} {word}": inner for word, inner in getattr(command, "commands", {}).items()
        }
        if hasattr(command, "commands"):
            continue
        section = (
            text.split(f"\n{name}¶\n")[1]
            if f"\n{name}¶\n" in text
            else text[text.index(f"{name}¶") :]
        )
        for option in command.params:
            words = (
                [*option.opts, *option.secondary_opts] if option.param_type_name == "option" else []
            )
            assert all(word in section for word in words), f"{name}: {words}"


def test_examples_of_docstrings_become_code():
    """No example is left to Markdown, which would take `>>>` for a quotation."""
    module = runpy.run_path(str(ROOT / "scripts" / "site_docstrings.py"))
    assert module["fenced"]("Of a half.\n\n    >>> half(4)\n    2\n\nMore.\n") == (
        "Of a half.\n\n    ```pycon\n    >>> half(4)\n    2\n    ```\n\nMore.\n"
    )


def test_every_public_name_has_a_place_in_the_reference():
    """Without the site, which takes half a minute: a name without a place fails its build."""
    made = runpy.run_path(str(ROOT / "scripts" / "site_pages.py"))
    text = made["python_names"]()
    places = [name.rpartition(".")[2] for name in re.findall(r"^::: (\S+)$", text, re.MULTILINE)]
    assert sorted(places) == sorted(set(fieldwise.__all__) - {"__version__"})
    for title, modules in made["ROOMS"].values():
        assert "\n::: fieldwise." in made["room"](title, modules)


@pytest.mark.slow
def test_the_reference_has_every_public_name_and_its_examples_as_code(pages, site):
    ids = pages[site / "reference" / "python.html"].ids
    missing = [
        n
        for n in fieldwise.__all__
        if n != "__version__" and not any(i.endswith(f".{n}") for i in ids)
    ]
    assert not missing
    for name in ("python", "explain", "serving", "operations"):
        html = (site / "reference" / f"{name}.html").read_text("utf-8")
        assert "<blockquote" not in html
        assert "language-pycon" in html or "gp" in html


@pytest.mark.slow
@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (390, "dark")])
def test_pages_are_quiet_and_fit_in_chromium(site, pages, width, scheme):
    """No error in the console, no request to a network, nothing wider than the window, and the search finds."""
    sync_api = pytest.importorskip("playwright.sync_api")
    if not CHROMIUM.exists():
        pytest.skip(f"{CHROMIUM} is not installed")
    flags = [
        "--no-sandbox",
        "--disable-gpu",
        "--disable-background-networking",
        "--disable-component-update",
    ]
    wrong: list[str] = []
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=str(CHROMIUM), args=flags)
        view = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
        page = view.new_page()
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.on(
            "console",
            lambda said: wrong.append(said.text) if said.type in ("error", "warning") else None,
        )
        page.on(
            "request",
            lambda r: (
                None if r.url.startswith(("file:", "data:", "blob:")) else wrong.append(r.url)
            ),
        )
        for path in sorted(pages):
            if path.name == "404.html":
                continue
            page.goto(path.as_uri())
            result = page.evaluate("document.documentElement.scrollWidth")
            assert result <= width, (
                f"{path.relative_to(site)} is {result} wide in a window of {width}"
            )
            assert (
                page.evaluate("document.body.dataset.mdColorScheme")
                == {"light": "default", "dark": "slate"}[scheme]
            )
        view.close()
        page = browser.new_page()
        page.goto((site / "index.html").as_uri())
        page.keyboard.press("/")
        page.keyboard.type("faithfulness")
        page.wait_for_selector(
            ".md-search-result__item a[href*='explaining.html']", timeout=120_000
        )
        browser.close()
    assert wrong == []
