"""The protocol between harness and workers, with contenders that only count."""

from benchmarks.case import Contender
from benchmarks.turns import take_turns


def test_processes_warm_up_and_take_turns(monkeypatch):
    monkeypatch.setenv("OMP_WAIT_POLICY", "PASSIVE")
    contenders = [
        Contender(name="one", make="toy:counting", options={"start": 10}),
        Contender(name="two", make="toy:counting", options={"start": 20}),
    ]
    one, two = take_turns(contenders, threads=2, repeats=3)
    assert one.samples["count"] == [11, 12, 13]  # the first turn warmed up
    assert two.samples["count"] == [21, 22, 23]
    assert all(len(outcome.samples["seconds"]) == 3 for outcome in (one, two))
    assert (one.facts["threads"], one.facts["OMP"], two.facts["threads"], two.facts["OMP"]) == (
        2,
        "2",
        2,
        "2",
    )
    assert one.facts["waits"] is None
    assert one.facts["process"] != two.facts["process"]


def test_a_contender_that_cannot_take_part_leaves_the_others(monkeypatch, tmp_path):
    monkeypatch.setenv("FIELDWISE_PEERS", str(tmp_path / "none"))
    contenders = [
        Contender(name="peer", make="toy:counting", options={"start": 0}, peers=True),
        Contender(name="unable", make="toy:absent", options={"why": "no such setting"}),
        Contender(name="missing", make="no_such_module:turn"),
        Contender(name="good", make="toy:counting", options={"start": 1}),
    ]
    peer, unable, missing, good = take_turns(contenders, threads=1, repeats=1)
    assert "no environment of peers" in peer.absent
    assert unable.absent == "no such setting"
    assert "is not installed" in missing.absent
    assert [outcome.error for outcome in (peer, unable, missing, good)] == [None] * 4
    assert good.samples["count"] == [2]


def test_a_contender_that_fails_midway_gives_no_samples():
    failing = [
        Contender(name=str(e), make="toy:failing", options={"good": 2, "exits": e})
        for e in (False, True)
    ]
    good = Contender(name="good", make="toy:counting", options={"start": 0})
    raises, exits, counts = take_turns([*failing, good], threads=1, repeats=3)
    assert "ValueError: no more turns" in raises.error
    assert "code 3: last words" in exits.error
    assert raises.samples == exits.samples == {}
    assert counts.samples["count"] == [1, 2, 3]
