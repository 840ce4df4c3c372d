"""What the benchmark's table shows of a run's record."""

import json
import sys
from pathlib import Path

import pytest

RECORD = {"recipe": "simulated/fm", "test": {"auc": 0.75}, "parameters": 1234, "seconds_per_epoch": 1.26, "epochs": 3}


@pytest.mark.parametrize(("seconds", "shown"), [(1.26, "1.3"), (None, "-")])
def test_a_record_becomes_a_row(tmp_path, monkeypatch, capsys, seconds, shown):
    monkeypatch.syspath_prepend(str(Path(__file__).parents[1]))
    from benchmarks.table import main

    (tmp_path / "run.json").write_text(json.dumps({**RECORD, "seconds_per_epoch": seconds}))
    monkeypatch.setattr(sys, "argv", ["table", str(tmp_path / "run.json")])
    main()
    assert capsys.readouterr().out.splitlines()[-1] == f"| `simulated/fm` | 0.7500 | 1,234 | {shown} | 3 |"
