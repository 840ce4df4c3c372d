"""Fitting an encoder and encoding rows in files, a file at a time, by an engine on any machines.

The same functions do this for a file as for a piece of rows on one machine, and results are put together in the files'
order, so the encoder and the encoded rows are equal to the bit, whoever does the work. All files lie in a folder that
all machines see.
"""

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from fieldwise.data.encode.checks import column_of
from fieldwise.data.encode.encoder import Encoder
from fieldwise.data.encode.entries import plain_entry, read_entry
from fieldwise.data.encode.fitted import Fitted
from fieldwise.data.encode.learning import Counted, count_column, learn_counted
from fieldwise.data.encode.pieces import save_pieces
from fieldwise.data.read.mapped import MappedRows, map_rows
from fieldwise.data.table import EncodedTable
from fieldwise.distributed.engine import Engine, Task
from fieldwise.errors import DataError
from fieldwise.schema import Field, Schema
from fieldwise.storage.arrays import arrow_bytes
from fieldwise.storage.checksums import file_digest
from fieldwise.storage.files import write_atomically
from fieldwise.storage.scratch import Scratch

__all__ = ["encode_spread", "fit_spread"]


def fit_spread(
    rows: MappedRows, schema: Schema, engine: Engine, scratch: Scratch, told: Callable[[int], None]
) -> Encoder:
    """`Encoder.fit` on an engine: values are counted by file, then each field learns from its counts.

    Args:
        rows: the training rows.
        schema: their schema.
        engine: does the work.
        scratch: a folder that all machines see.
        told: called with the number of rows of each file that is counted.

    Errors:
        DataError: as `Encoder.fit`.
    """
    place = _folder_of(scratch)
    counts = [place / f"counts-{k}" for k in range(len(rows.files))]
    for folder in counts:
        folder.mkdir()
    plain = schema.to_dict()
    tasks = [
        Task(
            given={"schema": plain, "rows": str(file.path), "first": file.first, "to": str(to)},
            reads=(file.path,),
            writes=to,
        )
        for file, to in zip(rows.files, counts, strict=True)
    ]
    pieces = []
    for answer in engine.map(count_file, tasks):
        pieces.append(answer)
        told(answer["rows"])
    own = [(k, f) for k, f in enumerate(schema.fields) if not f.shares]
    learning = []
    for k, _ in own:
        (place / f"field-{k}").mkdir()
        files = [
            {"path": str(folder / f"{k}.arrow"), "rows": piece["rows"], "present": piece["present"][str(k)]}
            for folder, piece in zip(counts, pieces, strict=True)
        ]
        given = {"schema": plain, "field": k, "counts": files, "to": str(place / f"field-{k}"), "piece": scratch.piece}
        learning.append(Task(given=given, reads=tuple(counts), writes=place / f"field-{k}"))
    fitted: dict[int, Fitted] = {}
    for (k, _), answer in zip(own, engine.map(learn_file, learning), strict=True):
        entry = read_entry(json.loads(Path(answer["path"]).read_text("utf-8")), f"field {k}")
        assert entry.fitted is not None, "it does not share rows"
        fitted[k] = entry.fitted
    return Encoder.assembled(schema.fields, [fitted.get(k) for k in range(len(schema.fields))], rows.frame, scratch)


def count_file(given: Mapping[str, Any]) -> dict[str, Any]:
    """Count every field's column in one file of training rows; the counts go to files."""
    frame, to = map_rows([Path(given["rows"])]), Path(given["to"])
    present = {}
    for k, f in enumerate(_fields(given)):
        if not f.shares:
            counted = count_column(f, column_of(frame, f), first_row=given["first"])
            write_atomically(to / f"{k}.arrow", arrow_bytes(counted.values))
            present[str(k)] = counted.present
    return {"rows": frame.height, "present": present}


def learn_file(given: Mapping[str, Any]) -> dict[str, Any]:
    """Fit one field on the counts of all files."""
    f, to = _fields(given)[given["field"]], Path(given["to"])

    def pieces() -> Iterator[Counted]:
        for one in given["counts"]:
            values = pl.read_ipc(one["path"])
            yield Counted(rows=one["rows"], present=one["present"], values=values)

    fitted = learn_counted(f, pieces(), Scratch(to, given["piece"]))
    write_atomically(to / "fitted.json", json.dumps(plain_entry(f, fitted)).encode())
    return {"path": str(to / "fitted.json")}


def encode_spread(
    rows: MappedRows, encoder: Path, engine: Engine, scratch: Scratch, y: np.ndarray, folder: Path
) -> tuple[EncodedTable, dict[str, tuple[int, int]]]:
    """`Encoder.transform` on an engine, a file at a time.

    Args:
        rows: raw rows.
        encoder: the encoder's JSON file.
        engine: does the work.
        scratch: a folder that all machines see; its `told` is called with the rows of each file.
        y: their targets [N, T].
        folder: where the encoded rows are saved.

    Returns:
        The encoded rows, and their `Encoder.unseen_counts`.

    Errors:
        DataError: as `Encoder.transform`.
    """
    place, digest = _folder_of(scratch), file_digest(encoder)
    tasks, spans = [], []
    for k, file in enumerate(rows.files):
        about = {"rows": str(file.path), "first": file.first, "encoder": str(encoder), "digest": digest}
        to = str(place / f"encoded-{k}")
        tasks.append(Task(given={**about, "to": to}, reads=(file.path, encoder), writes=place))
        spans.append(slice(file.first, file.end))
    counts: Counter[tuple[str, int]] = Counter()

    def pieces() -> Iterator[tuple[slice, EncodedTable]]:
        for span, answer in zip(spans, engine.map(encode_file, tasks), strict=True):
            counts.update({(name, k): n for name, pair in answer["unseen"].items() for k, n in enumerate(pair)})
            yield span, EncodedTable.open(Path(answer["path"]))

    layout = _encoder(str(encoder), digest).layout
    table = save_pieces(folder, layout, rows.frame.height, pieces(), y.astype(np.float32, copy=False), scratch)
    names = dict.fromkeys(name for name, _ in counts)
    return table, {name: (counts[name, 0], counts[name, 1]) for name in names}


def encode_file(given: Mapping[str, Any]) -> dict[str, Any]:
    """Encode one file of rows; the encoded rows go to a folder."""
    encoder = _encoder(given["encoder"], given["digest"])
    table = encoder.transform(map_rows([Path(given["rows"])]), first_row=given["first"])
    table.save(Path(given["to"]))
    return {"path": given["to"], "unseen": encoder.unseen_counts(table)}


@lru_cache(maxsize=1)
def _encoder(path: str, digest: str) -> Encoder:
    """The encoder in a file, kept for the next piece of work in this process."""
    if file_digest(Path(path)) != digest:
        raise DataError(f"{path} must hold the encoder that was fitted, but its content is another: prepare again")
    return Encoder.from_json(Path(path).read_text("utf-8"), "the preparation's encoder")


def _fields(given: Mapping[str, Any]) -> tuple[Field, ...]:
    return Schema.from_dict(given["schema"]).fields


def _folder_of(scratch: Scratch) -> Path:
    assert scratch.folder is not None, "machines share files"
    return scratch.folder
