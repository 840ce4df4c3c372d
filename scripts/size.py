"""Print how large the project is: lines, files, importers, options, words of documentation, tests.

    python scripts/size.py             # counts of the tree, in a second
    python scripts/size.py --trace     # also the modules and functions that a row and a request pass, in half a minute

A code line is one with a token other than a comment or a docstring. An importer of a module is a module of the package
that has an import statement of it, wherever it stands; `__init__` modules are not counted. A trace counts the package's
modules and named functions that are entered, not those that run when a module is imported:

- row: a CSV of 2,000 rows and a recipe without settings of AutoInt, to the end of the first optimizer step;
- request: one warm POST /v1/recommend of a ranking bundle with a log, in the server's process.
"""

import argparse
import ast
import asyncio
import io
import re
import sys
import tempfile
import threading
import tokenize
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType

ROOT = Path(__file__).parents[1]
SRC = ROOT / "src" / "fieldwise"
SERVE = ("serve", "serve_sources")
SHARED = ("cli/processes",)
PARTS: dict[str, tuple[str, ...]] = {
    "serving with its commands": ("serving", *(f"cli/{name}.py" for name in SERVE)),
    "several processes and Ray": ("distributed", *(f"{name}.py" for name in SHARED)),
}
TRIVIA = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENCODING}
RUNS = ("<module>", "<lambda>", "<listcomp>", "<genexpr>", "<dictcomp>", "<setcomp>")


def python_files(folder: Path) -> list[Path]:
    """The Python files below a folder."""
    return sorted(folder.rglob("*.py"))


def lines(files: list[Path]) -> int:
    """The lines of files."""
    return sum(len(path.read_text("utf-8").splitlines()) for path in files)


def code_lines(text: str) -> int:
    r"""The lines of a module that are neither empty nor comment nor docstring.

    >>> code_lines('"Docstring."\n\nx = 1  # one\n# comment\n')
    1
    """
    docstrings: set[int] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)) and ast.get_docstring(
            node
        ):
            docstrings |= set(range(node.body[0].lineno, (node.body[0].end_lineno or 0) + 1))
    results: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in TRIVIA and token.string.strip():
            results |= set(range(token.start[0], token.end[0] + 1))
    return len(results - docstrings)


def importers() -> dict[str, set[str]]:
    """By module of the package, the modules that import it."""
    modules = {module_of(path): path for path in python_files(SRC)}
    results: dict[str, set[str]] = {name: set() for name, path in modules.items() if path.name != "__init__.py"}
    for name, path in modules.items():
        for imported in _imported(path):
            if imported in results and imported != name:
                results[imported].add(name)
    return results


def module_of(path: Path) -> str:
    """The dotted name of a file of the package."""
    return ".".join(path.relative_to(SRC.parent).with_suffix("").parts).removesuffix(".__init__")


