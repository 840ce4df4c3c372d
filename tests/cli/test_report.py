"""`fieldwise report`: the page of one run and of several, and what is refused."""

import dataclasses
import json
import re
import shutil

import polars as pl
import pytest
from cli.test_bad_input import refused

from fieldwise import Bundle
from fieldwise.bundle.about import About
from fieldwise.runs.records import Store

SECTIONS = [
    "In plain words", "Compared with the popularity baseline", "Metrics", "Training", "ROC and precision-recall",
    "Calibration", "Slices", "Cold start", "Explanation", "Data", "Is the score real?", "Recipe and machine",
]  # fmt: skip


def sections(text):
    return re.findall(r'<h2 id="c\d+s\d+">(.*?)</h2>', text)


def trained(fieldwise, recipe, folder, model=None, *more):
    if model:
        recipe.write_text(recipe.read_text().replace('name = "fm"\nembedding_dim = 4', model))
    assert fieldwise("train", recipe, "--out", folder, "--quiet", "--json", *more)[0] == 0


def test_a_page_of_one_run(fieldwise, bundle, tmp_path):
    ask = "report", bundle, "--slice", "user", "--slice", "tags", "--slice", "price"
    code, out, err = fieldwise(*ask, "--out", "r.html")
    assert (code, out) == (0, "")
    assert "report written to r.html (" in err
    text = (tmp_path / "r.html").read_text()
    assert sections(text) == SECTIONS
    auc = Bundle.load(bundle).about.run["test"]["auc"]
    assert f"<dt>AUC</dt><dd>{auc:.4f}<small>" in text
    for words in (
        "By user",
        "By tags",
        "By price",
        "Users (user) by their training rows",
        "(saved in this bundle)",
    ):
        assert (words in text) == (words != "(saved in this bundle)")
    assert "user × item" in text
    environment = Bundle.load(bundle).about.environment
    for fact in ("machine", "commit"):
        assert f'<span>{fact}</span></th><td class="w">{environment[fact]}</td>' in text
    assert re.search(
        r"Calibrations are fitted on the 80 validation rows and evaluated on the 80 test rows", text
    )
    assert fieldwise(*ask, "--out", "again.html", "--quiet")[1:] == ("", "")
    assert (tmp_path / "again.html").read_bytes() == (tmp_path / "r.html").read_bytes()


def test_the_calibration_that_a_bundle_keeps_is_marked(fieldwise, bundle, tmp_path):
    shutil.copytree(bundle, "own")
    assert fieldwise("evaluate", "own", "--calibrate", "isotonic")[0] == 0
    assert fieldwise("report", "own", "--out", "r.html", "--quiet")[0] == 0
    text = (tmp_path / "r.html").read_text()
    assert "isotonic (saved in this bundle)" in text
    assert "use the isotonic calibration of the bundle" in text
    _, out, _ = fieldwise("evaluate", "own", "--json")
    metrics = json.loads(out)["metrics"]
    for word, name in (("AUC", "auc"), ("logloss", "logloss")):
        assert f"<dt>{word}</dt><dd>{metrics[name]:.4f}<small>" in text, "as evaluate has it"
    before = Bundle.load(bundle).about.run["test"]["logloss"]
    assert f"<span>as trained</span></th><td>{before:.4f}<small>" in text


def test_runs_are_compared(fieldwise, bundle, recipe, tmp_path):
    for name in ("fm", "again"):
        shutil.copytree(bundle, name)
    trained(fieldwise, recipe, "int", 'name = "autoint"\nlayers = 1\nheads = 2')
    assert fieldwise("report", "fm", "again", "int", "--out", "r.html", "--quiet")[0] == 0
    text = (tmp_path / "r.html").read_text()
    assert sections(text)[:2] == ["Comparison", "ROC and precision-recall"]
    assert len(sections(text)) == 2 + 3 * len(SECTIONS)
    table = text.split("Comparison</h2>")[1].split("</table>")[0]
    assert "baseline" in table
    assert table.count("<small>+0.0000 to +0.0000</small>") == 1, (
        "the same run twice differs in nothing"
    )
    assert "In all heads attention is uniform" in text
    for name in ("fm", "again", "int"):
        assert f"mine ({name})" in text


def test_runs_of_other_rows_stand_in_tables_of_their_own(fieldwise, bundle, recipe, tmp_path):
    trained(fieldwise, recipe, "two", None, "--set", "seed=1")
    assert fieldwise("report", bundle, "two", "--out", "r.html", "--quiet")[0] == 0
    assert (
        sum(
            title.startswith("Comparison: ")
            for title in sections((tmp_path / "r.html").read_text())
        )
        == 2
    )


