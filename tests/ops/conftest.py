"""What tests of several operations share."""

import pytest
import torch


@pytest.fixture
def same_on_all_threads():
    """Runs work on 1, 2 and 5 threads, and asserts that its tensors are equal to the bit.

    The work must be large enough for several threads: `worth` in native/parallel.h keeps less than
    2^18 numbers a thread on one.
    """
    before = torch.get_num_threads()

    def check(work):
        results = []
        for threads in (1, 2, 5):
            torch.set_num_threads(threads)
            results.append(work())
        for other in results[1:]:
            assert all(torch.equal(one, two) for one, two in zip(results[0], other, strict=True))
        return results[0]

    yield check
    torch.set_num_threads(before)
