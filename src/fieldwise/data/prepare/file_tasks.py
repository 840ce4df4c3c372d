"""Counting and encoding rows a file at a time, by the machines of an engine, which all see the files."""

from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import polars as pl

from fieldwise.data.encode.encoder import Encoder, column_of
from fieldwise.data.encode.kinds import Counted, count_column
from fieldwise.data.prepare.prepared import read_encoder
from fieldwise.data.read.mapped_rows import MappedRows, map_rows
from fieldwise.data.read.row_numbers import counting_from
from fieldwise.data.table import EncodedTable
from fieldwise.distributed.engine import Engine, Task
from fieldwise.errors import DataError
from fieldwise.schema import Field, Schema
from fieldwise.storage.arrays import arrow_bytes
from fieldwise.storage.checksums import file_digest
from fieldwise.storage.files import write_atomically
from fieldwise.storage.scratch import NO_LIMIT, MemoryBudget


def counted_files(
    rows: MappedRows, schema: Schema, engine: Engine, *, budget: MemoryBudget
) -> Callable[[Field], Iterator[Counted]]:
    """`counted` for `Encoder.fit`, by an engine, a file at a time; the memory budget gets the rows of each."""
    tasks = _file_tasks(rows, schema=schema.to_dict(), budget=budget)
    answers = list[dict[str, Any]]()
    for answer in engine(count_file, tasks):
        answers.append(answer)
        budget.on_rows(answer["rows"])

    def counted(f: Field) -> Iterator[Counted]:
        name = f"{schema.fields.index(f)}.arrow"
        for task, answer in zip(tasks, answers, strict=True):
            values = pl.read_ipc(Path(task["to"]) / name)
            yield Counted(rows=answer["rows"], present=answer["present"][name], values=values)

    return counted


def count_file(task: Mapping[str, Any]) -> dict[str, Any]:
    """Count every field's column in one file of training rows; the counts go to files."""
    frame = map_rows([Path(task["rows"])])
    folder = Path(task["to"])
    folder.mkdir(exist_ok=True)
    schema = Schema.from_dict(task["schema"])
    present = {}
    for k, f in enumerate(schema.fields):
        if f.shares:
            continue
        column = column_of(frame, f)
        with counting_from(task["first"]):  # a file is one chunk
            (counted,) = count_column(f, column, missing=schema.missing, budget=NO_LIMIT)
        name = f"{k}.arrow"
        write_atomically(folder / name, arrow_bytes(counted.values))
        present[name] = counted.present
    return {"rows": frame.height, "present": present}


def encoded_files(
    rows: MappedRows, encoder: Path, engine: Engine, *, budget: MemoryBudget
) -> Iterator[tuple[slice, EncodedTable]]:
    """The encoded rows of each file, by an engine, and which rows they are; `encoder` is its JSON file."""
    tasks = _file_tasks(rows, encoder=str(encoder), digest=file_digest(encoder), budget=budget)
    for file, answer in zip(rows.files, engine(encode_file, tasks), strict=True):
        yield slice(file.first, file.end), EncodedTable.open(Path(answer["path"]))


def encode_file(task: Mapping[str, Any]) -> dict[str, Any]:
    """Encode one file of rows; the encoded rows go to a folder."""
    encoder = _cached_encoder(task["encoder"], task["digest"])
    table = encoder.transform(map_rows([Path(task["rows"])]), first_row=task["first"])
    table.save(Path(task["to"]))
    return {"path": task["to"]}


@lru_cache(maxsize=1)
def _cached_encoder(path: str, digest: str) -> Encoder:
    """The encoder in a file, kept for the next task in this process."""
    if file_digest(Path(path)) != digest:
        raise DataError(
            f"{path} must hold the encoder that was fitted, but its content is another: prepare again"
        )
    return read_encoder(Path(path).parent)


def _file_tasks(rows: MappedRows, *, budget: MemoryBudget, **facts: Any) -> list[Task]:
    """A task for each file of rows, with the folder that its results go to."""
    assert budget.folder is not None, "other processes find their work in files"
    return [
        {"rows": str(file.path), "first": file.first, "to": str(budget.new_path()), **facts}
        for file in rows.files
    ]
