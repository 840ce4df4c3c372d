"""`auto` against `tune`: who sees which rows, and what is kept."""

from types import SimpleNamespace

import numpy as np
import polars as pl
import pytest
from benchmarks.defaults import versus
from benchmarks.defaults.tables import TABLES, Corrections, DevTable
from doc_runner import one_epoch

from fieldwise import Label
from fieldwise.evaluation import sigmoid


def read(_, seed):
    rng = np.random.default_rng(seed)
    user = rng.integers(0, 20, 400)
    y = rng.random(400) < sigmoid(user / 5 - 2.0)
    return pl.DataFrame({"user_id": user, "row": np.arange(400), "label": y.astype(int)})


@pytest.mark.parametrize(("scale", "words"), [(1.0, "no worse"), (-1.0, "worse")])
def test_both_are_measured_on_rows_that_neither_has_seen(tmp_path, monkeypatch, capsys, scale, words):
    corrections = Corrections(label=Label("label"), leave_out=("row",), keys=("row",))
    monkeypatch.setitem(TABLES, "toy", DevTable(name="toy", about="", read=read, corrections=corrections))
    seen, asked = [], []

    def score(frame):
        asked.append(set(frame["row"]))
        return scale * (frame["user_id"].to_numpy() / 5 - 2.0)  # the true score, or its opposite

    def run_auto(frame, settings, note):
        assert (settings.schema.label.column, settings.minutes) == ("label", 3.0)
        seen.append(set(frame.filter(pl.col(settings.split.column) != "test")["row"]))
        best = SimpleNamespace(score=score, calibrated=lambda logit: logit)
        return SimpleNamespace(best=best, to_plain=lambda: {"chosen": "AFM"})

    monkeypatch.setattr(versus, "run_auto", run_auto)
    command = [
        "--tables",
        "toy",
        "--models",
        "lr,inttower",
        "--trials",
        "2",
        "--minutes",
        "3",
        "--store",
        str(tmp_path),
    ]
    with one_epoch():
        assert versus.main([*command, "--threads", "1", "--data-dir", str(tmp_path)]) == 0
    first = capsys.readouterr().out
    assert first.splitlines()[0].endswith(f": {words}")
    assert first.splitlines()[1] == f"no worse on {int(words == 'no worse')} of 1 tables"
    assert (len(seen[0]), len(asked[0]), len(seen[0] & asked[0])) == (320, 80, 0)
    table = pl.read_parquet(tmp_path / "versus" / "toy" / "table.parquet")
    assert set(table.filter(pl.col(versus.PART) == "test")["row"]) == asked[0]
    assert versus.main([*command, "--threads", "1", "--data-dir", str(tmp_path)]) == 0  # kept
    assert capsys.readouterr().out == first
    assert len(seen) == 1
