"""README.md and the pages below docs/: their blocks run, every model has one page, and recipes they name exist."""

import dataclasses
import re
import shlex
import shutil
from pathlib import Path

import doc_runner
import polars as pl
import pytest
from doc_runner import (
    LANGUAGES,
    LOG,
    LONG,
    PageRunner,
    blocks,
    check_commands,
    check_make,
    command_lines,
    prepare,
    program,
    prose,
    resolve,
)

from fieldwise import Bundle, load_recipe, recipe_names, simulate
from fieldwise.cli import run
from fieldwise.models import NETWORKS

DOCS = Path(__file__).parents[1] / "docs"
README = DOCS.parent / "README.md"
PAGES = [README, *sorted(DOCS.rglob("*.md"))]
NEEDS_DATA = "<!-- needs data: "  # in a page's first line: all of its blocks do
GIVEN = re.compile(r"runs/my-|\b(?:log|rows|items|users)\.parquet|\bclicks\.csv")
TO_RUN = [
    page for page in PAGES if any(block.language not in ("", "text") for block in blocks(page))
]
SECTIONS = ["Equation", "Options", "Published settings", "Example", "L2", "Parameters", "Recipes"]
# Pages of more than half a second; `make test` runs the README, the first tutorial and the cheap
# pages.
DEAR = {"auto", "log-to-page", "notebooks", "own-table", "explaining", "report", "cascade", "warm-starts", "devices",
        "choosing", "large-tables", "tasks", "recommend-to-everyone", "own-model"}  # fmt: skip


def commands(page):
    """The words of the page's commands, but for those that no test runs."""
    shell = [block for block in blocks(page) if block.language == "sh" and not block.mark]
    return [words for block in shell for words in command_lines(block)]


def needs_data(page):
    return NEEDS_DATA in page.read_text("utf-8") or any(map(doc_runner.needs_data, commands(page)))


def is_long(page):
    """Whether something on the page runs in slow tests alone."""
    return needs_data(page) or any(
        words[0] == "fieldwise" and words[1] in {*LONG, "serve"} for words in commands(page)
    )


def model_page(name):
    return DOCS / "models" / f"{name.removesuffix('+')}.md"


@pytest.fixture(scope="module")
def given(tmp_path_factory):
    """A folder with what pages take for granted: small bundles, an index, tables of the simulated log."""
    folder = tmp_path_factory.mktemp("given")
    for model in ("afm", "autoint", "inttower"):
        prepare(folder, model)
    log = simulate(**LOG)
    log.write_parquet(folder / "log.parquet")
    log.tail(400).write_parquet(folder / "rows.parquet")
    log.select("item_id", "title", "genres", "release_decade", "length").unique(
        "item_id"
    ).write_parquet(folder / "items.parquet")
    tower, items, index = (
        str(folder / name) for name in ("runs/my-inttower", "items.parquet", "runs/index")
    )
    assert run(["index", tower, "--items", items, "--out", index]) == 0
    users = log.unique("user_id", keep="last").select(
        "user_id", "age_group", "gender", "city", "history"
    )
    users.write_parquet(folder / "users.parquet")
    clicks = simulate(900, users=40, items=30, seed=1)
    clicks[:600].write_csv(folder / "clicks.csv")
    clicks[600:].write_csv(folder / "clicks-of-today.csv")
    clicks[600:].drop("liked").write_csv(folder / "rows.csv")
    return folder


def run_page(page, folder, monkeypatch, request, *, slow):
    text = page.read_text("utf-8")
    if GIVEN.search(text):
        shutil.copytree(request.getfixturevalue("given"), folder, dirs_exist_ok=True)
        for words in commands(page):
            if words[:2] == ["fieldwise", "simulate"]:  # the page writes this log itself
                (folder / words[words.index("--out") + 1]).unlink(missing_ok=True)
    monkeypatch.chdir(folder)
    runner = PageRunner(slow=slow)
    try:
        for block in blocks(page):
            if slow or NEEDS_DATA not in text:
                runner.run(block)
            else:
                check_commands(block)
    finally:
        runner.close()


@pytest.mark.parametrize("page", [pytest.param(p, marks=pytest.mark.slow if p.stem in DEAR else ()) for p in TO_RUN],
                         ids=[p.name for p in TO_RUN])  # fmt: skip
