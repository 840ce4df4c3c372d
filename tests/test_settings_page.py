"""docs/settings.md is what the code says today."""

import dataclasses
import re
import runpy
from fnmatch import fnmatchcase
from pathlib import Path

from parity.lab import LAYOUTS
from parity.reference import REFERENCES, hardest

from fieldwise import AutoInt, AutoIntPlus
from fieldwise.models import MODELS, NETWORKS, EmbeddingSettings
from fieldwise.models.trees import TreeSettings

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "settings.md").read_text("utf-8")
MADE = runpy.run_path(str(ROOT / "scripts" / "settings_page.py"))


def test_the_page_is_current():
    assert MADE["page"]() == PAGE, "write it again: python scripts/settings_page.py"


def test_a_kind_that_can_be_chosen_is_a_setting():
    _, section = PAGE.split("\n## `[negatives]`\n")
    section = section.split("\n## ")[0]
    assert '| `kind` | `uniform`, `popularity`, `mixed` | `"uniform"` |' in section
    assert "| `kind` | `bag`" not in PAGE


def test_the_table_of_models_is_current():
    text = (ROOT / "docs" / "models" / "README.md").read_text("utf-8")
    assert MADE["models_page"]() == text, "write it again: python scripts/settings_page.py"
    told = re.findall(r"^\| `(.+?)` \| \[.+?\]\((.+?)\) \| .+? \| (.+?) \|", text, re.M)
    assert [(name, page) for name, page, _ in told] == [
        (name, f"{name.removesuffix('+')}.md") for name in NETWORKS
    ]
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
        bases = [EmbeddingSettings, TreeSettings, *[AutoInt] * (settings is AutoIntPlus), settings]
        said = {field: text for kind in bases for field, text in MADE["meanings"](kind).items()}
        assert [f.name for f in dataclasses.fields(settings) if not said.get(f.name)] == [], name


L2_ROW = re.compile(r"^\| (.+) \| `\{ (.+) \}` \|$", re.M)
FACTORS = {
    "FuxiCTR": {"x", "y"},
    "DeepCTR-Torch": {"2x/B", "2y/B", "2z/B", "2u/B"},
    "`weight_decay`": {"x"},
}
"""What a strength there is here; tests/training/test_l2_units.py compares the gradients."""


def test_every_models_page_has_the_factors_of_other_libraries_l2(subtests):
    """For parameters that a network of its has: a pattern that matches none would be refused."""
    for page in sorted({name.removesuffix("+") for name in NETWORKS}):
        with subtests.test(page=page):
            text = (ROOT / "docs" / "models" / f"{page}.md").read_text("utf-8")
            _, section = text.split("\n## L2\n")
            section = section.split("\n## ")[0]
            assert "](../how-to/argument-names.md#l2)" in section
            rows = L2_ROW.findall(section)
            assert len(rows) == section.count("\n| ") - 1, "a row that is not read here"
            assert any(there.startswith("`weight_decay`") for there, _ in rows)
            networks = [
                settings.build(LAYOUTS[hardest(name)])
                for name in (page, f"{page}+")
                for settings in (REFERENCES[name].CASES.values() if name in REFERENCES else ())
            ]
            names = {name for network in networks for name, _ in network.named_parameters()}
            for there, here in rows:
                strengths = dict(re.findall(r'"(.+?)" = ([^,]+)', here))
                for library, factors in FACTORS.items():
                    if there.startswith(library):
                        assert set(strengths.values()) <= factors, there
                for pattern in strengths:
                    assert any(fnmatchcase(name, pattern) for name in names), (there, pattern)
