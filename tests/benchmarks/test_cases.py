"""Every case at its tiny size without peers: each contender of this environment loads, takes a turn and measures."""

import json
import math

import pytest
from benchmarks.case import MACHINE, Contender, Settings
from benchmarks.cases import CASES
from benchmarks.worker import Process


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=pytest.mark.slow if n == "preparing" else ()) for n in CASES]
)
def test_every_case_runs(name, tmp_path):
    case = CASES[name](Settings(folder=tmp_path, size="tiny", threads=1))
    names = [contender.name for contender in case.contenders]
    assert len(set(names)) == len(names)
    measured = [turn_of(contender) for contender in case.contenders if not contender.peers]
    assert any(measured)
    for target in case.targets:
        assert {target.contender, target.reference} <= set(names)


def turn_of(contender):
    """The measures of one turn, in this process; None where the contender cannot take part here."""
    process = Process()
    # as it crosses to a worker
    options = json.loads(json.dumps({"threads": 1, **contender.options}))
    made = process.answer({"do": "make", "make": contender.make, "options": options})
    if "absent" in made:
        return None
    assert "facts" in made, made
    json.dumps(made)
    reply = process.answer({"do": "turn"})
    assert "measures" in reply, reply
    assert all(math.isfinite(v) and v > 0 for v in reply["measures"].values())
    return reply["measures"]


def test_the_machine_is_measured():
    result = turn_of(Contender(name=MACHINE, make="ours:rates"))
    assert set(result) >= {"GFLOP/s float32", "GFLOP/s bfloat16", "copy GB/s"}
