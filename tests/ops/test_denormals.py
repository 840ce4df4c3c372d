"""Denormal numbers count as zero inside, on every thread, and are as before outside."""

import multiprocessing
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn

from fieldwise import FM, Batch, Layout
from fieldwise.layers.candidates import Part, Split
from fieldwise.ops.devices import flushed_denormals
from fieldwise.ops.native import NATIVE
from fieldwise.scoring.batches import score_batches
from fieldwise.scoring.candidates import score_candidates

TINY = 1e-39  # below float32's smallest normal number, 1.2e-38

all_threads = pytest.mark.skipif(
    not NATIVE.threaded, reason="without the native library only one thread flushes"
)


@pytest.fixture(autouse=True)
def two_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        assert kept() == 1.0
        yield
        assert kept() == 1.0
    finally:
        torch.set_num_threads(before)
        torch.set_flush_denormal(False)


def kept(numbers: int = 1 << 20) -> float:
    """Share of denormal numbers that a product over all of PyTorch's threads keeps; their bits are counted."""
    tiny = torch.full((numbers,), TINY, dtype=torch.float32)
    return float(((tiny * 0.5).view(torch.int32) != 0).double().mean())


@all_threads
def test_all_threads_flush_inside_until_the_outer_one_of_two_ends() -> None:
    with flushed_denormals():
        with flushed_denormals():
            assert kept() == 0.0
        assert kept() == 0.0


@all_threads
def test_an_error_inside_leaves_it_as_it_was() -> None:
    with pytest.raises(ValueError, match="inside"), flushed_denormals():
        raise ValueError("inside")


@pytest.mark.parametrize("native", [True, False])
def test_the_calling_thread_flushes_in_any_case(
    monkeypatch: pytest.MonkeyPatch, native: bool
) -> None:
    if not native:
        monkeypatch.setattr(
            "fieldwise.ops.devices.NATIVE", type(NATIVE)(None, "none", False, "left out")
        )
    with flushed_denormals():
        assert kept(8) == 0.0


def test_what_was_flushed_before_stays_so() -> None:
    torch.set_default_dtype(torch.float64)  # in which 1e-39 is a normal number
    torch.set_flush_denormal(True)
    try:
        with flushed_denormals():
            pass
        assert kept(8) == 0.0
    finally:
        torch.set_flush_denormal(False)
        torch.set_default_dtype(torch.float32)


def _child(answer: "multiprocessing.Queue[float]") -> None:
    with flushed_denormals():
        answer.put(kept(8))


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_does_not_wait_for_its_parents_threads() -> None:
    with flushed_denormals():
        kept()
    processes = multiprocessing.get_context("fork")
    answer: multiprocessing.Queue[float] = processes.Queue()
    child = processes.Process(target=_child, args=(answer,))
    child.start()
    try:
        assert answer.get(timeout=120) == 0.0
    finally:
        child.kill()
        child.join()


class Tiny(nn.Module):
    """Scores each row with a product too small for a normal number."""

    def forward(self, batch: Batch) -> Tensor:
        return torch.full((batch.size,), TINY) * 0.5


LAYOUT = Layout.of_sizes([3, 3], roles=["user", "item"])
NONE = torch.empty(0)


def rows(ids: list[list[int]]) -> Batch:
    return Batch(torch.tensor(ids), torch.empty(len(ids), 0), NONE.long(), NONE.long(), NONE)


def test_scoring_flushes() -> None:
    assert (score_batches(Tiny(), [(rows([[0, 3], [1, 4]]), None)]) == 0).all()


def test_scoring_candidates_flushes() -> None:
    network = FM(embedding_dim=1).build(LAYOUT)
    with torch.no_grad():
        network.first_order.embedding.weight.zero_()
        network.first_order.bias.zero_()
        network.embedding.weight.fill_(2e-20)  # a product of 4e-40
    split = Split.by_role(LAYOUT)
    sides = Part(split.context, rows([[2]])), Part(split.candidates, rows([[3], [4]]))
    scores = score_candidates(network, split, *sides)
    assert (scores.view(torch.int32) == 0).all()