def _imported(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def options() -> dict[str, int]:
    """By command, the number of its options, without --help."""
    import typer.main

    from fieldwise.cli.app import app

    results: dict[str, int] = {}

    def visit(command: object, path: tuple[str, ...]) -> None:
        inner = getattr(command, "commands", None)
        if inner is not None:
            for name, one in inner.items():
                visit(one, (*path, name))
        else:
            flags = (one for one in command.params if one.param_type_name == "option")  # type: ignore[attr-defined]
            results[" ".join(path)] = sum(one.name not in ("help", "verbose") for one in flags)

    visit(typer.main.get_command(app), ())
    return results


def words(files: list[Path]) -> int:
    """The words of documents."""
    return sum(len(re.findall(r"\S*\w\S*", path.read_text("utf-8"))) for path in files)


def traced(work: Callable[[], object], before: Callable[[], object] = lambda: None) -> tuple[int, int]:
    """The modules and functions of the package that some work enters, in all threads, those of `before` included."""
    results: set[tuple[str, str]] = set()

    def enter(frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(str(SRC)) and code.co_name not in RUNS:
            results.add((code.co_filename, code.co_qualname))

    threading.setprofile(enter)
    sys.setprofile(enter)
    try:
        before()
        results.clear()
        work()
    finally:
        sys.setprofile(None)
        threading.setprofile(None)  # type: ignore[arg-type]
    return len({name for name, _ in results}), len(results)


def trace_row(folder: Path) -> tuple[int, int]:
    """What a row of a CSV passes to the end of the first step."""
    import fieldwise
    from fieldwise.training.callbacks import OutOfTime

    class FirstStep(fieldwise.Callback):
        def on_step(self, step: object) -> None:
            raise OutOfTime

    fieldwise.simulate(2_000).write_csv(folder / "log.csv")
    schema = fieldwise.infer_schema(folder / "log.csv", label="liked").schema
    (folder / "schema.toml").write_text(schema.to_toml(), "utf-8")
    recipe = folder / "recipe.toml"
    recipe.write_text('schema = "schema.toml"\n[data]\npath = "log.csv"\n[model]\nname = "autoint"\n', "utf-8")

    loaded = fieldwise.load_recipe(str(recipe))

    prepare, train = fieldwise.prepare_recipe, fieldwise.train_recipe
    return traced(lambda: train(loaded, prepare(loaded, folder), callbacks=[FirstStep()]))


def trace_request(_: Path) -> tuple[int, int]:
    """What a warm recommendation passes in the server's process."""
    import httpx

    import fieldwise
    from fieldwise.serving import Ranker, item_table
    from fieldwise.serving.http import create_app
    from fieldwise.serving.service import Service, UserLog, tables_of_log
    from fieldwise.serving.stores import Lookup, Stores, TableStore

    log = fieldwise.simulate(2_000, users=50, items=30)
    names = "user_id", "gender", "item_id", "genres", "device"
    schema = fieldwise.infer_schema(log.select(*names, "timestamp", "liked"), label="liked").schema
    training = fieldwise.TrainingSettings(epochs=1)
    bundle = fieldwise.Recommender(schema, fieldwise.AutoInt(), training=training).fit(log).bundle_
    items, users = tables_of_log(log, [schema], "item_id", "user_id")
    known = UserLog(log, [schema], "user_id", "item_id")
    stores = Stores(users=Lookup("users", TableStore("user_id", users)))
    app = create_app(Service(bundle, Ranker(bundle, item_table(items, "item_id")), log=known), stores=stores)
    body = {"user": users["user_id"][0], "context": {"device": "tv"}, "k": 5}

    async def ask() -> None:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://server") as client:
            answer = await client.post("/v1/recommend", json=body)
            assert answer.status_code == 200, answer.text

    loop = asyncio.new_event_loop()

    def work() -> None:
        loop.run_until_complete(ask())

    return traced(work, before=work)


def ledger() -> Iterator[tuple[str, int]]:
    """The counts, with their names."""
    files, imported, flags = python_files(SRC), importers(), options()
    yield "lines of Python in src", lines(files)
    yield "of which code", sum(code_lines(path.read_text("utf-8")) for path in files)
    yield "files", len(files)
    for name, places in PARTS.items():
        yield f"lines of {name}", lines([path for place in places for path in _within(SRC / place)])
    yield "modules with one importer", sum(len(by) == 1 for by in imported.values())
    yield "modules", len(imported)
    yield "commands", len(flags)
    yield "options", sum(flags.values())
    yield "options of serve", flags["serve"]
    yield "words of docs", words([ROOT / "README.md", *(ROOT / "docs").rglob("*.md")])
    yield "lines of tests", lines(python_files(ROOT / "tests"))
    yield "lines of benchmarks", lines(python_files(ROOT / "benchmarks"))
    for room, count in sorted(_rooms(files).items()):
        yield f"  src/fieldwise/{room}", count


def _within(place: Path) -> list[Path]:
    return python_files(place) if place.is_dir() else [place] if place.exists() else []


def _rooms(files: list[Path]) -> dict[str, int]:
    result: dict[str, int] = defaultdict(int)
    for path in files:
        parts = path.relative_to(SRC).parts
        result[parts[0] if len(parts) > 1 else "*.py"] += lines([path])
    return result


def main() -> int:
    """Print the ledger."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trace", action="store_true", help="trace a row and a request as well")
    asked = parser.parse_args()
    for name, count in ledger():
        print(f"{count:>8,}  {name}")
    for name, trace in {"row": trace_row, "request": trace_request}.items() if asked.trace else ():
        with tempfile.TemporaryDirectory() as folder:
            modules, functions = trace(Path(folder))
        print(f"{modules:>8,}  modules that a {name} passes\n{functions:>8,}  functions that a {name} passes")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