def test_the_blocks_of_a_page_run_and_print_what_it_says(page, tmp_path, monkeypatch, request):
    """In their order, in one folder; what needs real data is parsed alone."""
    monkeypatch.delenv("FIELDWISE_DATA", raising=False)
    monkeypatch.delenv("FIELDWISE_TOKEN", raising=False)
    run_page(page, tmp_path, monkeypatch, request, slow=False)
    if page == README:
        assert Bundle.load(tmp_path / "bundle").about.recipe.settings["split"]["kind"] == "time"
        scores = pl.read_csv(tmp_path / "scores.csv")
        assert scores.height == 300
        assert scores["prediction"].is_between(0, 1).all()


@pytest.mark.slow
@pytest.mark.parametrize("page", [p for p in TO_RUN if is_long(p)], ids=lambda p: p.name)
def test_the_long_blocks_of_a_page_run(page, tmp_path, monkeypatch, request):
    """All of them, on real data where they need it."""
    if needs_data(page):
        real_data = request.getfixturevalue("real_data")
        monkeypatch.setenv("FIELDWISE_DATA", str(real_data))
        (tmp_path / "data").symlink_to(real_data)  # as if the page's `fetch` had downloaded the set
    run_page(page, tmp_path, monkeypatch, request, slow=True)


def test_commands_within_sentences_exist():
    """With the options that are named; arguments may be left away."""
    results = [
        (page.name, code)
        for page in PAGES
        for code in re.findall(r"`(fieldwise [^`\n]+)`", prose(page))
    ]
    assert len(results) > 20
    for page, code in results:
        words = shlex.split(code)[1:]
        # options of the program itself, which would act
        alone = all(word.startswith("--") for word in words)
        command, rest = (program(), words) if alone else resolve(words)[1:]
        known = {
            name
            for parameter in command.params
            for name in [*parameter.opts, *parameter.secondary_opts]
        }
        assert {word for word in rest if word.startswith("--")} <= {*known, "--help"}, (page, code)
    for page in PAGES:
        for words in re.findall(r"`make ([^`\n]+)`", prose(page)):
            check_make(words.split(), page.name)


def test_commands_and_languages_of_blocks_are_known():
    for block in [block for page in PAGES for block in blocks(page)]:
        assert block.language in LANGUAGES
        check_commands(block)


def test_every_model_has_a_page_of_one_form_that_names_its_options_and_recipes(subtests):
    recipes = {recipe: type(load_recipe(recipe).model) for recipe in recipe_names()}
    for name in NETWORKS:
        with subtests.test(name=name):
            page = model_page(name)
            text = page.read_text("utf-8")
            assert re.findall(r"^## (.+)$", text, re.M) == SECTIONS
            assert re.match(r"# .+\n\n\*.+\.\*\n\n", text), "its title, and what it adds in italics"
            assert "parameter_count(" in text, "the example checks the formula of the parameters"
            formula, _, section = text.partition("## Parameters")[2].partition("## Recipes")
            assert len(formula.split()) > 3
            missing = [
                f.name for f in dataclasses.fields(NETWORKS[name]) if f"`{f.name}`" not in text
            ]
            assert not missing, f"options without a word: {missing}"
            named = set(re.findall(r"`([a-z0-9-]+/[a-z0-9-]+)`", section))
            models = {NETWORKS[one] for one in NETWORKS if model_page(one) == page}
            assert named == {recipe for recipe, model in recipes.items() if model in models}


def test_links_lead_somewhere(subtests):
    for page in PAGES:
        with subtests.test(page=page):
            for target in re.findall(r"\]\(([^)\s]+)\)", prose(page)):
                # those pages are made with the site
                if "://" not in target and "reference/" not in target:
                    file, _, anchor = target.partition("#")
                    result = (page.parent / file) if file else page
                    assert result.exists(), f"{page.name} links to {target}"
                    if anchor:
                        heads = re.findall(r"^#+ (.+)$", result.read_text("utf-8").lower(), re.M)
                        assert anchor in [
                            re.sub(r"[^\w\- ]", "", head).replace(" ", "-") for head in heads
                        ], target
