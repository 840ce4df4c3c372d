"""Merging of results, targets, and the page that is written from them."""

import importlib.util
import json

import pytest
from benchmarks.__main__ import main
from benchmarks.case import MACHINE, Case, Contender, Plot, Settings, Target
from benchmarks.page import number, page
from benchmarks.results import judge, load, merge, record
from benchmarks.turns import Outcome

OURS, PEER, PROBE = (Contender(name=n, make="toy:counting") for n in ("ours", "peer", MACHINE))
CASE = Case(
    title="A thing",
    about="How it is done.",
    contenders=(OURS, PEER),
    measures=("seconds", "GFLOP/s"),
    targets=(
        Target.faster("ours", "peer", 3),
        Target(what="share", top=("ours", "GFLOP/s"), bottom=(MACHINE, "rate"), goal=0.5, unit="share"),
        Target.faster("ours", "nobody", 2),
    ),
)
OUTCOMES = [
    Outcome(OURS, {"rows": 1200}, {"seconds": [1.0, 2.0, 1.5], "GFLOP/s": [30.0, 40.0, 50.0]}),
    Outcome(PEER, {}, {"seconds": [4.0, 9.0, 5.0]}),
    Outcome(PROBE, {"torch": "2"}, {"rate": [100.0, 100.0, 100.0], "seconds": [1.0, 1.0, 1.0]}),
]


def recorded(tmp_path, case=CASE, outcomes=OUTCOMES):
    return record(case, Settings(folder=tmp_path), outcomes, repeats=3, command="python -m benchmarks run thing")


def test_targets_are_ratios_of_medians(tmp_path):
    faster, share = recorded(tmp_path)["targets"]  # the third had nothing to be measured against
    assert (faster["value"], faster["goal"], faster["met"]) == (5.0 / 1.5, 3, True)
    assert (faster["low"], faster["high"]) == (pytest.approx((10 / 3 + 4) / 2), pytest.approx(4.25))
    assert (share["value"], share["met"]) == (0.4, False)


def test_a_target_of_a_failed_contender_is_not_judged():
    failed = [OUTCOMES[0], Outcome(PEER, error="broken"), OUTCOMES[2]]
    assert judge(CASE.targets[0], failed) is None


def test_cases_merge_one_by_one(tmp_path):
    path = tmp_path / "results.json"
    merge(path, "first", {"date": "old"})
    merge(path, "second", {"date": "kept"})
    merge(path, "first", {"date": "new"})
    assert load(path)["cases"] == {"first": {"date": "new"}, "second": {"date": "kept"}}
    path.write_text(json.dumps({"format": 99, "cases": {}}))
    with pytest.raises(SystemExit, match="format 99"):
        load(path)


def test_the_page_holds_what_was_measured(tmp_path):
    outcomes = [*OUTCOMES[:2], Outcome(Contender(name="gone", make="x:y"), absent="not here | nowhere"), OUTCOMES[2]]
    found = page({"format": 1, "cases": {"thing": recorded(tmp_path, outcomes=outcomes)}})
    lines = found.splitlines()
    assert "| [thing](#thing) | ours against peer | 3 × | 3.33 × (3.67–4.25) | yes |" in lines
    assert "| [thing](#thing) | share | 50 % | 40 % (35–45) | no |" in lines
    assert "| ours | 1.5 (1.25–1.75) | 40 (35–45) | 1 | rows 1,200 |" in lines
    assert "| peer | 5 (4.5–7) |  | 3.33 |  |" in lines
    assert "| gone |  |  |  | not measured: not here / nowhere |" in lines
    provenance = lines[-1]
    for part in ("3 rounds", "2 threads", "size full", "`python -m benchmarks run thing`", "rate 100 (100–100)"):
        assert part in provenance
    assert str(tmp_path) not in found


