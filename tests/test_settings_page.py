"""docs/settings.md is what the code says today."""

import dataclasses
import re
import runpy
from pathlib import Path

from fieldwise import AutoInt, AutoIntPlus
from fieldwise.models import MODELS, EmbeddingSettings

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "settings.md").read_text("utf-8")
MADE = runpy.run_path(str(ROOT / "scripts" / "settings_page.py"))


def test_the_page_is_current():
    assert MADE["page"]() == PAGE, "write it again: python scripts/settings_page.py"


def test_the_table_of_models_is_current():
    text = (ROOT / "docs" / "models" / "README.md").read_text("utf-8")
    assert MADE["models_page"]() == text, "write it again: python scripts/settings_page.py"
    told = re.findall(r"^\| `(.+?)` \| \[.+?\]\((.+?)\) \| .+? \| (.+?) \|", text, re.M)
    assert [(name, page) for name, page, _ in told] == [(name, f"{name.removesuffix('+')}.md") for name in MODELS]
    assert [name for name, _, paper in told if not re.search(r" \d{4}", paper)] == ["lr"]


def test_every_setting_has_a_meaning_and_no_row_is_broken():
    for line in PAGE.splitlines():
        if line.startswith("| `"):
            cells = re.split(r"(?<!\\)\|", line)[1:-1]
            assert len(cells) in (4, 6), line
            assert all(cell.strip() for cell in cells), line


def test_every_setting_of_a_model_has_a_meaning_where_the_reference_shows_it():
    """In the class's own docstring, except those that all models with embeddings have, and AutoInt's in AutoInt+'s."""
    for name, settings in MODELS.items():
        bases = [EmbeddingSettings, *[AutoInt] * (settings is AutoIntPlus), settings]
        said = {field: text for kind in bases for field, text in MADE["meanings"](kind).items()}
        assert [f.name for f in dataclasses.fields(settings) if not said.get(f.name)] == [], name
