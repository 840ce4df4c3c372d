"""Print how large the project is and how densely it is written: tokens, statements, files, options, words, tests.

    python scripts/size.py             # counts of the tree, in seconds
    python scripts/size.py src/fieldwise/data     # the density of one folder or file
    python scripts/size.py --trace     # also the modules and functions that a row and a request
    pass, in half a minute

A token is one of Python's, without comments, docstrings, line ends and indents; a code line is one
with a token. A tuple assignment binds several names to as many expressions in one statement
(`a, b = 1, []`); a swap and the parts of one result do not count. A trace counts the package's
modules and named functions that are entered, not those that run when a module is imported:

- row: a CSV of 2,000 rows and a recipe without settings of AutoInt, to the end of the first
  optimizer step;
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
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

ROOT = Path(__file__).parents[1]
SRC = ROOT / "src" / "fieldwise"
SHARED = ("cli/processes",)
PARTS: dict[str, tuple[str, ...]] = {
    "serving with its commands": ("serving", "cli/serve.py"),
    "several processes and Ray": ("distributed", *(f"{name}.py" for name in SHARED)),
}
TRIVIA = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENCODING,
    tokenize.ENDMARKER,
}
DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
PRIVATE_NAMES = {"one", "own", "at", "place", "said", "some", "each", "made", "kept"}
RUNS = ("<module>", "<lambda>", "<listcomp>", "<genexpr>", "<dictcomp>", "<setcomp>")


def python_files(folder: Path) -> list[Path]:
    """The Python files below a folder."""
    return sorted(folder.rglob("*.py"))


def lines(files: list[Path]) -> int:
    """The lines of files."""
    return sum(len(path.read_text("utf-8").splitlines()) for path in files)


@dataclass(frozen=True, kw_only=True)
class Density:
    """What a reader meets in some files: tokens, code lines, and the statements that say several things at once."""

    tokens: int
    code_lines: int
    tuple_assignments: int
    assignment_expressions: int
    conditional_expressions: int
    comprehensions: int
    private_names: int

    def rows(self) -> Iterator[tuple[str, str]]:
        """The counts, as text, with their names."""
        yield f"{self.tokens:,}", "tokens"
        yield f"{self.code_lines:,}", "lines of code"
        yield f"{self.tokens / max(self.code_lines, 1):.1f}", "tokens per line of code"
        yield f"{self.tuple_assignments:,}", "tuple assignments of unrelated values"
        yield f"{self.assignment_expressions:,}", "assignment expressions"
        yield f"{self.conditional_expressions:,}", "conditional expressions"
        yield f"{self.comprehensions:,}", "comprehensions"
        yield f"{self.private_names:,}", "bindings of names that need translating"


def density(texts: Iterable[str]) -> Density:
    r"""The density of modules.

    >>> counts = density(["'Docstring.'\n\na, b = 1, []  # two\n# comment\n"])
    >>> counts.tokens, counts.code_lines, counts.tuple_assignments
    (8, 1, 1)
    """
    tokens = 0
    code_lines = 0
    counts: Counter[str] = Counter()
    for text in texts:
        tree = ast.parse(text)
        text_tokens = list(_code_tokens(text, tree))
        tokens += len(text_tokens)
        code_lines += len(
            {line for token in text_tokens for line in range(token.start[0], token.end[0] + 1)}
        )
        for node in ast.walk(tree):
            counts[_kind_of_statement(node)] += 1
        counts["private name"] += sum(name in PRIVATE_NAMES for name in _bound_names(tree))
    return Density(
        tokens=tokens,
        code_lines=code_lines,
        tuple_assignments=counts["tuple assignment"],
        assignment_expressions=counts["assignment expression"],
        conditional_expressions=counts["conditional expression"],
        comprehensions=counts["comprehension"],
        private_names=counts["private name"],
    )


def _code_tokens(text: str, tree: ast.Module) -> Iterator[tokenize.TokenInfo]:
    docstring_lines: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, DOCUMENTED) and ast.get_docstring(node) is not None:
            docstring = node.body[0]
            docstring_lines |= set(range(docstring.lineno, (docstring.end_lineno or 0) + 1))
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        is_code = token.type not in TRIVIA and bool(token.string.strip())
        if is_code and token.start[0] not in docstring_lines:
            yield token


def _kind_of_statement(node: ast.AST) -> str:
    if isinstance(node, ast.NamedExpr):
        return "assignment expression"
    if isinstance(node, ast.IfExp):
        return "conditional expression"
    if isinstance(node, (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)):
        return "comprehension"
    if isinstance(node, ast.Assign) and _binds_unrelated_values(node):
        return "tuple assignment"
    return "other"


def _binds_unrelated_values(node: ast.Assign) -> bool:
    target = node.targets[0]
    if not (isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple)):
        return False
    is_swap = {ast.unparse(part) for part in target.elts} == {
        ast.unparse(part) for part in node.value.elts
    }
    return not is_swap


def _bound_names(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.arg):
            yield node.arg


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


def traced(
    work: Callable[[], object], before: Callable[[], object] = lambda: None
) -> tuple[int, int]:
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
    recipe.write_text(
        'schema = "schema.toml"\n[data]\npath = "log.csv"\n[model]\nname = "autoint"\n', "utf-8"
    )

    loaded = fieldwise.load_recipe(str(recipe))

    prepare = fieldwise.prepare_recipe
    train = fieldwise.train_recipe
    return traced(lambda: train(loaded, prepare(loaded, folder), callbacks=[FirstStep()]))


def trace_request(_: Path) -> tuple[int, int]:
    """What a warm recommendation passes in the server's process."""
    import httpx

    import fieldwise
    from fieldwise.serving import Ranker, item_table
    from fieldwise.serving.http import create_app
    from fieldwise.serving.service import Service
    from fieldwise.serving.stores import Lookup, Stores, TableStore
    from fieldwise.serving.user_log import UserLog, tables_of_log

    log = fieldwise.simulate(2_000, users=50, items=30)
    names = "user_id", "gender", "item_id", "genres", "device"
    schema = fieldwise.infer_schema(log.select(*names, "timestamp", "liked"), label="liked").schema
    training = fieldwise.TrainingSettings(epochs=1)
    bundle = fieldwise.Recommender(schema, fieldwise.AutoInt(), training=training).fit(log).bundle_
    items, users = tables_of_log(log, [schema], "item_id", "user_id")
    known = UserLog(log, [schema], "user_id", "item_id")
    stores = Stores(users=Lookup("users", TableStore("user_id", users)))
    app = create_app(
        Service(bundle, Ranker(bundle, item_table(items, "item_id")), log=known), stores=stores
    )
    body = {"user": users["user_id"][0], "context": {"device": "tv"}, "k": 5}

    async def ask() -> None:
        async with httpx.AsyncClient(
            transport=httpx.ASGITransport(app=app), base_url="http://server"
        ) as client:
            answer = await client.post("/v1/recommend", json=body)
            assert answer.status_code == 200, answer.text

    loop = asyncio.new_event_loop()

    def work() -> None:
        loop.run_until_complete(ask())

    return traced(work, before=work)


