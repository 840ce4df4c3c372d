"""What commands load: those that train nothing start without PyTorch. Times are not tested, they are the machine's."""

import json
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

HEAVY = "torch", "polars", "numpy", "sklearn", "pandas", "scipy"

PROBE = """
import json, sys
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from fieldwise.cli import run
found = []
for command, names in json.load(sys.stdin):
    with redirect_stdout(StringIO()), redirect_stderr(StringIO()) as said:
        code = run(command.split())
    found.append([code, [name for name in names if name in sys.modules], said.getvalue()])
print(json.dumps(found))
"""


def loaded(commands: Iterable[str], cwd: Path, names: tuple[str, ...] = HEAVY) -> list[tuple[int, list[str], str]]:
    """Commands one after the other in one fresh process: exit code, which packages are loaded by then, what is said."""
    asked = json.dumps([[command, names] for command in commands])
    process = [sys.executable, "-c", PROBE]
    done = subprocess.run(process, input=asked, capture_output=True, text=True, cwd=cwd, check=True)
    return json.loads(done.stdout)


def test_help_lists_and_errors_of_a_recipe_load_nothing_heavy(tmp_path, monkeypatch, subtests):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    (tmp_path / "broken.toml").write_text("[model")
    sentences = {
        **dict.fromkeys(["--help", "--version", "describe", "train --help", "prepare --help", "store --help"]),
        "prepare": None,
        "train simulated/afmm": "no recipe is named",
        "describe absent.toml": "a recipe file must exist",
        "tune simulated/afm --set protocol=none": "has no protocol",
        "train simulated/afm --set training.epoch=3": "did you mean 'training.epochs'?",
        "train simulated/afm --set trainin.epochs=3": "did you mean 'training.epochs'?",
        "train simulated/afm --set training.epochs=0": "epochs must be at least 1",
        "compare simulated/fm simulated/afm --set seed=-1": "seed must lie between",
        "compare simulated/fm simulated/afmm": "no recipe is named",
        "describe broken.toml": "must be valid TOML",
    }
    outcomes = loaded(sentences, tmp_path)
    for (command, sentence), (code, result, said) in zip(sentences.items(), outcomes, strict=True):
        with subtests.test(command=command):
            assert (code, result) == (0 if sentence is None else 2, [])
            assert sentence is None or sentence in said


def test_commands_on_tables_load_no_pytorch(tmp_path, subtests):
    (tmp_path / "t.csv").write_text("user,item,click\n" + "".join(f"u{i % 3},i{i % 5},{i % 2}\n" for i in range(40)))
    codes = {
        "fetch": 0,
        "fetch absent": 2,
        "simulate --rows 20 --out log.csv": 0,
        "init t.csv --out -": 0,
        "init t.csv": 0,
    }
    outcomes = loaded(codes, tmp_path, names=("torch", "sklearn"))
    for (command, code), outcome in zip(codes.items(), outcomes, strict=True):
        with subtests.test(command=command):
            assert outcome[:2] == [code, []], outcome


def test_what_needs_pytorch_loads_little_more():
    steps = [
        ("import fieldwise; fieldwise.AFM", ("torch._dynamo", "polars", "sklearn", "scipy")),
        ("fieldwise.train_recipe", ("torch._dynamo", "sklearn", "scipy.stats")),
        ("import fieldwise.scoring.ranker", ("torch._dynamo", "sklearn", "scipy.stats")),
    ]
    checks = (f"{code}; print({code!r}, [name for name in {names} if name in sys.modules])" for code, names in steps)
    program = "\n".join(("import sys", *checks))
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == [f"{code} []" for code, _ in steps]
