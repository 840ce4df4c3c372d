"""Tensors in files, files that are flushed, threads and amounts of memory."""

import errno
import io
import os
import platform
import subprocess
import sys
import threading
import time
import tracemalloc
from collections.abc import Iterator

import pytest
import torch
from safetensors.torch import load, save

from fieldwise import ConfigError, load_recipe
from fieldwise.runs.data_settings import DataSettings
from fieldwise.storage import files, machine
from fieldwise.storage.arrays import CHUNK_BYTES, KINDS, read_tensors, write_array, write_tensors
from fieldwise.storage.checksums import WordSums
from fieldwise.storage.files import FlushedFile
from fieldwise.storage.machine import ahead, threads_set


@pytest.fixture
def tensors():
    """Every type, names in no order, one with a letter beyond ASCII, and shapes with none, no and one number."""
    results = {
        f"z{k}.weight": torch.arange(k + 3).to(kind) for k, kind in enumerate(reversed(KINDS))
    }
    results |= {f"a.{k}": torch.arange(6).view(2, 3).to(kind) for k, kind in enumerate(KINDS)}
    return results | {
        "größe": torch.zeros(()),
        "none": torch.zeros(0, 4),
        "turned": torch.rand(3, 5).t(),
    }


def test_the_bytes_are_those_of_safetensors(tensors):
    file = io.BytesIO()
    write_tensors(file, tensors)
    assert file.getvalue() == save({name: tensor.contiguous() for name, tensor in tensors.items()})


