"""Tables of published results: they name real recipes, keep the printed figures, and make a page."""

import json

import pytest
from benchmarks.published.__main__ import main
from benchmarks.published.features import features_section
from benchmarks.published.page import page
from benchmarks.published.tables import Row, Table, read_tables
from benchmarks.results import load, merge


def test_every_row_is_a_recipe_of_one_task(subtests):
    for table in read_tables().values():
        with subtests.test(table=table):
            recipes = [row.load(table.protocol) for row in table.rows]
            assert (
                len(
                    {
                        (r.benchmark, r.protocol, r.schema.label.task, repr(r.split), r.rows_seed)
                        for r in recipes
                    }
                )
                == 1
            )
            names = [row.name for row in table.rows]
            assert {table.base or names[0], *table.draws} <= set(names)


def line(recipe, auc, against=None):
    spread = {"value": auc, "low": auc - 0.001, "high": auc + 0.002}
    return {
        "recipe": recipe,
        "seeds": [0, 1],
        "metrics": {"auc": spread},
        "by_seed": {"auc": [auc, auc]},
        "parameters": 1234,
        "epochs": 2.5,
        "seconds": 61.4,
        **({"against": {"auc": {"estimate": against}}} if against else {}),
    }


@pytest.fixture
def results():
    gain = {"value": 0.01, "low": 0.005, "high": 0.02, "p": 0.002}
    board = {
        "rows": 28860,
        "base": "a/one",
        "lines": [line("a/two", 0.97, gain), line("a/one", 0.96)],
    }
    where = {"date": ["2026-11-21"], "machine": ["a laptop, 2 cores"], "commit": ["abc1234"]}
    return {"format": 1, "tables": {"small": {"board": board, "environment": where}}}


@pytest.fixture
def table():
    rows = (
        Row(model="One", recipe="a/one", published={"auc": 0.9671}),
        Row(model="Two", recipe="a/two", published={"auc": 0.9697}),
        Row(model="Three", recipe="a/three", published={"auc": 0.99}),
    )
    return Table(
        name="small",
        title="A task",
        about="What\nit is.",
        metrics=("auc",),
        rows=rows,
        protocol="time",
    )


def test_the_page_sets_published_beside_ours(table, results):
    text = page({"small": table, "not run": table}, results)
    one, two = (row for row in text.splitlines() if row.startswith(("| One", "| Two")))
    assert one == "| One (`a/one`) | 0.9671 | 0.9600 [0.9590, 0.9620] |  |  | 1,234 | 2.5 | 61 |"
    shown = "**0.9700 [0.9690, 0.9720]** | +0.0100 [+0.0050, +0.0200] | 0.002"
    assert two == f"| Two (`a/two`) | 0.9697 | {shown} | 1,234 | 2.5 | 61 |"
    assert "| Three" not in text
    assert (
        "28,860 test rows, protocol `time`, 2 seeds; 2026-11-21, commit abc1234, a laptop, 2 cores"
        in text
    )
    assert "`python -m benchmarks.published run small --data-dir data`" in text
    assert text.count("## A task") == 1
    for result in results["tables"]["small"]["board"]["lines"]:
        result["commits"] = ["c0", "d"]
    rows = [
        row
        for row in page({"small": table}, results).splitlines()
        if row.startswith(("| model", "| One"))
    ]
    assert [row.split(" | ")[-1] for row in rows] == ["commit |", "c0, d |"]
    del result["commits"]
    assert "commit |" not in page({"small": table}, results)


def test_the_page_tells_the_spread_of_draws(table, results):
    values = [[0.96, 0.98], [0.97, 0.97], [0.99, 0.97]]  # means .97, .97, .98
    results["tables"]["small"]["draws"] = {"a/one": {"auc": values}}
    row = next(
        line
        for line in page({"small": table}, results).splitlines()
        if line.startswith("| `a/one`")
    )
    # Between draws: sqrt((2 (1/3)^2 + (2/3)^2) / 2) hundredths; by seeds: variances 2, 0 and 2 of
    # single runs, halved.
    between, seeds = 0.01 * ((2 / 9 + 4 / 9) / 2) ** 0.5, 0.01 * ((2 + 0 + 2) / 3 / 2) ** 0.5
    assert row == f"| `a/one` | AUC | 0.9700, 0.9700, 0.9800 | {between:.5f} | {seeds:.5f} |"


def test_results_merge_and_write(results, tmp_path):
    path, target = tmp_path / "results.json", tmp_path / "results.md"
    for name in ("frappe", "other"):
        merge(path, name, results["tables"]["small"], "tables")
    merge(path, "frappe", {**results["tables"]["small"], "board": {}}, "tables")
    assert set(load(path, "tables")["tables"]) == {"frappe", "other"}
    path.write_text(json.dumps({"format": 1, "tables": {}}))
    assert main(["write", "--json", str(path), "--page", str(target)]) == 0
    assert target.read_text().startswith("# Results\n")


def board(base: str, base_auc: float, other: str, other_auc: float) -> dict:
    """A leaderboard of two recipes, of which the second is compared with the first."""
    gain = {"value": other_auc - base_auc, "low": 0.01, "high": 0.03}
    lines = [
        {
            "recipe": name,
            "seeds": [0, 1],
            "metrics": {"auc": {"value": auc}, "logloss": {"value": 0.4}},
        }
        for name, auc in ((other, other_auc), (base, base_auc))
    ]
    lines[0]["against"] = {"auc": {"estimate": gain}}
    return {"base": base, "lines": lines}


def test_the_section_of_features_compares_a_model_with_itself_and_with_the_trees():
    found = {
        "features": {"proposed": ["a"], "wide": ["a", "b"]},
        "valid_auc": {"proposed": 0.7, "wide": 0.8},
        "chosen": "wide",
        "counts": {"train_rows": 6000, "valid_rows": 200, "test_rows": 100},
        "gain": board("fm/without", 0.7, "fm/wide", 0.72),
        "beside": board("lightgbm/wide", 0.71, "fm/wide", 0.72),
        "environment": {"date": ["2026-11-28"], "commit": ["c0"], "machine": ["one"]},
    }
    text = features_section({"ml-1m/fm": found})
    gain = "+0.0200 [+0.0100, +0.0300]"
    beside = "+0.0100 [+0.0100, +0.0300]"
    assert f"| FM | 0.7000 | 0.7200 | {gain} | 0.4000 | 0.4000 | {beside} | 2 |" in text
    assert "0.7000 of 1 columns and 0.8000 of 2 columns, so that the wide one is taken" in text
    assert "completejourney" not in text
    assert features_section({}) == ""
