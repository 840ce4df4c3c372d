"""Memory that the processes of one machine share: the answers of Gloo, and ends that are told."""

import platform
import sys

import pytest
from ranks import in_processes

pytestmark = pytest.mark.skipif(
    sys.platform != "linux" or platform.machine() != "x86_64", reason="such memory needs Linux on x86-64"
)
LOST = "another of the 3 processes has"


@pytest.fixture(scope="module")
def found():
    return in_processes("distributed.near_runs", "same,order,common,unable,mismatched,late,broken", 3)


def test_the_answers_are_those_of_gloo(found):
    assert found["same"][3] == [[]] * 3


def test_a_late_process_misses_nothing(found):
    assert found["order"][3] == [[100 * k + rank for k in range(40) for rank in range(3)]] * 3


def test_what_one_writes_all_read(found):
    assert found["common"][3] == [[0, [1, 2, 3, 0, 0], 10_000]] * 3


def test_all_do_without_where_one_cannot(found):
    assert found["unable"][3] == [[True] * 5] * 3


def test_processes_that_do_not_do_the_same_end(found):
    for sentence in found["mismatched"][3]:
        assert sentence.startswith(LOST)


def test_a_process_that_does_not_come_is_given_up(found):
    first, _, last = found["late"][3]
    for sentence in (first, last):
        assert sentence.startswith(f"{LOST} not answered")


def test_a_process_that_broke_off_has_left(found):
    for sentence in found["broken"][3]:
        assert sentence.startswith(f"{LOST} ended")


def test_two_processes_add_in_the_same_order():
    assert in_processes("distributed.near_runs", "same", 2)["same"][2] == [[]] * 2
