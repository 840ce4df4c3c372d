"""Encoded tables: batches, files and targets."""

import dataclasses
import json
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import polars as pl
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch.utils.data import BatchSampler, DataLoader, SequentialSampler

from fieldwise import (
    FM,
    Bag,
    Batch,
    Categorical,
    DataError,
    Encoder,
    Label,
    Layout,
    Numeric,
    Schema,
    Sequence,
)
from fieldwise.data import table as table_module
from fieldwise.data.table import TABLE, EncodedTable, batch_starts, deviations, mean_target
from fieldwise.layout import FieldLayout
from fieldwise.storage.artifact import Artifact
from fieldwise.training import oov_dropout
from fieldwise.training.oov_dropout import OutOfVocabularyDropout, value_counts

Cell = int | tuple[int, float] | list[int]  # an id; an id and a number; a bag's ids
Row = list[Cell]


def layout_of(kinds: list[str]) -> Layout:
    """Fields of kinds `id`, `value`, `mean`, `sum`, `max` (bags), ten rows each."""
    fields = []
    for k, kind in enumerate(kinds):
        entry = FieldLayout(name=f"f{k}", kind="id", role="context", offset=10 * k, rows=10)
        if kind == "value":
            entry = FieldLayout(name=f"f{k}", kind="value", role="context", offset=10 * k, rows=10)
        elif kind in ("mean", "sum", "max"):
            entry = FieldLayout(
                name=f"f{k}", kind="bag", role="context", offset=10 * k, rows=10, pooling=kind
            )
        fields.append(entry)
    return Layout(tuple(fields))


def test_rows_can_be_indexed(subtests) -> None:
    table = encoded()
    assert table.y is not None
    one = (3, -1, np.int64(5))
    several = (
        slice(2, 9, 3),
        slice(None, None, -1),
        [4, 0, 4],
        np.arange(50) % 7 == 0,
        [],
        torch.tensor([1, 2]),
    )
    for rows in (*one, *several):
        with subtests.test(rows=rows):
            batch, y = table[rows]
            chosen = np.arange(50)[np.asarray(rows, int) if isinstance(rows, list) else rows]
            numbers = np.atleast_1d(chosen).copy()
            expected = table.take(numbers)
            whole, targets = expected.batch(slice(None))
            for own, other in zip(batch, whole, strict=True):
                assert torch.equal(own.reshape(other.shape), other)
            assert y.reshape(-1).tolist() == targets.tolist() == table.y[numbers].tolist()
            assert (
                batch.ids.shape
                == whole.ids.shape[1 if np.ndim(rows) == 0 and not isinstance(rows, slice) else 0 :]
            )
    assert isinstance(dataclasses.replace(table, y=None)[0], Batch)
    for wrong, message in (
        (50, "one of the table's 50, found 50"),
        ([0, -51], "found -51"),
        (np.ones(3, bool), "a mask"),
    ):
        with pytest.raises(IndexError, match=message):
            table[wrong]
    with pytest.raises(TypeError, match="whole numbers"):
        table[[0.5]]


def test_a_table_is_a_dataset_of_pytorch() -> None:
    """Targets have the shape of a network's scores, so that its loss is that of equal shapes."""
    layout = Layout.of_sizes([3, 4])
    ids = np.stack([np.arange(10) % 3, 3 + np.arange(10) % 4], axis=1).astype(np.int32)
    none = np.empty(0, np.int32), np.zeros(1, np.int64)
    table = EncodedTable(
        layout, ids, np.empty((10, 0), np.float32), *none, y=(np.arange(10) % 2).astype(np.float32)
    )
    network = FM(embedding_dim=2).build(layout)
    for batch, y in DataLoader(table, batch_size=4):
        assert y.shape == network(Batch(*batch)).shape
    seen = torch.cat([batch.ids for batch, _ in DataLoader(table, batch_size=4, shuffle=True)])
    assert sorted(map(tuple, seen.tolist())) == sorted(map(tuple, ids.tolist()))

    with_bags = encoded()
    with pytest.raises(
        DataError, match="cannot be stacked: let the DataLoader fetch whole batches"
    ):
        next(iter(DataLoader(with_bags, batch_size=4)))
    sampler = BatchSampler(SequentialSampler(with_bags), 16, drop_last=False)
    loader = DataLoader(with_bags, sampler=sampler, batch_size=None)
    for (batch, y), (expected, targets) in zip(loader, with_bags.batches(16), strict=True):
        assert all(torch.equal(own, other) for own, other in zip(batch, expected, strict=True))
        assert torch.equal(y, targets)


