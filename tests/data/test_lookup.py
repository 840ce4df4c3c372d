"""The hash table of integers against a Python dict, and the ids of integers against those of their texts."""

import numpy as np
import polars as pl
import pytest

from fieldwise.data.encode.cells import single_cells
from fieldwise.data.encode.fitted import Vocabulary
from fieldwise.data.encode.lookup import MULTIPLIER, Lookup
from fieldwise.schema import Categorical

EDGES = [0, 1, -1, 2**63 - 1, -(2**63), 2**31, -(2**31)]


@pytest.mark.parametrize("size", [0, 1, 2, 3, 1000])
def test_a_lookup_finds_what_a_dict_finds(size: int) -> None:
    rng = np.random.default_rng(size)
    keys = np.unique(np.concatenate([rng.integers(-(2**63), 2**63 - 1, size), EDGES])[:size])
    rng.shuffle(keys)
    numbers = rng.permutation(len(keys)).astype(np.int32)
    known = dict(zip(keys.tolist(), numbers.tolist(), strict=True))
    asked = rng.permutation(np.concatenate([keys, keys, np.array(EDGES), rng.integers(-50, 50, 100)]))
    found = Lookup.of(keys, numbers, absent=-1).find(asked)
    assert found.dtype == np.int32
    assert found.tolist() == [known.get(key, -1) for key in asked.tolist()]


def test_keys_that_begin_at_one_place_are_all_found() -> None:
    # The place is the top of key * MULTIPLIER modulo 2**64: small products k share the place 0.
    inverse = pow(int(MULTIPLIER), -1, 2**64)
    keys = np.array([k * inverse % 2**64 for k in range(40)], dtype=np.uint64).view(np.int64)
    table = Lookup.of(keys[:30], np.arange(30, dtype=np.int32), absent=-1)
    assert (table._places(keys) == 0).all()
    assert table.find(keys).tolist() == [*range(30), *[-1] * 10]


VALUES = ("7", "-3", "007", "+5", "1.0", "x", "", "9223372036854775807", "9223372036854775808", "12", "0", "-0")
KINDS = [pl.Int8, pl.Int16, pl.Int32, pl.Int64, pl.UInt8, pl.UInt16, pl.UInt32, pl.UInt64]


@pytest.mark.parametrize("kind", KINDS)
def test_integers_have_the_ids_of_their_texts(kind: type[pl.DataType]) -> None:
    cells = [7, 5, 12, 0, 1, None, 100, 8, 7]
    cells += [] if kind in (pl.UInt8, pl.UInt16, pl.UInt32, pl.UInt64) else [-3, -5]
    cells += [2**63 - 1, 2**62] if kind in (pl.Int64, pl.UInt64) else []
    cells += [2**63, 2**64 - 1] if kind == pl.UInt64 else []
    column = pl.Series("c", cells, dtype=kind)
    place = {value: row for row, value in enumerate(VALUES, 2)} | {None: 0}
    wanted = [place.get(None if cell is None else str(cell), 1) for cell in cells]
    assert single_cells(Categorical("c"), Vocabulary(values=VALUES), column).ids.tolist() == wanted


def test_many_unfamiliar_integers_are_unknown() -> None:
    rng = np.random.default_rng(0)
    values = rng.choice(2**31, 5000, replace=False)
    cells = rng.choice(np.concatenate([values[:4000], rng.integers(0, 2**31, 4000)]), 20_000)
    place = {int(value): row for row, value in enumerate(values, 2)}
    fitted = Vocabulary(values=tuple(map(str, values)))
    column = pl.Series("c", cells.astype(np.int64))
    assert single_cells(Categorical("c"), fitted, column).ids.tolist() == [place.get(int(cell), 1) for cell in cells]
