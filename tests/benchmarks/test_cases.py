"""Every case at its tiny size without peers: each contender of this environment loads, takes a turn and measures."""

import json
import math

import pytest
from benchmarks.case import MACHINE, Contender, NotAvailableError, Settings
from benchmarks.cases import CASES
from benchmarks.contenders.ours import known_settings
from benchmarks.log import Log, random_log
from benchmarks.worker import Process


@pytest.mark.parametrize("name", [pytest.param(n, marks=pytest.mark.slow if n == "preparing" else ()) for n in CASES])
def test_every_case_runs(name, tmp_path):
    case = CASES[name](Settings(folder=tmp_path, size="tiny", threads=1))
    measured = {MACHINE: None}
    names = [contender.name for contender in case.contenders]
    assert len(set(names)) == len(names)
    for contender in case.contenders:
        if contender.peers:
            continue
        measured[contender.name] = turn_of(contender)
    assert sum(m is not None for m in measured.values()) >= 1
    for target in case.targets:
        for side, measure in (target.top, target.bottom):
            found = measured.get(side)
            assert side in (*names, MACHINE)
            if found is not None:
                assert found[measure] > 0


def turn_of(contender):
    """The measures of one turn, in this process; None where the contender cannot take part here."""
    process = Process()
    options = json.loads(json.dumps({"threads": 1, **contender.options}))  # as it crosses to a worker
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
    found = turn_of(Contender(name=MACHINE, make="ours:rates"))
    assert set(found) >= {"GFLOP/s float32", "GFLOP/s bfloat16", "copy GB/s"}


def test_logs_come_back_from_disk(tmp_path):
    log = random_log(500, (3, 50), valid_rows=20, seed=1)
    log.save(tmp_path / "log")
    back = Log.open(tmp_path / "log")
    assert back.sizes == (3, 50)
    assert back.offsets.tolist() == [0, 3]
    assert (back.ids == log.ids).all()
    assert back.ids.shape == (500, 2)
    assert back.valid_ids.shape == (20, 2)
    assert (log.ids.min(0) >= 0).all()
    assert (log.ids.max(0) < [3, 50]).all()
    assert 0.3 < log.y.mean() < 0.7
    assert back.first(7).y.shape == (7,)


def test_settings_of_other_versions_are_no_faults():
    with pytest.raises(NotAvailableError, match="no training setting no_such"):
        known_settings({"batch_size": 10, "no_such": 1})
    assert known_settings({"batch_size": 10}).batch_size == 10