def table_of(kinds: list[str], rows: list[Row], y: list[float] | None = None) -> EncodedTable:
    """The arrays that the documentation of EncodedTable describes, filled cell by cell."""
    singles = [
        [c if isinstance(c, int) else c[0] for c in row if not isinstance(c, list)] for row in rows
    ]
    values = [[c[1] for c in row if isinstance(c, tuple)] for row in rows]
    bags = [c for row in rows for c in row if isinstance(c, list)]
    return EncodedTable(
        layout_of(kinds),
        np.array(singles, dtype=np.int32).reshape(
            len(rows), sum(k in ("id", "value") for k in kinds)
        ),
        np.array(values, dtype=np.float32).reshape(len(rows), kinds.count("value")),
        np.array([i for bag in bags for i in bag], dtype=np.int32),
        np.array([sum(map(len, bags[:k])) for k in range(len(bags) + 1)], dtype=np.int64),
        None if y is None else np.array(y, dtype=np.float32),
    )


def plain_batch(kinds: list[str], rows: list[Row]) -> dict[str, list[object]]:
    """The plain reference: what a batch of these rows must hold."""
    poolings = [k for k in kinds if k in ("mean", "sum", "max")]
    bags = [c for row in rows for c in row if isinstance(c, list)]
    share = [
        1 / len(bag) if poolings[s % len(poolings)] == "mean" else 1.0 for s, bag in enumerate(bags)
    ]
    return {
        "ids": [
            [c if isinstance(c, int) else c[0] for c in row if not isinstance(c, list)]
            for row in rows
        ],
        "values": [[c[1] for c in row if isinstance(c, tuple)] for row in rows],
        "bag_ids": [i for bag in bags for i in bag],
        "bag_segments": [s for s, bag in enumerate(bags) for _ in bag],
        "bag_weights": [w for w, bag in zip(share, bags, strict=True) for _ in bag],
    }


def check(batch: Batch, kinds: list[str], rows: list[Row]) -> None:
    for name, reference in plain_batch(kinds, rows).items():
        result = getattr(batch, name).tolist()
        assert result == (pytest.approx(reference) if name == "bag_weights" else reference), name
    assert batch.size == len(rows)
    assert [t.dtype for t in batch] == [
        torch.int32,
        torch.float32,
        torch.int32,
        torch.int64,
        torch.float32,
    ]


@st.composite
def tables(draw: st.DrawFn) -> tuple[list[str], list[Row]]:
    kinds = draw(
        st.lists(st.sampled_from(["id", "value", "mean", "sum", "max"]), min_size=1, max_size=5)
    )

    def cell(k: int, kind: str) -> st.SearchStrategy[Cell]:
        ids = st.integers(10 * k, 10 * k + 9)
        if kind == "id":
            return ids
        return (
            st.tuples(ids, st.integers(-9, 9).map(float))
            if kind == "value"
            else st.lists(ids, min_size=1, max_size=3)
        )

    row = st.tuples(*[cell(k, kind) for k, kind in enumerate(kinds)]).map(list)
    return kinds, draw(st.lists(row, min_size=1, max_size=9))


@given(tables(), st.integers(1, 10), st.randoms(use_true_random=False))
def test_batches_equal_a_plain_assembly(
    problem: tuple[list[str], list[Row]], size: int, random: object
) -> None:
    kinds, rows = problem
    table = table_of(kinds, rows, y=[float(n) for n in range(len(rows))])
    order = list(range(len(rows)))
    random.shuffle(order)  # type: ignore[attr-defined]
    part = [*order[1:], *order[1:2]]  # some rows, one of them twice
    orders = (
        (list(range(len(rows))), None),
        (order, torch.tensor(order)),
        (part, torch.tensor(part, dtype=torch.int64)),
    )
    for drawn, given_order in orders:
        seen: list[int] = []
        batches = list(table.batches(size, order=given_order))
        for batch, y in batches:
            assert y is not None
            numbers = [int(v) for v in y.tolist()]
            check(batch, kinds, [rows[n] for n in numbers])
            seen += numbers
        assert seen == drawn
        assert len(batches) == len(batch_starts(len(drawn), size))