def test_the_bytes_of_a_tensor_of_several_chunks_are_those_of_safetensors():
    # 2.25 chunks
    file, large = io.BytesIO(), {"large": torch.arange(9 * CHUNK_BYTES // 16, dtype=torch.float32)}
    write_tensors(file, large)
    assert file.getvalue() == save(large)


def test_what_is_written_is_read(tensors, tmp_path):
    path = tmp_path / "tensors"
    with path.open("wb") as file:
        write_tensors(file, tensors)
    result = read_tensors(path)
    assert result.keys() == tensors.keys() == load(path.read_bytes()).keys()
    assert all(torch.equal(result[name], tensor) for name, tensor in tensors.items())


def test_a_large_tensor_is_not_copied(tmp_path):
    large = torch.zeros(5 * CHUNK_BYTES // 4 + 3)
    for sums in (None, WordSums()):
        tracemalloc.start()
        with (tmp_path / "large").open("wb") as file, FlushedFile(file, sums) as flushed:
            write_tensors(flushed, {"large": large})
            write_array(flushed, large.numpy())
        _, most = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert most < CHUNK_BYTES
        assert (tmp_path / "large").stat().st_size > 2 * large.nbytes


def write_blocks(path, blocks):
    with open(path, "wb") as file, FlushedFile(file) as written:
        for _ in range(blocks):
            written.write(bytes(11))


@pytest.mark.parametrize("blocks", [1, 5])
def test_a_flush_that_fails_in_the_background_is_an_error(tmp_path, monkeypatch, blocks):
    """The system tells an error of the disk once: a second flush of the file would succeed."""
    flushed = []

    def fails_once(descriptor):
        flushed.append(descriptor)
        if len(flushed) == 1:
            raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(files, "BYTES_BETWEEN_FLUSHES", 10)
    monkeypatch.setattr(os, "fsync", fails_once)
    with pytest.raises(OSError, match="Input/output error"):
        write_blocks(tmp_path / "file", blocks)


def test_one_item_is_made_ahead_in_another_thread() -> None:
    made: list[int] = []
    threads = set()

    def numbers() -> Iterator[int]:
        for k in range(5):
            threads.add(threading.get_ident())
            made.append(k)
            yield k

    for k in ahead(numbers()):
        limit = time.monotonic() + 120
        while len(made) < min(k + 2, 5) and time.monotonic() < limit:
            time.sleep(0.001)
        assert made == list(range(min(k + 2, 5)))
    assert threading.get_ident() not in threads


def test_an_error_comes_after_the_items_before_it() -> None:
    items = ahead(6 // k for k in (3, 2, 0, 1))
    assert [next(items), next(items)] == [2, 3]
    with pytest.raises(ZeroDivisionError):
        next(items)


def test_no_thread_is_left_when_the_rest_is_not_wanted() -> None:
    before = set(threading.enumerate())
    items = ahead(iter(range(100)))
    assert next(items) == 0
    items.close()  # type: ignore[attr-defined]
    assert set(threading.enumerate()) <= before


def test_amounts_are_parsed():
    amounts = ["2GB", "512 mb", "1.5GiB", "64000000", 10**9, "1T"]
    assert [machine.parse_bytes(amount, "m") for amount in amounts] == [
        *(2 * 10**9, 512 * 10**6, 3 * 2**29, 64 * 10**6, 10**9, 10**12)
    ]
    for wrong in ("", "GB", "2 apples", "-1GB", "1e9", "2GBs", "two"):
        with pytest.raises(
            ConfigError,
            match=r"m must be an amount of memory such as '2GB', '512MB' or bytes, found",
        ):
            machine.parse_bytes(wrong, "m")


def test_the_setting_of_a_recipe(monkeypatch):
    monkeypatch.setattr("fieldwise.runs.data_settings.available_memory", lambda: 8 * 10**9)
    assert DataSettings(path="a.csv").memory_bytes == 4 * 10**9
    assert load_recipe("simulated/fm", ["data.memory=2GB"]).data.memory_bytes == 2 * 10**9
    assert load_recipe("simulated/fm", ["data.memory=70000000"]).data.memory_bytes == 7 * 10**7
    with pytest.raises(ConfigError, match=r"data\.memory must be at least 64MB, found '1MB'"):
        load_recipe("simulated/fm", ["data.memory=1MB"])
    with pytest.raises(
        ConfigError, match=r"data\.memory must be an amount of memory .* found 'much'"
    ):
        load_recipe("simulated/fm", ["data.memory=much"])


def test_a_container_leaves_less_than_the_machine(tmp_path, monkeypatch):
    meminfo, group = tmp_path / "meminfo", tmp_path / "cgroup"
    group.mkdir()
    monkeypatch.setattr(machine, "_MEMINFO", meminfo)
    monkeypatch.setattr(machine, "_CGROUP", group)
    meminfo.write_text("MemTotal: 9000 kB\nMemAvailable:    5000 kB\n")
    assert machine.available_memory() == 5000 * 1024
    (group / "memory.max").write_text("max\n")
    assert machine.available_memory() == 5000 * 1024
    (group / "memory.max").write_text("3000000\n")
    (group / "memory.current").write_text("2500000\n")
    (group / "memory.stat").write_text("file 900000\ninactive_file 700000\n")
    assert machine.available_memory() == 3_000_000 - 2_500_000 + 700_000, (
        "cached files can be dropped"
    )
    (group / "memory.max").unlink()
    (group / "memory").mkdir()
    (group / "memory" / "memory.limit_in_bytes").write_text("1000000")
    (group / "memory" / "memory.usage_in_bytes").write_text("400000")
    (group / "memory" / "memory.stat").write_text("total_inactive_file 100000\n")
    assert machine.available_memory() == 700_000


FAULTS = """
import resource
import numpy as np
from fieldwise.storage.machine import arrays_returned

def faults():
    np.ones(750_000)  # 6 MB
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(20):
        np.ones(750_000)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

with arrays_returned():
    inside = faults()
print(inside, faults())
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc keeps freed arrays")
def test_arrays_are_returned_in_the_context_alone():
    result = subprocess.run(
        [sys.executable, "-c", FAULTS], capture_output=True, text=True, check=True
    ).stdout
    inside, after = map(int, result.split())
    # a new array's pages are faulted in each time: 1,465 of 4 KiB, or 3 huge ones
    assert inside >= 20
    assert after < 5


@pytest.mark.parametrize(
    ("value", "threads"), [("3", 3), ("4,2", 4), ("", None), ("0", None), ("many", None)]
)
def test_the_threads_that_the_environment_sets(monkeypatch, value, threads):
    monkeypatch.setenv("OMP_NUM_THREADS", value)
    assert threads_set() == threads
