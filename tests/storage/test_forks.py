"""Processes forked from one that has computed."""

import subprocess
import sys

import pytest

FORKED = """
import os, sys
from fieldwise import FieldwiseError, as_table
{before}
sys.stdout.flush()
pid = os.fork()
if not pid:
    try:
        print(as_table({{"n": [1, 2]}}).height, flush=True)
    except FieldwiseError as e:
        print(e, flush=True)
    os._exit(0)
os.waitpid(pid, 0)
print(as_table({{"n": [1, 2, 3]}}).height)
"""


def said(before):
    command = [sys.executable, "-W", "ignore", "-c", FORKED.format(before=before)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="processes cannot be forked here")


def test_a_child_forked_after_a_table_was_read_is_told_instead_of_waiting_for_ever():
    child, parent = said('as_table({"n": [1]})')
    assert child.startswith("a forked process cannot read tables or predict once its parent has")
    assert "multiprocessing.get_context('spawn')" in child
    assert "--preload" in child
    assert parent == "3"


def test_a_child_forked_after_a_model_was_asked_for_is_told_too():
    child, parent = said(
        "from fieldwise import Recommender\ntry:\n    Recommender.load('nowhere')\nexcept FieldwiseError:\n    pass"
    )
    assert child.startswith("a forked process cannot read tables or predict once its parent has")
    assert parent == "3"


@pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="only Linux names a process's threads"
)
def test_a_child_of_one_that_has_used_polars_by_itself_is_told_too():
    child, parent = said("import polars\npolars.DataFrame({'n': [1, 2]}).group_by('n').len()")
    assert child.startswith("a forked process cannot read tables or predict once its parent has")
    assert parent == "3"


def test_a_child_forked_before_computes():
    assert said("") == ["2", "3"]
