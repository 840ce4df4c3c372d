"""docs/how-it-is-built.md names files and functions that are there, and every room."""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
SRC = ROOT / "src" / "fieldwise"
PAGE = (ROOT / "docs" / "how-it-is-built.md").read_text("utf-8")


def names_in(path: Path) -> set[str]:
    """Functions, classes, their methods as `Class.method`, and assigned names, however deep they stand."""
    results: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            results.add(node.name)
        if isinstance(node, ast.ClassDef):
            results |= {
                f"{node.name}.{one.name}" for one in node.body if isinstance(one, ast.FunctionDef)
            }
        if isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            results |= {one.id for one in targets if isinstance(one, ast.Name)}
    return results


def test_every_job_is_where_the_page_says(subtests):
    jobs = [line for line in PAGE.splitlines() if line.startswith("| ") and "`" in line]
    assert len(jobs) > 20
    for job in jobs:
        path = None
        for word in re.findall(r"`([^`]+)`", job.split("|")[2]):
            if "/" in word or word.endswith(".py"):
                path = SRC / word
                assert path.exists(), job
            elif path is not None:
                with subtests.test(word):
                    assert word in names_in(path), job


def test_every_package_is_in_the_tree():
    listed = re.findall(r"^  (\w+)/ ", PAGE, re.MULTILINE)
    packages = [one.parent.name for one in SRC.glob("*/__init__.py")]
    assert sorted({*listed} - {"recipes"}) == sorted(packages)
