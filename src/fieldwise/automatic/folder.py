"""The folder of a result. It is written completely under a temporary name, then renamed over an older result.

schema.toml        the meaning of each column, with the reason
recipe.toml        the best model: `fieldwise train FOLDER/recipe.toml` trains it again
leaderboard.json   all figures
leaderboard.md     the same figures as text
bundle/            the model
auto-table.parquet the rows, if the table was given in memory
report.html        the report about the best model (written last)
"""

import contextlib
import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path

import tomli_w

from fieldwise.automatic.problem import IN_MEMORY, Problem
from fieldwise.automatic.result import AutoResult
from fieldwise.config import to_plain
from fieldwise.data.read.tables import write_table
from fieldwise.errors import ConfigError, DataError, FieldwiseError
from fieldwise.runs.data_settings import DataSettings
from fieldwise.runs.records import Store
from fieldwise.storage.files import check_folder, keep_elsewhere, write_atomically
from fieldwise.storage.folders import whole_folder

__all__ = ["TABLE", "claimed", "write_folder"]

TABLE, BOARD = "auto-table.parquet", "leaderboard.json"
OWN = {TABLE, BOARD, "schema.toml", "recipe.toml", "leaderboard.md", "bundle", "report.html"}


@contextlib.contextmanager
def claimed(out: Path, *, again: bool) -> Iterator[None]:
    """Lock a folder for one run; it must not exist, be empty, or hold an earlier result to replace.

    Errors:
        ConfigError: it holds a result and `again` is not set, or it holds other files, or another run writes to it.
        DataError: it cannot be written to.
    """
    if out.exists() and not out.is_dir():
        raise ConfigError(f"out is a folder, but {out} is a file: choose another name")
    if out.is_dir() and any(out.iterdir()):
        if not (out / BOARD).is_file():
            raise ConfigError(f"out needs a folder of its own: {out} holds other files; choose another")
        if not again:
            raise ConfigError(f"{out} holds the result of an earlier run: give again to replace it, or another out")
        others = sorted({path.name for path in out.iterdir()} - OWN)
        if others:
            raise ConfigError(f"again replaces the whole of {out}, which holds {others[0]!r} too: move it away first")
    check_folder(out)
    with Store(out.absolute().parent).claim(out.name) as mine:
        if not mine:
            raise ConfigError(f"another run is writing to {out}: wait for it, or give another out")
        yield


def write_folder(result: AutoResult, problem: Problem, out: Path) -> None:
    """Write all files but the report, replacing the folder's content.

    Errors:
        DataError: the folder cannot be written; the message says where the result was saved instead.
    """
    try:
        with whole_folder(out) as new:
            _write(result, problem, new)
    except (FieldwiseError, OSError) as e:
        kept = keep_elsewhere(lambda folder: _write(result, problem, folder))
        if kept is None:
            raise
        raise DataError(f"{e}. The result is not lost: it is in {kept}, move it from there") from e


def _write(result: AutoResult, problem: Problem, folder: Path) -> None:
    if Path(problem.settings["data"]["path"]).name == TABLE:
        write_table(problem.frame, folder / TABLE)
    write_atomically(folder / "schema.toml", _schema(result, problem).encode())
    write_atomically(folder / "recipe.toml", _recipe(result).encode())
    result.best.save(folder / "bundle")
    write_atomically(folder / "leaderboard.md", result.to_markdown().encode())
    write_atomically(folder / BOARD, (json.dumps(result.to_plain(), indent=1, default=str) + "\n").encode())


def _schema(result: AutoResult, problem: Problem) -> str:
    if problem.inferred is None:
        return result.schema.to_toml()
    left = {found.column: f"omitted: {found.sentence}" for found in problem.findings if found.left_out}
    notes = {**problem.inferred.notes, **left}
    return dataclasses.replace(problem.inferred, schema=result.schema, notes=notes).to_toml()


def _recipe(result: AutoResult) -> str:
    line = result.board.chosen
    plain = {k: v for k, v in result.recipe.to_dict().items() if v not in ("", {})}
    plain["schema"] = "schema.toml"
    path = Path(plain["data"]["path"])
    usual = to_plain(DataSettings(path=""))
    plain["data"] = {k: v for k, v in plain["data"].items() if v != usual.get(k)}
    if path.name == TABLE:
        plain["data"]["path"] = TABLE
    top = {k: v for k, v in plain.items() if not isinstance(v, dict)}
    tables = {k: v for k, v in plain.items() if isinstance(v, dict)}
    said = [
        f"# {line.model}: the best of `fieldwise auto` on validation rows. Train it again: fieldwise train THIS_FILE"
    ]
    if line.stopped in ("time", "interrupted"):
        said.append(f"# Its training ended early ({line.stopped}): training it again takes longer and may differ.")
    if str(path) == IN_MEMORY:
        said.append("# The table was given in memory: put the path of a file in its place.")
    return "\n".join(said) + "\n\n" + tomli_w.dumps({**top, **tables})
