"""The order of an epoch against a full shuffle and against rows picked by number; memory of a mapped table."""

import gc
import os
import platform
import subprocess
import sys
import threading
import time
import weakref
from itertools import chain
from unittest import mock

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fieldwise import Layout
from fieldwise.data import shuffled_rows as module
from fieldwise.data.shuffled_rows import ShuffledRows, epoch_windows, window_rows
from fieldwise.data.table import EncodedTable, read_spans
from fieldwise.layout import FieldLayout

BAGS = (("tags", "mean"), ("seen", "sum"))


def table_of(rows, *, weighted=True, seed=0):
    """Rows whose first id is their number, with a number, two bags, two labels and a weight."""
    draws = np.random.default_rng(seed)
    fields = [
        FieldLayout(name="row", kind="id", role="context", offset=0, rows=rows),
        FieldLayout(name="price", kind="value", role="context", offset=rows, rows=1),
    ]
    fields += [
        FieldLayout(name=name, kind="bag", role="context", offset=rows + 1, rows=9, pooling=pooling)
        for name, pooling in BAGS
    ]
    lengths = draws.integers(0, 4, rows * len(BAGS))
    return EncodedTable(
        layout=Layout(tuple(fields)),
        ids=np.stack([np.arange(rows), np.full(rows, rows)], 1).astype(np.int32),
        values=draws.normal(size=(rows, 1)).astype(np.float32),
        bag_ids=(rows + 1 + draws.integers(0, 9, lengths.sum())).astype(np.int32),
        bag_offsets=np.concatenate([[0], lengths.cumsum()]),
        y=draws.integers(0, 2, (rows, 2)).astype(np.float32),
        weight=draws.gamma(1.0, size=rows).astype(np.float32) if weighted else None,
    )


def epoch(table, size, window, *, number=1, step=0, seed=5):
    rows = ShuffledRows(table=table, size=size, window=window, seed=seed)
    return list(rows.epoch(number, step, torch.Generator().manual_seed(seed)))


def numbers(batches):
    return [batch.batch.ids[:, 0].tolist() for batch in batches]


def assert_same(found, expected):
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        for a, b in zip(
            (*one.batch, one.y, one.weight), (*other.batch, other.y, other.weight), strict=True
        ):
            assert (a is None) == (b is None)
            assert a is None or (a.dtype == b.dtype and torch.equal(a, b))


@pytest.mark.parametrize("weighted", [True, False])
@pytest.mark.parametrize("rows", [1, 2, 96, 97, 100])
def test_one_window_is_a_full_shuffle(rows, weighted):
    table = table_of(rows, weighted=weighted)
    order = torch.randperm(rows, generator=torch.Generator().manual_seed(5))
    scaled = None
    if weighted and rows > 1:
        scaled = torch.from_numpy(
            (table.weight / table.weight.mean(dtype=np.float64)).astype(np.float32)
        )[order]
    expected, at = [], 0
    for batch, y in table.batches(16, order=order):
        expected.append(
            module.Rows(batch, y, None if scaled is None else scaled[at : at + batch.size])
        )
        at += batch.size
    assert_same(epoch(table, 16, rows), expected)
    for step in range(len(expected) + 1):
        assert_same(epoch(table, 16, rows, step=step), expected[step:])


@settings(max_examples=25, deadline=None)
@given(st.integers(1, 200), st.integers(1, 50), st.integers(1, 220), st.integers(1, 20), st.data())
def test_several_windows_give_every_row_once_in_batches_of_todays_sizes(
    rows, size, window, blocks, data
):
    table = table_of(rows)
    with mock.patch.object(module, "BLOCKS_PER_WINDOW", blocks):
        several(table, size, window, data)


def several(table, size, window, data):
    rows = len(table)
    result = epoch(table, size, min(window, rows))
    whole = epoch(table, size, rows)
    assert [one.batch.size for one in result] == [one.batch.size for one in whole]
    assert sorted(chain.from_iterable(numbers(result))) == list(range(rows))
    mean = table.weight.mean(dtype=np.float64)
    expected = []
    for chosen in numbers(result):
        batch, y = table.batch(torch.tensor(chosen))
        weight = (
            torch.from_numpy((table.weight[chosen] / mean).astype(np.float32)) if rows > 1 else None
        )
        expected.append(module.Rows(batch, y, weight))
    assert_same(result, expected)
    step = data.draw(st.integers(0, len(result)))
    assert_same(epoch(table, size, min(window, rows), step=step), result[step:])


def test_blocks_have_at_most_4096_rows_and_a_window_at_least_1024_of_them():
    for window, block in ((9, 1), (10**5, 97), (10**6, 976), (10**7, 4096)):
        spans = chain.from_iterable(epoch_windows(10**5, window=window, seed=0, epoch=1))
        assert max(span.stop - span.start for span in spans) == block


