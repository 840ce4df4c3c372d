"""Merging of results, targets, and the page that is written from them."""

import json

import pytest
from benchmarks.__main__ import main
from benchmarks.case import MACHINE, Case, Contender, Settings, Target, steps_to_time
from benchmarks.page import page
from benchmarks.results import judge, load, merge, record
from benchmarks.turns import Outcome

OURS, PEER, PROBE = (Contender(name=n, make="toy:counting") for n in ("ours", "peer", MACHINE))
CASE = Case(
    title="A thing",
    about="How it is done.",
    contenders=(OURS, PEER),
    measures=("seconds", "GFLOP/s"),
    targets=(Target("ours", "peer", 3), Target("peer", "ours", 1), Target("ours", "nobody", 2)),
)
OUTCOMES = [
    Outcome(OURS, {"rows": 1200}, {"seconds": [1.0, 2.0, 1.5], "GFLOP/s": [30.0, 40.0, 50.0]}),
    Outcome(PEER, {}, {"seconds": [4.0, 9.0, 5.0]}),
    Outcome(PROBE, {"torch": "2"}, {"rate": [100.0, 100.0, 100.0], "seconds": [1.0, 1.0, 1.0]}),
]


def recorded(tmp_path, case=CASE, outcomes=OUTCOMES):
    return record(
        case,
        Settings(folder=tmp_path),
        outcomes,
        repeats=3,
        command="python -m benchmarks run thing",
    )


def test_targets_are_ratios_of_medians(tmp_path):
    faster, slower = recorded(tmp_path)["targets"]  # the third had nothing to be measured against
    assert (faster["value"], faster["goal"], faster["met"]) == (5.0 / 1.5, 3, True)
    assert (faster["low"], faster["high"]) == (pytest.approx((10 / 3 + 4) / 2), pytest.approx(4.25))
    assert (slower["value"], slower["met"]) == (0.3, False)


def test_cases_merge_one_by_one(tmp_path):
    path = tmp_path / "results.json"
    merge(path, "first", {"date": "old"})
    merge(path, "second", {"date": "kept"})
    merge(path, "first", {"date": "new"})
    assert load(path)["cases"] == {"first": {"date": "new"}, "second": {"date": "kept"}}
    assert len(path.read_text().splitlines()) == 4, "a line a record"
    path.write_text(json.dumps({"format": 99, "cases": {}}))
    with pytest.raises(SystemExit, match="format 99"):
        load(path)


def test_the_page_holds_what_was_measured(tmp_path):
    outcomes = [
        *OUTCOMES[:2],
        Outcome(Contender(name="gone", make="x:y"), absent="not here | nowhere"),
        OUTCOMES[2],
    ]
    result = page({"format": 1, "cases": {"thing": recorded(tmp_path, outcomes=outcomes)}})
    lines = result.splitlines()
    assert "| [thing](#thing) | ours against peer | 3 × | 3.33 × (3.67–4.25) | yes |" in lines
    assert "| [thing](#thing) | peer against ours | 1 × | 0.3 × (0.236–0.275) | no |" in lines
    assert "| ours | 1.5 (1.25–1.75) | 40 (35–45) | 1 | rows 1,200 |" in lines
    assert "| peer | 5 (4.5–7) |  | 3.33 |  |" in lines
    assert "| gone |  |  |  | not measured: not here / nowhere |" in lines
    provenance = lines[-1]
    for part in (
        "3 rounds",
        "2 threads",
        "size full",
        "`python -m benchmarks run thing`",
        "rate 100 (100–100)",
    ):
        assert part in provenance
    assert str(tmp_path) not in result


def test_run_measures_merges_and_names_its_command(tmp_path, monkeypatch, capsys):
    toy = Case(
        title="Toy",
        about="Counts.",
        contenders=(Contender(name="toy", make="toy:counting", options={"start": 5}),),
    )
    monkeypatch.setattr("benchmarks.__main__.EVERY", {"toy": lambda _: toy})
    results = tmp_path / "deep" / "results.json"
    monkeypatch.setattr(
        "benchmarks.__main__.take_turns",
        lambda contenders, **_: [Outcome(contenders[0], {}, {"seconds": [2.0]})],
    )
    assert main(["run", "toy", "--size", "quick", "--threads", "1", "--json", str(results)]) == 0
    result = load(results)["cases"]["toy"]
    assert result["command"] == "python -m benchmarks run toy --size quick --threads 1"
    assert result["contenders"][0]["measures"]["seconds"]["median"] == 2.0
    assert "toy" in capsys.readouterr().out
    monkeypatch.setattr(
        "benchmarks.__main__.take_turns", lambda *_, **__: [Outcome(OURS, error="broken")]
    )
    assert main(["run", "toy", "--json", str(tmp_path / "r.json")]) == 1
    with pytest.raises(SystemExit, match="found 'no-such'"):
        main(["run", "no-such"])


def test_a_ratio_pairs_the_rounds():
    def ratio(theirs, ours):
        result = judge(
            Target("ours", "peer", 3),
            [Outcome(OURS, {}, {"seconds": ours}), Outcome(PEER, {}, {"seconds": theirs})],
        )
        return result["value"], result["low"], result["high"]

    # A machine half as fast in the second round slows both sides: no round's ratio moves.
    assert ratio([10.0, 20.0, 10.0, 40.0], [1.0, 2.0, 1.0, 4.0]) == (10.0, 10.0, 10.0)
    assert ratio([4.0, 6.0, 9.0], [1.0, 2.0, 3.0]) == (3.0, 3.0, 3.5)
    assert ratio([10.0, 20.0, 60.0], [1.0, 2.0, 3.0]) == (10.0, 10.0, 15.0)


def test_steps_are_scaled_to_an_epoch():
    assert steps_to_time(1000, 100, 4) == (400, 2.5)
    assert steps_to_time(1000, 100, None) == (1000, 1.0)
    assert steps_to_time(1000, 100, 40) == (1000, 1.0)
