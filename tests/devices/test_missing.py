"""What has no fast operation on a device is told: by `doctor`, and where a run begins."""

import numpy as np
import pytest
import torch

from fieldwise.data.table import EncodedTable
from fieldwise.layout import Layout
from fieldwise.models import FM
from fieldwise.ops import backends, use_ops
from fieldwise.ops.backends import backends_here, missing_on
from fieldwise.ops.native import Native
from fieldwise.training.fit import Training
from fieldwise.training.objective import Objective
from fieldwise.training.settings import TrainingSettings

CUDA, MPS, CPU = (torch.device(name) for name in ("cuda", "mps", "cpu"))


def test_a_gpu_without_triton_is_told(monkeypatch):
    monkeypatch.setattr(backends, "TRITON_READY", False)
    monkeypatch.setattr(backends, "TRITON_WHY", "Triton is not installed")
    assert missing_on(CUDA) == (
        "AFM pair attention, MaxSim and dropout run as plain PyTorch on cuda, which takes more time and memory: "
        "Triton is not installed, pip install 'fieldwise[triton]'"
    )
    assert backends_here(CUDA)["MaxSim"] == "plain PyTorch, Triton is not installed"
    with use_ops("plain"):
        assert missing_on(CUDA) is None, "it was asked for"
    monkeypatch.setattr(backends, "TRITON_READY", True)
    assert missing_on(CUDA) is None
    assert backends_here(CUDA) == {name: "Triton" if fast else "plain PyTorch" for name, fast in backends.OPS.items()}


def test_a_cpu_without_the_native_library_is_told(monkeypatch):
    monkeypatch.setattr(backends, "NATIVE", Native(None, "none", False, "no native library: not built"))
    assert missing_on(CPU) == "operations run as plain PyTorch, many times slower: no native library: not built"


def test_a_run_begins_with_what_is_missing(name, device):
    layout, ids = Layout.of_sizes([3]), np.zeros((4, 1), np.int32)
    rows = EncodedTable(layout, ids, *(np.zeros(size, np.float32) for size in ((4, 0), 0, 1)), y=np.zeros(4))
    settings = TrainingSettings(device=name)
    if missing_on(device) is None:
        pytest.skip(f"{device} has every operation")
    with pytest.warns(UserWarning, match=f"MaxSim and dropout run as plain PyTorch on {device.type}"):
        Training(
            network=FM(embedding_dim=2).build(layout), train=rows, valid=rows, settings=settings,
            objective=Objective(task="regression"), seed=0,
        )  # fmt: skip
