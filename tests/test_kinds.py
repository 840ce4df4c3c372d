"""A new kind of field touches few files: a kind states what its cells hold, and other modules ask for that."""

import ast
from pathlib import Path

from fieldwise import Bag, Categorical, Numeric, Sequence

SRC = Path(__file__).parents[1] / "src" / "fieldwise"
KINDS = {"Categorical", "Numeric", "Bag", "Sequence"}
# What a new kind of field touches, as docs/development.md says.
DISPATCH = {"schema/__init__.py", "data/encode/fitted_fields.py"}
TOUCHED = DISPATCH | {"data/infer/fields.py"}


def aliases(tree):
    """The names by which a module knows the kinds: imports may rename them."""
    results = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module == "fieldwise.schema":
            results |= {one.asname or one.name: one.name for one in node.names if one.name in KINDS}
        elif isinstance(node, ast.ClassDef) and node.name in KINDS:
            results[node.name] = node.name
    return results


def dispatches(text):
    """Whether a module asks of what kind a field is."""
    tree = ast.parse(text)
    own = aliases(tree)
    for node in ast.walk(tree):
        asked = []
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "isinstance":
            asked = [one.id for one in ast.walk(node.args[1]) if isinstance(one, ast.Name)]
        elif isinstance(node, ast.MatchClass) and isinstance(node.cls, ast.Name):
            asked = [node.cls.id]
        elif isinstance(node, ast.Compare) and any(
            isinstance(n, ast.Attribute) and n.attr == "kind" for n in [node.left]
        ):
            words = [one.value for one in ast.walk(node) if isinstance(one, ast.Constant)]
            asked = [word for word in words if word in ("categorical", "numeric", "sequence")]
            own = own | {word: word for word in asked}
        if any(name in own for name in asked):
            return True
    return False


def test_few_modules_ask_of_what_kind_a_field_is():
    results = {path.relative_to(SRC).as_posix() for path in SRC.rglob("*.py") if dispatches(path.read_text())}
    assert results == DISPATCH
    assert len(TOUCHED) <= 3
    scripts = [path.name for path in (SRC / "serving" / "static").glob("*.js") if ".kind" in path.read_text()]
    assert scripts == [], "the page asks for a field's `cell`"


def test_the_page_for_developers_names_what_a_new_kind_touches():
    page = (SRC.parents[1] / "docs" / "development.md").read_text()
    section = page.partition("## A new kind of field")[2].partition("\n## ")[0]
    assert {name for name in TOUCHED if f"`{name}`" in section} == TOUCHED


def test_each_kind_states_what_its_cells_hold():
    fields = Categorical("a"), Numeric("b"), Bag("c"), Sequence("d", max_length=3, shares="a")
    assert [f.cell for f in fields] == ["category", "number", "list", "list"]
    assert [f.max_length for f in fields] == [None, None, None, 3]
    assert [f.shares for f in fields] == [None, None, None, "a"]