def test_kept_runs_of_a_comparison(fieldwise, recipe, tmp_path):
    assert fieldwise("compare", recipe, "--seeds", 2, "--store", "kept", "--quiet")[0] == 0
    folders = [p for p in (tmp_path / "kept").iterdir() if p.is_dir()]
    assert fieldwise("report", *folders, "--out", "r.html", "--quiet", "--slice", "item")[0] == 0
    text = (tmp_path / "r.html").read_text()
    assert "has no network to explain" in text
    assert "need scores of validation rows" in text
    assert "Loss" in text, "kept runs have their learning curves"
    log = tmp_path / "log.csv"
    pl.read_csv(log).with_columns(click=1 - pl.col("click")).write_csv(log)
    refused(fieldwise("report", folders[0], "--out", "x.html"), "the data of", "have changed since")
    for file in folders[0].glob("*.npz"):
        file.write_bytes(b"x")
    refused(fieldwise("report", folders[0], "--out", "x.html"), "checksum")
    (folders[1] / "record.json").write_text("{")
    refused(fieldwise("report", folders[1], "--out", "x.html"), "cannot be read")
    assert not (tmp_path / "x.html").exists()
    assert Store(tmp_path / "kept").get("none") is None


def test_towers_show_their_own_parts(fieldwise, recipe, tmp_path):
    settings = "hidden = [4]\nuser_heads = 2\nitem_heads = 2\nhead_dim = 2\ncir_weight = 0.0"
    trained(fieldwise, recipe, "b", f'name = "inttower"\n{settings}')
    assert fieldwise("report", "b", "--out", "r.html", "--quiet", "--rows", 20)[0] == 0
    page = (tmp_path / "r.html").read_text()
    for words in (
        "Matches by item head",
        "Gates: each field",
        "20 of 80 test rows, sampled with seed 0",
    ):
        assert words in page


def test_numbers_and_several_labels(fieldwise, recipe, log, tmp_path):
    log.with_columns(minutes=pl.col("price") * 3 + pl.col("click")).write_csv(tmp_path / "log.csv")
    label = 'label = { column = "click" }'
    text = recipe.read_text()
    recipe.write_text(text.replace(label, 'label = { column = "minutes", task = "regression" }'))
    trained(fieldwise, recipe, "number")
    assert fieldwise("report", "number", "--out", "r.html", "--quiet", "--slice", "item")[0] == 0
    page = (tmp_path / "r.html").read_text()
    assert "ROC and precision-recall" not in sections(page)
    assert "Omitted for a regression label" in page
    recipe.write_text(
        text.replace(label, label + '\nmore_labels = [{ column = "minutes", task = "regression" }]')
    )
    trained(fieldwise, recipe, "both")
    assert fieldwise("report", "both", "number", "--out", "more.html", "--quiet")[0] == 0
    titles = sections((tmp_path / "more.html").read_text())
    for title in (
        "Metrics: click",
        "Calibration: click",
        "Metrics: minutes",
        "Slices: minutes",
        "Explanation: minutes",
    ):
        assert title in titles
    assert "ROC and precision-recall: minutes" not in titles


def test_an_older_bundle_has_a_report_too(fieldwise, bundle, tmp_path):
    """Bundles of former versions keep no machine and no digest of their rows."""
    kept = Bundle.load(bundle)
    run = {k: v for k, v in kept.about.run.items() if not k.endswith("_digest")}
    about = dataclasses.replace(kept.about, environment=None, history=None, run=run)
    dataclasses.replace(kept, about=about).save(tmp_path / "old")
    assert fieldwise("report", "old", "--out", "r.html", "--quiet")[0] == 0
    text = (tmp_path / "r.html").read_text()
    assert "not recorded: trained by an older version" in text
    assert "Not checked: whether these are the test rows" in text
    assert "run it again to record them" in text


def test_what_is_refused(fieldwise, bundle, recipe, log, tmp_path):
    report = "report", bundle, "--out"
    refused(fieldwise("report", "nothing"), "nothing is not a bundle")
    refused(fieldwise("report", bundle, f"{bundle}/../b"), "twice: give each once")
    refused(
        fieldwise(*report, "r.html", "--slice", "prize"),
        "fieldwise: --slice must be a field or a column of the rows, found 'prize': did you mean 'price'",
    )
    refused(fieldwise(*report, tmp_path), "is a folder: give")
    (tmp_path / "file").write_text("x")
    refused(fieldwise(*report, tmp_path / "file" / "r.html"), "choose a writable folder")
    dataclasses.replace(Bundle.load(bundle), about=About()).save(tmp_path / "bare")
    refused(
        fieldwise("report", "bare"), "was not made by a recipe", "a bundle of `fieldwise train`"
    )
    shutil.copytree(bundle, "damaged")
    next((tmp_path / "damaged").glob("weights.*")).write_bytes(b"x")
    refused(fieldwise("report", "damaged"), "damaged is damaged: weights.")
    trained(fieldwise, recipe, "own")
    log.with_columns(price=pl.col("price") + 1).write_csv(tmp_path / "log.csv")
    refused(fieldwise("report", "own"), "have changed since", "run the report with the data")
    (tmp_path / "log.csv").unlink()
    refused(
        fieldwise("report", "own"), "the rows of the run own cannot be prepared again", "log.csv"
    )
    assert not list(tmp_path.glob("*.html"))


@pytest.fixture(autouse=True)
def _short(monkeypatch):
    """Intervals of fewer draws: these tests look at words."""
    monkeypatch.setattr("fieldwise.runs.leaderboard.REPLICATES", (50, 50))
