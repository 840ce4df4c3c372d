"""How long files and functions of the package may be."""

import ast
from collections.abc import Iterator
from pathlib import Path

SRC = Path(__file__).parents[1] / "src" / "fieldwise"
FILE_LINES, FUNCTION_LINES = 700, 60

Function = ast.FunctionDef | ast.AsyncFunctionDef


def functions(node: ast.AST, prefix: str = "") -> Iterator[tuple[str, Function]]:
    """Every function within a module, methods and inner functions too, by its qualified name."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            if not isinstance(child, ast.ClassDef):
                yield prefix + child.name, child
            yield from functions(child, f"{prefix}{child.name}.")
        else:
            yield from functions(child, prefix)


def lines(function: Function) -> int:
    """From `def` to the last line."""
    assert function.end_lineno is not None
    return function.end_lineno - function.lineno + 1


def test_files_and_functions_are_within_their_limits():
    long = {}
    for path in sorted(SRC.rglob("*.py")):
        name, text = path.relative_to(SRC).as_posix(), path.read_text()
        if (count := len(text.splitlines())) > FILE_LINES:
            long[name] = count
        long |= {f"{name}: {f}": lines(node) for f, node in functions(ast.parse(text)) if lines(node) > FUNCTION_LINES}
    assert long == {}