def ledger() -> Iterator[tuple[str, int]]:
    """The counts, with their names."""
    files = python_files(SRC)
    flags = options()
    yield "lines of Python in src", lines(files)
    yield "files", len(files)
    for name, parts in PARTS.items():
        part_files = [path for part in parts for path in _within(SRC / part)]
        yield f"lines of {name}", lines(part_files)
    yield "commands", len(flags)
    yield "options", sum(flags.values())
    yield "options of serve", flags["serve"]
    yield "words of docs", words([ROOT / "README.md", *(ROOT / "docs").rglob("*.md")])
    yield "lines of tests", lines(python_files(ROOT / "tests"))
    yield "lines of benchmarks", lines(python_files(ROOT / "benchmarks"))
    for room, count in sorted(_rooms(files).items()):
        yield f"  src/fieldwise/{room}", count


def _within(path: Path) -> list[Path]:
    if path.is_dir():
        return python_files(path)
    return [path] if path.exists() else []


def _rooms(files: list[Path]) -> dict[str, int]:
    result: dict[str, int] = defaultdict(int)
    for path in files:
        parts = path.relative_to(SRC).parts
        result[parts[0] if len(parts) > 1 else "*.py"] += lines([path])
    return result


def main() -> int:
    """Print the ledger."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "path", nargs="?", type=Path, help="print the density of this folder or file only"
    )
    parser.add_argument("--trace", action="store_true", help="trace a row and a request as well")
    arguments = parser.parse_args()

    files = _within(arguments.path or SRC)
    for count, name in density(path.read_text("utf-8") for path in files).rows():
        print(f"{count:>8}  {name}")
    if arguments.path:
        return 0

    for name, number in ledger():
        print(f"{number:>8,}  {name}")
    if arguments.trace:
        for name, trace in {"row": trace_row, "request": trace_request}.items():
            with tempfile.TemporaryDirectory() as folder:
                modules, functions = trace(Path(folder))
            print(
                f"{modules:>8,}  modules that a {name} passes\n{functions:>8,}  functions that a {name} passes"
            )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
