"""Test an installed fieldwise in the environment whose Python runs this script.

Usage: python scripts/smoke_test.py

It needs no extra and no clone. A model trains, is saved and loaded, scores the same rows alike in
Python and on the command line, and `doctor` and `recipes` answer. What fails ends the script with
an error.
"""

import subprocess
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path

import numpy as np

import fieldwise
from fieldwise import (
    FM,
    Bundle,
    Categorical,
    Label,
    Recommender,
    Schema,
    TrainingSettings,
    simulate,
)


def command(*words: str) -> str:
    """What a command of fieldwise prints."""
    done = subprocess.run(
        [sys.executable, "-m", "fieldwise", *words], capture_output=True, text=True, check=True
    )
    return done.stdout


def main() -> None:
    """Run all checks."""
    installed = Path(fieldwise.__file__).resolve()
    if (
        Path(__file__).resolve().parents[1] in installed.parents
        and "site-packages" not in installed.parts
    ):
        raise SystemExit(f"the installed package must be tested, not a clone: {installed}")
    assert version("fieldwise") == fieldwise.__version__
    log = simulate(2000, users=40, items=30)
    fields = (Categorical("user_id"), Categorical("item_id"), Categorical("device"))
    schema = Schema(fields=fields, label=Label("liked"))
    model = Recommender(
        schema, FM(embedding_dim=4), training=TrainingSettings(epochs=2), seed=0
    ).fit(log[:1600])
    with tempfile.TemporaryDirectory() as folder:
        model.save(Path(folder) / "bundle")
        log[1600:].drop("liked").write_csv(Path(folder) / "rows.csv")
        again = Bundle.load(Path(folder) / "bundle").predict(log[1600:])
        np.testing.assert_array_equal(np.asarray(again), model.predict_proba(log[1600:])[:, 1])
        scores = str(Path(folder) / "scores.csv")
        command(
            "predict",
            str(Path(folder) / "bundle"),
            "--data",
            str(Path(folder) / "rows.csv"),
            "--out",
            scores,
        )
        lines = Path(scores).read_text("utf-8").splitlines()
        assert len(lines) == 401, f"400 scores were expected, found {len(lines) - 1}"
    assert "simulated/autoint" in command("describe")
    print(command("doctor"))
    print(f"fieldwise {fieldwise.__version__} at {installed.parent}: works")


if __name__ == "__main__":
    main()