def test_the_rows_of_a_window_come_from_so_many_blocks(monkeypatch):
    monkeypatch.setattr(module, "BLOCKS_PER_WINDOW", 16)
    windows, start = epoch_windows(1000, window=330, seed=5, epoch=2), 0
    assert len(windows) == 4
    results = list(chain.from_iterable(numbers(epoch(table_of(1000), 7, 330, number=2))))
    for k, spans in enumerate(windows):
        assert len(spans) == 16 or k == 3
        expected = [row for span in spans for row in range(span.start, span.stop)]
        here = results[start : start + len(expected)]
        start += len(expected)
        assert sorted(here) == sorted(expected)
        assert here != expected
    assert start == 1000


def test_seed_and_epoch_alone_decide_the_order():
    table = table_of(300)
    first = numbers(epoch(table, 16, 64))
    torch.rand(3)
    assert numbers(epoch(table, 16, 64)) == first
    others = [numbers(epoch(table, 16, 64, number=2)), numbers(epoch(table, 16, 64, seed=6))]
    assert first not in others
    assert others[0] != others[1]


def test_windows_of_a_table_of_more_than_a_gib(monkeypatch):
    table = table_of(1000)
    assert window_rows(table) == 1000
    monkeypatch.setattr(module, "ONE_WINDOW_BYTES", table.nbytes - 1)
    monkeypatch.setattr(module, "WINDOW_BYTES", table.nbytes // 20)
    assert window_rows(table) == pytest.approx(50, abs=1)
    assert window_rows(table, 70) == 70
    assert window_rows(table, 7000) == 1000


def test_at_most_two_windows_are_in_memory(monkeypatch):
    alive, most = weakref.WeakSet(), []

    def read(table, spans):
        gc.collect()
        result = read_spans(table, spans)
        alive.add(result)
        most.append(len(alive))
        return result

    monkeypatch.setattr(module, "read_spans", read)
    for _ in ShuffledRows(table=table_of(500), size=16, window=50, seed=1).epoch(
        1, 0, torch.Generator()
    ):
        time.sleep(0.002)  # lets the thread read
    assert len(most) >= 10
    assert max(most) <= 2


def test_an_error_of_the_thread_reaches_the_caller_and_no_thread_stays(monkeypatch):
    def read(table, spans, reads=[]):  # noqa: B006  # counts its calls
        reads.append(1)
        if len(reads) == 3:
            raise OSError("the disk is gone")
        return read_spans(table, spans)

    before = set(threading.enumerate())
    monkeypatch.setattr(module, "read_spans", read)
    with pytest.raises(OSError, match="the disk is gone"):
        epoch(table_of(500), 16, 50)
    batches = ShuffledRows(table=table_of(500), size=16, window=50, seed=1).epoch(
        1, 0, torch.Generator()
    )
    next(batches)
    batches.close()
    assert set(threading.enumerate()) <= before


def test_spans_of_a_table_without_bags():
    layout = Layout.of_sizes([9])
    table = EncodedTable(
        layout, np.arange(9, dtype=np.int32)[:, None], np.zeros((9, 0), np.float32), *BAGLESS
    )
    result = read_spans(table, [slice(6, 9), slice(0, 2)])
    assert result.ids[:, 0].tolist() == [6, 7, 8, 0, 1]
    assert result.bag_offsets.tolist() == [0]
    assert (result.y, result.weight) == (None, None)


BAGLESS = np.zeros(0, np.int32), np.zeros(1, np.int64)
MEMORY = """
import sys
from pathlib import Path

import numpy as np

from fieldwise.data.reports import memory_mib
from fieldwise.data.table import EncodedTable
from fieldwise.data.shuffled_rows import ShuffledRows
from fieldwise.layout import Layout
from fieldwise.storage.machine import keep_freed_arrays

rows, window, fields = 300_000, 25_000, 200
ids, values = np.zeros((rows, fields), np.int32), np.zeros((rows, fields), np.float32)
bags, y = (np.zeros(0, np.int32), np.zeros(1, np.int64)), np.zeros((rows, 1), np.float32)
EncodedTable(Layout.of_sizes([1] * fields), ids, values, *bags, y=y).save(Path(sys.argv[1]))
del ids, values
keep_freed_arrays()
table = EncodedTable.open(Path(sys.argv[1]))
kept, found = [], [memory_mib()]
for number, _ in enumerate(ShuffledRows(table=table, size=250, window=window, seed=0).epoch(1, 0, None)):
    kept.append(np.ones(2_500))  # 20 kB that outlive the batch, as a step leaves some
    if number % 100 == 99:
        found.append(memory_mib())
print(*found, memory_mib())
"""


@pytest.mark.slow
@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc keeps freed arrays")
def test_the_memory_of_a_mapped_table_is_that_of_two_windows_however_many_there_are(tmp_path):
    command = [sys.executable, "-c", MEMORY, str(tmp_path / "table")]
    # so that the reading thread has no arena of its own
    env = os.environ | {"MALLOC_ARENA_MAX": "1"}
    result = subprocess.run(command, capture_output=True, text=True, check=True, env=env).stdout
    before, first, *_, last = map(float, result.split())
    assert first < before + 250, (
        f"two windows, each of 38 MiB, and rows that are gathered; the table has 458: {result}"
    )
    assert last < first + 60, (
        f"what the batches keep has 24 MiB; the windows, of 38, have gone: {result}"
    )
