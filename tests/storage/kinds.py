"""Every kind of artifact, as tests of the storage write and read them: `save(folder, number)`, then `load(folder)`."""

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl
import torch
from serving.conftest import make
from storage.things import load_thing, save_thing
from torch import nn

from fieldwise import AFM, Batch, Bundle, DataError, FieldwiseError, Layout
from fieldwise.bundle import export
from fieldwise.bundle.about import About
from fieldwise.data.table import EncodedTable
from fieldwise.runs.ranking import Ranked
from fieldwise.runs.records import Store, read_record
from fieldwise.serving import build_index, open_index
from fieldwise.storage.cache import Cache


@dataclass(frozen=True)
class Case:
    """One kind.

    Args:
        save: writes an artifact that holds a number; artifacts of different numbers differ in every
            file they can.
        load: its number.
        absent: what the error says where there is none.
        replaces: a second one takes the first one's place.
    """

    save: Callable[[Path, int], object]
    load: Callable[[Path], int | None]
    absent: str = "is not a"
    replaces: bool = True


def save_table(folder: Path, number: int) -> None:
    ids, values = np.zeros((number + 2, 0), np.int32), np.zeros((number + 2, 0), np.float32)
    y = np.full(number + 2, number, np.float32)
    EncodedTable(Layout(()), ids, values, np.zeros(0, np.int32), np.zeros(1, np.int64), y).save(
        folder
    )


def load_table(folder: Path) -> int:
    table = EncodedTable.open(folder)
    assert table.y is not None
    assert set(table.y) == {len(table) - 2}
    return len(table) - 2


BUNDLES = {
    number: dataclasses.replace(
        make(AFM(embedding_dim=2, attention_dim=2), seed=number),
        about=About(further={"number": number}),
    )
    for number in (1, 2)
}


def save_bundle(folder: Path, number: int) -> None:
    BUNDLES[number].save(folder, overwrite=True)


def load_bundle(folder: Path) -> int:
    # it scores its samples: weights and manifest belong together
    return Bundle.load(folder).about.further["number"]


ITEMS = pl.DataFrame({"item": ["i1", "i2"], "genres": ["g1", "g2|g0"], "price": [0.5, 0.25]})
TOWER = make()


def save_index(folder: Path, number: int) -> None:
    build_index(TOWER, ITEMS.with_columns(price=pl.lit(number), title=pl.lit(number)), folder)


def load_index(folder: Path) -> int:
    index = open_index(folder)
    assert index.items["price"].to_list() == index.items["title"].to_list()
    return index.items["price"][0]


def save_run(folder: Path, number: int) -> None:
    rows = np.full(3, number, np.float64)
    ranked = Ranked(rank=rows, popular=rows, user=rows, about={"of": number})
    Store(folder.parent).put(folder.name, {"number": number}, rows, rows, ranked)


def load_run(folder: Path) -> int | None:
    record = read_record(folder)
    if record is None:
        return None
    try:
        assert record.ranked is not None
        kept = {
            record.about["number"],
            record.ranked.about["of"],
            *record.test_rows[0],
            *record.ranked.rank,
        }
    except DataError as e:
        if "start again" in str(e):
            return load_run(folder)
        raise
    (number,) = kept
    return int(number)


def fake_exporter(
    network: nn.Module, table: EncodedTable, path: Path
) -> Callable[[Batch], np.ndarray]:
    """Takes the place of ONNX, which takes seconds."""
    path.write_bytes(b"a network")

    def run(batch: Batch) -> np.ndarray:
        with torch.no_grad():
            return network(*batch).numpy()

    return run


def save_export(folder: Path, number: int) -> None:
    export.export_bundle(BUNDLES[number], folder)


def load_export(folder: Path) -> int:
    def read(saved):
        for part in saved.parts:
            saved.path(part)
        return next(
            number for number, bundle in BUNDLES.items() if bundle.digest == saved.about["model"]
        )

    return export.EXPORT.load(folder, read)


def save_entry(folder: Path, number: int) -> None:
    said: list[str] = []

    def write(new: Path) -> None:
        save_table(new / "deep", number)
        (new / "number").write_text(str(number))

    Cache(folder=folder.parent, note=said.append).put(folder.name, "an entry", write)
    if said:
        raise DataError(said[0])


def load_entry(folder: Path) -> int | None:
    def read(entry: Path) -> int:
        number = int((entry / "number").read_text())
        assert load_table(entry / "deep") == number
        return number

    said: list[str] = []
    number = Cache(folder=folder.parent, note=said.append).get(folder.name, read)
    assert not any("damaged" in line for line in said)
    return number


CASES = {
    "bundle": Case(save_bundle, load_bundle),
    "index": Case(save_index, load_index),
    "run": Case(save_run, load_run),
    "export": Case(save_export, load_export),
    "entry": Case(save_entry, load_entry, replaces=False),
    "thing": Case(save_thing, load_thing),
    "table": Case(save_table, load_table),
}


def found(case: Case, folder: Path) -> int | None:
    """The number of the artifact that is there, or None; damage raises."""
    try:
        return case.load(folder)
    except FieldwiseError as e:
        if case.absent not in str(e):
            raise
        return None
