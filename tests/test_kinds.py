"""A new kind of field touches few files: a kind states what its cells hold, and other modules ask for that."""

import ast
from pathlib import Path

from fieldwise import Bag, Categorical, Numeric, Sequence

SRC = Path(__file__).parents[1] / "src" / "fieldwise"
KINDS = {"Categorical", "Numeric", "Bag", "Sequence"}
NAMES = {"categorical", "numeric", "sequence"}
# What a new kind of field touches, as docs/development.md says.
TOUCHED = {"schema/fields.py", "data/encode/kinds/", "data/infer/fields.py"}


def dispatches(text):
    """Whether a module depends on the kind of a field: by its class, which an import may rename, or by its name."""
    if not any(word in text for word in KINDS | NAMES):
        return False
    nodes = list(ast.walk(ast.parse(text)))
    classes = {node.name for node in nodes if isinstance(node, ast.ClassDef)} & KINDS
    for node in nodes:
        if isinstance(node, ast.ImportFrom) and str(node.module).startswith("fieldwise.schema"):
            classes |= {one.asname or one.name for one in node.names if one.name in KINDS}
    used = set()
    for node in nodes:
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Name)
            and node.func.id == "isinstance"
        ):
            used |= {one.id for one in ast.walk(node.args[1]) if isinstance(one, ast.Name)}
        elif isinstance(node, ast.MatchClass) and isinstance(node.cls, ast.Name):
            used.add(node.cls.id)
        elif (
            isinstance(node, ast.Compare)
            and isinstance(node.left, ast.Attribute)
            and node.left.attr == "kind"
        ):
            used |= {one.value for one in ast.walk(node) if isinstance(one, ast.Constant)}
    return bool(used & (classes | NAMES))


def test_no_module_depends_on_the_kind_of_a_field():
    results = {
        path.relative_to(SRC).as_posix()
        for path in SRC.rglob("*.py")
        if dispatches(path.read_text())
    }
    assert results == set(), "kinds are registered by their classes"
    scripts = [
        path.name
        for path in (SRC / "serving" / "static").glob("*.js")
        if ".kind" in path.read_text()
    ]
    assert scripts == [], "the page asks for a field's `cell`"
    page = (SRC.parents[1] / "docs" / "development.md").read_text()
    section = page.partition("## A new kind of field")[2].partition("\n## ")[0]
    assert {name for name in TOUCHED if f"`{name}`" in section} == TOUCHED


def test_each_kind_states_what_its_cells_hold():
    fields = Categorical("a"), Numeric("b"), Bag("c"), Sequence("d", max_length=3, shares="a")
    assert [f.cell for f in fields] == ["category", "number", "list", "list"]
    assert [f.max_length for f in fields] == [None, None, None, 3]
    assert [f.shares for f in fields] == [None, None, None, "a"]
