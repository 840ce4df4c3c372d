"""Tensors as files: the bytes of safetensors' own writer, without a second copy in memory."""

import io
import tracemalloc

import pytest
import torch
from safetensors.torch import load, save

from fieldwise.storage.tensors import KINDS, PIECE, read_tensors, write_tensors


@pytest.fixture
def tensors():
    """Every type, names in no order, one with a letter beyond ASCII, and shapes with none, no and one number."""
    found = {f"z{k}.weight": torch.arange(k + 3).to(kind) for k, kind in enumerate(reversed(KINDS))}
    found |= {f"a.{k}": torch.arange(6).view(2, 3).to(kind) for k, kind in enumerate(KINDS)}
    return found | {"größe": torch.zeros(()), "none": torch.zeros(0, 4), "turned": torch.rand(3, 5).t()}


def test_the_bytes_are_those_of_safetensors(tensors):
    file = io.BytesIO()
    write_tensors(file, tensors)
    assert file.getvalue() == save({name: tensor.contiguous() for name, tensor in tensors.items()})


def test_what_is_written_is_read(tensors, tmp_path):
    path = tmp_path / "tensors"
    with path.open("wb") as file:
        write_tensors(file, tensors)
    found = read_tensors(path)
    assert found.keys() == tensors.keys() == load(path.read_bytes()).keys()
    assert all(torch.equal(found[name], tensor) for name, tensor in tensors.items())


def test_a_large_tensor_is_not_copied(tmp_path):
    large = torch.zeros(5 * PIECE // 4 + 3)
    tracemalloc.start()
    with (tmp_path / "large").open("wb") as file:
        write_tensors(file, {"large": large})
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < PIECE
    assert (tmp_path / "large").stat().st_size > large.nbytes
