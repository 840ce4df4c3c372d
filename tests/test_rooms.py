"""The rooms of the package and who may import whom; no circle of modules.

A room may import what stands above it in ROOMS, and nothing below. Imports inside functions and for types count too.
"""

import ast
from collections.abc import Iterator
from pathlib import Path

SRC = Path(__file__).parents[1] / "src"
FROM_TOP_TO_BOTTOM = """
errors version config schema layout storage distributed data ops layers models scoring evaluation training bundle runs
explain serving report estimator testing automatic notebook cli __main__
"""
ROOMS = FROM_TOP_TO_BOTTOM.split()
DATA = ("fieldwise", "recipes")  # the package's own module, which imports lazily what it offers; TOML alone
# Displays for notebooks know what they display. Reprs and plots import them within the method that draws.
DRAWN = {("schema", "html"), ("evaluation", "plots"), ("training", "*"), ("bundle", "html"), ("runs", "*")} | {
    ("explain", "*"),
    ("estimator", "plots"),
}


def modules() -> dict[str, Path]:
    found = {}
    for path in sorted(SRC.rglob("*.py")):
        parts = path.relative_to(SRC).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


MODULES = modules()


def imports(path: Path, *, top: bool = False) -> Iterator[str]:
    """Modules of the package that a module imports; with `top` those that are loaded with it."""
    tree = ast.parse(path.read_text())
    nodes = tree.body if top else ast.walk(tree)
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name.split(".")[0] == "fieldwise")
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "fieldwise":
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                yield inner if inner in MODULES else str(node.module)


def room(module: str) -> str:
    return module.split(".")[1]


def refused(module: str) -> Iterator[str]:
    """Sentences on the imports of a module that its room forbids."""
    own, loaded = ROOMS.index(room(module)), set(imports(MODULES[module], top=True))
    for target in set(imports(MODULES[module])) - {module}:
        if target == "fieldwise":
            yield f"{module} imports the package itself: import the module that has the name"
        elif room(target) == "notebook" and own < ROOMS.index("notebook"):
            if target in loaded or not DRAWN & {(room(module), target.rpartition(".")[2]), (room(module), "*")}:
                yield f"{module} imports {target}, which only a method that draws may do"
        elif ROOMS.index(room(target)) > own:
            yield f"{module} imports {target}, whose room stands below its own"


def test_modules_import_rooms_above_their_own_alone():
    assert [sentence for module in MODULES if module != "fieldwise" for sentence in refused(module)] == []


def test_every_entry_of_the_package_is_a_room():
    entries = {p.stem for p in (SRC / "fieldwise").iterdir() if not p.name.startswith((".", "__")) and p.stem != "py"}
    assert entries - set(DATA) == set(ROOMS) - {"__main__"}


def test_no_module_is_loaded_in_a_circle():
    edges = {name: {t for t in imports(path, top=True) if t != name} for name, path in MODULES.items()}
    edges["fieldwise"] = set()
    while edges:
        leaves = [name for name, targets in edges.items() if not targets & edges.keys()]
        assert leaves, f"these import each other: {', '.join(sorted(edges))}"
        for name in leaves:
            del edges[name]
