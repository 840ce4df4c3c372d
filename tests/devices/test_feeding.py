"""Batches on their way to a device."""

import contextlib
import threading
from typing import ClassVar

import pytest
import torch
from second_device import SecondTensor

from fieldwise.layout import Batch
from fieldwise.scoring import feeding
from fieldwise.scoring.feeding import fed, moved, pack, packed_size, unpacked
from fieldwise.testing import random_batch, small_layout


def items(count, closed=None):
    layout = small_layout()
    try:
        for k in range(count):
            yield random_batch(layout, k + 1, k), torch.full((k + 1, 1), float(k)), None
    finally:
        if closed is not None:
            closed.append(True)


def test_on_the_cpu_nothing_is_copied():
    given = items(2)
    assert fed(given, torch.device("cpu")) is given


def test_every_batch_arrives_in_order_with_its_tensors(device):
    found = list(fed(items(5), device))
    assert [type(batch) for batch, _, _ in found] == [Batch] * 5
    for (batch, y, weight), (given, target, _) in zip(found, items(5), strict=True):
        assert weight is None
        for one, other in zip((*batch, y), (*given, target), strict=True):
            assert (one.device, one.dtype) == (device, other.dtype)
            assert torch.equal(one.cpu(), other)


def test_the_next_batch_is_read_while_the_present_one_computes(device):
    read = threading.Semaphore(0)

    def told():
        for item in items(3):
            read.release()
            yield item

    batches = fed(told(), device)
    next(batches)
    assert read.acquire(timeout=20)
    assert read.acquire(timeout=20), "the second was not read before it was asked for"


def test_what_is_left_is_closed(device):
    closed = []
    batches = fed(items(9, closed), device)
    next(batches)
    batches.close()
    assert closed == [True]


def test_an_error_of_the_reader_is_told(device):
    def broken():
        yield next(items(1))
        raise OSError("a window cannot be read")

    with pytest.raises(OSError, match="a window"):
        list(fed(broken(), device))


def test_tensors_share_a_buffer_of_bytes(device):
    batch = random_batch(small_layout(), 5)
    tensors = list(batch)
    buffer = torch.empty(packed_size(tensors) + 64, dtype=torch.uint8)
    pack(tensors, buffer)
    for found, given in zip(unpacked(tensors, buffer.to(device)), tensors, strict=True):
        assert found.dtype == given.dtype
        assert torch.equal(found.cpu(), given)
    assert all(torch.equal(a.cpu(), b) for a, b in zip(moved(batch, device), batch, strict=True))


class Stream:
    """A stream that copies at once, and notes who waits for what."""

    def __init__(self, *_):
        self.waits = []

    def wait_event(self, event):
        assert event.records, "nothing was recorded to wait for"
        self.waits.append(event)


class Event:
    """An event that counts what is recorded, and what the host waits for."""

    made: ClassVar[list["Event"]] = []

    def __init__(self):
        self.records = self.synchronized = 0
        self.made.append(self)

    def record(self, stream):
        assert isinstance(stream, Stream)
        self.records += 1

    def synchronize(self):
        self.synchronized += 1


def test_page_locked_buffers_take_turns_and_each_waits_for_its_last_copy(device, monkeypatch):
    """The path of a GPU with streams and events that are only counted: what was given arrives, whatever is reused."""
    if device.type == "cuda":
        pytest.skip("with a GPU `fed` itself takes this path")
    present, buffers = Stream(), []
    monkeypatch.setattr(Event, "made", [])
    monkeypatch.setattr(torch.cuda, "Stream", Stream)
    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "stream", lambda _: contextlib.nullcontext())
    monkeypatch.setattr(torch.cuda, "current_stream", lambda _: present)
    monkeypatch.setattr(SecondTensor, "record_stream", lambda _, stream: used.append(stream), raising=False)
    monkeypatch.setattr(
        feeding, "_pinned", lambda size: buffers.append(torch.empty(size, dtype=torch.uint8)) or buffers[-1]
    )
    used = []
    stage = feeding._Pinned(device)
    found = [stage(item)() for item in items(6)]
    for (batch, y, weight), (given, target, _) in zip(found, items(6), strict=True):
        assert weight is None
        assert all(torch.equal(a.cpu(), b) for a, b in zip((*batch, y), (*given, target), strict=True))
    assert [event.records for event in Event.made] == [3, 3]
    assert [event.synchronized for event in Event.made] == [3, 3], "a buffer is written before its last copy is done"
    assert present.waits == [Event.made[1], Event.made[0]] * 3
    assert used == [present] * 6, "memory may be given away while the present stream reads it"
    assert len(buffers) == 6, "batches grow here, so each needs a larger buffer"
    assert [stage(item)() for item in items(2)]
    assert len(buffers) == 6, "smaller ones reuse them"
