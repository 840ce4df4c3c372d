"""Amounts of memory, as settings give them and as machines and containers have them."""

import platform
import subprocess
import sys

import pytest

from fieldwise.errors import ConfigError
from fieldwise.runs.data_settings import DataSettings
from fieldwise.runs.recipe import load_recipe
from fieldwise.storage import memory


def test_amounts_are_parsed():
    amounts = ["2GB", "512 mb", "1.5GiB", "64000000", 10**9, "1T"]
    assert [memory.parse_bytes(amount, "m") for amount in amounts] == [
        *(2 * 10**9, 512 * 10**6, 3 * 2**29, 64 * 10**6, 10**9, 10**12)
    ]
    for wrong in ("", "GB", "2 apples", "-1GB", "1e9", "2GBs", "two"):
        with pytest.raises(ConfigError, match=r"m must be an amount of memory such as '2GB', '512MB' or bytes, found"):
            memory.parse_bytes(wrong, "m")


def test_the_setting_of_a_recipe(monkeypatch):
    monkeypatch.setattr("fieldwise.runs.data_settings.available_memory", lambda: 8 * 10**9)
    assert DataSettings(path="a.csv").memory_bytes == 4 * 10**9
    assert load_recipe("simulated/fm", ["data.memory=2GB"]).data.memory_bytes == 2 * 10**9
    assert load_recipe("simulated/fm", ["data.memory=70000000"]).data.memory_bytes == 7 * 10**7
    with pytest.raises(ConfigError, match=r"data\.memory must be at least 64MB, found '1MB'"):
        load_recipe("simulated/fm", ["data.memory=1MB"])
    with pytest.raises(ConfigError, match=r"data\.memory must be an amount of memory .* found 'much'"):
        load_recipe("simulated/fm", ["data.memory=much"])


def test_a_container_leaves_less_than_the_machine(tmp_path, monkeypatch):
    meminfo, group = tmp_path / "meminfo", tmp_path / "cgroup"
    group.mkdir()
    monkeypatch.setattr(memory, "_MEMINFO", meminfo)
    monkeypatch.setattr(memory, "_CGROUP", group)
    meminfo.write_text("MemTotal: 9000 kB\nMemAvailable:    5000 kB\n")
    assert memory.available_memory() == 5000 * 1024
    (group / "memory.max").write_text("max\n")
    assert memory.available_memory() == 5000 * 1024
    (group / "memory.max").write_text("3000000\n")
    (group / "memory.current").write_text("2500000\n")
    (group / "memory.stat").write_text("file 900000\ninactive_file 700000\n")
    assert memory.available_memory() == 3_000_000 - 2_500_000 + 700_000, "cached files can be dropped"
    (group / "memory.max").unlink()
    (group / "memory").mkdir()
    (group / "memory" / "memory.limit_in_bytes").write_text("1000000")
    (group / "memory" / "memory.usage_in_bytes").write_text("400000")
    (group / "memory" / "memory.stat").write_text("total_inactive_file 100000\n")
    assert memory.available_memory() == 700_000


FAULTS = """
import resource
import numpy as np
from fieldwise.storage.memory import arrays_returned

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
    found = subprocess.run([sys.executable, "-c", FAULTS], capture_output=True, text=True, check=True).stdout
    inside, after = map(int, found.split())
    assert inside >= 20  # a new array's pages are faulted in each time: 1,465 of 4 KiB, or 3 huge ones
    assert after < 5