@given(tables(), st.lists(st.integers(0, 8), max_size=6), st.integers(0, 9), st.integers(0, 9))
def test_one_batch_by_numbers_or_by_slice(problem, numbers, start, end):
    kinds, rows = problem
    table = table_of(kinds, rows)
    numbers = [n for n in numbers if n < len(rows)]  # repeated ones too
    batch, y = table.batch(torch.tensor(numbers, dtype=torch.int64))
    assert y is None
    for name, reference in plain_batch(kinds, [rows[n] for n in numbers]).items():
        assert getattr(batch, name).tolist() == (
            pytest.approx(reference) if name == "bag_weights" else reference
        )
    check(table.batch(slice(start, end))[0], kinds, rows[start:end])


def test_a_last_batch_of_one_row_joins_the_one_before(subtests):
    for rows, size, sizes in [
        (0, 4, []), (1, 4, [1]), (8, 4, [4, 4]), (9, 4, [4, 5]), (10, 4, [4, 4, 2]), (3, 1, [1, 1, 1]), (3, 2, [3]),
    ]:  # fmt: skip
        with subtests.test(rows=rows, size=size, sizes=sizes):
            table = table_of(["id"], [[k % 10] for k in range(rows)])
            assert [batch.size for batch, _ in table.batches(size)] == sizes
            assert [
                batch.size for batch, _ in table.batches(size, order=torch.arange(rows))
            ] == sizes
            assert len(batch_starts(len(table), size)) == len(sizes)


def encoded(rows: int = 50) -> EncodedTable:
    rng = np.random.default_rng(0)
    frame = pl.DataFrame(
        {
            "c": rng.integers(0, 9, rows),
            "x": rng.normal(size=rows),
            "b": ["|".join(map(str, rng.integers(0, 5, rng.integers(0, 4)))) for _ in range(rows)],
            "s": ["|".join(map(str, rng.integers(0, 5, rng.integers(0, 4)))) for _ in range(rows)],
        }
    )
    fields = (Categorical("c"), Numeric("x"), Bag("b", pooling="max"), Sequence("s"))
    encoder = Encoder.fit(frame, Schema(fields=fields, label=Label("y")))
    return encoder.transform(frame, y=rng.integers(0, 2, rows).astype(np.float32))


def assert_same(a: EncodedTable, b: EncodedTable) -> None:
    assert a.layout == b.layout
    for name in ("ids", "values", "bag_ids", "bag_offsets"):
        np.testing.assert_array_equal(getattr(a, name), getattr(b, name), strict=True)
    assert (a.y is None) == (b.y is None)
    if a.y is not None and b.y is not None:
        np.testing.assert_array_equal(a.y, b.y, strict=True)


def test_targets_of_several_labels_stay_beside_their_rows(tmp_path: Path) -> None:
    y = np.arange(150, dtype=np.float32).reshape(50, 3)
    table = dataclasses.replace(encoded(), y=y)
    table.save(tmp_path / "t")
    back = EncodedTable.open(tmp_path / "t")
    assert_same(back, table)
    assert back.nbytes == encoded().nbytes + 50 * 2 * 4
    order = torch.tensor([7, 3, 49])
    _, picked = back.batch(order)
    assert picked is not None
    np.testing.assert_array_equal(picked.numpy(), y[order.numpy()])
    assert [tuple(part.shape) for _, part in back.batches(16) if part is not None] == [
        (16, 3)
    ] * 3 + [(2, 3)]


@settings(max_examples=15)  # each waits for the disk
@example((["id", "value", "mean"], []), False)
@given(tables(), st.booleans())
def test_every_mixture_survives_the_disk(
    problem: tuple[list[str], list[Row]], with_y: bool
) -> None:
    kinds, rows = problem
    table = table_of(kinds, rows, y=[1.0] * len(rows) if with_y else None)
    with tempfile.TemporaryDirectory() as folder:
        table.save(Path(folder) / "deep" / "t")
        assert_same(EncodedTable.open(Path(folder) / "deep" / "t"), table)