def test_aucs_have_four_digits(tmp_path):
    target = Target(what="AUC", top=("ours", "auc"), bottom=("peer", "auc"), goal=1.0, unit="exact")
    case = Case(title="A", about="B.", contenders=(OURS, PEER), measures=("auc",), targets=(target,))
    outcomes = [Outcome(OURS, {}, {"auc": [0.97712]}), Outcome(PEER, {}, {"auc": [0.97723]})]
    lines = page({"format": 1, "cases": {"thing": recorded(tmp_path, case, outcomes)}}).splitlines()
    assert "| [thing](#thing) | AUC | 1.0000 | 0.9999 (0.9999–0.9999) | no |" in lines
    assert "| ours | 0.9771 (0.9771–0.9771) | 1 |  |" in lines


def test_numbers_have_three_digits():
    shown = [number(v) for v in (0, 0.0001234, 0.5, 1.0, 9.999, 99.96, 123.4, 2e6, 3e-7)]
    assert shown == ["0", "0.000123", "0.5", "1", "10", "100", "123", "2,000,000", "3.00e-07"]


def plotted(tmp_path):
    points = {"4": [1.0, 2.0], "16": [2.0, 3.0], "seconds": [5.0, 5.0]}
    case = Case(title="Cost", about="How.", contenders=(OURS,), plot=Plot(x="fields"))
    return recorded(tmp_path, case, [Outcome(OURS, {}, points)])


def test_plotted_cases_show_points_in_order(tmp_path):
    found = page({"format": 1, "cases": {"sizes-x": plotted(tmp_path)}})
    assert "![Cost](images/performance-sizes-x.svg)" in found
    assert "| contender | 4 | 16 | facts |" in found


def test_write_makes_the_page_and_its_plots(tmp_path, monkeypatch):
    monkeypatch.setattr("benchmarks.__main__.EVERY", {"sizes-x": None, "unmeasured": None})
    results, target = tmp_path / "results.json", tmp_path / "docs" / "performance.md"
    merge(results, "sizes-x", plotted(tmp_path))
    arguments = ["write", "--json", str(results), "--page", str(target)]
    if importlib.util.find_spec("matplotlib") is None:
        with pytest.raises(SystemExit, match="fieldwise\\[plots\\]"):
            main(arguments)
        return
    assert main(arguments) == 0
    assert target.read_text().startswith("# Performance")
    image = target.parent / "images" / "performance-sizes-x.svg"
    assert image.read_text().startswith("<?xml")
    assert image.stat().st_size < 60_000


def test_run_measures_merges_and_names_its_command(tmp_path, monkeypatch, capsys):
    toy = Case(
        title="Toy", about="Counts.", contenders=(Contender(name="toy", make="toy:counting", options={"start": 5}),)
    )
    monkeypatch.setattr("benchmarks.__main__.EVERY", {"toy": lambda _: toy})
    results = tmp_path / "deep" / "results.json"
    monkeypatch.setattr(
        "benchmarks.__main__.take_turns", lambda contenders, **_: [Outcome(contenders[0], {}, {"seconds": [2.0]})]
    )
    assert main(["run", "toy", "--size", "quick", "--threads", "1", "--json", str(results)]) == 0
    found = load(results)["cases"]["toy"]
    assert found["command"] == "python -m benchmarks run toy --size quick --threads 1"
    assert found["contenders"][0]["measures"]["seconds"]["median"] == 2.0
    assert "toy" in capsys.readouterr().out


def test_unknown_cases_are_named():
    with pytest.raises(SystemExit, match="found 'no-such'"):
        main(["run", "no-such"])


def test_a_failed_contender_fails_the_command(tmp_path, monkeypatch):
    toy = Case(title="Toy", about="", contenders=(OURS,))
    monkeypatch.setattr("benchmarks.__main__.EVERY", {"toy": lambda _: toy})
    monkeypatch.setattr("benchmarks.__main__.take_turns", lambda *_, **__: [Outcome(OURS, error="broken")])
    assert main(["run", "toy", "--json", str(tmp_path / "r.json")]) == 1
