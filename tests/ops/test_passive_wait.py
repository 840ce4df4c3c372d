"""Idle OpenMP threads sleep, measured by the processor seconds of a process that mostly sleeps."""

import json
import os
import subprocess
import sys

import pytest
import torch

from fieldwise.ops.native import loaded_openmp

SCRIPT = """
import json, time
import torch
from fieldwise.ops.devices import use_passive_openmp_wait

numbers = torch.ones(1 << 18)

def seconds():
    began = time.process_time()
    for _ in range(150):
        numbers.add_(1)
        time.sleep(0.002)
    return time.process_time() - began

seconds()
before = seconds()
done = use_passive_openmp_wait(), use_passive_openmp_wait()
seconds()
print(json.dumps({"done": done, "before": before, "after": seconds(), "threads": torch.get_num_threads()}))
"""


def measured(**settings: str) -> dict[str, object]:
    names = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "OMP_NUM_THREADS")
    environment = {name: value for name, value in os.environ.items() if name not in names}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        env={**environment, **settings},
        capture_output=True,
        text=True,
        check=True,
    )
    return json.loads(done.stdout)


def gnu() -> bool:
    return any("libgomp" in path for path in loaded_openmp())


@pytest.mark.skipif(
    not gnu() or len(os.sched_getaffinity(0)) < 2,
    reason="GCC's OpenMP and two processors are needed",
)
@pytest.mark.slow  # it compares processor seconds
def test_idle_threads_sleep():
    result = measured(OMP_NUM_THREADS="2")
    assert result["done"] == [True, True]
    assert result["threads"] == 2
    assert result["after"] < 0.5 * result["before"]


@pytest.mark.parametrize(
    "settings",
    [{"OMP_WAIT_POLICY": "ACTIVE"}, {"GOMP_SPINCOUNT": "1000"}, {"OMP_NUM_THREADS": "1"}],
)
def test_what_is_set_by_hand_and_one_thread_stay(settings, monkeypatch):
    from fieldwise.ops.devices import use_passive_openmp_wait

    for name in ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT"):
        monkeypatch.delenv(name, raising=False)
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(torch, "get_num_threads", lambda: int(settings.get("OMP_NUM_THREADS", 2)))
    assert use_passive_openmp_wait() is False
