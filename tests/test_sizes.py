"""How long files and functions of the package may be."""

import ast
from pathlib import Path

SRC = Path(__file__).parents[1] / "src" / "fieldwise"
FILE_LINES, FUNCTION_LINES = 700, 60


def test_files_and_functions_are_within_their_limits():
    """A function's lines are those from `def` to its end; methods and inner functions count too."""
    long = {}
    for path in sorted(SRC.rglob("*.py")):
        name, text = path.relative_to(SRC).as_posix(), path.read_text()
        if (count := len(text.splitlines())) > FILE_LINES:
            long[name] = count
        functions = [n for n in ast.walk(ast.parse(text)) if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)]
        lines = {f"{name}: {node.name}": (node.end_lineno or 0) - node.lineno + 1 for node in functions}
        long |= {function: count for function, count in lines.items() if count > FUNCTION_LINES}
    assert long == {}