def test_an_open_table_is_mapped_from_disk_and_never_changes_it(tmp_path: Path) -> None:
    encoded().save(tmp_path / "t")
    before = {p.name: p.read_bytes() for p in (tmp_path / "t").iterdir()}
    back = EncodedTable.open(tmp_path / "t")
    for name in ("ids", "values", "bag_ids", "bag_offsets", "y"):
        assert isinstance(getattr(back, name).base, np.memmap), name
    batch, _ = back.batch(slice(0, 4))
    batch.ids.zero_()
    assert {p.name: p.read_bytes() for p in (tmp_path / "t").iterdir()} == before


def test_a_folder_of_other_things_is_never_replaced(tmp_path: Path) -> None:
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "chapter.txt").write_text("years of work")
    with pytest.raises(
        DataError,
        match=r"a folder of its own: .*thesis holds other files, such as 'chapter.txt'; choose another folder",
    ):
        encoded().save(tmp_path / "thesis")
    assert (tmp_path / "thesis" / "chapter.txt").read_text() == "years of work"


def test_a_place_that_cannot_be_written_to(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match=r"cannot write .*file/t"):
        encoded().save(tmp_path / "file" / "t")


def array_file(folder: Path, name: str) -> Path:
    return next(folder.glob(f"{name}.*.npy"))


def rewrite(folder: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Change the manifest, and give it the checksum that belongs to it."""
    about = json.loads((folder / "table.json").read_text())
    change(about)
    (folder / "table.json").write_bytes(Artifact.of(TABLE, folder, about, about["files"]).text())


def replace(folder: Path, name: str, array: np.ndarray) -> None:
    """Put another array in an array's place, with all checksums right."""
    path = array_file(folder, name)
    np.save(path, array)
    rewrite(folder, lambda about: about["files"][name].update(TABLE.entry(path)))


def cut_short(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-40])


def change_text(path: Path) -> None:
    path.write_text(path.read_text().replace('"rows": 50', '"rows": 51'))


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (shutil.rmtree, "is not an encoded table: it has no table.json"),
        (
            lambda at: array_file(at, "ids").unlink(),
            r"is damaged: ids\..*npy cannot be read: No such file",
        ),
        (
            lambda at: cut_short(array_file(at, "ids")),
            r"is damaged: ids\..*npy does not match its checksum or size",
        ),
        (lambda at: (at / "table.json").write_text("{"), "is damaged: table.json cannot be read"),
        (
            lambda at: change_text(at / "table.json"),
            "is damaged: table.json does not match its checksum",
        ),
        (
            lambda at: replace(at, "ids", np.array([{}], dtype=object)),
            "cannot be read: .*Python objects in dtype; encode",
        ),
        (
            lambda at: (at / "table.json").write_text("[]"),
            "is damaged: table.json has no format number",
        ),
        (
            lambda at: rewrite(at, lambda it: it.update(format=99)),
            "has format 99, but .* up to format 2: install a newer",
        ),
        (lambda at: rewrite(at, lambda it: it.pop("layout")), "cannot be read: .*layout"),
        (lambda at: replace(at, "y", np.zeros(3, dtype=np.float32)), "different numbers of rows"),
    ],
)
def test_a_damaged_table_is_refused(
    tmp_path: Path, damage: Callable[[Path], None], message: str
) -> None:
    encoded().save(tmp_path / "t")
    damage(tmp_path / "t")
    with pytest.raises(DataError, match=message):
        EncodedTable.open(tmp_path / "t")


