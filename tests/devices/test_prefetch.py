"""Batches on their way to a device."""

import threading

import pytest
import torch

from fieldwise import Batch
from fieldwise.scoring.batches import prefetch
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
    assert prefetch(given, torch.device("cpu")) is given


def test_every_batch_arrives_in_order_with_its_tensors(device):
    results = list(prefetch(items(5), device))
    assert [type(batch) for batch, _, _ in results] == [Batch] * 5
    for (batch, y, weight), (given, target, _) in zip(results, items(5), strict=True):
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

    batches = prefetch(told(), device)
    next(batches)
    assert read.acquire(timeout=120)
    assert read.acquire(timeout=120), "the second was not read before it was asked for"


def test_the_reader_is_closed_and_its_errors_are_raised(device):
    closed = []
    given = items(9, closed)
    batches = prefetch(given, device)
    next(batches)
    batches.close()
    assert closed == [True]

    def broken():
        yield next(items(1))
        raise OSError("a window cannot be read")

    with pytest.raises(OSError, match="a window"):
        list(prefetch(broken(), device))
