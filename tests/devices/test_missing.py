"""A warning where a CPU has no native operations."""

import numpy as np
import pytest
import torch

from fieldwise import FM, Layout, TrainingSettings
from fieldwise.data.table import EncodedTable
from fieldwise.ops import native
from fieldwise.ops.native import Native, backends_here, missing_on
from fieldwise.training.fit import Training
from fieldwise.training.objective import Objective

CUDA, MPS, CPU = (torch.device(name) for name in ("cuda", "mps", "cpu"))


def test_other_devices_have_plain_pytorch_and_no_warning():
    for device in (CUDA, MPS):
        assert missing_on(device) is None
        assert set(backends_here(device).values()) == {"plain PyTorch"}


def test_a_cpu_without_the_native_library_warns_at_the_start_of_a_run(monkeypatch):
    monkeypatch.setattr(
        native, "NATIVE", Native(None, "none", False, "no native library: not built")
    )
    assert (
        missing_on(CPU)
        == "operations run as plain PyTorch, many times slower: no native library: not built"
    )
    layout, ids = Layout.of_sizes([3]), np.zeros((4, 1), np.int32)
    rows = EncodedTable(
        layout, ids, *(np.zeros(size, np.float32) for size in ((4, 0), 0, 1)), y=np.zeros(4)
    )
    with pytest.warns(UserWarning, match="many times slower: no native library"):
        Training(
            network=FM(embedding_dim=2).build(layout), train=rows, valid=rows, settings=TrainingSettings(epochs=1),
            objective=Objective(task="regression"), seed=0,
        ).run()  # fmt: skip
