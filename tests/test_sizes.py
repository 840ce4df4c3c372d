"""How long files and functions of the package may be, and how many parameters a function takes.

Files and functions keep the limits without exception. Parameters have two kinds of exceptions, which are named here
with their numbers: public interfaces and operators. One may not grow, and once it is within the limit it leaves its
list.
"""

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

SRC = Path(__file__).parents[1] / "src" / "fieldwise"
FILE_LINES, FUNCTION_LINES, PARAMETERS = 300, 60, 6
KERNELS = "ops/triton/"  # their functions take pointers, sizes and strides one by one

# Decisions, not debts: functions whose parameters are the interface itself.
PUBLIC = {  # users write what they set by keyword; the rest has defaults, as in `nn.MultiheadAttention`
    "automatic/run.py: auto": 10,
    "bundle/recommend.py: recommend": 7,
    "layers/activation_unit.py: ActivationUnit.__init__": 7,
    "layers/interacting.py: InteractingLayer.__init__": 12,
    "layers/pair_attention.py: PairAttention.__init__": 7,
    "models/autoint.py: AutoIntNetwork.__init__": 7,
    "models/dat.py: DATNetwork.__init__": 9,
    "models/finalnet.py: FinalNetNetwork.__init__": 7,
    "models/inttower.py: IntTowerNetwork.__init__": 9,
    "models/twotower.py: Tower.__init__": 9,
    "ops/field_attention.py: field_attention": 8,
    "ops/interacting.py: interacting": 14,
    "ops/pair_attention.py: pair_attention_pool": 9,
    "training/fit.py: fit": 8,
}
OPERATORS = {  # PyTorch calls them by place, with what the operator's schema lists
    "ops/interacting.py: interacting_plain": 14,
    "ops/pair_attention.py: pair_attention_pool_plain": 9,
    "ops/sparse_update.py: _update": 8,
}
NAMED: tuple[dict[str, int], ...] = {}, {}, {**PUBLIC, **OPERATORS}

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


def parameters(function: Function) -> int:
    """How many a caller gives by name or place: `self`, `cls`, `*more` and `**named` do not count."""
    names = [one.arg for one in (*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs)]
    return len(names) - (names[:1] in (["self"], ["cls"]))


@cache
def sizes() -> tuple[dict[str, int], dict[str, int], dict[str, int]]:
    """Lines of files, lines of functions, parameters of functions."""
    files, long, many = {}, {}, {}
    for path in sorted(SRC.rglob("*.py")):
        name, text = path.relative_to(SRC).as_posix(), path.read_text()
        files[name] = len(text.splitlines())
        for function, node in functions(ast.parse(text)):
            long[f"{name}: {function}"] = lines(node)
            many[f"{name}: {function}"] = 0 if name.startswith(KERNELS) else parameters(node)
    return files, long, many


@pytest.mark.parametrize(
    ("place", "limit", "exceptions"),
    list(zip(range(3), (FILE_LINES, FUNCTION_LINES, PARAMETERS), NAMED, strict=True)),
    ids=["lines of files", "lines of functions", "parameters"],
)
def test_sizes_are_within_the_limit_or_named(place, limit, exceptions):
    found = sizes()[place]
    assert {name: size for name, size in found.items() if size > exceptions.get(name, limit)} == {}
    done = [name for name in exceptions if found.get(name, 0) <= limit]
    assert done == [], "these are within the limit now, or gone: take them off the list"


def test_functions_are_found_and_measured():
    code = "class C:\n    def f(self, a, /, b, *c, d=1, **e):\n        async def g(h): ...\n        return g\n"
    found = {name: (lines(node), parameters(node)) for name, node in functions(ast.parse(code))}
    assert found == {"C.f": (3, 3), "C.f.g": (1, 1)}


def test_public_interfaces_take_their_many_parameters_by_keyword():
    found = {
        f"{path.relative_to(SRC).as_posix()}: {name}": node.args
        for path in SRC.rglob("*.py")
        for name, node in functions(ast.parse(path.read_text()))
    }
    by_place = {name: len(found[name].posonlyargs) + len(found[name].args) for name in PUBLIC}
    assert {name: count for name, count in by_place.items() if count > PARAMETERS} == {}
    assert [name for name in PUBLIC if "._" in name.replace(".__init__", "") or ": _" in name] == []