def test_no_python_work_a_row(calls_of: Callable[[Callable[[], object]], int]) -> None:
    """One batch of 200,000 rows makes as many calls as one of 20."""
    pool = encoded(200)
    arrays = (
        np.tile(pool.ids, (1000, 1)),
        np.tile(pool.values, (1000, 1)),
        np.tile(pool.bag_ids, 1000),
    )
    lengths = np.tile(np.diff(pool.bag_offsets), 1000)
    table = EncodedTable(
        pool.layout,
        *arrays,
        np.concatenate([[0], np.cumsum(lengths)]),
        np.zeros(200_000, np.float32),
    )
    order = torch.randperm(200_000, generator=torch.Generator().manual_seed(0))
    table.batch(order[:2])  # the first call makes the tensors
    few = order[:20]
    assert calls_of(lambda: table.batch(order)) == calls_of(lambda: table.batch(few))
    assert calls_of(lambda: table.batch(slice(0, 200_000))) == calls_of(
        lambda: table.batch(slice(0, 20))
    )


@pytest.mark.parametrize("rows", [1, 6, 7, 8, 50])
def test_slices_give_what_all_rows_give(rows, monkeypatch):
    draws = np.random.default_rng(rows)
    y, weight = (
        draws.normal(3.0, 2.0, (rows, 2)).astype(np.float32),
        draws.gamma(1.0, size=rows).astype(np.float32),
    )
    ids = draws.integers(0, 9, (rows, 2)).astype(np.int32)
    table = EncodedTable(Layout.of_sizes([5, 4]), ids, y[:, :0], ids[:, 0], np.arange(rows + 1))
    expected = np.bincount(ids.ravel(), minlength=9) + np.bincount(ids[:, 0], minlength=9)
    for size in (7, 1000):
        monkeypatch.setattr(table_module, "SLICE_ROWS", size)
        assert mean_target(y[:, 0], scale=2.0) == pytest.approx(
            y[:, 0].astype(float).mean() / 2, rel=1e-12
        )
        assert mean_target(y[:, 1], weight) == pytest.approx(
            np.average(y[:, 1].astype(float), weights=weight), rel=1e-6
        )
        assert deviations(y) == pytest.approx(y.astype(float).std(axis=0), rel=1e-12, abs=1e-12)
        times = np.arange(rows) % 3 + 1
        repeated = y.astype(float).repeat(times, axis=0)
        assert deviations(y, times.astype(np.float32)) == pytest.approx(repeated.std(axis=0))
    assert_counted(table, expected)


def assert_counted(table: EncodedTable, expected: np.ndarray) -> None:
    """How often each row of the embedding table is read, by the probability with which its value becomes unknown."""
    known = [dataclasses.replace(f, unknown=True) for f in table.layout.fields]
    shown = OutOfVocabularyDropout(Layout(tuple(known)), value_counts(table), 1.0, 0).probability
    rows = np.concatenate([f.all_rows()[2:] for f in known])
    np.testing.assert_allclose(shown.numpy()[rows], 1 / (1 + expected[rows]), rtol=1e-6)


class Recorded(np.ndarray):
    """An array that records the blocks read from it."""

    blocks: ClassVar[list[np.ndarray]] = []

    def __getitem__(self, key):
        result = super().__getitem__(key)
        self.blocks.append(np.asarray(result))
        return np.asarray(result)

    def __iter__(self):
        return (self[k] for k in range(len(self)))


@pytest.mark.parametrize("fields", [1, 41])
def test_rows_of_the_embedding_table_are_counted_in_one_pass(fields, monkeypatch):
    monkeypatch.setattr(oov_dropout, "IDS_COUNTED_AT_ONCE", 300)
    monkeypatch.setattr(Recorded, "blocks", [])
    ids = np.random.default_rng(fields).integers(0, 3 * fields, (1000, fields)).astype(np.int32)
    table = EncodedTable(
        Layout.of_sizes([3] * fields),
        ids.view(Recorded),
        np.zeros((1000, 0), np.float32),
        np.zeros(0, np.int32),
        np.zeros(1, np.int64),
    )
    assert_counted(table, np.bincount(ids.ravel(), minlength=3 * fields))
    assert len(Recorded.blocks) > 1
    assert max(block.size for block in Recorded.blocks) <= 300
    starts = [block.__array_interface__["data"][0] for block in Recorded.blocks]
    ends = [start + block.nbytes for start, block in zip(starts, Recorded.blocks, strict=True)]
    assert starts == [ids.__array_interface__["data"][0], *ends[:-1]]
