"""The rooms of the package and who may import whom; no circle of modules.

A room may import what stands above it in ROOMS, and nothing below. Everywhere, imports inside
functions and for types count too.
"""

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

SRC = Path(__file__).parents[1] / "src"
FROM_TOP_TO_BOTTOM = """
errors version config display schema layout storage charts distributed data features ops layers models scoring
evaluation training bundle runs auditing explain serving report estimator testing automatic cli __main__
"""
ROOMS = FROM_TOP_TO_BOTTOM.split()
# the package's own module, which imports lazily what it offers; TOML alone
DATA = ("fieldwise", "recipes")


def modules() -> dict[str, Path]:
    results = {}
    for path in sorted(SRC.rglob("*.py")):
        parts = path.relative_to(SRC).with_suffix("").parts
        results[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return results


MODULES = modules()


def statements(node: ast.AST) -> Iterator[ast.AST]:
    """The statements within a node, at any depth; no import stands within an expression."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, (ast.stmt, ast.ExceptHandler, ast.match_case)):
            yield child
            yield from statements(child)


@cache
def import_nodes(path: Path) -> list[ast.Import | ast.ImportFrom]:
    """The imports of a module, also those inside functions and for types."""
    tree = ast.parse(path.read_text())
    return [node for node in statements(tree) if isinstance(node, (ast.Import, ast.ImportFrom))]


def imports(path: Path) -> Iterator[str]:
    """Modules of the package that a module imports."""
    for node in import_nodes(path):
        if isinstance(node, ast.Import):
            yield from (
                alias.name for alias in node.names if alias.name.split(".")[0] == "fieldwise"
            )
        elif (node.module or "").split(".")[0] == "fieldwise":
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                yield inner if inner in MODULES else str(node.module)


def position(module: str) -> int:
    return ROOMS.index(module.split(".")[1])


def test_modules_import_rooms_above_their_own_alone():
    for module in MODULES.keys() - {"fieldwise"}:
        targets = set(imports(MODULES[module])) - {module}
        assert "fieldwise" not in targets, (
            f"{module} imports the package itself: import the module that has the name"
        )
        below = [target for target in targets if position(target) > position(module)]
        assert not below, f"{module} imports {below}, whose rooms stand below its own"


def test_concrete_models_are_imported_in_their_room_alone():
    """What others ask of a model is in the docstring of `fieldwise.models.registry`."""
    names_of_tools = [
        "build",
        "mean_with_lr",
        "multitask",
        "registry",
        "serialise",
        "settings",
        "trees",
        "twotower",
    ]
    tools = {f"fieldwise.models.{name}" for name in names_of_tools}
    for module, path in MODULES.items():
        if module.split(".")[1:2] != ["models"]:
            named = {target for target in imports(path) if target.startswith("fieldwise.models.")}
            assert named <= tools, (
                f"{module} names a model: let it answer by an attribute or a method"
            )
            names = {alias.name for node in import_nodes(path) if isinstance(node, ast.ImportFrom)
                     and node.module == "fieldwise.models" for alias in node.names}  # fmt: skip
            assert names <= {
                "*",
                "MODELS",
                "NETWORKS",
                "EmbeddingSettings",
                "ModelSettings",
                "parameter_count",
            }, module


def test_every_entry_of_the_package_is_a_room():
    entries = {
        p.stem
        for p in (SRC / "fieldwise").iterdir()
        if not p.name.startswith((".", "__")) and p.stem != "py"
    }
    assert entries - set(DATA) == set(ROOMS) - {"__main__"}


def test_no_modules_import_each_other_in_a_circle():
    edges = {name: set(imports(path)) - {name} for name, path in MODULES.items()}
    edges["fieldwise"] = set()  # it imports what it offers when it is asked for
    while edges:
        leaves = [name for name, targets in edges.items() if not targets & edges.keys()]
        assert leaves, f"these import each other: {', '.join(sorted(edges))}"
        for name in leaves:
            del edges[name]
