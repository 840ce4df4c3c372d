"""Every kind of artifact, as tests of the storage write and read them: `save(folder, number)`, then `load(folder)`."""

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from serving.conftest import make
from storage.things import load_thing, save_thing

from fieldwise import AFM
from fieldwise.bundle.bundle import Bundle
from fieldwise.data.table import EncodedTable
from fieldwise.errors import FieldwiseError
from fieldwise.layout import Layout


@dataclass(frozen=True)
class Case:
    """One kind.

    Args:
        save: writes an artifact that holds a number; artifacts of different numbers differ in every file they can.
        load: its number.
    """

    save: Callable[[Path, int], object]
    load: Callable[[Path], int]
    absent: str = "is no "


def save_table(folder: Path, number: int) -> None:
    ids, values = np.zeros((number + 2, 0), np.int32), np.zeros((number + 2, 0), np.float32)
    y = np.full(number + 2, number, np.float32)
    EncodedTable(Layout(()), ids, values, np.zeros(0, np.int32), np.zeros(1, np.int64), y).save(folder)


def load_table(folder: Path) -> int:
    table = EncodedTable.open(folder)
    assert table.y is not None
    assert set(table.y) == {len(table) - 2}
    return len(table) - 2


BUNDLES = {
    number: dataclasses.replace(make(AFM(embedding_dim=2, attention_dim=2), seed=number), about={"number": number})
    for number in (1, 2)
}


def save_bundle(folder: Path, number: int) -> None:
    BUNDLES[number].save(folder)


def load_bundle(folder: Path) -> int:
    return Bundle.load(folder).about["number"]  # it scores its samples: weights and manifest belong together


CASES = {
    "bundle": Case(save_bundle, load_bundle),
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
