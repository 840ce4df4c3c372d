"""The pages below docs/: their Python runs, every model has one page of one form, and recipes they name exist."""

import doctest
import re
from pathlib import Path

import pytest
import torch

from fieldwise.models import MODELS
from fieldwise.recipe import load_recipe, recipe_names

DOCS = Path(__file__).parents[1] / "docs"
PAGES = sorted(DOCS.rglob("*.md"))
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.M | re.S)
SECTIONS = ["Equation", "Options", "Published settings", "Example", "Parameters", "Recipes"]


def model_page(name):
    return DOCS / "models" / f"{name.removesuffix('+')}.md"


@pytest.fixture(autouse=True)
def _one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("page", [p for p in PAGES if BLOCK.search(p.read_text("utf-8"))], ids=lambda p: p.name)
def test_the_python_of_a_page_runs_and_prints_what_it_says(page, tmp_path, monkeypatch):
    """Blocks of a page share their names, in order; lines that begin with >>> are run, the others compared."""
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    text = page.read_text("utf-8")
    for match in BLOCK.finditer(text):
        line = text.count("\n", 0, match.start(1))
        example = doctest.DocTestParser().get_doctest(match[1], names, page.name, str(page), line)
        assert example.examples, f"{page.name}, line {line}: a python block has lines that begin with >>>"
        heard: list[str] = []
        runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS)
        runner.run(example, out=heard.append, clear_globs=False)
        assert not runner.failures, "".join(heard)
        names = example.globs


@pytest.mark.parametrize("name", MODELS)
def test_every_model_has_a_page_of_one_form(name):
    text = model_page(name).read_text("utf-8")
    assert re.findall(r"^## (.+)$", text, re.M) == SECTIONS
    assert text.startswith("# ")
    assert "parameter_count(" in text, "the example checks the formula of the parameters"
    formula = text.split("## Parameters")[1].split("## Recipes")[0]
    assert len(formula.split()) > 3
    settings = MODELS[name].__dataclass_fields__
    missing = [option for option in settings if f"`{option}`" not in text]
    assert not missing, f"options without a word: {missing}"


@pytest.mark.parametrize("name", MODELS)
def test_the_recipes_of_a_page_are_those_of_the_model(name):
    section = model_page(name).read_text("utf-8").split("## Recipes")[1]
    named = set(re.findall(r"`([a-z0-9-]+/[a-z0-9-]+)`", section))
    models = {MODELS[other] for other in MODELS if model_page(other) == model_page(name)}
    assert named == {recipe for recipe in recipe_names() if type(load_recipe(recipe).model) in models}


def test_every_page_of_a_model_is_linked_from_the_index():
    index = (DOCS / "models" / "README.md").read_text("utf-8")
    for name in MODELS:
        assert f"({model_page(name).name})" in index


@pytest.mark.parametrize("page", [*sorted(DOCS.rglob("*.md")), DOCS.parent / "README.md"], ids=lambda p: p.name)
def test_links_lead_somewhere(page):
    text = re.sub(r"^```.*?^```$", "", page.read_text("utf-8"), flags=re.M | re.S)
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if "://" not in target:
            file, _, anchor = target.partition("#")
            found = (page.parent / file) if file else page
            assert found.exists(), f"{page.name} links to {target}"
            if anchor:
                heads = re.findall(r"^#+ (.+)$", found.read_text("utf-8"), re.M)
                assert anchor in [re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads], target
