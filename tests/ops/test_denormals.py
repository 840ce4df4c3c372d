"""Denormal numbers count as zero inside, on every thread, and are as before outside."""

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn

from fieldwise.layout import Batch
from fieldwise.models.scoring import score_batches
from fieldwise.ops.denormals import flushed_denormals
from fieldwise.ops.native import NATIVE

TINY = 1e-39  # below float32's smallest normal number, 1.2e-38


@pytest.fixture
def two_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def kept(numbers: int = 1 << 20) -> float:
    """Share of denormal numbers that a product over all of PyTorch's threads keeps; their bits are counted."""
    return float(((torch.full((numbers,), TINY) * 0.5).view(torch.int32) != 0).float().mean())


@pytest.mark.skipif(not NATIVE.threaded, reason="without the native library only the calling thread flushes")
def test_all_threads_flush_inside_and_none_after(two_threads: None) -> None:
    assert kept() == 1.0
    with flushed_denormals():
        assert kept() == 0.0
    assert kept() == 1.0


def test_the_calling_thread_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fieldwise.ops.denormals.NATIVE", type(NATIVE)(None, "none", False, "left out"))
    with flushed_denormals():
        assert kept(8) == 0.0
    assert kept(8) == 1.0


def test_what_was_flushed_before_stays_so() -> None:
    torch.set_flush_denormal(True)
    try:
        with flushed_denormals():
            pass
        assert kept(8) == 0.0
    finally:
        torch.set_flush_denormal(False)


def test_an_error_inside_leaves_it_as_it_was() -> None:
    with pytest.raises(ValueError, match="inside"), flushed_denormals():
        raise ValueError("inside")
    assert kept(8) == 1.0


class Tiny(nn.Module):
    """Scores each row with a product too small for a normal number."""

    def forward(self, batch: Batch) -> Tensor:
        return torch.full((3,), TINY) * 0.5


def test_scoring_flushes() -> None:
    assert (score_batches(Tiny(), [(None, None)]) == 0).all()  # type: ignore[list-item]
    assert kept(8) == 1.0
